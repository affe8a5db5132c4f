/* Provider ucx: the table of hooked functions, where the real ones are, and the frame of every hook. */
#define _GNU_SOURCE
#include "ucx.h"

#include <errno.h>
#include <link.h>
#include <string.h>

struct ucx_real ucx_real;

#define ENTRY(f) {#f, NULL, (void *)(f), (void **)&ucx_real.f},
static const struct st_hook table[] = {UCX_FUNCTIONS(ENTRY){NULL, NULL, NULL, NULL}};

__attribute__((constructor)) static void init(void) { st_hooks("uc", table); } /* ucp_, uct_ */

/* ---- who calls --------------------------------------------------------------------------------------------------------------- */

#define RANGES 8
static struct {
    uintptr_t begin, end;
} ranges[RANGES];
static unsigned used;

static void add_range(uintptr_t begin, uintptr_t end)
{
    unsigned n = __atomic_load_n(&used, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < n; i++)
        if (ranges[i].begin == begin)
            return;
    if (n == RANGES)
        return;
    ranges[n].begin = begin;
    ranges[n].end = end;
    __atomic_store_n(&used, n + 1, __ATOMIC_RELEASE);
}

/* The objects through which a function of UCX reaches another one: libucp.so.0, libucp-0123abcd.so.0 as Python wheels name it, and
 * preloads like this one, before and behind it. All define what is called, and the program itself does not count. */
static int find_ranges(struct dl_phdr_info *info, size_t size, void *name)
{
    (void)size;
    uintptr_t begin = UINTPTR_MAX, end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type != PT_LOAD)
            continue;
        if (info->dlpi_addr + h->p_vaddr < begin)
            begin = info->dlpi_addr + h->p_vaddr;
        if (info->dlpi_addr + h->p_vaddr + h->p_memsz > end)
            end = info->dlpi_addr + h->p_vaddr + h->p_memsz;
    }
    if (*info->dlpi_name && st_defines(info, name))
        add_range(begin, end);
    return 0;
}

bool ucx_internal(const void *caller)
{
    unsigned n = __atomic_load_n(&used, __ATOMIC_ACQUIRE);
    for (unsigned i = 0; i < n; i++)
        if ((uintptr_t)caller >= ranges[i].begin && (uintptr_t)caller < ranges[i].end)
            return true;
    return false;
}

/* ---- real functions ---------------------------------------------------------------------------------------------------------- */

static intptr_t absent(void) { return UCS_ERR_UNSUPPORTED; }

void *ucx_resolve(void *place)
{
    static int busy;
    int saved = errno;
    const char *name = table[(void **)place - (void **)&ucx_real].name;
    void *p = st_next(name, NULL);
    if (p) {
        while (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE))
            st_pause();
        dl_iterate_phdr(find_ranges, (void *)name);
        __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
        __atomic_store_n((void **)place, p, __ATOMIC_RELEASE);
    }
    errno = saved;
    return p ? p : (void *)absent;
}

/* ---- the frame of a hook ----------------------------------------------------------------------------------------------------- */

struct st_thread *ucx_enter_nested(const void *caller)
{
    struct ucx_thread *me = &ucx_thread;
    if (!me->depth)
        return st_enter(ST_LAYER_UCP);
    if (ucx_internal(caller))
        return NULL;
    st_open(ST_LAYER_UCP);
    struct st_thread *t = st_enter(ST_LAYER_UCP);
    if (t)
        me->shut |= 1u << me->depth % 32;
    else
        st_close(ST_LAYER_UCP, 0);
    return t;
}

void ucx_leave_nested(struct st_thread *t)
{
    struct ucx_thread *me = &ucx_thread;
    uint32_t bit = 1u << me->depth % 32;
    if (!(me->shut & bit))
        return;
    me->shut &= ~bit;
    t->gate[ST_LAYER_UCP] = 0;
}

void ucx_received(struct ucx_call *c)
{
    ucp_tag_recv_info_t info = *c->info;
    ucx_record(c, c->event, c->api, ST_UCP_RESULT_PENDING);
    ucx_complete(c->t, c->object, st_mode == ST_FULL ? st_clock() : 0, c->id, info.length, info.sender_tag, UCS_OK);
    ucx_untrack(c, c->event, true);
}

ucs_status_t ucx_finish_carried(struct ucx_call *c, ucs_status_t status, bool done)
{
    if (c->carried) {
        ucx_finish_request(c, c->event, ST_UCP_API_NBR, c->result);
        return status;
    }
    if (ucx_end(c) && status >= 0)
        ucx_record(c, c->event, ST_UCP_API_NBR, status == UCS_OK && done ? ST_UCP_RESULT_DONE : ST_UCP_RESULT_UNTRACKED);
    ucx_leave(c->t);
    return status;
}
