// Checks graph.h: prints ok.
#include "graph.h"

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                   \
	do {                                                               \
		if (!(condition)) {                                        \
			printf("line %d: %s\n", __LINE__, #condition);     \
			exit(1);                                           \
		}                                                          \
	} while (0)

int main()
{
	const unsigned scale = 12, degree = 16, parts = 3;
	const graph g = rmat(scale, degree);
	const uint64_t both = 2ull * degree << scale;

	CHECK(g.vertices == 1u << scale && g.first.size() == g.vertices + 1 && g.first.back() == both && g.neighbours.size() == both);
	// of all ends 0.57 + 0.19 are in the lower half of the numbers, by row and by column alike
	double low = 0;
	for (uint32_t v : g.neighbours)
		low += v < g.vertices / 2;
	CHECK(low / both > 0.75 && low / both < 0.77);
	// both ends of an edge: 0.57 in the lower quarter of the matrix, 0.05 in the upper
	double quarters[2] = {0, 0};
	for (uint32_t u = 0; u < g.vertices; u++)
		for (uint64_t e = g.first[u]; e < g.first[u + 1]; e++)
			if ((u < g.vertices / 2) == (g.neighbours[e] < g.vertices / 2))
				quarters[u >= g.vertices / 2]++;
	CHECK(quarters[0] / both > 0.56 && quarters[0] / both < 0.58 && quarters[1] / both > 0.04 && quarters[1] / both < 0.06);

	std::vector<graph> shares;
	uint64_t n = 0, vertices = 0;
	for (unsigned p = 0; p < parts; p++) {
		shares.push_back(share_of(g, p, parts));
		n += shares[p].neighbours.size();
		vertices += shares[p].vertices;
		CHECK(shares[p].first.size() == shares[p].vertices + 1);
	}
	CHECK(n == both && vertices == g.vertices);
	for (uint32_t v = 0; v < g.vertices; v++) {
		const graph &s = shares[v % parts];

		CHECK(s.first[v / parts + 1] - s.first[v / parts] == g.first[v + 1] - g.first[v]);
		for (uint64_t e = g.first[v], k = s.first[v / parts]; e < g.first[v + 1]; e++, k++)
			CHECK(s.neighbours[k] == g.neighbours[e]);
	}

	const uint32_t from = root(g, 1);
	CHECK(from != root(g, 0) && g.first[from + 1] > g.first[from]);
	const std::vector<int> d = search(g, from);
	uint32_t reached = 0;
	CHECK(d[from] == 0);
	for (uint32_t u = 0; u < g.vertices; u++) {
		bool nearer = u == from || d[u] < 0;

		reached += d[u] >= 0;
		for (uint64_t e = g.first[u]; e < g.first[u + 1]; e++) {
			const int other = d[g.neighbours[e]];

			CHECK((d[u] < 0) == (other < 0) && abs(d[u] - other) <= 1);
			nearer |= other == d[u] - 1;
		}
		CHECK(nearer && (d[u] != 0 || u == from));
	}
	CHECK(reached > g.vertices / 2);
	printf("ok\n");
	return 0;
}
