/* Types and functions that the files of the client share. */
#ifndef GOSSIPQ_INTERNAL_H
#define GOSSIPQ_INTERNAL_H

#include "gossipq.h"
#include "pack.h"

#include <errno.h>
#include <pthread.h>
#include <zmq.h>

enum { HELLO = 1, WELCOME = 2, PING = 3, PONG = 4, BYE = 5, REFUSED = 6, RESET = 7, PUBLISH = 16, CONFIRM = 17 };
enum { SHARE = 31, STARTED = 45, SUBSCRIBE = 32, SUBSCRIBED = 33, UNSUBSCRIBE = 34, DELIVER = 36, ACK = 37, ACKED = 38, NACK = 39, RESOLVE = 64 };
enum { HOME = 0xffff, VERSION = 2, HEADER_BYTES = 24, KEY_BYTES = 32, SESSION_BYTES = 16, TOKEN_BYTES = 32 };
enum { IO_THREADS = 8 }; /* libzmq looks names up in them: while a name server is silent, the connections of that one thread wait */
enum { PING_MS = 1000, SILENT_MS = 3000, AGAIN_MS = 50, HELLO_AGAIN_MS = 1000, CLOSE_MS = 2000 };

typedef struct {
    int64_t key, first, end; /* partition key, offsets */
} range;

typedef struct {
    range *at;
    size_t count, room;
} ranges;

/* A connection: to one of the servers that were given, the home, or to a worker that leads something. */
typedef struct connection {
    struct connection *next;
    char *endpoint;
    void *socket, *monitor;
    int64_t heard_ms;
    uint64_t id;
    int gone; /* its monitor says so */
} connection;

typedef struct {
    uint16_t number;
    int joined;
    int ended;        /* since it was begun to join it */
    uint64_t term;    /* of its newest leader */
    int64_t heard_ms; /* sign of life */
    int64_t mute_ms;  /* since when a question waits for its answer, over several short calls */
    int64_t away_ms;  /* since when all answers say that its leader cannot be reached; 0: they do not */
    uint64_t ping;    /* request of the last one */
    connection *way;        /* over which it is joined */
    char *endpoint;   /* of its leader, if that is known, */
    uint64_t route_term;
    int64_t patient_ms; /* until when it is not joined again, since it refused that: */
    char refusal[512], refusal_code[64]; /* of its HELLO; "" = none */
    int64_t detour_ms, detour_for_ms; /* and until when it is not gone straight to, since that has failed */
} shard;

typedef struct batch {
    struct batch *next;
    struct lane *lane;
    zmq_msg_t body; /* sealed */
    size_t count, bytes;
    gq_place **places; /* NULL: nobody asks */
    uint64_t sequence, request;
    int64_t sealed_ms, delay_ms;
    int sent, before; /* before: over an earlier connection, so it may be stored */
} batch;

/* A partition that is published to. Its batches go out in order, and again in order until each is settled: of `first` to the end of
 * the list those before `unsent` are on their way. */
typedef struct lane {
    struct lane *next; /* of those with something to do */
    struct topic *topic;
    int listed;
    uint32_t partition;
    uint16_t shard;
    uint32_t producer;
    uint8_t producer_name[16];
    uint64_t sequence;
    struct packing *open;
    batch *first, **last, *unsent;
    size_t in_flight;
    int64_t resume_ms;
    int unknown; /* its leader does not know the topic: it is looked up again */
} lane;

typedef struct topic {
    struct topic *next;
    char *name;
    int64_t id;
    uint32_t parts, turn; /* turn: where the next records without key and id go */
    int stale;            /* it is gone, or was made anew */
    uint16_t *shards;
    lane *lanes;
} topic;

typedef struct frame {
    int users;
    zmq_msg_t body;
} frame; /* delivered records lie in it */

