/* The capture file's header: what is known of the process when its file is made. */
#define _GNU_SOURCE
#include "internal.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__x86_64__)
/* The kernel takes a TSC off its list when it finds that those of the processors differ, or that it runs unevenly, whatever CPUID says. */
static int kernel_trusts_tsc(void)
{
    char text[256] = " ";
    int fd = st_open_file("/sys/devices/system/clocksource/clocksource0/available_clocksource", O_RDONLY, 0);
    ssize_t n = fd < 0 ? 0 : read(fd, text + 1, sizeof text - 2);
    if (fd >= 0)
        close(fd);
    return n <= 0 || strstr(text, " tsc ") || strstr(text, " tsc\n");
}
#endif

static void clock_facts(struct st_file_header *h)
{
    h->domains = 1;
    h->domain[0].kind = ST_CLOCK_DOMAIN;
#if defined(__x86_64__)
    unsigned a, b, c, d;
    if (__get_cpuid_count(0x15, 0, &a, &b, &c, &d) && a && b && c) /* TSC = crystal x EBX / EAX; Intel SDM vol. 2A, CPUID */
        h->clock_hz = (uint64_t)c * b / a;
    if (__get_cpuid(0x80000007, &a, &b, &c, &d) && d >> 8 & 1 && kernel_trusts_tsc())
        h->clock_flags = 1;
#else
    uint64_t hz;
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(hz));
    h->clock_hz = hz;
    h->clock_flags = 1;
#endif
    h->domain[0].hz = h->clock_hz;
    h->domain[0].flags = h->clock_flags;
}

void st_fill_header(struct st_file_header *h, const struct st_identity *id)
{
    struct st_process *p = st_process;
    memset(h, 0, sizeof *h);
    h->major = ST_MAJOR;
    h->minor = ST_MINOR;
    h->byte_order = ST_BYTE_ORDER;
    h->header_bytes = ST_HEADER_BYTES;
    h->chunk_bytes = st_config.chunk;
    h->architecture = ST_ARCHITECTURE;
    h->back_end = p->written ? 2 : 1;
    h->mode = st_config.mode;
    h->catalogue = ST_CATALOGUE;
    h->pid = id->pid;
    h->parent_pid = id->parent;
    h->image = p->image;
    h->pid_namespace = id->pid_namespace;
    h->start_time = id->start_time;
    memcpy(h->boot_id, id->boot_id, sizeof h->boot_id);
    h->rank = st_config.rank;
    h->world = st_config.world;
    h->rank_source = st_config.rank_source;
    h->realtime_ns = id->realtime_ns;
    clock_facts(h);
    memcpy(h->hostname, id->hostname, sizeof h->hostname);
    memcpy(h->executable, id->executable, sizeof h->executable);
    memcpy(h->job, st_config.job, sizeof h->job);
    memcpy(h->providers, st_config.providers, sizeof h->providers);
    memcpy(h->profile, st_config.profile, sizeof h->profile);
    memcpy(h->magic, "SGMTRACE", 8);
    h->header_crc = st_crc32c((const uint8_t *)h, offsetof(struct st_file_header, header_crc));
}
