/* Appends every change of files below $POWERLOSS_ROOT to the file $POWERLOSS_LOG, in order.
 *
 * Preloaded (LD_PRELOAD) before the C library. One lock spans each call and its event, so that the
 * events are in the order of the calls. disk.py reads them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

struct event {
    char kind[8];
    uint64_t inode;
    int64_t offset;
    uint32_t path, other, synced, unused;
    uint64_t data;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static char root[PATH_MAX];
static struct { char *at; size_t size; uint64_t inode; off_t offset; } maps[64];
static int map_count;

__attribute__((constructor)) static void begin(void) {
    const char *below = getenv("POWERLOSS_ROOT"), *to = getenv("POWERLOSS_LOG");
    if (below && to) {
        snprintf(root, sizeof root, "%s/", below);
        log_fd = syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
}

static void append(const char *kind, uint64_t inode, int64_t offset, const char *path,
                   const char *other, int synced, const void *data, size_t size) {
    struct event e = {.inode = inode, .offset = offset, .path = strlen(path),
                      .other = strlen(other), .synced = synced, .data = size};
    strncpy(e.kind, kind, sizeof e.kind);
    struct iovec parts[] = {{&e, sizeof e}, {(void *)path, e.path}, {(void *)other, e.other},
                            {(void *)data, size}};
    if (syscall(SYS_writev, log_fd, parts, 4) != (long)(sizeof e + e.path + e.other + size))
        abort();
}

static int is_below(const char *path) { return strncmp(path, root, strlen(root)) == 0; }

/* The path of a name in a directory, with its parent's symbolic links resolved; or "". */
static const char *full(int directory, const char *name, char *path) {
    char parent[PATH_MAX] = "", found[PATH_MAX];
    path[0] = 0;
    if (log_fd < 0 || strlen(name) > 2000)
        return path;
    if (name[0] != '/' && directory != AT_FDCWD)
        snprintf(parent, sizeof parent, "/proc/self/fd/%d/", directory);
    const char *last = strrchr(name, '/'), *base = last ? last + 1 : name;
    strncat(parent, name, base - name);
    if (realpath(parent[0] ? parent : ".", found) && strlen(found) < 2000)
        sprintf(path, "%s/%s", found, base);
    return path;
}

