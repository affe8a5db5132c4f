/* Records what standard input says through the recorder's generated encoders: 64-bit numbers, the count of objects, then for each event
 * its id, time, object (0: unknown) and other fields; a raw field is its length and its bytes, filled up to 8. */
#include "recorder.h"

#include <stdio.h>
#include <stdlib.h>

static int more(uint64_t *v) { return fread(v, 8, 1, stdin) == 1; }

static uint64_t number(void)
{
    uint64_t v;
    if (!more(&v))
        exit(3);
    return v;
}

struct bytes {
    uint8_t data[256];
    size_t size;
};

static void read_bytes(struct bytes *b)
{
    b->size = number();
    if (b->size > sizeof b->data || fread(b->data, 1, (b->size + 7) & ~7ull, stdin) != ((b->size + 7) & ~7ull))
        exit(3);
}

int main(void)
{
    static struct st_object *objects[1024];
    uint64_t n = number(), id;
    struct st_thread *t = st_enter(ST_LAYER_VERBS);
    if (!t || n >= 1024)
        return 4;
    objects[0] = st_unknown;
    for (uint64_t i = 1; i <= n; i++)
        objects[i] = st_object_new(ST_KIND_QP, i);
    st_def_device(7, "gpu0", -40, "\x01\xff", 2, 1);
    st_def_device(8, "", INT64_MIN, "", 0, 0);
    st_def_clock(~0ull, 1ull << 63);
    while (more(&id)) {
        uint64_t now = number(), v[16];
        struct st_object *o = objects[number()];
        struct bytes a, b;
        switch (id) {
        case ST_EV_RING:
        case ST_EV_SMALL_5:
        case ST_EV_SMALL_105:
            st_rec_small(t, now, id, o);
            break;
        case ST_EV_ELEMENT:
            v[1] = number(), v[2] = number();
            read_bytes(&a);
            v[4] = number();
            st_rec_wqe(t, now, id, o, v[1], v[2], a.data, a.size, v[4]);
            st_count(t, o, id, v[1], 1);
            break;
        case ST_EV_SIGNED:
        case ST_EV_SIGNED_102:
        case ST_EV_SIGNED_103:
            for (int i = 1; i < 9; i++)
                v[i] = number();
            st_rec_signed(t, now, id, o, (int64_t)v[1], (int64_t)v[2], (int64_t)v[3], v[4], v[5], v[6], v[7], v[8]);
            if (id == ST_EV_SIGNED)
                st_count(t, o, id, v[4], 1);
            break;
        case ST_EV_WIDE:
        case ST_EV_WIDE_101:
        case ST_EV_WIDE_104:
            for (int i = 1; i < 16; i++)
                v[i] = number();
            st_rec_wide(t, now, id, o, v[1], v[2], (int64_t)v[3], (int64_t)v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12], v[13], v[14], v[15]);
            if (id == ST_EV_WIDE)
                st_count(t, o, id, 1, 0);
            break;
        case ST_EV_MIXED:
            v[1] = number(), v[2] = number();
            read_bytes(&a);
            for (int i = 4; i < 8; i++)
                v[i] = number();
            read_bytes(&b);
            for (int i = 9; i < 14; i++)
                v[i] = number();
            st_rec_mixed(t, now, id, o, v[1], v[2], a.data, a.size, v[4], v[5], v[6], v[7], b.data, b.size, v[9], (int64_t)v[10], v[11], v[12], v[13]);
            break;
        case ST_EV_VERBS_EMPTY_POLLS:
            v[1] = number(), v[2] = number();
            st_rec_verbs_empty_polls(t, now, id, o, v[1], v[2]);
            break;
        case ST_EV_OFI_EMPTY_POLLS:
            v[1] = number(), v[2] = number();
            st_rec_ofi_empty_polls(t, now, id, o, v[1], v[2]);
            break;
        default:
            return 5;
        }
    }
    st_leave(t, ST_LAYER_VERBS);
    return 0;
}
