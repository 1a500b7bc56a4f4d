/* The client of gossipq, a message broker.
 *
 * A client belongs to one thread at a time. It shows that it is alive whenever one of its functions runs. If you work on one
 * record for longer than 4 s, call gq_ping meanwhile: without it the session ends, and the record is redelivered to others. From its first
 * subscription on a client has a thread of its own, which only sends acks. A client belongs to the process that opened it, too: one that is forked opens another client. All text is UTF-8; sizes are bytes,
 * times milliseconds. A timeout of -1 waits for ever. */
#ifndef GOSSIPQ_H
#define GOSSIPQ_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GQ_VERSION "0.2.0"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

enum {
    GQ_OK = 0,
    GQ_TIMEOUT = 1,       /* nothing came in time */
    GQ_REFUSED = 2,       /* certainly not done; gq_error_code says which of PROTOCOL.md section 2 */
    GQ_NOT_CONFIRMED = 3, /* of a record: it may be stored, no answer came in time */
    GQ_MEMORY = 4,
    GQ_ARGUMENT = 5, /* a pointer or a number that cannot be */
    GQ_LOST = 6,     /* of an ack, or a nack: others have the record by now */
    GQ_PENDING = 7   /* of a record that was posted: it has no outcome yet */
};

typedef struct gq gq;
typedef struct gq_subscription gq_subscription;

/* `servers`: tcp://HOST:PORT, several with commas; one is enough, others are tried when it is gone. NULL: $GOSSIPQ_SERVER, or this
 * host's node. Nothing is connected before the first question. */
int gq_open(gq **client, const char *servers);

typedef struct {
    const char *servers;      /* as above */
    const char *credentials; /* file with a token, and perhaps a door. NULL: `token` and `door`, or that of $GOSSIPQ_CREDENTIALS, or none */
    const char *token;       /* who this is, for a closed cluster: gq_ and 64 hexadecimal digits */
    const char *door;        /* key of the nodes, door_ and 64 hexadecimal digits: what is said is encrypted, at 100 above each port */
    int insecure;            /* the token may leave this machine in the clear */
    int forward;             /* everything by the servers that are named, nothing straight to the leaders */
} gq_connection;

/* The same with options. It returns GQ_ARGUMENT also when the file has no token, when other users may read it, or when the token would
 * leave this machine unencrypted. */
int gq_open_with(gq **client, const gq_connection *how);
/* Ends all subscriptions, gives back the records that were not acked, and frees the client. Waits 2 s at most for answers. The result is
 * the first of: records posted since the last gq_confirm that are not stored, as gq_confirm says; acks, as gq_unsubscribe says. NULL is
 * fine. */
int gq_close(gq *client);
/* Of the last function that did not return GQ_OK: text for people, and the code of the refusal ("" = none). */
const char *gq_error(const gq *client);
const char *gq_error_code(const gq *client);
/* Sends a sign of life, and reads the frames that have arrived. */
int gq_ping(gq *client);

typedef struct {
    const char *name;
    const void *value;
    size_t value_size;
} gq_header;

typedef struct {
    const void *value;
    size_t value_size;
    const void *key; /* records of one key lie in one partition, in their order; size 0: none */
    size_t key_size;
    const void *id; /* what is published again under the same id is stored once; size 0: none */
    size_t id_size;
    const gq_header *headers;
    size_t header_count;
} gq_record;

typedef struct {
    uint32_t partition;
    int64_t offset; /* -1: scheduled, or not stored */
    int duplicate;  /* it had been stored before, under this id */
    int code;       /* GQ_OK, GQ_REFUSED or GQ_NOT_CONFIRMED, of this record */
} gq_place;

typedef struct {
    const char *route; /* NULL: none */
    int64_t delay_ms;  /* until consumers get them */
    int64_t ttl_ms;    /* from then until they expire; 0 = as the topic says */
    /* Whose records they are, such as a customer: up to 64 bytes; NULL: none. Groups of order "fair" serve flows in turn. Without a key
     * it chooses the partition. */
    const char *flow;
    int has_priority; /* false: they have priority 5 */
    int priority;     /* 0 to 9: groups of order "priority" or "fair" deliver the higher one first */
} gq_how;

/* Publishes records, and returns when all are on a majority of disks, or refused. `places` (may be NULL) tells of each; the result is
 * that of the first that is not stored. `how` may be NULL. */
