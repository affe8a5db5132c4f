/* What a client says of itself: how many requests of each kind were accepted, and their bytes. Printed as one JSON line
 * {"pid":1,"ops":{"put":{"count":2,"bytes":16}}} on standard output; the value of "ops" alone goes to $SENT_OUT.<pid>. */
#ifndef SIGMATRACE_TESTS_TALLY_H
#define SIGMATRACE_TESTS_TALLY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct tally {
	const char *name;
	uint64_t count, bytes, header_bytes;
};

static inline void tally_print(FILE *f, const struct tally *t, int n)
{
	const char *sep = "{";
	for (int i = 0; i < n; i++) {
		if (!t[i].count)
			continue;
		fprintf(f, "%s\"%s\":{\"count\":%lu,\"bytes\":%lu", sep, t[i].name, t[i].count, t[i].bytes);
		if (t[i].header_bytes)
			fprintf(f, ",\"header_bytes\":%lu", t[i].header_bytes);
		fputs("}", f);
		sep = ",";
	}
	fputs(*sep == '{' ? "{}" : "}", f);
}

static inline void tally_report(const struct tally *t, int n)
{
	printf("{\"pid\":%d,\"ops\":", getpid());
	tally_print(stdout, t, n);
	puts("}");
	fflush(stdout);
	const char *base = getenv("SENT_OUT");
	if (!base)
		return;
	char path[4096];
	snprintf(path, sizeof path, "%s.%d", base, getpid());
	FILE *f = fopen(path, "w");
	if (!f) {
		perror(path);
		exit(1);
	}
	tally_print(f, t, n);
	fputc('\n', f);
	if (fclose(f)) {
		perror(path);
		exit(1);
	}
}

#define CHECK(cond) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #cond); \
			exit(1); \
		} \
	} while (0)

#endif
