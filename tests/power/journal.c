/* Preloaded into a process: everything that it writes below POWER_ROOT also goes, with its data and in its order, to the file
   POWER_JOURNAL. journal.py has the layout of an entry and reads it. What is stored through a memory map is not seen. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, MKDIR, RENAME, REMOVE, WRITE, WROTE, TRUNCATE, SYNC, MARK, LOST };
enum { PARTS_MAX = 1000 };

struct entry {
    uint32_t kind, path_bytes;
    uint64_t file, offset, size;
};

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static void fail(const char *why)
{
    dprintf(2, "journal: %s: %s\n", why, strerror(errno));
    _exit(99); /* a journal with a hole would make images that never were */
}

/* The journal file: opened once in each process. */
static int journal(void)
{
    static int fd = -1;
    if (fd < 0) {
        REAL(int, open64, const char *, int, ...);
        const char *path = getenv("POWER_JOURNAL");
        fd = path ? real(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
        if (fd < 0) fail("cannot be opened");
    }
    return fd;
}

/* One call on a file opened to append: entries of several processes do not mix. */
static void note(int kind, uint64_t file, uint64_t offset, const char *path, const struct iovec *data, int parts)
{
    REAL(ssize_t, writev, int, const struct iovec *, int);
    int kept = errno;
    struct entry head = {kind, path ? strlen(path) : 0, file, offset, 0};
    struct iovec all[PARTS_MAX + 2] = {{&head, sizeof head}, {(void *)path, head.path_bytes}};
    if (parts > PARTS_MAX) fail("too many parts");
    for (int i = 0; i < parts; i++) {
        all[i + 2] = data[i];
        head.size += data[i].iov_len;
    }
    if (real(journal(), all, parts + 2) != (ssize_t)(sizeof head + head.path_bytes + head.size)) fail("cannot be written");
    errno = kept;
}

static void note_number(int kind, uint64_t file, uint64_t offset, uint64_t number)
{
    struct iovec data = {&number, sizeof number};
    note(kind, file, offset, NULL, &data, 1);
}

static int below_root(const char *path)
{
    const char *root = getenv("POWER_ROOT");
    size_t length = root ? strlen(root) : 0;
    return length && !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

/* The file number when `fd` is a file or directory below the root, else 0. */
static uint64_t ours(int fd)
{
    char link[64], path[PATH_MAX];
    struct stat found;
    int kept = errno;
    uint64_t file = 0;
    if (!fstat(fd, &found) && (S_ISREG(found.st_mode) || S_ISDIR(found.st_mode))) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path - 1);
        if (length > 0) {
            path[length] = 0;
            if (below_root(path)) file = found.st_ino;
        }
    }
    errno = kept;
    return file;
}

