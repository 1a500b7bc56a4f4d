/* Preloaded into a node: each sync to disk waits as long as the file $GOSSIPQ_TEST_STALL is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
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
