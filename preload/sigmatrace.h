/*
 * Marks and phases for programs that are run under sigmatrace. Copy this file into your program; it needs no library: outside
 * sigmatrace every call is one test of a pointer.
 *
 *     sigmatrace_mark("training");          what is counted from here on belongs to the epoch "training": cut the rest out of the matrix with
 *                                           sigmatrace export --format matrix --epoch training RUN
 *     sigmatrace_phase_begin("all-reduce"); phases nest, within one thread; they are slices beside the communication
 *     sigmatrace_phase_end();
 *
 * A mark of a name that was used before goes on with its epoch. Names are UTF-8; the first 200 bytes are kept. Build the program as
 * position-independent (-fPIE or -fPIC, the usual default).
 */
#ifndef SIGMATRACE_H
#define SIGMATRACE_H

#ifdef __cplusplus
extern "C" {
#endif

extern void sigmatrace_mark_v1(const char *name) __attribute__((weak));
extern void sigmatrace_phase_begin_v1(const char *name) __attribute__((weak));
extern void sigmatrace_phase_end_v1(void) __attribute__((weak));

static inline void sigmatrace_mark(const char *name)
{
    if (sigmatrace_mark_v1)
        sigmatrace_mark_v1(name);
}
static inline void sigmatrace_phase_begin(const char *name)
{
    if (sigmatrace_phase_begin_v1)
        sigmatrace_phase_begin_v1(name);
}
static inline void sigmatrace_phase_end(void)
{
    if (sigmatrace_phase_end_v1)
        sigmatrace_phase_end_v1();
}

#ifdef __cplusplus
}
#endif

#endif
