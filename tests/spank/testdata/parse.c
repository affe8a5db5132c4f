/* The plugin's readers of what comes from outside, fed with what is right, what is nearly right, and noise: nothing may be read or written
 * out of bounds, which the sanitizers see, and what is taken must be what the contract allows. */
#define _GNU_SOURCE
#include "internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252ull;

static uint32_t any(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 16) % below);
}

/* A copy in memory of its own size, so that a read behind its end is seen. */
static char *alone(const char *s)
{
    char *p = strdup(s);
    assert(p);
    return p;
}

static char *noise(const char *const *seeds, size_t count)
{
    static const char odd[] = ";:,=@/%.\x01\x7f\xff 019azAZ";
    size_t n = strlen(seeds[any((uint32_t)count)]), size = n + any(3) * any(9000) + 2;
    char *s = malloc(size);
    assert(s);
    snprintf(s, size, "%s", seeds[any((uint32_t)count)]);
    for (uint32_t k = any(6); k > 0; k--) {
        size_t at = strlen(s);
        switch (any(3)) {
        case 0:
            if (at)
                s[any((uint32_t)at)] = odd[any(sizeof odd - 1)];
            break;
        case 1:
            if (at)
                s[any((uint32_t)at)] = 0;
            break;
        default: { /* a run of one character, somewhere */
            size_t from = any((uint32_t)at + 1), more = size - 1 - at;
            memmove(s + from + more, s + from, at - from + 1);
            memset(s + from, odd[any(sizeof odd - 1)], more);
        }
        }
    }
    char *exact = alone(s);
    free(s);
    return exact;
}

static void step(void)
{
    static const char *const seeds[] = {"1;ucx,ibverbs;/home/ann/sigmatrace-7.0", "1;ucx;@1764500000/home/%%/%j/r-%j.%s", "off", "none", "2;x;y", ""};
    static const char *const preloads[] = {"", "/usr/lib/a.so:/usr/lib/b.so", "/opt/l/libsigmatrace.so:/opt/l/provider-ucx.so:/opt/l/mine.so", "::a b"};
    static const char *const numbers[] = {"12", "4294967295", "", "x", "1/../2"};
    for (int i = 0; i < 200000; i++) {
        struct sm_step s;
        char *text = noise(seeds, 6), *old = noise(preloads, 4), *job = noise(numbers, 5);
        size_t size = 1 + any(2) * any(SM_PRELOAD);
        char *to = malloc(size + 1);
        memset(&s, 0xa5, sizeof s);
        if (!sm_step_parse(text, &s)) {
            assert(s.run[0] == '/' && strspn(s.providers, "abcdefghijklmnopqrstuvwxyz0123456789_,") == strlen(s.providers));
            if (s.named && !sm_step_name(&s, job, job))
                assert(strlen(s.run) + sizeof "/profile.resolved" <= sizeof s.run);
            if (!sm_step_preload(&s, "/opt/l", old, to, size)) {
                assert(strlen(to) < size && !strncmp(to, "/opt/l/libsigmatrace.so", 23));
                assert(!strstr(to + 23, ":/opt/l/libsigmatrace.so:"));
            }
        }
        sm_is_daemon(text);
        if (!sm_step_part(text, any(UINT32_MAX), any(UINT32_MAX), to, size))
            assert(strlen(to) < size && strlen(to) <= 200 && to[0] != '.' && !strchr(to, '/') && !strncmp(to, text, strlen(text)));
        free(text), free(old), free(job), free(to);
    }
}

static void part(void)
{
    char to[64];
    assert(!sm_step_part("n1", 7, 0, to, sizeof to) && !strcmp(to, "n1.7.0"));
    assert(!sm_step_part("n1", 7, SLURM_BATCH_SCRIPT, to, sizeof to) && !strcmp(to, "n1.7.batch"));
    assert(!sm_step_part("n1", 7, SLURM_INTERACTIVE_STEP, to, sizeof to) && !strcmp(to, "n1.7.interactive"));
    assert(sm_step_part("n1", 7, 0, to, 6) && sm_step_part("", 7, 0, to, sizeof to) && sm_step_part("../n1", 7, 0, to, sizeof to));
}

static void silent(const char *fmt, ...)
{
    (void)fmt;
}

static void site(void)
{
    static const char *const seeds[] = {
        "command=/opt/bin/sigmatrace", "libdir=/opt/l", "default_profile=full", "profile_dir=/etc/p", "output=/scratch/%u", "allow_users=ann,bob",
        "deny_groups=staff", "rate=1%", "rate=0.25%", "rate=99999999999%", "merge_seconds=60", "clock_seconds=2", "clock_seconds=11", "ptp_domain=255", "ptp_domain=256", "locked", "kill_switch=/etc/off", "=", "x=", "rate=%",
    };
    for (int i = 0; i < 100000; i++) {
        char *av[4];
        for (int k = 0; k < 4; k++)
            av[k] = noise(seeds, sizeof seeds / sizeof *seeds);
        sm_site_read(4, av, silent);
        assert(sm_site.bad || (sm_site.rate <= 1000000 && sm_site.command[0] == '/' && sm_site.libdir[0] == '/' && sm_site.merge_seconds <= 3600 &&
                               sm_site.clock_seconds <= 10 && sm_site.ptp_domain <= 255));
        sm_site_allows_partition(av[0]);
        for (int k = 0; k < 4; k++)
            free(av[k]);
    }
    const char *const shares[][2] = {{"0%", "0"}, {"1%", "10000"}, {"0.25%", "2500"}, {"100%", "1000000"}, {"0.0001%", "1"}};
    for (size_t k = 0; k < sizeof shares / sizeof *shares; k++) {
        char text[32], *av[] = {text};
        uint32_t traced = 0;
        snprintf(text, sizeof text, "rate=%s", shares[k][0]);
        sm_site_read(1, av, silent);
        assert(!sm_site.bad && sm_site.rate == (uint32_t)atoi(shares[k][1]));
        for (uint32_t job = 1; job <= 1000000; job++)
            traced += (uint32_t)sm_site_samples(job);
        uint32_t low = sm_site.rate - sm_site.rate / 20, high = sm_site.rate + sm_site.rate / 20;
        assert(sm_site.rate < 1000 ? traced < 1000 : traced >= low && traced <= high);
    }
    assert(sm_in_list("ann,bob", "bob") && sm_in_list("ann", "ann") && !sm_in_list("ann,bob", "an") && !sm_in_list("ann,bob", "b") && !sm_in_list("", "a") &&
           !sm_in_list("a", "") && sm_in_list(",,a", "a"));
}

int main(void)
{
    step();
    part();
    site();
    puts("well");
    return 0;
}
