/* Against a node at $GOSSIPQ_SERVER that answers as tests/bindings/test_faults.py says: exits 0 when each answer is the one that is due.
 * For valgrind. */
#include <gossipq.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WAIT_MS = 20000, SHORT_MS = 1000, HEADERS_MAX = 1000 };
#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #what, gq_error(mq)); \
            return 1; \
        } \
    } while (0)
static const char TOKEN[] = "gq_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
static const gq_record R = {.value = "x", .value_size = 1, .id = "i", .id_size = 1};

/* The second of three batches is refused while the first is on its way. */
static int refused(gq *mq) {
    gq_place places[6];
    for (int i = 0; i < 6; i += 2) CHECK(!gq_post(mq, "t", (gq_record[]){R, R}, 2, NULL, places + i, WAIT_MS));
    CHECK(gq_confirm(mq, WAIT_MS) == GQ_REFUSED && !strcmp(gq_error_code(mq), "topic_full"));
    CHECK(!places[0].code && places[2].code == GQ_REFUSED && !places[4].code);
    return 0;
}

/* A late answer to a batch that was resent and is already confirmed. */
static int late(gq *mq) {
    for (int i = 0; i < 3; i++) CHECK(!gq_publish(mq, "t", &R, 1, NULL, NULL, WAIT_MS));
    return 0;
}

/* A CONFIRM without runs. */
static int runs(gq *mq) {
    gq_place place;
    CHECK(!gq_publish(mq, "t", &R, 1, NULL, &place, WAIT_MS) && place.offset == 0);
    return 0;
}

static int headers(gq *mq) {
    gq_subscription *s;
    gq_message m;
    const char *name;
    const void *value;
    size_t size, value_size;
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &s));
    for (int record = 0; record < 5; record++) {
        CHECK(!gq_next(s, &m, WAIT_MS));
        CHECK(m.header_count < HEADERS_MAX);
        for (size_t i = 0; i < m.header_count; i++) CHECK(!gq_header_at(&m, i, &name, &size, &value, &value_size));
        printf("%zu ", m.header_count);
        CHECK(!gq_ack(s, m.partition, m.offset));
    }
    gq_unsubscribe(s);
    return 0;
}

static int subscribe(gq *mq) {
    gq_subscription *s;
    CHECK(gq_subscribe(mq, "t", "g", &(gq_options){.timeout_ms = SHORT_MS}, &s) == GQ_TIMEOUT);
    return 0;
}

/* The first address has no node, and the second is not an address. */
static int nobody(gq *mq) {
    for (int i = 0; i < 3; i++) CHECK(gq_publish(mq, "t", &R, 1, NULL, NULL, 4 * SHORT_MS) == GQ_TIMEOUT);
    return 0;
}

/* Print the offsets that are shown again. The client waits long for each of $SHOWN_AGAIN, and SHORT_MS for one that must not come. */
static void print_again(gq_subscription *s) {
    gq_message m;
    const char *left = getenv("SHOWN_AGAIN");
    while (!gq_next(s, &m, left && *left ? WAIT_MS : SHORT_MS)) {
        printf("%d ", (int)m.offset);
        left = left ? strchr(left, ' ') : NULL;
        if (left) left++;
    }
}

/* Takes all records and acks all but offset 2; later records are redelivered ones. `flush`: wait for the answers to the acks first. */
static int again(gq *mq, int flush) {
    gq_subscription *s;
    gq_message m;
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &s));
    CHECK(!gq_next(s, &m, WAIT_MS));
    do {
        printf("%d ", (int)m.offset);
        if (m.offset < 2) CHECK(!gq_ack(s, m.partition, m.offset));
    } while (m.offset < 2 && !gq_next(s, &m, 0));
    if (flush) {
        int code = gq_flush(s, WAIT_MS);
        CHECK(!code || code == GQ_LOST);
    }
    print_again(s);
    gq_unsubscribe(s);
    return 0;
}

/* The first one fails; then what there is. */
static int failed(gq *mq) {
    gq_subscription *s;
    gq_message m;
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &s));
    CHECK(!gq_next(s, &m, WAIT_MS));
    printf("%d ", (int)m.offset);
    int code = gq_nack(s, m.partition, m.offset, "x", 0, WAIT_MS);
    CHECK(!code || code == GQ_LOST);
    print_again(s);
    gq_unsubscribe(s);
    return 0;
}

