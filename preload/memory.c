/* How much memory the recorder may hold in a process, and how much it does. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A limit as a control group's file has it; UINT64_MAX for "max", for no file, and for what version 1 writes without a limit. */
static uint64_t limit_in(const char *path)
{
    char text[64];
    if (st_slurp(path, text, sizeof text) <= 0 || *text < '0' || *text > '9')
        return UINT64_MAX;
    uint64_t v = strtoull(text, NULL, 10);
    return v < 1ull << 60 ? v : UINT64_MAX;
}

/* The smallest limit from the group up to the root of the mount. A group that is not there is one of a container that sees its own part
 * of the tree only; its limit is then that of the root. */
static uint64_t least(const char *mount, const char *group, const char *file)
{
    static char path[PATH_MAX]; /* one caller at a time, and threads with small stacks */
    uint64_t found = UINT64_MAX;
    size_t root = strlen(mount), length = root + strlen(group);
    if (length + 1 + strlen(file) >= sizeof path)
        return found;
    memcpy(path, mount, root);
    strcpy(path + root, group);
    for (;;) {
        while (length > root && path[length - 1] == '/')
            length--;
        snprintf(path + length, sizeof path - length, "/%s", file);
        uint64_t limit = limit_in(path);
        if (limit < found)
            found = limit;
        if (length == root)
            return found;
        while (length > root && path[length - 1] != '/')
            length--;
    }
}

/* cgroups(7): a line is hierarchy:controllers:group; version 2 has number 0 and no controllers. */
uint64_t st_memory_limit(void)
{
    static char text[4096];
    char *line, *rest = text;
    uint64_t found = UINT64_MAX;
    if (st_slurp("/proc/self/cgroup", text, sizeof text) <= 0)
        return found;
    while ((line = strsep(&rest, "\n"))) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL, *one;
        if (!group)
            continue;
        *group++ = 0;
        controllers++;
        uint64_t limit = UINT64_MAX;
        if (!*controllers)
            limit = least("/sys/fs/cgroup", group, "memory.max");
        while ((one = strsep(&controllers, ",")))
            if (!strcmp(one, "memory"))
                limit = least("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
        if (limit < found)
            found = limit;
    }
    return found;
}

int st_hold(struct st_process *p, uint64_t size, int reserve)
{
    uint64_t most = p->memory - (reserve ? 0 : p->memory / 8);
    if (__atomic_fetch_add(&p->held, size, __ATOMIC_RELAXED) + size <= most)
        return 1;
    st_let_go(p, size);
    return 0;
}

void st_let_go(struct st_process *p, uint64_t size) { __atomic_fetch_sub(&p->held, size, __ATOMIC_RELAXED); }
