// A graph that is the same in every process, and its breadth-first search on the processor. Nothing of CUDA in it.
#pragma once

#include <cstdint>
#include <vector>

// Undirected, as rows of neighbours.
struct graph {
	uint32_t vertices;
	std::vector<uint64_t> first; // of each vertex in neighbours; one more than vertices
	std::vector<uint32_t> neighbours;
};

// R-MAT with the parameters of Graph500 (a, b, c = 0.57, 0.19, 0.19), 2^scale vertices and `degree` edges for each of them.
static graph rmat(unsigned scale, unsigned degree)
{
	const uint32_t n = 1u << scale;
	const uint64_t edges = (uint64_t)n * degree;
	std::vector<uint32_t> from(edges), to(edges);
	uint64_t state = 0x9e3779b97f4a7c15;
	const auto random = [&state] { // xorshift64*, 32 bits of it
		state ^= state >> 12;
		state ^= state << 25;
		state ^= state >> 27;
		return (uint32_t)((state * 0x2545f4914f6cdd1d) >> 32);
	};
	graph g{n, std::vector<uint64_t>(n + 1), {}};

	for (uint64_t e = 0; e < edges; e++) {
		uint32_t u = 0, v = 0;

		for (unsigned bit = 0; bit < scale; bit++) {
			const uint32_t r = random();
			const bool lower = r >= 3264175144u; // 0.76 of 2^32: in c or d
			const bool right = lower ? r >= 4080218931u : r >= 2448131359u; // 0.95, 0.57

			u = u << 1 | lower;
			v = v << 1 | right;
		}
		from[e] = u;
		to[e] = v;
		g.first[u + 1]++;
		g.first[v + 1]++;
	}
	for (uint32_t v = 0; v < n; v++)
		g.first[v + 1] += g.first[v];
	std::vector<uint64_t> next(g.first.begin(), g.first.end() - 1);
	g.neighbours.resize(2 * edges);
	for (uint64_t e = 0; e < edges; e++) {
		g.neighbours[next[from[e]]++] = to[e];
		g.neighbours[next[to[e]]++] = from[e];
	}
	return g;
}

// The n-th vertex that has neighbours, counted round and from the middle.
static uint32_t root(const graph &g, unsigned n)
{
	uint32_t v = g.vertices / 2;

	for (unsigned found = 0;; v = (v + 1) % g.vertices)
		if (g.first[v + 1] > g.first[v] && found++ == n)
			return v;
}

// Distances from a vertex; -1: not reached.
static std::vector<int> search(const graph &g, uint32_t from)
{
	std::vector<int> distance(g.vertices, -1);
	std::vector<uint32_t> frontier{from};

	distance[from] = 0;
	for (int level = 1; !frontier.empty(); level++) {
		std::vector<uint32_t> next;

		for (uint32_t u : frontier)
			for (uint64_t e = g.first[u]; e < g.first[u + 1]; e++)
				if (distance[g.neighbours[e]] < 0) {
					distance[g.neighbours[e]] = level;
					next.push_back(g.neighbours[e]);
				}
		frontier.swap(next);
	}
	return distance;
}

// The rows of the vertices v with v % parts == part, one after the other.
static graph share_of(const graph &g, unsigned part, unsigned parts)
{
	graph s{(g.vertices - part + parts - 1) / parts, {0}, {}};

	for (uint32_t v = part; v < g.vertices; v += parts) {
		s.neighbours.insert(s.neighbours.end(), g.neighbours.begin() + g.first[v], g.neighbours.begin() + g.first[v + 1]);
		s.first.push_back(s.neighbours.size());
	}
	return s;
}