static int again_flush(gq *mq) { return again(mq, 1); }

static int again_next(gq *mq) { return again(mq, 0); }

/* Each of many partitions has a leader of its own, and records of all of them arrive at once. */
static int many(gq *mq) {
    enum { LEADERS = 40, SOON_S = 3 };
    gq_subscription *s;
    struct timespec began, ended;
    gq_message m;
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &s));
    for (int i = 0; i < LEADERS; i++) CHECK(!gq_next(s, &m, WAIT_MS));
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (uint32_t i = 0; i < LEADERS; i++) CHECK(!gq_nack(s, i, 0, "x", -1, WAIT_MS));
    clock_gettime(CLOCK_MONOTONIC, &ended);
    CHECK(ended.tv_sec - began.tv_sec < SOON_S);
    gq_unsubscribe(s);
    return 0;
}

/* While the first publish is in flight, topic t is deleted and created again. Topic u is not affected. */
static int gone(gq *mq) {
    gq_subscription *t, *u;
    gq_message m;
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &t) && !gq_subscribe(mq, "u", "g", NULL, &u));
    for (int i = 0; i < 2; i++) CHECK(!gq_publish(mq, "u", &R, 1, NULL, NULL, WAIT_MS));
    CHECK(gq_next(u, &m, SHORT_MS) == GQ_TIMEOUT);
    CHECK(gq_next(t, &m, SHORT_MS) == GQ_REFUSED && !strcmp(gq_error_code(mq), "unknown_topic"));
    CHECK(gq_nack(t, 0, 0, "x", -1, SHORT_MS) == GQ_REFUSED);
    gq_unsubscribe(t);
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &t));
    CHECK(gq_next(t, &m, SHORT_MS) == GQ_TIMEOUT);
    gq_unsubscribe(t);
    gq_unsubscribe(u);
    return 0;
}

/* A reader of new records that has not taken a record yet. */
static int reader(gq *mq) {
    gq_subscription *s;
    gq_message m;
    CHECK(!gq_subscribe(mq, "t", "", &(gq_options){.start = "new"}, &s));
    CHECK(gq_next(s, &m, SHORT_MS) == GQ_TIMEOUT);
    gq_unsubscribe(s);
    return 0;
}

/* The end of a subscription is not answered. */
static int left(gq *mq) {
    gq_subscription *s;
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &s));
    gq_unsubscribe(s);
    for (int i = 0; i < 2; i++) CHECK(!gq_publish(mq, "t", &R, 1, NULL, NULL, WAIT_MS));
    return 0;
}

/* Each new session is refused: records that were sent before may be stored. */
static int unsure(gq *mq) {
    gq_place place;
    CHECK(!gq_publish(mq, "t", &R, 1, NULL, NULL, WAIT_MS));
    CHECK(gq_publish(mq, "t", &R, 1, NULL, &place, WAIT_MS) == GQ_NOT_CONFIRMED && place.code == GQ_NOT_CONFIRMED);
    CHECK(gq_publish(mq, "t", &R, 1, NULL, &place, WAIT_MS) == GQ_REFUSED && place.code == GQ_REFUSED);
    return 0;
}

/* A record that the user does not have cannot be acked. */
static int strange(gq *mq) {
    gq_subscription *s;
    gq_message m;
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &s));
    CHECK(!gq_next(s, &m, WAIT_MS) && m.offset == 0);
    CHECK(gq_ack(s, m.partition, 1) == GQ_ARGUMENT && gq_ack(s, m.partition, -1) == GQ_ARGUMENT);
    CHECK(gq_nack(s, m.partition, 1, "x", -1, WAIT_MS) == GQ_ARGUMENT);
    CHECK(!gq_ack(s, m.partition, 0) && !gq_flush(s, WAIT_MS));
    CHECK(gq_ack(s, m.partition, 0) == GQ_ARGUMENT);
    CHECK(!gq_flush(s, WAIT_MS));
    gq_unsubscribe(s);
    return 0;
}

/* The client refuses the first of two records, and the other has no answer before the call ends: its late answer is dropped. */
static int some(gq *mq) {
    static char large[(16 << 20) + 1];
    const gq_record both[] = {{.value = large, .value_size = sizeof large}, R};
    CHECK(gq_publish(mq, "t", both, 2, NULL, NULL, SHORT_MS) == GQ_REFUSED && !strcmp(gq_error_code(mq), "too_large"));
    CHECK(!gq_publish(mq, "t", &R, 1, NULL, NULL, WAIT_MS));
    CHECK(!gq_waiting(mq));
    return 0;
}

