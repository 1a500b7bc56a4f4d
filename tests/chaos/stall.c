/* Preloaded into a node: while the file $GOSSIPQ_TEST_STALL is there, each sync to disk and each write of a file opened with O_DSYNC takes
   as many milliseconds longer as that file has bytes, or, when it is empty, waits until it is gone. The wall clock is off by the seconds
   (8 bytes) in the file $GOSSIPQ_TEST_CLOCK. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static void stall(void) {
    const char *flag = getenv("GOSSIPQ_TEST_STALL");
    struct stat found;
    while (flag && stat(flag, &found) == 0) {
        usleep(found.st_size ? 1000 * found.st_size : 5000);
        if (found.st_size) return;
    }
}

int fdatasync(int file) {
    REAL(int, fdatasync, int);
    stall();
    return real(file);
}

int fsync(int file) {
    REAL(int, fsync, int);
    stall();
    return real(file);
}

#define PWRITE(call) \
    ssize_t call(int file, const void *data, size_t size, off_t offset) { \
        REAL(ssize_t, call, int, const void *, size_t, off_t); \
        if (fcntl(file, F_GETFL) & O_DSYNC) stall(); \
        return real(file, data, size, offset); \
    }

PWRITE(pwrite)
PWRITE(pwrite64)

static int64_t off_s(void) {
    static volatile int64_t *mapped;
    static int64_t none;
    if (!mapped) {
        const char *path = getenv("GOSSIPQ_TEST_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *at = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        mapped = at == MAP_FAILED ? &none : at;
        if (file >= 0) close(file);
    }
    return *mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(int, clock_gettime, clockid_t, struct timespec *);
    int done = real(clock, now);
    if (done == 0 && clock == CLOCK_REALTIME) now->tv_sec += off_s();
    return done;
}
