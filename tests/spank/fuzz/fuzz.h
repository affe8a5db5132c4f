/* What the fuzz targets share. A target is one file with fuzz(), linked with the whole of the plugin, slurm.c in the place of Slurm, and what it wraps
 * (-Wl,--wrap) in the place of programs that the plugin would run. Its input is text: a field a line. */
#ifndef SIGMATRACE_TESTS_SPANK_FUZZ_H
#define SIGMATRACE_TESTS_SPANK_FUZZ_H

#define _GNU_SOURCE
#include "internal.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUST(x) \
    do { \
        if (!(x)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); \
            abort(); \
        } \
    } while (0)

struct fields {
    const char *at, *end;
};

/* The next field in memory of its own size, so that a read behind its end is seen; empty behind the last. The caller frees it. */
char *field(struct fields *f);
/* All that is left, likewise, and its bytes. */
char *rest(struct fields *f, size_t *n);

void fuzz(struct fields *f);

/* slurm.c: the environment of the job, and what Slurm tells of it. */
void slurm_forget(void);
void slurm_environment(const char *name, const char *value);
const char *slurm_value(const char *name);
extern struct slurm_says {
    uint32_t job, step, task, status;
    spank_context_t context;
    struct spank_option *options[8];
    int count;
} slurm_says;

#endif
