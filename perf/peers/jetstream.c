/* Records through NATS JetStream by its C client: `jetstream URL one|publish|both COUNT SIZE` prints records a second.
 * Build: cc -O2 jetstream.c -o jetstream -lnats -lpthread */
#include <nats/nats.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STREAM "race"
#define SUBJECT "race.records"
#define PENDING_MAX 10000
#define FETCH 500
#define FETCH_MS 5000

static void must(natsStatus status, const char *what) {
    if (status == NATS_OK) return;
    fprintf(stderr, "%s: %s\n", what, natsStatus_GetText(status));
    exit(1);
}

static double now_s(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

struct load {
    const char *url;
    int count, size;
};

/* Takes and acks every record, by pulls of FETCH. */
static void *consume(void *given) {
    struct load *load = given;
    natsConnection *connection;
    jsCtx *js;
    natsSubscription *subscription;
    must(natsConnection_ConnectTo(&connection, load->url), "connect");
    must(natsConnection_JetStream(&js, connection, NULL), "jetstream");
    jsSubOptions options;
    jsSubOptions_Init(&options);
    options.Stream = STREAM;
    options.Config.MaxAckPending = 2 * PENDING_MAX;
    must(js_PullSubscribe(&subscription, js, SUBJECT, "race", NULL, &options, NULL), "subscribe");
    for (int seen = 0; seen < load->count;) {
        natsMsgList list;
        natsStatus status = natsSubscription_Fetch(&list, subscription, FETCH, FETCH_MS, NULL);
        if (status == NATS_TIMEOUT) continue;
        must(status, "fetch");
        for (int n = 0; n < list.Count; n++) must(natsMsg_Ack(list.Msgs[n], NULL), "ack");
        seen += list.Count;
        natsMsgList_Destroy(&list);
    }
    must(natsConnection_Flush(connection), "flush");
    natsSubscription_Destroy(subscription);
    jsCtx_Destroy(js);
    natsConnection_Destroy(connection);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    struct load load = {argv[1], atoi(argv[3]), atoi(argv[4])};
    const char *mode = argv[2];
    char *record = malloc(load.size);
    memset(record, 'x', load.size);
    natsConnection *connection;
    jsCtx *js;
    jsOptions options;
    jsOptions_Init(&options);
    options.PublishAsync.MaxPending = PENDING_MAX;
    must(natsConnection_ConnectTo(&connection, load.url), "connect");
    must(natsConnection_JetStream(&js, connection, &options), "jetstream");
    jsStreamConfig config;
    jsStreamConfig_Init(&config);
    const char *subjects[] = {SUBJECT};
    config.Name = STREAM;
    config.Subjects = subjects;
    config.SubjectsLen = 1;
    config.Storage = js_FileStorage;
    must(js_AddStream(NULL, js, &config, NULL, NULL), "stream");

    double start = now_s();
    pthread_t consumer;
    int both = strcmp(mode, "both") == 0;
    if (both && pthread_create(&consumer, NULL, consume, &load)) return 1;
    if (strcmp(mode, "one") == 0) {
        for (int n = 0; n < load.count; n++)
            must(js_Publish(NULL, js, SUBJECT, record, load.size, NULL, NULL), "publish");
    } else {
        for (int n = 0; n < load.count; n++)
            must(js_PublishAsync(js, SUBJECT, record, load.size, NULL), "publish");
        must(js_PublishAsyncComplete(js, NULL), "confirms");
    }
    if (both) pthread_join(consumer, NULL);
    printf("%.0f\n", load.count / (now_s() - start));
    must(js_DeleteStream(js, STREAM, NULL, NULL), "delete");
    jsCtx_Destroy(js);
    natsConnection_Destroy(connection);
    nats_Close();
    free(record);
    return 0;
}
