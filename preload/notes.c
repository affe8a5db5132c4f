/* What is to be known of how launches and kernels were recorded. Programs ask for functions before anything is recorded, and most never launch: it waits for that. */
#define _GNU_SOURCE
#include "kernels.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NOTES = 64 };
static struct kept {
    unsigned topic;
    bool told;
    uint64_t number;
    char text[96];
} kept[NOTES];
static unsigned used;
static pid_t teller; /* whose capture has them */
static struct st_mutex mu = ST_MUTEX;

/* Of several with the same text the first counts: number is how often there was one by the time it is told. */
static void keep(unsigned topic, uint64_t number, const char *text, bool counted)
{
    int saved = errno;
    st_mutex_lock(&mu);
    struct kept *k = kept;
    while (k < kept + used && (k->topic != topic || strcmp(k->text, text)))
        k++;
    if (k < kept + used) {
        k->number += counted ? number : 0;
    } else if (used < NOTES) {
        *k = (struct kept){.topic = topic, .number = number};
        snprintf(k->text, sizeof k->text, "%s", text);
        used++;
    }
    st_mutex_unlock(&mu);
    errno = saved;
}

void note(unsigned topic, uint64_t number, const char *text) { keep(topic, number, text, false); }

void note_left_alone(const char *name, int version, uint64_t flags)
{
    char text[96];
    snprintf(text, sizeof text, "%.40s, version %d, flags %#llx", name, version, (unsigned long long)flags);
    keep(ST_GPU_TOPIC_LEFT_ALONE, 1, text, true);
}

void note_export_table(const uint8_t *uuid)
{
    char text[40];
    char *to = text;
    for (unsigned i = 0; i < 16; i++)
        to += sprintf(to, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    keep(ST_GPU_TOPIC_EXPORT_TABLE, 1, text, true);
}

void notes_tell(void)
{
    int saved = errno;
    pid_t me = getpid();
    st_mutex_lock(&mu);
    for (unsigned i = 0; i < used; i++) {
        struct kept *k = &kept[i];
        if (k->told && teller == me)
            continue;
        k->told = true;
        st_def_gpu_note(k->topic, k->number, k->text);
    }
    teller = me;
    st_mutex_unlock(&mu);
    errno = saved;
}

__attribute__((destructor)) static void end(void)
{
    if (teller == getpid())
        notes_tell();
}
