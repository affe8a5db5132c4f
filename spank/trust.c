/* What is run and preloaded in everybody's jobs must not be what anybody can write. Looked at by children that are the user and have a time limit:
 * file systems may hang. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Every directory on the way; in one that is like /tmp others cannot replace what they do not own. */
static int way(const char *path)
{
    char part[PATH_MAX];
    struct stat st;
    for (const char *slash = path; slash; slash = strchr(slash + 1, '/')) {
        size_t n = slash == path ? 1 : (size_t)(slash - path);
        memcpy(part, path, n);
        part[n] = 0;
        if (!stat(part, &st) && (st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX))
            return 0;
    }
    return 1;
}

/* Whether a file or directory, and what its links lead to, cannot be written by anybody. What is not there is trusted: it does no harm. */
int sm_trusted(const char *path)
{
    char real[PATH_MAX];
    struct stat st;
    if (strlen(path) >= PATH_MAX)
        return 0;
    if (!realpath(path, real) || stat(real, &st))
        return 1;
    return !(st.st_mode & S_IWOTH) && way(path) && way(real);
}
