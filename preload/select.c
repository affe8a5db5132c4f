/* Selection by rank and by executable: lists as the profile has them, read without allocation. */
#include "internal.h"

#include <string.h>

int st_in_ranges(const char *list, uint64_t n)
{
    int in = 0;
    for (const char *p = list;; p++) {
        uint64_t v[2] = {0, 0};
        for (int i = 0; i < 2; i++) {
            const char *first = p;
            for (; *p >= '0' && *p <= '9' && v[i] < UINT64_MAX / 20; p++)
                v[i] = v[i] * 10 + (uint64_t)(*p - '0');
            if (p == first)
                return -1;
            if (i == 0 && *p == '-')
                p++;
            else if (i == 0)
                v[++i] = v[0];
        }
        if (v[0] > v[1])
            return -1;
        in |= v[0] <= n && n <= v[1];
        if (!*p)
            return in;
        if (*p != ',')
            return -1;
    }
}

/* One character of text against a bracket expression that begins at *pattern, behind its '['. Moves *pattern behind it; -1: it does not end. */
static int bracket(const char **pattern, const char *end, char c)
{
    const char *p = *pattern;
    int not = p < end && (*p == '!' || *p == '^'), in = 0;
    p += not;
    for (int first = 1; p < end && (*p != ']' || first); first = 0) {
        unsigned char low = (unsigned char)*p++, high = low;
        if (end - p > 1 && *p == '-' && p[1] != ']') {
            high = (unsigned char)p[1];
            p += 2;
        }
        in |= low <= (unsigned char)c && (unsigned char)c <= high;
    }
    if (p == end)
        return -1;
    *pattern = p + 1;
    return in != not;
}

/* The pattern from p to end: '*' any text, '?' any character, '[...]' one of a set. A bracket that does not end is itself. */
static int glob(const char *p, const char *end, const char *text)
{
    const char *star = NULL, *retry = NULL;
    while (*text) {
        int match = 0;
        const char *next = p;
        if (p < end && *p == '*') {
            star = ++p;
            retry = text;
            continue;
        }
        if (p < end && *p == '[') {
            next = p + 1;
            match = bracket(&next, end, *text);
        }
        if (match < 0 || (p < end && *p != '[')) {
            match = *p == '?' || *p == *text;
            next = p + 1;
        }
        if (match) {
            p = next;
            text++;
        } else if (star) {
            p = star;
            text = ++retry;
        } else {
            return 0;
        }
    }
    while (p < end && *p == '*')
        p++;
    return p == end;
}

int st_glob_any(const char *patterns, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (const char *p = patterns; *p;) {
        size_t n = strcspn(p, ",");
        if (n && glob(p, p + n, memchr(p, '/', n) ? path : name))
            return 1;
        p += n + (p[n] == ',');
    }
    return 0;
}