/* Some records of one partition as they were delivered, of which the first `taken` were given to the user. */
typedef struct stretch {
    struct stretch *next;
    struct part *part;
    frame *frame;
    int64_t key, first;
    int32_t attempt;
    int again;        /* delivered before as this attempt, to a consumer that never said whether it began */
    uint32_t count, taken;
    int repeats;      /* some of it may have come before */
    ranges settled; /* while it waited here: not shown */
    uint64_t came;    /* the how manieth it was */
    gq_opened columns;
} stretch;

/* An ACK that waits for its answer, or a NACK that gives back records which were not begun. */
typedef struct ack {
    struct ack *next;
    uint64_t request;
    ranges sent;
    int gives_back;
} ack;

/* A record that the user has, and whose begin the leader has not heard of. */
typedef struct {
    int64_t key, offset, since_ms;
} beginning;

typedef struct part {
    uint16_t shard;
    int64_t number; /* of the subscription in this shard */
    int said;       /* SUBSCRIBE, so it may go on there */
    int over;       /* it was refused for good */
    int live;       /* SUBSCRIBED has come since it was joined last: what was delivered before comes again */
    int64_t *keys;
    int64_t *next; /* of a reader: where it goes on; -1: at its start */
    int64_t *high; /* the end of what has come */
    size_t key_count;
    ranges held;    /* what the user has, and what is acked without an answer */
    ranges pending; /* acked, and not sent */
    ack *acks;      /* under way, the oldest first */
    beginning *begun; /* the oldest first */
    size_t begun_count, begun_room;
    int tells_held;   /* a leader that was joined just now may not know which records the user has */
    int64_t resume_ms;
    stretch *aside; /* single records that came again before their acks were answered */
} part;

struct gq_subscription {
    gq *client;
    gq_subscription *next;
    topic *topic;
    char *group, *start;
    int64_t credit, credit_bytes, lease_ms;
    part *parts;
    size_t part_count;
    stretch *first, **last, *shown;
    int64_t shown_ms; /* when the user got its last record; 0: it is settled */
    int64_t took_ms;  /* how long the user had the record before; -1: it has had none */
    int repeats; /* what waits may have come before */
    ranges lost; /* acked since the last flush, and not stored: others have these records */
    ranges told; /* of these, the ones that the last flush told */
    int refused; /* for good: the error of the client says why */
    int over;    /* in some shard it could not be subscribed again: what came is shown, and then why: */
    char over_text[512], over_code[64];
};

enum { RECENT = 1024 };

struct gq {
    int process; /* libzmq works in that one only */
    pthread_mutex_t lock; /* held by each function of the API, and by the keeper while it sends */
    pthread_t keeper;     /* thread that sends acks while the user works; from the first subscription on */
    pthread_cond_t wake;  /* of the keeper */
    int keeping, closing;
    int64_t due_ms; /* when the keeper sends something; 0: nothing waits for it */
    void *context;
    connection *home, *links; /* links: to workers */
    char **servers;
    size_t server_count, server;
    uint8_t key[KEY_BYTES], session[SESSION_BYTES], token[TOKEN_BYTES];
    size_t token_size;
    int insecure, forward;
    char door[41], curve_public[41], curve_secret[41]; /* Z85; door "": in the clear */
    uint64_t request, links_made;
    uint32_t producers;
    int64_t numbers;
    shard *shards;
    size_t shard_count;
    topic *topics, *last_topic;
    gq_subscription *subscriptions;
    ranges left; /* (shard, numbers of subscriptions) that go on there unless it hears of their end when it is joined */
    zmq_pollitem_t *polled; /* two for each connection */
    size_t polled_room;
    int64_t looked_ms, pumped_ms, dialed_ms, routes_ms;
    int other_version; /* that somebody spoke who was asked */
    /* what `once` waits for */
    uint64_t asked;
    int answered, answer_verb;
    uint64_t came, answer_came; /* stretches until now, and until the answer */
    gq_buffer answer;
    /* publishing */
    lane *active;
    batch *recent[RECENT]; /* by request */
    size_t waiting_bytes, waiting; /* of records without an outcome */
    uint64_t settled;
    uint32_t posted;
    int failed; /* the first since gq_confirm returned, and why */
    char failed_text[512], failed_code[64];
    char text[512], code[64];
    int retry_ms;
};