/* The absolute name of `path`, seen from the directory `at`. */
static const char *name(int at, const char *path, char *out)
{
    char link[64], place[PATH_MAX];
    if (path[0] == '/') return path;
    if (at == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t length = readlink(link, place, sizeof place - 1);
    if (length < 0) fail("no directory");
    snprintf(out, 2 * PATH_MAX, "%.*s/%s", (int)length, place, path);
    return out;
}

/* --- what fails */

static int until_fault, fault_reaches_disk;

/* Of the calls that write or sync, the one that comes as number `calls` fails with EIO. */
void power_fault(int calls, int reaches_disk)
{
    until_fault = calls;
    fault_reaches_disk = reaches_disk;
}

static int faulty(uint64_t file)
{
    return file && until_fault > 0 && --until_fault == 0;
}

/* --- what is in a file */

static void noted_write(int fd, uint64_t offset, const struct iovec *data, int parts)
{
    uint64_t file = ours(fd);
    if (file) note(WRITE, file, offset, NULL, data, parts);
}

/* A write to a file opened with O_DSYNC lasts when it returns. */
static void noted_return(int fd, uint64_t offset, ssize_t wrote, size_t asked)
{
    uint64_t file = ours(fd);
    if (!file) return;
    if (wrote != (ssize_t)asked) fail("a write of the store was cut short");
    if (fcntl(fd, F_GETFL) & O_DSYNC) note_number(WROTE, file, offset, asked);
}

static size_t bytes_of(const struct iovec *data, int parts)
{
    size_t size = 0;
    for (int i = 0; i < parts; i++) size += data[i].iov_len;
    return size;
}

/* A write that failed, and may be there all the same. A write to a file opened with O_DSYNC is over: no later sync does it again. */
static int refused(int fd, uint64_t offset, size_t asked)
{
    if (fcntl(fd, F_GETFL) & O_DSYNC) note_number(LOST, ours(fd), offset, asked);
    errno = EIO;
    return -1;
}

#define PWRITE(call) \
    ssize_t call(int fd, const void *data, size_t size, off_t offset) \
    { \
        REAL(ssize_t, call, int, const void *, size_t, off_t); \
        struct iovec part = {(void *)data, size}; \
        int fault = faulty(ours(fd)); \
        if (fault && !fault_reaches_disk) return errno = EIO, -1; \
        noted_write(fd, offset, &part, 1); \
        ssize_t wrote = real(fd, data, size, offset); \
        if (fault) return refused(fd, offset, size); \
        noted_return(fd, offset, wrote, size); \
        return wrote; \
    }

#define PWRITEV(call) \
    ssize_t call(int fd, const struct iovec *data, int parts, off_t offset) \
    { \
        REAL(ssize_t, call, int, const struct iovec *, int, off_t); \
        int fault = faulty(ours(fd)); \
        if (fault && !fault_reaches_disk) return errno = EIO, -1; \
        noted_write(fd, offset, data, parts); \
        ssize_t wrote = real(fd, data, parts, offset); \
        if (fault) return refused(fd, offset, bytes_of(data, parts)); \
        noted_return(fd, offset, wrote, bytes_of(data, parts)); \
        return wrote; \
    }

PWRITE(pwrite)
PWRITE(pwrite64)
PWRITEV(pwritev)
PWRITEV(pwritev64)

/* Where the next write goes. */
static off_t position(int fd)
{
    struct stat found;
    if ((fcntl(fd, F_GETFL) & O_APPEND) && !fstat(fd, &found)) return found.st_size;
    return lseek(fd, 0, SEEK_CUR);
}

ssize_t write(int fd, const void *data, size_t size)
{
    REAL(ssize_t, write, int, const void *, size_t);
    if (!ours(fd)) return real(fd, data, size);
    off_t offset = position(fd);
    struct iovec part = {(void *)data, size};
    int fault = faulty(ours(fd));
    if (fault && !fault_reaches_disk) return errno = EIO, -1;
    noted_write(fd, offset, &part, 1);
    ssize_t wrote = real(fd, data, size);
    if (fault) return refused(fd, offset, size);
    noted_return(fd, offset, wrote, size);
    return wrote;
}

ssize_t writev(int fd, const struct iovec *data, int parts)
{
    REAL(ssize_t, writev, int, const struct iovec *, int);
    if (!ours(fd)) return real(fd, data, parts);
    off_t offset = position(fd);
    noted_write(fd, offset, data, parts);
    ssize_t wrote = real(fd, data, parts);
    noted_return(fd, offset, wrote, bytes_of(data, parts));
    return wrote;
}

#define FTRUNCATE(call) \
    int call(int fd, off_t size) \
    { \
        REAL(int, call, int, off_t); \
        uint64_t file = ours(fd); \
        if (file) note_number(TRUNCATE, file, 0, size); \
        return real(fd, size); \
    }

FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

/* A sync counts from its return on. POWER_SYNC_US makes it slow, so that what is said too early is seen to be. */
#define FSYNC(call) \
    int call(int fd) \
    { \
        REAL(int, call, int); \
        uint64_t file = ours(fd); \
        const char *slow = getenv("POWER_SYNC_US"); \
        if (file && slow) usleep(atoi(slow)); \
        if (faulty(file)) { \
            note_number(LOST, file, 0, 0); \
            return errno = EIO, -1; \
        } \
        int failed = real(fd); \
        if (file && !failed) note(SYNC, file, 0, NULL, NULL, 0); \
        return failed; \
    }

FSYNC(fsync)
FSYNC(fdatasync)

/* --- names */

static int opened(int fd, int at, const char *path, int flags, int was_there)
{
    char room[2 * PATH_MAX];
    uint64_t file = fd < 0 ? 0 : ours(fd);
    if (file && (flags & O_CREAT) && !was_there) note(CREATE, file, 0, name(at, path, room), NULL, 0);
    else if (file && (flags & O_TRUNC)) note_number(TRUNCATE, file, 0, 0);
    return fd;
}

static int is_there(int at, const char *path)
{
    struct stat found;
    int kept = errno, there = !fstatat(at, path, &found, 0);
    errno = kept;
    return there;
}

#define OPEN(call) \
    int call(const char *path, int flags, ...) \
    { \
        REAL(int, call, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        int there = is_there(AT_FDCWD, path); \
        return opened(real(path, flags, mode), AT_FDCWD, path, flags, there); \
    }

#define OPENAT(call) \
    int call(int at, const char *path, int flags, ...) \
    { \
        REAL(int, call, int, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        int there = is_there(at, path); \
        return opened(real(at, path, flags, mode), at, path, flags, there); \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

static int made(int failed, int at, const char *path)
{
    char room[2 * PATH_MAX];
    struct stat found;
    const char *full = name(at, path, room);
    if (!failed && below_root(full) && !fstatat(at, path, &found, 0)) note(MKDIR, found.st_ino, 0, full, NULL, 0);
    return failed;
}

int mkdir(const char *path, mode_t mode)
{
    REAL(int, mkdir, const char *, mode_t);
    return made(real(path, mode), AT_FDCWD, path);
}

int mkdirat(int at, const char *path, mode_t mode)
{
    REAL(int, mkdirat, int, const char *, mode_t);
    return made(real(at, path, mode), at, path);
}

static int removed(int failed, int at, const char *path)
{
    char room[2 * PATH_MAX];
    const char *full = name(at, path, room);
    if (!failed && below_root(full)) note(REMOVE, 0, 0, full, NULL, 0);
    return failed;
}

int unlink(const char *path)
{
    REAL(int, unlink, const char *);
    return removed(real(path), AT_FDCWD, path);
}

int rmdir(const char *path)
{
    REAL(int, rmdir, const char *);
    return removed(real(path), AT_FDCWD, path);
}

int unlinkat(int at, const char *path, int flags)
{
    REAL(int, unlinkat, int, const char *, int);
    return removed(real(at, path, flags), at, path);
}

static int renamed(int failed, int at, const char *path, int to_at, const char *to)
{
    char room[2 * PATH_MAX], to_room[2 * PATH_MAX];
    const char *full = name(at, path, room), *to_full = name(to_at, to, to_room);
    struct iovec data = {(void *)to_full, strlen(to_full)};
    if (!failed && below_root(to_full)) note(RENAME, 0, 0, full, &data, 1);
    return failed;
}

int rename(const char *path, const char *to)
{
    REAL(int, rename, const char *, const char *);
    return renamed(real(path, to), AT_FDCWD, path, AT_FDCWD, to);
}

int renameat(int at, const char *path, int to_at, const char *to)
{
    REAL(int, renameat, int, const char *, int, const char *);
    return renamed(real(at, path, to_at, to), at, path, to_at, to);
}
