/* load TOPIC RECORDS BATCH SIZE: publishes to the node at $GOSSIPQ_SERVER until the last confirm, and prints the rate. BATCH records go in
 * each call; with 1 the client packs them. perf/bindings.py runs it. */
#include <gossipq.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { POOL = 8, WAIT_MS = 60000 };

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int count, char **words) {
    if (count != 5) return 2;
    const char *topic = words[1];
    size_t records = strtoul(words[2], NULL, 10), batch = strtoul(words[3], NULL, 10), size = strtoul(words[4], NULL, 10);
    gq *mq;
    gq_record *pool = calloc(POOL * batch, sizeof *pool), warm = {.value = "x", .value_size = 1};
    char *bytes = malloc(POOL * batch * size);
    if (!pool || !bytes || gq_open(&mq, NULL)) return 1;
    for (size_t i = 0; i < POOL * batch * size; i++) bytes[i] = (char)rand();
    for (size_t i = 0; i < POOL * batch; i++) pool[i] = (gq_record){.value = bytes + i * size, .value_size = size};
    int code = gq_publish(mq, topic, &warm, 1, NULL, NULL, WAIT_MS); /* the way to the leader is no part of it */
    double start_s = now_s();
    for (size_t n = 0; n < records / batch && !code; n++)
        code = gq_post(mq, topic, pool + n % POOL * batch, batch, NULL, NULL, WAIT_MS);
    if (!code) code = gq_confirm(mq, WAIT_MS);
    double seconds = now_s() - start_s;
    if (code) fprintf(stderr, "%d: %s\n", code, gq_error(mq));
    else printf("{\"published_per_s\": %.0f}\n", (double)records / seconds);
    gq_close(mq);
    free(pool);
    free(bytes);
    return code;
}
