/* All of the API against the node at $GOSSIPQ_SERVER, for valgrind: exits 0 when each answer is the one that is due. */
#include <gossipq.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(what) \
    do { \
        int code_ = (what); \
        if (code_) { \
            fprintf(stderr, "%s:%d: %s: %d %s\n", __FILE__, __LINE__, #what, code_, gq_error(mq)); \
            return 1; \
        } \
    } while (0)
#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            return 1; \
        } \
    } while (0)
enum { RECORDS = 3000, WAIT_MS = 60000 };

static int many(gq *mq, const char *topic) {
    static gq_record records[RECORDS];
    static gq_place places[RECORDS];
    static char texts[RECORDS][16];
    for (int i = 0; i < RECORDS; i++) {
        snprintf(texts[i], sizeof texts[i], "%d", i);
        records[i] = (gq_record){.value = texts[i], .value_size = strlen(texts[i]), .key = "ada", .key_size = 3};
    }
    MUST(gq_publish(mq, topic, records, RECORDS, NULL, places, WAIT_MS));
    gq_subscription *s;
    gq_message m;
    MUST(gq_subscribe(mq, topic, "g", NULL, &s));
    for (int i = 0; i < RECORDS; i++) {
        MUST(gq_next(s, &m, WAIT_MS));
        CHECK(places[i].offset == m.offset && places[i].partition == m.partition);
        CHECK(m.value_size == strlen(texts[i]) && !memcmp(m.value, texts[i], m.value_size));
        MUST(gq_ack(s, m.partition, m.offset));
    }
    MUST(gq_flush(s, WAIT_MS));
    CHECK(gq_next(s, &m, 50) == GQ_TIMEOUT);
    gq_unsubscribe(s);
    return 0;
}

static int one(gq *mq, const char *topic) {
    gq_subscription *s;
    gq_message m;
    gq_place place;
    gq_header headers[] = {{"k", "v", 1}, {"empty", "", 0}};
    gq_record r = {.value = "x", .value_size = 1, .id = "order-17", .id_size = 8, .headers = headers, .header_count = 2};
    gq_how how = {.route = "eu.fr"};
    MUST(gq_publish(mq, topic, &r, 1, &how, &place, WAIT_MS));
    CHECK(!place.duplicate);
    MUST(gq_publish(mq, topic, &r, 1, &how, &place, WAIT_MS));
    CHECK(place.duplicate);
    MUST(gq_subscribe(mq, topic, "one", NULL, &s));
    MUST(gq_next(s, &m, WAIT_MS));
    const char *name;
    const void *value;
    size_t name_size, value_size;
    CHECK(m.header_count == 2 && !gq_header_at(&m, 0, &name, &name_size, &value, &value_size));
    CHECK(name_size == 1 && *name == 'k' && value_size == 1 && m.route_size == 5);
    CHECK(gq_header_at(&m, 2, &name, &name_size, &value, &value_size) == GQ_ARGUMENT);
    MUST(gq_nack(s, m.partition, m.offset, "no milk", 0, WAIT_MS));
    MUST(gq_next(s, &m, WAIT_MS));
    CHECK(m.attempt == 2);
    MUST(gq_ack(s, m.partition, m.offset));
    CHECK(gq_ack(s, 99, 0) == GQ_ARGUMENT);
    return 0; /* gq_close ends the subscription */
}

static int wrong(gq *mq, const char *topic) {
    static char large[(16 << 20) + 1];
    gq_place places[3];
    gq_record r[] = {{.value = "a", .value_size = 1}, {.value = large, .value_size = sizeof large}, {.value = "b", .value_size = 1}};
    CHECK(gq_publish(mq, topic, r, 3, NULL, places, WAIT_MS) == GQ_REFUSED && !strcmp(gq_error_code(mq), "too_large"));
    CHECK(places[0].code == GQ_OK && places[1].code == GQ_REFUSED && places[2].code == GQ_OK);
    CHECK(gq_publish(mq, "not a name!", r, 1, NULL, NULL, WAIT_MS) == GQ_REFUSED && !strcmp(gq_error_code(mq), "bad_name"));
    CHECK(gq_publish(mq, NULL, r, 1, NULL, NULL, WAIT_MS) == GQ_ARGUMENT);
    MUST(gq_publish(mq, topic, r, 1, NULL, places, WAIT_MS));
    gq *nobody, *none;
    CHECK(gq_open(&none, "no address") == GQ_ARGUMENT && gq_open(&none, "") != GQ_OK);
    MUST(gq_open(&nobody, "tcp://127.0.0.1:9"));
    CHECK(gq_publish(nobody, topic, r, 1, NULL, NULL, 300) == GQ_TIMEOUT);
    gq_close(nobody);
    gq_close(NULL);
    return 0;
}

int main(int count, char **words) {
    gq *mq;
    const char *topic = count > 1 ? words[1] : "c-work";
    char named[3][64];
    if (gq_open(&mq, NULL)) return 2;
    for (int i = 0; i < 3; i++) snprintf(named[i], sizeof named[i], "%.50s-%d", topic, i);
    int failed = many(mq, named[0]) || one(mq, named[1]) || wrong(mq, named[2]);
    MUST(gq_ping(mq));
    gq_close(mq);
    return failed;
}
