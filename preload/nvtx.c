/* NVTX, NVIDIA's annotation interface, version 3: a header in the application loads the library that NVTX_INJECTION64_PATH names and calls
 * its InitializeInjectionNvtx2, which fills in tables of functions. Numbers here are those of that interface (nvtxTypes.h). */
#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <wchar.h>

enum { TABLE_CALLBACKS = 1, TABLE_VERSION = 3 };
enum { MODULE_CORE = 1, MODULE_CORE2 = 5 };
enum { MARK_EX = 1, MARK_A, MARK_W, START_EX, START_A, START_W, END, PUSH_EX, PUSH_A, PUSH_W, POP };
enum { DOMAIN_MARK_EX = 1, DOMAIN_START_EX, DOMAIN_END, DOMAIN_PUSH_EX, DOMAIN_POP, REGISTER_A = 10, REGISTER_W, CREATE_A, CREATE_W };
enum { MESSAGE_ASCII = 1, MESSAGE_WIDE, MESSAGE_REGISTERED };

struct callbacks {
    size_t size;
    int (*functions)(uint32_t module, void ****table, unsigned *entries);
};

struct version {
    size_t size;
    uint32_t version, reserved;
    void (*set_injection)(uint32_t version);
};

/* What a mark or range is told by; later versions are longer. */
struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    union {
        const char *ascii;
        const wchar_t *wide;
        const char *registered; /* what register_ascii returned */
    } message;
};
_Static_assert(offsetof(struct attributes, message) == 40, "nvtxEventAttributes_t");

/* Registered strings and domains are for ever and go over a fork: in ordinary memory that is never given back. */
#define KEPT_BYTES (1u << 20)
static char *kept;
static uint32_t kept_used;