/* A signal ends no call of libzmq half way: what was interrupted has done nothing, and is done again. */
#define UNINTERRUPTED(result, call) \
    do result = call; \
    while (result < 0 && errno == EINTR)

/* gossipq.c */
void gq_lock(gq *c);
void gq_unlock(gq *c);
int gq_start_keeper(gq *c);

int64_t gq_now_ms(void);
int gq_fail(gq *c, int code, const char *text);
int gq_refuse(gq *c, const char *code, const char *form, ...);
int gq_no_memory(gq *c);
int gq_check_text(gq *c, const char *what, const char *text);
int gq_later(const char *code);
int gq_ended(const char *code);
int64_t gq_deadline(int timeout_ms);
int64_t gq_left(int64_t end_ms, int64_t most_ms);

int gq_ranges_add(ranges *r, int64_t key, int64_t first, int64_t end);
int gq_ranges_cut(ranges *r, int64_t key, int64_t first, int64_t end);
int gq_ranges_have(const ranges *r, int64_t key, int64_t offset);
void gq_put_ranges(gq_buffer *out, const ranges *r);

/* link.c */
int gq_here(const char *endpoint);
int gq_dial(gq *c);
void gq_hang_up(gq *c, connection *l);
shard *gq_shard_of(gq *c, uint16_t number);
void gq_over(gq *c, uint16_t number);
void gq_not_leader(gq *c, uint16_t number);
uint64_t gq_say(gq *c, int verb, uint16_t number, gq_buffer *fields, zmq_msg_t *body);
uint64_t gq_say_nothing(gq *c, int verb, uint16_t number);
int gq_pump(gq *c, int64_t wait_ms);
int gq_once(gq *c, int verb, uint16_t number, gq_buffer *fields, int64_t end_ms);
void gq_be_patient(gq *c, uint16_t number, int64_t end_ms);
int gq_join(gq *c, uint16_t number, int64_t end_ms);
int gq_ask(gq *c, int verb, uint16_t number, void (*make)(gq_buffer *, const void *), const void *what, const int *over, int64_t end_ms);
gq_reader gq_answer_of(gq *c);
void gq_keep_refusal(gq *c, gq_reader *in);
int64_t gq_refusal_detail(gq_reader in);
void gq_learn(gq *c, uint16_t number, uint64_t term, const uint8_t *endpoint, size_t size);
int gq_find_topic(gq *c, const char *name, topic **found, int64_t end_ms);
int gq_renew_topic(gq *c, topic *t, int make, topic **now, int64_t end_ms);
void gq_free_topic(topic *t);

/* publish.c */
batch *gq_batch_of(gq *c, uint64_t request);
void gq_confirmed(gq *c, gq_reader in, uint16_t number, uint64_t term);
void gq_publish_refused(gq *c, batch *b, gq_reader in);
void gq_lanes_over(gq *c, uint16_t number);
int gq_send_lanes(gq *c, int64_t end_ms);
int gq_lanes_use(gq *c, uint16_t number);
void gq_name_producer(gq *c, lane *l);
void gq_move_lanes(gq *c, const topic *from, topic *to);
int gq_lanes_of(gq *c, const topic *t);
void gq_drop_lanes(gq *c);

/* consume.c */
void gq_parts_over(gq *c, uint16_t number);
void gq_deliver(gq *c, uint16_t number, gq_reader in, zmq_msg_t *body);
void gq_subscribed(gq *c, uint16_t number, gq_reader in, uint64_t term);
void gq_acked(gq *c, uint64_t request, int verb, gq_reader in);
int gq_subscribe_in(gq *c, uint16_t number, int64_t end_ms);
int gq_parts_use(gq *c, uint16_t number);
int gq_parts_of(gq *c, const topic *t);
int64_t gq_catch_up(gq *c);
void gq_share(gq *c, uint16_t number, gq_reader in);
int gq_end_subscription(gq_subscription *s, int64_t end_ms);
#endif