/* The inode of a descriptor of a file or directory below the root, or 0. */
static uint64_t inode_of(int fd, struct stat *status) {
    char at[64], path[PATH_MAX];
    if (log_fd < 0 || fd == log_fd || syscall(SYS_fstat, fd, status) != 0)
        return 0;
    if (!S_ISREG(status->st_mode) && !S_ISDIR(status->st_mode))
        return 0;
    snprintf(at, sizeof at, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(at, path, sizeof path - 2);
    if (size < 0)
        return 0;
    strcpy(path + size, "/");
    return is_below(path) ? status->st_ino : 0;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define LOCKED(call) pthread_mutex_lock(&lock); __typeof__(call) done = call
#define UNLOCKED pthread_mutex_unlock(&lock); return done

static void opened(int fd, const char *path, int flags) {
    struct stat status;
    if (fd >= 0 && is_below(path) && (flags & (O_CREAT | O_TRUNC)) && (flags & O_TMPFILE) != O_TMPFILE
        && syscall(SYS_fstat, fd, &status) == 0 && S_ISREG(status.st_mode))
        append(flags & O_TRUNC ? "empty" : "open", status.st_ino, 0, path, "", 0, "", 0);
}

#define OPEN(name, directory, head, ...)                                        \
    int name(head const char *file, int flags, ...) {                           \
        va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \
        char path[PATH_MAX]; full(directory, file, path); REAL(name);           \
        LOCKED(real(__VA_ARGS__ file, flags, mode));                            \
        opened(done, path, flags); UNLOCKED; }
#define COMMA ,
OPEN(open, AT_FDCWD, , ) OPEN(open64, AT_FDCWD, , )
OPEN(openat, at, int at COMMA, at COMMA) OPEN(openat64, at, int at COMMA, at COMMA)

/* Logs a write that the descriptor has ended at ``end``; sendfile gives no data, so they are read. */
static void wrote(int fd, const void *data, ssize_t size, off_t offset) {
    struct stat status;
    uint64_t inode = size > 0 ? inode_of(fd, &status) : 0;
    if (!inode)
        return;
    int flags = syscall(SYS_fcntl, fd, F_GETFL), again = -1;
    if (offset < 0)
        offset = lseek(fd, 0, SEEK_CUR) - size;
    if (flags & O_APPEND)
        offset = status.st_size - size;
    void *found = NULL;
    if (!data) {
        char at[64];
        snprintf(at, sizeof at, "/proc/self/fd/%d", fd);
        again = syscall(SYS_openat, AT_FDCWD, at, O_RDONLY);
        if (syscall(SYS_pread64, again, found = malloc(size), size, offset) != size)
            abort();
        syscall(SYS_close, again);
    }
    append("write", inode, offset, "", "", !!(flags & O_DSYNC), data ? data : found, size);
    free(found);
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write); LOCKED(real(fd, data, size)); wrote(fd, data, done, -1); UNLOCKED; }

static void *joined(const struct iovec *parts, int count, size_t *size) {
    *size = 0;
    for (int i = 0; i < count; i++) *size += parts[i].iov_len;
    char *all = malloc(*size + 1), *at = all;
    for (int i = 0; i < count; at += parts[i++].iov_len)
        memcpy(at, parts[i].iov_base, parts[i].iov_len);
    return all;
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    size_t size; REAL(writev); LOCKED(real(fd, parts, count));
    void *data = joined(parts, count, &size); wrote(fd, data, done, -1); free(data); UNLOCKED; }
#define PWRITE(name)                                                            \
    ssize_t name(int fd, const void *data, size_t size, off_t offset) {         \
        REAL(name); LOCKED(real(fd, data, size, offset)); wrote(fd, data, done, offset); UNLOCKED; }
PWRITE(pwrite) PWRITE(pwrite64)
#define PWRITEV(name)                                                           \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t offset) {  \
        size_t size; REAL(name); LOCKED(real(fd, parts, count, offset));        \
        void *data = joined(parts, count, &size); wrote(fd, data, done, offset); free(data); UNLOCKED; }
PWRITEV(pwritev) PWRITEV(pwritev64)
#define SENDFILE(name)                                                          \
    ssize_t name(int to, int from, off_t *offset, size_t size) {                \
        REAL(name); LOCKED(real(to, from, offset, size)); wrote(to, NULL, done, -1); UNLOCKED; }
SENDFILE(sendfile) SENDFILE(sendfile64)
ssize_t copy_file_range(int from, off_t *f, int to, off_t *t, size_t size, unsigned flags) {
    REAL(copy_file_range); LOCKED(real(from, f, to, t, size, flags));
    wrote(to, NULL, done, t ? *t - done : -1); UNLOCKED; }

static void resized(int fd) {
    struct stat status;
    uint64_t inode = inode_of(fd, &status);
    if (inode)
        append("resize", inode, status.st_size, "", "", 0, "", 0);
}
#define RESIZE(name, arguments, ...)                                            \
    int name arguments { REAL(name); LOCKED(real(__VA_ARGS__)); resized(fd); UNLOCKED; }
RESIZE(ftruncate, (int fd, off_t size), fd, size)
RESIZE(ftruncate64, (int fd, off_t size), fd, size)
RESIZE(posix_fallocate, (int fd, off_t at, off_t size), fd, at, size)
RESIZE(posix_fallocate64, (int fd, off_t at, off_t size), fd, at, size)
RESIZE(fallocate, (int fd, int mode, off_t at, off_t size), fd, mode, at, size)
#define TRUNCATE(name)                                                          \
    int name(const char *file, off_t size) {                                    \
        REAL(name); LOCKED(real(file, size));                                   \
        int fd = syscall(SYS_openat, AT_FDCWD, file, O_RDONLY);                 \
        resized(fd); syscall(SYS_close, fd); UNLOCKED; }
TRUNCATE(truncate) TRUNCATE(truncate64)

