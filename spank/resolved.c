/* The site's default profile as resolved beforehand: for jobs that none of our srun, sbatch and salloc brought, such as those of slurmrestd. Read
 * on the node; root's file alone is taken, from folders that are root's alone. */
#define _GNU_SOURCE
#include "internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int roots_own(const struct stat *st)
{
    return st->st_uid == 0 && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

/* Opens the file folder by folder, none of which may be a link: nobody but root can have put anything in its place. */
static int open_file(const char *path)
{
    char name[NAME_MAX + 1];
    struct stat st;
    int dir = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (const char *p = path; dir >= 0;) {
        p += strspn(p, "/");
        size_t n = strcspn(p, "/");
        int last = p[n] == 0;
        if (n == 0 || n >= sizeof name || fstat(dir, &st) || !roots_own(&st))
            break;
        memcpy(name, p, n);
        name[n] = 0;
        int next = openat(dir, name, O_NOFOLLOW | O_CLOEXEC | (last ? O_RDONLY | O_NONBLOCK : O_PATH | O_DIRECTORY));
        close(dir);
        if (last)
            return next;
        dir = next;
        p += n;
    }
    if (dir >= 0)
        close(dir);
    return -1;
}

/* The file's text: one line, of a version that is known. NULL, or what is wrong with it. */
const char *sm_resolved_check(char *text, size_t n)
{
    const char *profile = sm_site.profile;
    size_t asked = strlen(profile);
    if (n > 0 && text[n - 1] == '\n')
        n--;
    text[n] = 0;
    if (n < 8 || memcmp(text, "1;asked=", 8))
        return "the site's resolved profile is of another version";
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
            return "the site's resolved profile is not one line of text";
    if (strncmp(text + 8, profile, asked) || text[8 + asked] != ';')
        return "the site's resolved profile is another than its default_profile";
    return NULL;
}

const char *sm_resolved_read(char *text, size_t size)
{
    struct stat st;
    const char *wrong = NULL;
    int fd = open_file(sm_site.resolved);
    size_t used = 0;
    if (fd < 0)
        return "the site's resolved profile cannot be read, or others than root can replace it";
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || !roots_own(&st))
        wrong = "the site's resolved profile is not a file that only root can write";
    while (!wrong && used < size) {
        ssize_t n = read(fd, text + used, size - used);
        if (n < 0)
            wrong = "the site's resolved profile cannot be read";
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    close(fd);
    if (!wrong && used == size)
        wrong = "the site's resolved profile is too long";
    return wrong ? wrong : sm_resolved_check(text, used);
}

/* For a job that brought nothing: puts the site's text into its environment, where what it starts finds it. 1: there is one; 0: there is none for
 * this job; -1: there should be one, and *wrong says what is wrong. */
int sm_resolved_bring(spank_t sp, const struct sm_user *u, const char **wrong)
{
    static char text[SM_JOB_TEXT];
    char value[SM_PROFILE];
    if (!sm_site.resolved[0] || !sm_site.profile[0] || sm_site.bad || !sm_site_allows_user(u->uid, u->gid))
        return 0;
    if (spank_getenv(sp, "SIGMATRACE", value, sizeof value) == ESPANK_SUCCESS && !strcmp(value, SM_STEP_OFF))
        return 0;
    spank_err_t got = spank_getenv(sp, "SIGMATRACE_PROFILE", value, sizeof value);
    *wrong = sm_resolved_read(text, sizeof text);
    int asks = got == ESPANK_NOSPACE || (got == ESPANK_SUCCESS && value[0] && strcmp(value, "default") && strcmp(value, sm_site.profile));
    if (!*wrong && !sm_site.locked && asks)
        *wrong = "SIGMATRACE_PROFILE asks for another profile than the site's, which only srun, sbatch and salloc resolve";
    if (!*wrong && spank_setenv(sp, SM_JOB_VARIABLE, text, 1) != ESPANK_SUCCESS)
        *wrong = "its environment cannot be changed";
    return *wrong ? -1 : 1;
}