/* Arguments that are always wrong are refused at once, without a node. */
static int at_once(gq *mq) {
    char route[257] = {0};
    memset(route, 'r', sizeof route - 1);
    gq_place place;
    gq_subscription *s;
    CHECK(gq_publish(mq, "t", &R, 1, &(gq_how){.route = route}, &place, -1) == GQ_REFUSED && place.code == GQ_REFUSED);
    CHECK(!strcmp(gq_error_code(mq), "too_large"));
    CHECK(gq_publish(mq, "t*", &R, 1, NULL, &place, -1) == GQ_REFUSED && place.code == GQ_REFUSED);
    CHECK(!strcmp(gq_error_code(mq), "bad_name"));
    CHECK(gq_subscribe(mq, "*", "g", NULL, &s) == GQ_REFUSED && !strcmp(gq_error_code(mq), "bad_name"));
    const gq_header odd = {"\xe9", "x", 1};
    const gq_record headed = {.headers = &odd, .header_count = 1};
    static const char *const NO_TEXTS[] = {"\x80", "\xc3", "\xe9t\xe9", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"};
    for (size_t i = 0; i < sizeof NO_TEXTS / sizeof *NO_TEXTS; i++) {
        CHECK(gq_publish(mq, NO_TEXTS[i], &R, 1, NULL, &place, -1) == GQ_REFUSED && !strcmp(gq_error_code(mq), "bad_request"));
        CHECK(gq_publish(mq, "t", &R, 1, &(gq_how){.route = NO_TEXTS[i]}, &place, -1) == GQ_REFUSED);
        CHECK(gq_subscribe(mq, "t", NO_TEXTS[i], NULL, &s) == GQ_REFUSED && !strcmp(gq_error_code(mq), "bad_request"));
    }
    CHECK(gq_subscribe(mq, "t", "g", &(gq_options){.start = "offset"}, &s) == GQ_REFUSED);
    CHECK(gq_subscribe(mq, "t", "", &(gq_options){.lease_ms = 1}, &s) == GQ_REFUSED);
    CHECK(gq_publish(mq, "t", &headed, 1, NULL, &place, WAIT_MS) == GQ_REFUSED && place.code == GQ_REFUSED);
    return 0;
}

/* The topic is removed while the user has a record of it. */
static int failed_gone(gq *mq) {
    gq_subscription *s;
    gq_message m;
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &s) && !gq_next(s, &m, WAIT_MS));
    CHECK(gq_nack(s, m.partition, m.offset, "x", -1, WAIT_MS) == GQ_REFUSED && !strcmp(gq_error_code(mq), "unknown_topic"));
    gq_unsubscribe(s);
    return 0;
}

/* The leader is on another host, where the token is not shown: all goes by the home, and stays there. */
static int far(gq *mq) {
    (void)mq;
    gq *other;
    CHECK(!gq_open_with(&other, &(gq_connection){.token = TOKEN}));
    for (int i = 0; i < 3; i++) CHECK(!gq_publish(other, "t", &R, 1, NULL, NULL, WAIT_MS));
    gq_close(other);
    return 0;
}

/* The user has more than may be named when it is subscribed again. */
static int holding(gq *mq) {
    enum { RECORDS = 34000 };
    gq_subscription *s;
    gq_message m;
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &s));
    for (int i = 0; i < RECORDS; i++) {
        CHECK(!gq_next(s, &m, WAIT_MS));
        if (i % 2) CHECK(!gq_ack(s, m.partition, m.offset));
    }
    CHECK(!gq_flush(s, WAIT_MS) && !gq_publish(mq, "t", &R, 1, NULL, NULL, WAIT_MS));
    gq_unsubscribe(s);
    return 0;
}

/* A resent record is refused: the client must not mistake the next record for it. */
static int forbidden(gq *mq) {
    gq_place place;
    CHECK(gq_publish(mq, "t", &R, 1, NULL, &place, WAIT_MS) == GQ_NOT_CONFIRMED && place.code == GQ_NOT_CONFIRMED);
    CHECK(!gq_publish(mq, "t", &R, 1, NULL, &place, WAIT_MS));
    return 0;
}

