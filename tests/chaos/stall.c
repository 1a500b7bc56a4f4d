/* Preloaded into a node: each sync to disk waits as long as the file $GOSSIPQ_TEST_STALL is there, and the wall clock is off by the
   seconds (8 bytes) in the file $GOSSIPQ_TEST_CLOCK. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void stall(void) {
    const char *flag = getenv("GOSSIPQ_TEST_STALL");
    while (flag && access(flag, F_OK) == 0) usleep(5000);
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    stall();
    return real(file);
}

int fsync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    stall();
    return real(file);
}

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
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(clock, now);
    if (done == 0 && clock == CLOCK_REALTIME) now->tv_sec += off_s();
    return done;
}
