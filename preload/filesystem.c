/* What kind of file system a capture is on. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Whether the file system of a device number is 9p, of which statfs(2) tells the type of the one behind it (v9fs_statfs). Those with a
 * disk of their own have a major number and are not looked up. */
static int is_9p(dev_t device)
{
    static char text[4096]; /* one caller at a time, and threads with small stacks */
    char want[32];
    size_t have = 0;
    int found = 0;
    if (major(device))
        return 0;
    size_t length = (size_t)snprintf(want, sizeof want, " 0:%u ", minor(device));
    int fd = st_open_file("/proc/self/mountinfo", O_RDONLY, 0);
    while (fd >= 0 && !found) {
        ssize_t n = read(fd, text + have, sizeof text - 1 - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        have += (size_t)n;
        text[have] = 0;
        char *line = text, *end;
        for (; (end = strchr(line, '\n')); line = end + 1) {
            *end = 0;
            /* id, parent, major:minor, root, mount point, options, optional fields, -, type (proc(5)) */
            char *type = strstr(line, " - "), *number = strchr(line, ' ');
            number = number ? strchr(number + 1, ' ') : NULL;
            if (type && number && !strncmp(number, want, length))
                found |= !strncmp(type + 3, "9p ", 3);
        }
        have = strlen(line);
        memmove(text, line, have);
        if (have == sizeof text - 1) /* a line longer than that: its beginning goes, its type still comes */
            have = 0;
    }
    if (fd >= 0)
        close(fd);
    return found;
}

/* File systems on which a shared mapping is slow, unsafe or refused: f_type of statfs(2). */
int st_is_network(const char *path)
{
    static const long types[] = {
        0x6969 /* NFS */, 0x0BD00BD0 /* Lustre */, 0x47504653 /* GPFS */, 0x517B /* SMB */, (long)0xFF534D42 /* CIFS */, (long)0xFE534D42 /* SMB2 */,
        0x65735546 /* FUSE */, 0x00C36400 /* Ceph */, 0x19830326 /* BeeGFS */, 0x01021997 /* 9P */, 0x5346414F /* AFS */, 0x20030528 /* PVFS2 */,
        0x2FC12FC1 /* ZFS: local, but space that was reserved may be gone when a page of a mapping is written out */,
    };
    struct statfs fs;
    struct stat st;
    if (statfs(path, &fs))
        return 0;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if ((uint32_t)fs.f_type == (uint32_t)types[i])
            return 1;
    return !stat(path, &st) && is_9p(st.st_dev);
}

/* File systems whose files are memory that cannot be taken back. */
int st_is_memory(int fd)
{
    struct statfs fs;
    return !fstatfs(fd, &fs) && ((uint32_t)fs.f_type == 0x01021994 /* tmpfs */ || (uint32_t)fs.f_type == 0x858458f6 /* ramfs */);
}