static const char *keep(const char *text)
{
    char *m = __atomic_load_n(&kept, __ATOMIC_ACQUIRE);
    size_t n = strlen(text);
    n = n < 200 ? n : 200;
    if (!m) {
        char *none = NULL;
        m = mmap(NULL, KEPT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (m == MAP_FAILED)
            return "";
        if (!__atomic_compare_exchange_n(&kept, &none, m, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            munmap(m, KEPT_BYTES);
            m = none;
        }
    }
    uint32_t at = __atomic_fetch_add(&kept_used, (uint32_t)n + 1, __ATOMIC_RELAXED);
    if (at > KEPT_BYTES - 256) {
        __atomic_store_n(&kept_used, KEPT_BYTES - 255, __ATOMIC_RELAXED);
        return "(more names than are kept)";
    }
    memcpy(m + at, text, n);
    return m + at;
}

/* Wide characters as UTF-8. Returns to. */
static const char *narrow(char *to, size_t size, const wchar_t *from)
{
    size_t n = 0;
    for (; from && *from && n + 5 < size; from++) {
        uint32_t c = (uint32_t)*from;
        if (c < 0x80) {
            to[n++] = (char)c;
        } else if (c < 0x800) {
            to[n++] = (char)(0xc0 | c >> 6);
            to[n++] = (char)(0x80 | (c & 0x3f));
        } else if (c < 0x10000) {
            to[n++] = (char)(0xe0 | c >> 12);
            to[n++] = (char)(0x80 | (c >> 6 & 0x3f));
            to[n++] = (char)(0x80 | (c & 0x3f));
        } else {
            to[n++] = (char)(0xf0 | (c >> 18 & 7));
            to[n++] = (char)(0x80 | (c >> 12 & 0x3f));
            to[n++] = (char)(0x80 | (c >> 6 & 0x3f));
            to[n++] = (char)(0x80 | (c & 0x3f));
        }
    }
    to[n] = 0;
    return to;
}

#define WIDE 256
static const char *message(const struct attributes *a, char *buffer)
{
    if (!a || a->size < sizeof *a)
        return "";
    switch (a->message_type) {
    case MESSAGE_ASCII: return a->message.ascii ? a->message.ascii : "";
    case MESSAGE_WIDE: return narrow(buffer, WIDE, a->message.wide);
    case MESSAGE_REGISTERED: return a->message.registered ? a->message.registered : "";
    }
    return "";
}

static uint64_t start(const char *domain, const char *name)
{
    static uint64_t next;
    uint64_t id = __atomic_add_fetch(&next, 1, __ATOMIC_RELAXED);
    st_app_range(ST_EV_APP_PHASE_BEGIN, name, domain, id);
    return id;
}

/* A domain's handle is its name; NULL is the default one. */
static void domain_mark_ex(const char *domain, const struct attributes *a) { char b[WIDE]; st_app_mark(message(a, b), domain); }
static uint64_t domain_start_ex(const char *domain, const struct attributes *a) { char b[WIDE]; return start(domain, message(a, b)); }
static void domain_end(const char *domain, uint64_t id) { st_app_range(ST_EV_APP_PHASE_END, "", domain, id); }
static int domain_push_ex(const char *domain, const struct attributes *a) { char b[WIDE]; return st_app_push(message(a, b), domain); }
static int domain_pop(const char *domain) { return st_app_pop(domain); }

static void mark_ex(const struct attributes *a) { domain_mark_ex(NULL, a); }
static void mark_a(const char *name) { st_app_mark(name ? name : "", NULL); }
static void mark_w(const wchar_t *name) { char b[WIDE]; st_app_mark(narrow(b, WIDE, name), NULL); }
static uint64_t start_ex(const struct attributes *a) { return domain_start_ex(NULL, a); }
static uint64_t start_a(const char *name) { return start(NULL, name ? name : ""); }
static uint64_t start_w(const wchar_t *name) { char b[WIDE]; return start(NULL, narrow(b, WIDE, name)); }
static void end(uint64_t id) { domain_end(NULL, id); }
static int push_ex(const struct attributes *a) { return domain_push_ex(NULL, a); }
static int push_a(const char *name) { return st_app_push(name ? name : "", NULL); }
static int push_w(const wchar_t *name) { char b[WIDE]; return st_app_push(narrow(b, WIDE, name), NULL); }
static int pop(void) { return st_app_pop(NULL); }

static const char *register_a(const char *domain, const char *text) { (void)domain; return keep(text ? text : ""); }
static const char *register_w(const char *domain, const wchar_t *text) { char b[WIDE]; (void)domain; return keep(narrow(b, WIDE, text)); }
static const char *create_a(const char *name) { return keep(name ? name : ""); }
static const char *create_w(const wchar_t *name) { char b[WIDE]; return keep(narrow(b, WIDE, name)); }

struct entry {
    unsigned id;
    void *function;
};

static int fill(const struct callbacks *c, uint32_t module, const struct entry *e, size_t n)
{
    void ***table;
    unsigned entries;
    if (!c->functions(module, &table, &entries))
        return 0;
    for (size_t i = 0; i < n; i++)
        if (e[i].id < entries && table[e[i].id])
            *table[e[i].id] = e[i].function;
    return 1;
}

#define COUNT(a) (sizeof(a) / sizeof *(a))

ST_EXPORT int InitializeInjectionNvtx2(const void *(*tables)(uint32_t));
ST_EXPORT int InitializeInjectionNvtx2(const void *(*tables)(uint32_t))
{
    static const struct entry core[] = {
        {MARK_EX, (void *)mark_ex}, {MARK_A, (void *)mark_a}, {MARK_W, (void *)mark_w}, {START_EX, (void *)start_ex},
        {START_A, (void *)start_a}, {START_W, (void *)start_w}, {END, (void *)end}, {PUSH_EX, (void *)push_ex},
        {PUSH_A, (void *)push_a}, {PUSH_W, (void *)push_w}, {POP, (void *)pop},
    };
    static const struct entry core2[] = {
        {DOMAIN_MARK_EX, (void *)domain_mark_ex}, {DOMAIN_START_EX, (void *)domain_start_ex}, {DOMAIN_END, (void *)domain_end},
        {DOMAIN_PUSH_EX, (void *)domain_push_ex}, {DOMAIN_POP, (void *)domain_pop}, {REGISTER_A, (void *)register_a},
        {REGISTER_W, (void *)register_w}, {CREATE_A, (void *)create_a}, {CREATE_W, (void *)create_w},
    };
    int saved = errno;
    const struct callbacks *c = tables(TABLE_CALLBACKS);
    const struct version *v = tables(TABLE_VERSION);
    int ok = !st_config_load() && st_config.nvtx && c && c->size >= sizeof *c;
    if (ok && v && v->size >= sizeof *v)
        v->set_injection(3);
    ok = ok && fill(c, MODULE_CORE, core, COUNT(core));
    if (ok)
        fill(c, MODULE_CORE2, core2, COUNT(core2)); /* older headers have no domains */
    errno = saved;
    return ok;
}

/* The variable, at the end of its part, and the environment that it is added to: side by side, since each page that a start touches costs. */
static struct {
    char variable[sizeof(st_variable) + PATH_MAX];
    char *environment[1024];
} given;

/* Adds a variable to the environment, or replaces that at `there`. setenv allocates, and so prepares the heap of a program that may need none. */
static void put(char *variable, char **there)
{
    size_t n = 0;
    if (there) {
        *there = variable;
        return;
    }
    while (environ[n])
        n++;
    if (n + 2 > COUNT(given.environment)) {
        putenv(variable);
        return;
    }
    given.environment[n] = variable;
    while (n--)
        given.environment[n] = environ[n];
    environ = given.environment;
}

static int begins(const char *text, const char *with)
{
    while (*with && *text == *with)
        text++, with++;
    return !*with;
}

/* The file name of a path that ends at a colon, a blank or a NUL, and that end. */
static const char *base_of(const char *path, const char **end)
{
    const char *base = path;
    for (; *path && *path != ':' && *path != ' '; path++)
        base = *path == '/' ? path + 1 : base;
    *end = path;
    return base;
}

#define OURS "libsigmatrace."

/* The file that this code is in. Of ours the first in LD_PRELOAD, since the first one in a process is the one that is not off; asking the linker
 * takes longer than all else that is done at a start. */
static const char *own_file(const char **end)
{
    static const st_variable name[] = {"LD_PRELOAD"};
    const char *list = NULL;
    st_environment(name, 1, &list);
    while (list && *list) {
        const char *path = list, *base = base_of(path, &list);
        *end = list;
        if (*path == '/' && begins(base, OURS))
            return path;
        list += *list != 0;
    }
    const char *us = st_own_file();
    *end = us + strlen(us);
    return us;
}

/* Makes NVTX find us in this process, unless it has a tool already: one that is an object of ours is what a process above, with other
 * providers, has set. Whether the profile wants it is asked when NVTX comes. */
__attribute__((constructor)) static void offer(void)
{
    static const st_variable name[] = {"NVTX_INJECTION64_PATH"};
    if (st_config.off || !environ)
        return;
    const char *tool = NULL, *end;
    char **there = st_environment(name, 1, &tool), *to = given.variable + sizeof given.variable - 1;
    if (tool && !begins(base_of(tool, &end), OURS))
        return;
    const char *us = own_file(&end);
    if (us == end || end - us >= PATH_MAX)
        return;
    while (end > us)
        *--to = *--end;
    *--to = '=';
    for (size_t k = sizeof *name; k--;)
        if ((*name)[k])
            *--to = (*name)[k];
    put(to, there);
}