/* A token is shown on this machine only. */
static int here(gq *mq) {
    static const char *const NEAR[] = {"tcp://127.0.0.1:1", "tcp://127.1.2.3:1", "tcp://localhost:1", "tcp://[::1]:1", "ipc:///tmp/x"};
    static const char *const FAR[] = {"tcp://127.x.example:1", "tcp://127.0.0.1.example:1", "tcp://127.:1", "tcp://localhost.example:1",
                                      "tcp://[::1].example:1", "tcp://128.0.0.1:1", "tcp://example:127.0.0.1:1", "tcp://127.0.0.1"};
    gq *other;
    for (size_t i = 0; i < sizeof NEAR / sizeof *NEAR; i++) {
        CHECK(!gq_open_with(&other, &(gq_connection){.servers = NEAR[i], .token = TOKEN}));
        gq_close(other);
    }
    for (size_t i = 0; i < sizeof FAR / sizeof *FAR; i++)
        CHECK(gq_open_with(&other, &(gq_connection){.servers = FAR[i], .token = TOKEN}) == GQ_ARGUMENT);
    return 0;
}

/* After each batch the topic is made anew. */
static int anew(gq *mq) {
    gq_place places[2];
    gq_subscription *s;
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &s));
    for (int i = 0; i < 3; i++) CHECK(!gq_publish(mq, "t", (gq_record[]){R, R}, 2, NULL, places, WAIT_MS) && !places[1].code);
    gq_unsubscribe(s);
    CHECK(!gq_publish(mq, "t", &R, 1, NULL, NULL, WAIT_MS));
    return 0;
}

/* The node is away when the client is closed. */
static int away(gq *mq) {
    enum { SUBSCRIPTIONS = 4, SOON_S = 4 };
    static const char *const TOPICS[SUBSCRIPTIONS] = {"t", "u", "v", "w"};
    struct timespec began, ended;
    gq_subscription *s;
    gq *other;
    CHECK(!gq_open(&other, NULL));
    for (int i = 0; i < SUBSCRIPTIONS; i++) CHECK(!gq_subscribe(other, TOPICS[i], "g", NULL, &s));
    CHECK(gq_publish(other, "t", &R, 1, NULL, NULL, 100) == GQ_NOT_CONFIRMED);
    clock_gettime(CLOCK_MONOTONIC, &began);
    gq_close(other);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    CHECK(ended.tv_sec - began.tv_sec < SOON_S);
    return 0;
}

/* A call with a timeout of 0 returns a record that has already arrived. */
static int polls(gq *mq) {
    enum { SOON_NS = 700000000, PAUSE_NS = 1000000 };
    gq_subscription *s;
    gq_message m;
    int code;
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &s) && !gq_publish(mq, "t", &R, 1, NULL, NULL, WAIT_MS));
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    while ((code = gq_next(s, &m, 0)) == GQ_TIMEOUT) {
        nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
        CHECK((now.tv_sec - began.tv_sec) * 1000000000 + now.tv_nsec - began.tv_nsec < SOON_NS);
    }
    CHECK(!code && !gq_ack(s, m.partition, m.offset));
    while ((code = gq_flush(s, 0)) == GQ_TIMEOUT) nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    return code;
}

/* Others have the second and the third record that are acked. */
static int lost(gq *mq) {
    gq_subscription *s;
    gq_message m;
    gq_place places[4];
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &s));
    for (int i = 0; i < 4; i++) CHECK(!gq_next(s, &m, WAIT_MS) && !gq_ack(s, m.partition, m.offset));
    CHECK(gq_flush(s, WAIT_MS) == GQ_LOST && !strcmp(gq_error(mq), "others have these acked records by now: t/0/1 to 2"));
    CHECK(gq_lost(s, places, 4) == 2 && places[0].offset == 1 && places[1].offset == 2);
    CHECK(!gq_flush(s, WAIT_MS) && !gq_lost(s, places, 4));
    CHECK(!gq_next(s, &m, WAIT_MS) && !gq_ack(s, m.partition, m.offset));
    return gq_unsubscribe(s) == GQ_LOST ? 0 : 1;
}