int gq_publish(gq *client, const char *topic, const gq_record *records, size_t count, const gq_how *how, gq_place *places,
               int timeout_ms);
/* The same without waiting. `records` are copied. `places` (may be NULL) are GQ_PENDING until their outcome is known; they must stay
 * valid until then, or until gq_close. Single records are packed with others. They are sent when a batch is full, by the next call after
 * 5 ms, or by any function that waits. Waits up to `timeout_ms` when 24 MiB have no outcome yet. */
int gq_post(gq *client, const char *topic, const gq_record *records, size_t count, const gq_how *how, gq_place *places, int timeout_ms);
/* Returns when all that was posted is stored or refused. The result is that of the first, since it was asked last, that is not stored. */
int gq_confirm(gq *client, int timeout_ms);
/* Returns when an outcome has come, or nothing waits for one. */
int gq_wait(gq *client, int timeout_ms);
/* Number of posted records whose outcome is not known yet. */
size_t gq_waiting(const gq *client);

typedef struct {
    uint32_t partition;
    int64_t offset;
    int32_t attempt; /* attempts that began so far, with this one: 1 for the first */
    int64_t time_ms; /* when it was published, unix */
    const void *value;
    size_t value_size;
    const void *key;
    size_t key_size;
    const void *id;
    size_t id_size;
    const char *route; /* not ended by a zero */
    size_t route_size;
    size_t header_count;
    const void *headers; /* for gq_header_at */
    size_t headers_size;
} gq_message;

typedef struct {
    int64_t credit;       /* records that may wait here or be worked on; 0 = 4,000 */
    int64_t credit_bytes; /* 0 = 8 MiB */
    const char *start;    /* of a new group, or a reader: "first" (NULL) or "new" */
    int64_t lease_ms;     /* of the group; 0 = as it is */
    int timeout_ms;       /* of gq_subscribe: then GQ_TIMEOUT; 0 = as long as it takes */
} gq_options;

/* Consumes a topic for a group; with "" or NULL as a reader, who sees all and acks nothing. `options` may be NULL. */
int gq_subscribe(gq *client, const char *topic, const char *group, const gq_options *options, gq_subscription **subscription);
/* The next record; its pointers are good until the next call of gq_next, gq_unsubscribe or gq_close. GQ_TIMEOUT: none came. After a
 * lost connection it may take 3 s longer than it is told. GQ_REFUSED: it has ended, since its topic was removed, for example. */
int gq_next(gq_subscription *subscription, gq_message *message, int timeout_ms);
/* The record is done. The ack leaves at once, or with others within 2 ms, also if you call nothing meanwhile. If the connection is
 * lost, the ack leaves when a later call has connected again. gq_flush says whether it is stored. GQ_ARGUMENT, of gq_nack too: the subscription has not given the
 * record out, or it is settled. */
int gq_ack(gq_subscription *subscription, uint32_t partition, int64_t offset);
/* Returns when all acks are stored. GQ_LOST: others have some of the records that were acked since the last gq_flush, since their leases
 * had ended; gq_error and gq_lost name them, and all other acks are stored. */
int gq_flush(gq_subscription *subscription, int timeout_ms);
/* The records for which the last gq_flush returned GQ_LOST: how many there are, and as many as have room in `places`. */
size_t gq_lost(const gq_subscription *subscription, gq_place *places, size_t room);
/* The record failed, for that reason: it is redelivered after `delay_ms`, -1: as the group's policy says. GQ_LOST: others have it by now,
 * so this failure does not count. */
int gq_nack(gq_subscription *subscription, uint32_t partition, int64_t offset, const char *reason, int64_t delay_ms, int timeout_ms);
/* The record is given back: it is redelivered at once, to any consumer. That is not a failure. GQ_LOST: others have it by now. */
int gq_release(gq_subscription *subscription, uint32_t partition, int64_t offset, int timeout_ms);
/* Flushes, gives back the records that were not acked, and frees the subscription. The result is that of the flush: GQ_LOST, or GQ_TIMEOUT
 * if acks had no answer within 2 s, so that their records may be redelivered. NULL is fine. */
int gq_unsubscribe(gq_subscription *subscription);
/* Header number `index` of a message. */
int gq_header_at(const gq_message *message, size_t index, const char **name, size_t *name_size, const void **value,
                 size_t *value_size);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