static void synced(int fd) {
    struct stat status;
    uint64_t inode = inode_of(fd, &status);
    if (inode)
        append("sync", inode, 0, "", "", 0, "", 0);
}
int fsync(int fd) { REAL(fsync); LOCKED(real(fd)); if (!done) synced(fd); UNLOCKED; }
int fdatasync(int fd) { REAL(fdatasync); LOCKED(real(fd)); if (!done) synced(fd); UNLOCKED; }
void sync(void) {
    REAL(sync); pthread_mutex_lock(&lock); real();
    if (log_fd >= 0) append("syncall", 0, 0, "", "", 0, "", 0);
    pthread_mutex_unlock(&lock); }

/* Files that are written through a map: only msync is an event. */
#define MAP(name)                                                               \
    void *name(void *at, size_t size, int access, int flags, int fd, off_t offset) { \
        struct stat status; REAL(name); LOCKED(real(at, size, access, flags, fd, offset)); \
        uint64_t inode = done != MAP_FAILED && (flags & MAP_SHARED) && (access & PROT_WRITE) \
            && !(flags & MAP_ANONYMOUS) ? inode_of(fd, &status) : 0;            \
        if (inode) { append("map", inode, 0, "", "", 0, "", 0);                 \
            if (map_count == 64) abort();                                       \
            maps[map_count].at = done; maps[map_count].size = size;             \
            maps[map_count].inode = inode; maps[map_count++].offset = offset; } \
        UNLOCKED; }
MAP(mmap) MAP(mmap64)
int msync(void *at, size_t size, int flags) {
    REAL(msync); LOCKED(real(at, size, flags));
    for (int i = 0; i < map_count && !done; i++)
        if ((char *)at >= maps[i].at && (char *)at < maps[i].at + maps[i].size)
            append("write", maps[i].inode, maps[i].offset + ((char *)at - maps[i].at), "", "", 1, at, size);
    UNLOCKED; }

#define NAMES(name, kind, arguments, from, to, ...)                             \
    int name arguments {                                                        \
        char path[PATH_MAX], other[PATH_MAX]; from; to; REAL(name);             \
        LOCKED(real(__VA_ARGS__));                                              \
        if (!done && (is_below(path) || is_below(other)))                       \
            append(kind, 0, 0, path, other, 0, "", 0);                          \
        UNLOCKED; }
#define A(directory, file) full(directory, file, path)
#define B(directory, file) full(directory, file, other)
#define NONE strcpy(other, "")
NAMES(rename, "rename", (const char *a, const char *b), A(AT_FDCWD, a), B(AT_FDCWD, b), a, b)
NAMES(renameat, "rename", (int x, const char *a, int y, const char *b), A(x, a), B(y, b), x, a, y, b)
NAMES(renameat2, "rename", (int x, const char *a, int y, const char *b, unsigned f), A(x, a), B(y, b), x, a, y, b, f)
NAMES(link, "link", (const char *a, const char *b), A(AT_FDCWD, a), B(AT_FDCWD, b), a, b)
NAMES(linkat, "link", (int x, const char *a, int y, const char *b, int f), A(x, a), B(y, b), x, a, y, b, f)
NAMES(unlink, "remove", (const char *a), A(AT_FDCWD, a), NONE, a)
NAMES(unlinkat, "remove", (int x, const char *a, int f), A(x, a), NONE, x, a, f)
NAMES(rmdir, "remove", (const char *a), A(AT_FDCWD, a), NONE, a)

static void made(int done, const char *path) {
    struct stat status;
    if (!done && is_below(path) && syscall(SYS_newfstatat, AT_FDCWD, path, &status, 0) == 0)
        append("mkdir", status.st_ino, 0, path, "", 0, "", 0);
}
int mkdir(const char *a, mode_t mode) {
    char path[PATH_MAX]; full(AT_FDCWD, a, path); REAL(mkdir);
    LOCKED(real(a, mode)); made(done, path); UNLOCKED; }
int mkdirat(int x, const char *a, mode_t mode) {
    char path[PATH_MAX]; full(x, a, path); REAL(mkdirat);
    LOCKED(real(x, a, mode)); made(done, path); UNLOCKED; }