/* A client is closed right after an ack of a record that others have. */
static int lost_close(gq *mq) {
    gq_subscription *s;
    gq_message m;
    gq *other;
    CHECK(!gq_open(&other, NULL) && !gq_subscribe(other, "t", "g", NULL, &s));
    CHECK(!gq_next(s, &m, WAIT_MS) && !gq_ack(s, m.partition, m.offset));
    return gq_close(other) == GQ_LOST ? 0 : 1;
}

/* Of ten records the user has the first; then the node asks for all but four of them. */
static int shared(gq *mq) {
    enum { PAUSE_NS = 200000000 };
    gq_subscription *s;
    gq_message m;
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &s) && !gq_next(s, &m, WAIT_MS));
    nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    CHECK(!gq_ping(mq));
    for (int i = 0; i < 3; i++) CHECK(!gq_ack(s, m.partition, m.offset) && !gq_next(s, &m, WAIT_MS));
    CHECK(m.offset == 3 && gq_next(s, &m, 100) == GQ_TIMEOUT);
    return gq_unsubscribe(s);
}

/* Three records are acked in a row, then the user works on the fourth, and calls nothing. */
static int works(gq *mq) {
    gq_subscription *s;
    gq_message m;
    CHECK(!gq_subscribe(mq, "t", "g", NULL, &s));
    for (int i = 0; i < 3; i++) CHECK(!gq_next(s, &m, WAIT_MS) && !gq_ack(s, m.partition, m.offset));
    CHECK(!gq_next(s, &m, WAIT_MS));
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    gq_unsubscribe(s);
    return 0;
}

static void ignore(int signal) { (void)signal; }

/* Signals come all the time, as of a profiler. */
static int signals(gq *mq) {
    enum { CLIENTS = 60, EACH_US = 20 };
    struct sigaction how = {.sa_handler = ignore};
    const struct itimerval often = {{0, EACH_US}, {0, EACH_US}}, never = {0};
    int first = 0;
    CHECK(!sigaction(SIGALRM, &how, NULL) && !setitimer(ITIMER_REAL, &often, NULL));
    for (int i = 0; i < CLIENTS; i++) {
        gq *other;
        CHECK(!gq_open(&other, NULL) && !gq_publish(other, "t", &R, 1, NULL, NULL, WAIT_MS));
        gq_close(other);
        int lowest = dup(0); /* all of those below are in use */
        close(lowest);
        if (!i) first = lowest;
        CHECK(lowest == first);
    }
    return setitimer(ITIMER_REAL, &never, NULL);
}

/* A child cannot use the client of its parent, and does it no harm. */
static int forked(gq *mq) {
    gq_subscription *s;
    gq_message m;
    CHECK(!gq_publish(mq, "t", &R, 1, NULL, NULL, WAIT_MS) && !gq_subscribe(mq, "t", "g", NULL, &s));
    pid_t child = fork();
    if (!child) {
        int code = gq_publish(mq, "t", &R, 1, NULL, NULL, WAIT_MS) && gq_next(s, &m, WAIT_MS) == GQ_ARGUMENT;
        gq_unsubscribe(s);
        gq_close(mq);
        _exit(code ? 0 : 1);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && !status);
    CHECK(!gq_publish(mq, "t", &R, 1, NULL, NULL, WAIT_MS) && gq_next(s, &m, 0) == GQ_TIMEOUT);
    return 0;
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        int (*run)(gq *);
    } ALL[] = {{"refused", refused}, {"late", late}, {"runs", runs}, {"headers", headers}, {"subscribe", subscribe}, {"nobody", nobody},
               {"again-flush", again_flush}, {"again-next", again_next}, {"failed", failed}, {"many", many}, {"here", here}, {"gone", gone}, {"reader", reader}, {"left", left}, {"unsure", unsure},
               {"strange", strange}, {"some", some}, {"at-once", at_once}, {"failed-gone", failed_gone}, {"far", far},
               {"holding", holding}, {"forbidden", forbidden}, {"away", away}, {"anew", anew}, {"signals", signals}, {"forked", forked}, {"polls", polls}, {"works", works}, {"shared", shared}, {"lost", lost}, {"lost-close", lost_close}};
    gq *mq;
    int code = 2;
    if (gq_open(&mq, NULL)) return 2;
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++)
        if (count > 1 && !strcmp(ALL[i].name, words[1])) code = ALL[i].run(mq);
    gq_close(mq);
    return code;
}
