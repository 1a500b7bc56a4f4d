/* The client: one socket to one of the nodes, which forwards to the leader of each shard.
 *
 * There is one rule of recovery. What has ended (RESET, a refusal that says so, no sign of life) is joined again: HELLO to the shard,
 * SUBSCRIBE to what was subscribed there; and what has no answer is asked again. */
#include "gossipq.h"

#include "pack.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <zmq.h>

enum { HELLO = 1, PING = 3, PONG = 4, BYE = 5, REFUSED = 6, RESET = 7, CONFIRM = 17, PUBLISH_PLAIN = 18, SUBSCRIBE = 32 };
enum { SUBSCRIBED = 33, UNSUBSCRIBE = 34, ACK = 37, ACKED = 38, NACK = 39, DELIVER_PLAIN = 46, RESOLVE = 64 };
enum { HOME = 0xffff, VERSION = 2, HEADER_BYTES = 24, KEY_BYTES = 32, SESSION_BYTES = 16 };
enum { PING_MS = 1000, SILENT_MS = 3000, AGAIN_MS = 50, CLOSE_MS = 2000 };
enum { BATCH_RECORDS = 500, BATCH_BYTES = 256 * 1024, IN_FLIGHT = 16, ACKS_WAITING = 500, RANGES = 1000 };
#define CREDIT 1000
#define CREDIT_BYTES (8 << 20)

typedef struct {
    int64_t key, first, end; /* partition key, offsets */
} range;

typedef struct {
    range *at;
    size_t count, room;
} ranges;

typedef struct {
    uint16_t number;
    int joined;
    uint64_t term;      /* of its newest leader */
    int64_t heard_ms;   /* sign of life */
    uint64_t ping;      /* request of the last one */
} shard;

typedef struct {
    uint32_t producer;
    uint64_t sequence;
} lane; /* a partition that is published to */

typedef struct topic {
    struct topic *next;
    char *name;
    int64_t id;
    uint32_t parts;
    uint16_t *shards;
    lane *lanes;
} topic;

typedef struct frame {
    int users;
    zmq_msg_t body;
} frame; /* delivered records lie in it */

typedef struct waiting {
    struct waiting *next;
    struct part *part;
    frame *frame;
    int64_t key;
    gq_message message;
} waiting;

typedef struct {
    uint64_t request; /* 0: not sent since */
    ranges what;
} acks;

typedef struct part {
    uint16_t shard;
    int64_t number; /* of the subscription in this shard */
    int live;       /* SUBSCRIBED has come since it was joined last: what was delivered before comes again */
    int64_t *keys;
    size_t key_count;
    ranges held;    /* what the user has: one row a record, or more side by side */
    ranges pending; /* acked, and not sent */
    acks sent;      /* one ACK at a time is on its way */
} part;

struct gq_subscription {
    gq *client;
    gq_subscription *next;
    topic *topic;
    char *group, *start;
    int64_t credit, credit_bytes, lease_ms;
    part *parts;
    size_t part_count;
    waiting *first, **last, *shown;
    int lost;    /* acks of records that others had */
    int refused; /* for good: the error of the client says why */
};

typedef struct {
    lane *lane;
    uint16_t shard;
    uint32_t partition;
    int64_t key;
    size_t *index; /* of its records among those of the call */
    size_t count;
    gq_buffer body;
    uint64_t sequence, request;
    int sent, before, done, code;
} batch;

struct gq {
    void *context, *socket;
    char **servers;
    size_t server_count, server;
    uint8_t key[KEY_BYTES], session[SESSION_BYTES];
    uint64_t request;
    uint32_t producers;
    int64_t numbers;
    shard *shards;
    size_t shard_count;
    topic *topics;
    gq_subscription *subscriptions;
    int64_t heard_ms, looked_ms, pumped_ms;
    /* what `ask` waits for */
    uint64_t asked;
    int answered, answer_verb;
    gq_buffer answer;
    /* what `gq_publish` waits for */
    batch *batches;
    size_t batch_count, batches_done;
    gq_place *places;
    int64_t resume_ms;
    char text[512], code[64];
    int retry_ms;
};

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int fail(gq *c, int code, const char *text) {
    c->code[0] = 0;
    snprintf(c->text, sizeof c->text, "%s", text);
    return code;
}

static int no_memory(gq *c) { return fail(c, GQ_MEMORY, "no memory"); }

/* --- ranges */

static int ranges_add(ranges *r, int64_t key, int64_t first, int64_t end) {
    if (r->count) {
        range *last = r->at + r->count - 1;
        if (last->key == key && last->end == first) {
            last->end = end;
            return 1;
        }
    }
    if (r->count == r->room) {
        size_t room = r->room ? 2 * r->room : 16;
        range *grown = realloc(r->at, room * sizeof *grown);
        if (!grown) return 0;
        r->at = grown;
        r->room = room;
    }
    r->at[r->count++] = (range){key, first, end};
    return 1;
}

/* Takes one offset out. Whether it was there; -1: no memory. */
static int ranges_take(ranges *r, int64_t key, int64_t offset) {
    for (size_t i = 0; i < r->count; i++) {
        range *at = r->at + i;
        if (at->key != key || offset < at->first || offset >= at->end) continue;
        int64_t end = at->end;
        if (at->first == offset && end == offset + 1) {
            memmove(at, at + 1, (--r->count - i) * sizeof *at);
        } else if (at->first == offset) {
            at->first++;
        } else {
            at->end = offset;
            if (offset + 1 < end) {
                ranges rest = *r; /* a new row for what lies behind; it must not join its neighbour */
                if (rest.count == rest.room && !ranges_add(r, -1, 0, 0)) return -1;
                if (rest.count == rest.room) r->count--;
                r->at[r->count++] = (range){key, offset + 1, end};
            }
        }
        return 1;
    }
    return 0;
}

static void put_ranges(gq_buffer *out, const ranges *r, size_t count) {
    gq_put_array(out, (uint32_t)count);
    for (size_t i = 0; i < count; i++) {
        gq_put_array(out, 3);
        gq_put_int(out, r->at[i].key);
        gq_put_int(out, r->at[i].first);
        gq_put_int(out, r->at[i].end);
    }
}

/* --- shards, frames */

static shard *shard_of(gq *c, uint16_t number) {
    for (size_t i = 0; i < c->shard_count; i++)
        if (c->shards[i].number == number) return c->shards + i;
    shard *grown = realloc(c->shards, (c->shard_count + 1) * sizeof *grown);
    if (!grown) return NULL;
    c->shards = grown;
    shard *made = c->shards + c->shard_count++;
    memset(made, 0, sizeof *made);
    made->number = number;
    made->heard_ms = now_ms();
    return made;
}

static void release(waiting *w) {
    if (--w->frame->users == 0) {
        zmq_msg_close(&w->frame->body);
        free(w->frame);
    }
    free(w);
}

/* Records of a part, or of all with NULL, that nobody took: they come again. */
static void drop_waiting(gq_subscription *s, const part *of) {
    waiting **at = &s->first;
    while (*at) {
        waiting *w = *at;
        if (of && w->part != of) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        release(w);
    }
    s->last = at;
}

/* What was in a shard has ended: it is joined again before anything else is asked there. */
static void over(gq *c, uint16_t number) {
    shard *s = shard_of(c, number);
    if (!s) return;
    s->joined = 0;
    s->ping = 0;
    for (gq_subscription *each = c->subscriptions; each; each = each->next)
        for (size_t i = 0; i < each->part_count; i++) {
            part *p = each->parts + i;
            if (p->shard != number) continue;
            drop_waiting(each, p);
            p->sent.request = 0;
            p->live = 0;
        }
    for (size_t i = 0; i < c->batch_count; i++)
        if (c->batches[i].shard == number && c->batches[i].sent) {
            c->batches[i].sent = 0;
            c->batches[i].before = 1;
        }
}

static int dial(gq *c) {
    if (c->socket) zmq_close(c->socket);
    for (size_t i = 0; i < c->shard_count; i++) over(c, c->shards[i].number);
    c->socket = zmq_socket(c->context, ZMQ_DEALER);
    if (!c->socket) return no_memory(c);
    int zero = 0;
    zmq_setsockopt(c->socket, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(c->socket, ZMQ_SNDHWM, &zero, sizeof zero);
    zmq_setsockopt(c->socket, ZMQ_RCVHWM, &zero, sizeof zero);
    if (zmq_connect(c->socket, c->servers[c->server])) {
        snprintf(c->text, sizeof c->text, "%s is no address: %s", c->servers[c->server], zmq_strerror(errno));
        c->code[0] = 0;
        return GQ_ARGUMENT;
    }
    c->server = (c->server + 1) % c->server_count;
    c->heard_ms = c->looked_ms = now_ms();
    return GQ_OK;
}

/* Sends a message; the request id, 0 = not sent. `fields` is freed. */
static uint64_t say(gq *c, int verb, uint16_t number, gq_buffer *fields, const gq_buffer *body) {
    uint8_t head[HEADER_BYTES] = {'G', 'Q', VERSION, (uint8_t)verb, (uint8_t)number, (uint8_t)(number >> 8)};
    uint64_t request = ++c->request;
    for (int i = 0; i < 8; i++) head[8 + i] = (uint8_t)(request >> (8 * i));
    gq_buffer all = {0};
    gq_put(&all, head, sizeof head);
    gq_put(&all, fields->bytes, fields->size);
    int bad = all.failed || fields->failed || (body && body->failed);
    gq_buffer_free(fields);
    if (!bad && c->socket) {
        bad = zmq_send(c->socket, all.bytes, all.size, ZMQ_DONTWAIT | (body ? ZMQ_SNDMORE : 0)) < 0;
        if (!bad && body) bad = zmq_send(c->socket, body->bytes, body->size, ZMQ_DONTWAIT) < 0;
    }
    gq_buffer_free(&all);
    return bad ? 0 : request;
}

static uint64_t say_nothing(gq *c, int verb, uint16_t number) {
    gq_buffer fields = {0};
    gq_put_array(&fields, 0);
    return say(c, verb, number, &fields, NULL);
}

/* --- what comes */

static void keep_refusal(gq *c, gq_reader *in) {
    const uint8_t *code, *text, *hint = (const uint8_t *)"";
    uint32_t count = gq_get_array(in);
    size_t code_size = gq_get_bytes(in, &code), text_size = gq_get_bytes(in, &text), hint_size = 0;
    if (count > 2) hint_size = gq_get_bytes(in, &hint);
    c->retry_ms = count > 3 ? (int)gq_get_int(in) : 0;
    snprintf(c->code, sizeof c->code, "%.*s", (int)code_size, code);
    snprintf(c->text, sizeof c->text, "%.*s%s%.*s", (int)text_size, text, hint_size ? "; " : "", (int)hint_size, hint);
}

static int64_t refusal_detail(gq_reader in) {
    uint32_t count = gq_get_array(&in);
    for (uint32_t i = 0; i < 4 && i < count; i++) gq_skip(&in);
    return count > 4 ? gq_get_int(&in) : 0;
}

static int later(const char *code) {
    static const char *const CODES[] = {"busy", "joining", "not_leader", "no_session", "no_subscription", "out_of_sequence"};
    for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++)
        if (!strcmp(code, CODES[i])) return 1;
    return 0;
}

static int ended(const char *code) {
    return !strcmp(code, "no_session") || !strcmp(code, "no_subscription") || !strcmp(code, "not_leader");
}

static void done(gq *c, batch *b, int code) {
    if (b->done) return;
    b->done = 1;
    b->code = code;
    c->batches_done++;
}

/* The rest of a lane goes on under another producer: sequences behind one that is not stored can never be. */
static void anew(gq *c, lane *l) {
    l->producer = c->producers++;
    l->sequence = 0;
    for (size_t i = 0; i < c->batch_count; i++) {
        batch *b = c->batches + i;
        if (b->lane != l || b->done) continue;
        b->sequence = 0;
        b->sent = b->before = 0;
        b->request = 0;
    }
}

static batch *batch_of(gq *c, uint64_t request) {
    for (size_t i = 0; request && i < c->batch_count; i++)
        if (c->batches[i].request == request) return c->batches + i;
    return NULL;
}

static void confirmed(gq *c, gq_reader in) {
    gq_reader rows = in, all;
    uint32_t fields = gq_get_array(&rows);
    all = rows;
    gq_skip(&all); /* rows */
    if (fields > 1) gq_skip(&all);
    if (fields > 2) gq_skip(&all);
    uint32_t run_count = fields > 3 ? gq_get_array(&all) : 0;
    uint32_t count = gq_get_array(&rows);
    for (uint32_t i = 0; i < count && !rows.bad; i++) {
        gq_get_array(&rows);
        batch *b = batch_of(c, (uint64_t)gq_get_int(&rows));
        int64_t offset = gq_get_int(&rows);
        gq_get_int(&rows);
        int duplicate = gq_get_bool(&rows);
        if (rows.bad || !b || b->done) continue;
        for (size_t n = 0; n < b->count; n++)
            c->places[b->index[n]] = (gq_place){b->partition, offset < 0 ? -1 : offset + (int64_t)n, duplicate, GQ_OK};
        done(c, b, GQ_OK);
    }
    for (uint32_t i = 0; i < run_count && !all.bad; i++) { /* of batches with ids or delays */
        gq_get_array(&all);
        batch *b = batch_of(c, (uint64_t)gq_get_int(&all));
        uint32_t runs = gq_get_array(&all);
        size_t n = 0;
        for (uint32_t k = 0; k < runs && !all.bad; k++) {
            uint32_t parts = gq_get_array(&all);
            int64_t records = gq_get_int(&all), offset = gq_get_int(&all);
            int duplicate = 0;
            for (uint32_t p = 2; p < parts; p++)
                if (p == 4) duplicate = gq_get_bool(&all);
                else gq_skip(&all);
            for (int64_t r = 0; r < records && b && n < b->count && !all.bad; r++, n++) {
                c->places[b->index[n]].offset = offset < 0 ? -1 : offset + r;
                c->places[b->index[n]].duplicate = duplicate;
            }
        }
    }
}

static void publish_refused(gq *c, batch *b, gq_reader in) {
    int64_t detail = refusal_detail(in);
    char before[sizeof c->code];
    keep_refusal(c, &in);
    snprintf(before, sizeof before, "%s", c->code);
    if (!later(before)) {
        done(c, b, GQ_REFUSED);
        anew(c, b->lane);
        return;
    }
    uint64_t lowest = b->sequence;
    for (size_t i = 0; i < c->batch_count; i++) {
        batch *each = c->batches + i;
        if (each->lane == b->lane && !each->done && each->sequence && each->sequence < lowest) lowest = each->sequence;
    }
    if (!strcmp(before, "out_of_sequence") && (uint64_t)detail < lowest) { /* the leader has forgotten the producer */
        for (size_t i = 0; i < c->batch_count; i++)
            if (c->batches[i].lane == b->lane && c->batches[i].before) done(c, c->batches + i, GQ_NOT_CONFIRMED);
        anew(c, b->lane);
        return;
    }
    if (ended(before) && strcmp(before, "not_leader")) over(c, b->shard);
    for (size_t i = 0; i < c->batch_count; i++) /* from the lowest on, in order */
        if (c->batches[i].lane == b->lane && !c->batches[i].done && c->batches[i].sequence >= b->sequence) {
            c->batches[i].sent = 0;
            c->batches[i].request = 0; /* what is still said of the last sending does not count */
        }
    c->resume_ms = now_ms() + (c->retry_ms > 0 ? c->retry_ms : AGAIN_MS);
}

static void deliver(gq *c, uint16_t number, gq_reader in, zmq_msg_t *body) {
    gq_get_array(&in);
    int64_t subscription = gq_get_int(&in);
    for (gq_subscription *s = c->subscriptions; s; s = s->next)
        for (size_t i = 0; i < s->part_count; i++) {
            part *p = s->parts + i;
            if (p->number != subscription || p->shard != number || !p->live) continue;
            frame *f = calloc(1, sizeof *f);
            if (!f) return; /* the records come again when their lease is over */
            zmq_msg_init(&f->body);
            zmq_msg_move(&f->body, body);
            f->users = 1;
            const uint8_t *at = zmq_msg_data(&f->body);
            gq_reader rows = {at, at + zmq_msg_size(&f->body), 0};
            uint32_t count = gq_get_array(&rows);
            for (uint32_t n = 0; n < count && !rows.bad; n++) {
                waiting *w = calloc(1, sizeof *w);
                if (!w) break;
                gq_message *m = &w->message;
                uint32_t fields = gq_get_array(&rows);
                if (fields < 9) rows.bad = 1;
                w->key = gq_get_int(&rows);
                m->partition = (uint32_t)(w->key & 0xffff);
                m->offset = gq_get_int(&rows);
                m->attempt = (int32_t)gq_get_int(&rows);
                m->value_size = gq_get_bytes(&rows, (const uint8_t **)&m->value);
                m->key_size = gq_get_bytes(&rows, (const uint8_t **)&m->key);
                gq_reader headers = rows;
                m->header_count = gq_get_map(&headers);
                m->headers = headers.at;
                gq_skip(&rows);
                m->headers_size = rows.bad ? 0 : (size_t)(rows.at - headers.at);
                m->id_size = gq_get_bytes(&rows, (const uint8_t **)&m->id);
                m->route_size = gq_get_bytes(&rows, (const uint8_t **)&m->route);
                m->time_ms = gq_get_int(&rows);
                for (uint32_t more = 9; more < fields; more++) gq_skip(&rows);
                if (rows.bad) {
                    free(w);
                    break;
                }
                w->part = p;
                w->frame = f;
                f->users++;
                *s->last = w;
                s->last = &w->next;
            }
            if (--f->users == 0) {
                zmq_msg_close(&f->body);
                free(f);
            }
            return;
        }
}

static void subscribed(gq *c, uint16_t number, gq_reader in) {
    gq_get_array(&in);
    int64_t subscription = gq_get_int(&in);
    for (gq_subscription *s = c->subscriptions; s; s = s->next)
        for (size_t i = 0; i < s->part_count; i++)
            if (s->parts[i].number == subscription && s->parts[i].shard == number) s->parts[i].live = 1;
}

static void acked(gq *c, uint64_t request, int verb, gq_reader in) {
    for (gq_subscription *s = c->subscriptions; s; s = s->next)
        for (size_t i = 0; i < s->part_count; i++) {
            part *p = s->parts + i;
            if (!request || p->sent.request != request) continue;
            p->sent.request = 0;
            if (verb == REFUSED) {
                keep_refusal(c, &in);
                if (later(c->code)) {
                    if (ended(c->code)) over(c, p->shard);
                    else c->resume_ms = now_ms() + AGAIN_MS;
                    return; /* sent again */
                }
                s->refused = GQ_REFUSED;
            } else {
                uint32_t fields = gq_get_array(&in);
                if (fields && gq_get_array(&in)) s->lost = 1;
            }
            for (size_t n = 0; n < p->sent.what.count; n++) {
                range r = p->sent.what.at[n];
                for (int64_t offset = r.first; offset < r.end; offset++) ranges_take(&p->held, r.key, offset);
            }
            p->sent.what.count = 0;
            return;
        }
}

static uint64_t get_u64(const uint8_t *at) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | at[i];
    return value;
}

static void hear(gq *c, const uint8_t *bytes, size_t size, zmq_msg_t *body) {
    if (size < HEADER_BYTES || memcmp(bytes, "GQ", 2) || bytes[2] != VERSION) return;
    int verb = bytes[3];
    uint16_t number = (uint16_t)(bytes[4] | bytes[5] << 8);
    uint64_t request = get_u64(bytes + 8), term = get_u64(bytes + 16);
    gq_reader in = {bytes + HEADER_BYTES, bytes + size, 0};
    shard *s = NULL;
    for (size_t i = 0; i < c->shard_count; i++)
        if (c->shards[i].number == number) s = c->shards + i;
    if (s) {
        s->heard_ms = now_ms();
        if (term > s->term) s->term = term;
    }
    if (verb == RESET) {
        gq_get_array(&in);
        uint32_t count = gq_get_array(&in);
        for (uint32_t i = 0; i < count && !in.bad; i++) over(c, (uint16_t)gq_get_int(&in));
    } else if (verb == CONFIRM) {
        confirmed(c, in);
    } else if (verb == DELIVER_PLAIN) {
        if (body && s && term >= s->term) deliver(c, number, in, body); /* else of an old leader */
    } else if (request && request == c->asked) {
        if (verb == SUBSCRIBED) subscribed(c, number, in);
        c->answer.size = 0;
        gq_put(&c->answer, in.at, (size_t)(in.end - in.at));
        c->answer_verb = verb;
        c->answered = !c->answer.failed;
    } else if (verb == REFUSED && s && request && s->ping == request) {
        keep_refusal(c, &in);
        if (ended(c->code)) over(c, number);
    } else if (verb == REFUSED && batch_of(c, request)) {
        publish_refused(c, batch_of(c, request), in);
    } else if (verb == REFUSED || verb == ACKED) {
        acked(c, request, verb, in);
    }
}

static int uses(gq *c, uint16_t number) {
    for (gq_subscription *s = c->subscriptions; s; s = s->next)
        for (size_t i = 0; i < s->part_count; i++)
            if (s->parts[i].shard == number) return 1;
    for (size_t i = 0; i < c->batch_count; i++)
        if (c->batches[i].shard == number && !c->batches[i].done) return 1;
    return 0;
}

/* Takes what has come, waits up to `wait_ms` for it if nothing is there, and shows that this client is there. */
static int pump(gq *c, int64_t wait_ms) {
    int took = 0;
    int64_t began_ms = now_ms();
    if (began_ms - c->pumped_ms > PING_MS) { /* nobody listened: silence says nothing */
        c->heard_ms = began_ms;
        for (size_t i = 0; i < c->shard_count; i++) c->shards[i].heard_ms = began_ms;
    }
    for (;;) {
        zmq_pollitem_t item = {c->socket, 0, ZMQ_POLLIN, 0};
        if (zmq_poll(&item, 1, took ? 0 : (long)(wait_ms > 0 ? wait_ms : 0)) <= 0) break;
        zmq_msg_t control, body, more;
        zmq_msg_init(&control);
        zmq_msg_init(&body);
        int frames = 0;
        if (zmq_msg_recv(&control, c->socket, ZMQ_DONTWAIT) >= 0) {
            frames = 1;
            while (zmq_msg_more(frames == 1 ? &control : &body) && frames < 2) {
                if (zmq_msg_recv(&body, c->socket, ZMQ_DONTWAIT) < 0) break;
                frames++;
            }
            for (int rest = frames == 2 && zmq_msg_more(&body); rest;) { /* of somebody who is no node */
                zmq_msg_init(&more);
                if (zmq_msg_recv(&more, c->socket, ZMQ_DONTWAIT) < 0) rest = 0;
                else rest = zmq_msg_more(&more);
                zmq_msg_close(&more);
            }
            c->heard_ms = now_ms();
            hear(c, zmq_msg_data(&control), zmq_msg_size(&control), frames == 2 ? &body : NULL);
        }
        zmq_msg_close(&control);
        zmq_msg_close(&body);
        if (!frames) break;
        took = 1;
    }
    int64_t now = c->pumped_ms = now_ms();
    if (now - c->looked_ms < PING_MS) return GQ_OK;
    c->looked_ms = now;
    if (now - c->heard_ms > SILENT_MS) return dial(c);
    say_nothing(c, PING, HOME);
    for (size_t i = 0; i < c->shard_count; i++) {
        shard *s = c->shards + i;
        if (!s->joined || !uses(c, s->number)) continue;
        if (s->ping && now - s->heard_ms > SILENT_MS) over(c, s->number);
        else s->ping = say_nothing(c, PING, s->number);
    }
    return GQ_OK;
}

/* --- asking */

static int64_t deadline(int timeout_ms) { return timeout_ms < 0 ? INT64_MAX : now_ms() + timeout_ms; }

static int64_t left(int64_t end_ms, int64_t most_ms) {
    int64_t now = now_ms();
    return end_ms <= now ? 0 : end_ms - now < most_ms ? end_ms - now : most_ms;
}

/* One question and its answer, which is in c->answer then. GQ_TIMEOUT: none came for so long that it is asked again. */
static int once(gq *c, int verb, uint16_t number, gq_buffer *fields, int64_t end_ms) {
    c->answered = 0;
    c->asked = say(c, verb, number, fields, NULL);
    int64_t until_ms = now_ms() + SILENT_MS;
    void *socket = c->socket;
    while (!c->answered && c->socket == socket && left(end_ms, 1) && left(until_ms, 1)) {
        int code = pump(c, left(end_ms, left(until_ms, PING_MS)));
        if (code) return code;
    }
    c->asked = 0;
    return c->answered ? GQ_OK : GQ_TIMEOUT;
}

static gq_reader answer_of(gq *c) { return (gq_reader){c->answer.bytes, c->answer.bytes + c->answer.size, 0}; }

static void pause(gq *c, int64_t end_ms) {
    int64_t until_ms = now_ms() + (c->retry_ms > 0 ? c->retry_ms : AGAIN_MS);
    while (left(until_ms, 1) && left(end_ms, 1)) pump(c, left(until_ms, 10));
}

static void put_subscribe(gq_buffer *out, const gq_subscription *s, const part *p) {
    gq_put_array(out, 13);
    gq_put_int(out, p->number);
    gq_put_text(out, s->group);
    gq_put_array(out, (uint32_t)p->key_count);
    for (size_t i = 0; i < p->key_count; i++) {
        gq_put_array(out, 2);
        gq_put_int(out, p->keys[i]);
        gq_put_text(out, s->start);
    }
    gq_put_int(out, s->credit);
    gq_put_int(out, s->credit_bytes);
    gq_put_array(out, s->lease_ms ? 2 : 0);
    if (s->lease_ms) {
        gq_put_nil(out);
        gq_put_int(out, s->lease_ms);
    }
    gq_put_bool(out, 0);
    put_ranges(out, &p->held, p->held.count);
    gq_put_array(out, 0);
    gq_put_bool(out, 1);
    gq_put_array(out, 0);
    gq_put_bool(out, 1);
    gq_put_bool(out, 1);
}

/* HELLO, and SUBSCRIBE to all that is subscribed there, until it is so. */
static int join(gq *c, uint16_t number, int64_t end_ms) {
    for (;;) {
        shard *s = shard_of(c, number);
        if (!s) return no_memory(c);
        if (s->joined) return GQ_OK;
        if (!left(end_ms, 1)) return fail(c, GQ_TIMEOUT, "no node has answered in time");
        gq_buffer hello = {0};
        gq_put_array(&hello, 7);
        gq_put_bytes(&hello, c->session, sizeof c->session);
        gq_put_text(&hello, "c");
        gq_put_text(&hello, GQ_VERSION);
        gq_put_bytes(&hello, "", 0);
        gq_put_text(&hello, "");
        gq_put_bytes(&hello, c->key, sizeof c->key);
        gq_put_bool(&hello, 1);
        int code = once(c, HELLO, number, &hello, end_ms), again = code == GQ_TIMEOUT;
        if (code && !again) return code;
        for (gq_subscription *each = c->subscriptions; each && !again && c->answer_verb != REFUSED; each = each->next)
            for (size_t i = 0; i < each->part_count && !again && c->answer_verb != REFUSED; i++) {
                if (each->parts[i].shard != number) continue;
                gq_buffer fields = {0};
                put_subscribe(&fields, each, each->parts + i);
                code = once(c, SUBSCRIBE, number, &fields, end_ms);
                again = code == GQ_TIMEOUT;
                if (code && !again) return code;
            }
        if (!again && c->answer_verb == REFUSED) {
            gq_reader in = answer_of(c);
            keep_refusal(c, &in);
            if (!later(c->code)) return GQ_REFUSED;
            pause(c, end_ms);
            again = 1;
        }
        s = shard_of(c, number);
        if (again || !s) continue;
        s->joined = 1;
        s->ping = 0;
        s->heard_ms = now_ms();
    }
}

/* The answer to a question, however long it takes; `make` writes its fields. */
static int ask(gq *c, int verb, uint16_t number, void (*make)(gq_buffer *, const void *), const void *what, int64_t end_ms) {
    for (;;) {
        int code = join(c, number, end_ms);
        if (code) return code;
        gq_buffer fields = {0};
        make(&fields, what);
        code = once(c, verb, number, &fields, end_ms);
        if (code == GQ_TIMEOUT && left(end_ms, 1)) {
            over(c, number);
            continue;
        }
        if (code) return fail(c, code, "no node has answered in time");
        if (c->answer_verb != REFUSED) return GQ_OK;
        gq_reader in = answer_of(c);
        keep_refusal(c, &in);
        if (!later(c->code)) return GQ_REFUSED;
        if (ended(c->code)) over(c, number);
        pause(c, end_ms);
    }
}

/* --- topics */

static void put_resolve(gq_buffer *out, const void *name) {
    gq_put_array(out, 2);
    gq_put_array(out, 1);
    gq_put_text(out, name);
    gq_put_bool(out, 1);
}

static void free_topic(topic *t) {
    if (!t) return;
    free(t->name);
    free(t->shards);
    free(t->lanes);
    free(t);
}

static int find_topic(gq *c, const char *name, topic **found, int64_t end_ms) {
    for (topic *t = c->topics; t; t = t->next)
        if (!strcmp(t->name, name)) {
            *found = t;
            return GQ_OK;
        }
    int code = ask(c, RESOLVE, 0, put_resolve, name, end_ms);
    if (code) return code;
    gq_reader in = answer_of(c);
    gq_get_array(&in);
    if (!gq_get_array(&in)) {
        snprintf(c->code, sizeof c->code, "unknown_topic");
        snprintf(c->text, sizeof c->text, "no topic %s", name);
        return GQ_REFUSED;
    }
    topic *t = calloc(1, sizeof *t);
    if (!t) return no_memory(c);
    gq_get_array(&in);
    t->id = gq_get_int(&in);
    gq_skip(&in);
    gq_skip(&in);
    gq_skip(&in);
    t->parts = gq_get_array(&in);
    t->name = strdup(name);
    t->shards = calloc(t->parts ? t->parts : 1, sizeof *t->shards);
    t->lanes = calloc(t->parts ? t->parts : 1, sizeof *t->lanes);
    if (!t->name || !t->shards || !t->lanes) {
        free_topic(t);
        return no_memory(c);
    }
    for (uint32_t i = 0; i < t->parts; i++) {
        t->shards[i] = (uint16_t)gq_get_int(&in);
        t->lanes[i].producer = c->producers++;
    }
    if (in.bad || !t->parts) {
        int none = !in.bad;
        free_topic(t);
        return fail(c, GQ_ARGUMENT, none ? "a virtual topic: name the real ones" : "the node's answer cannot be read");
    }
    t->next = c->topics;
    c->topics = t;
    *found = t;
    return GQ_OK;
}

/* --- publishing */

static void put_record(gq_buffer *out, const gq_record *r) {
    gq_put_array(out, 4);
    gq_put_bytes(out, r->value, r->value_size);
    gq_put_bytes(out, r->key, r->key_size);
    gq_put_map(out, (uint32_t)r->header_count);
    for (size_t i = 0; i < r->header_count; i++) {
        gq_put_text(out, r->headers[i].name);
        gq_put_bytes(out, r->headers[i].value, r->headers[i].value_size);
    }
    gq_put_bytes(out, r->id, r->id_size);
}

static uint32_t part_of(const topic *t, const gq_record *r, size_t number) {
    if (r->key_size) return gq_crc32(r->key, r->key_size) % t->parts;
    if (r->id_size) return gq_crc32(r->id, r->id_size) % t->parts;
    return (uint32_t)(number / BATCH_RECORDS % t->parts);
}

static size_t size_of(const gq_record *r) { return r->value_size + r->key_size + r->id_size; }

static void free_batches(gq *c) {
    for (size_t i = 0; i < c->batch_count; i++) {
        free(c->batches[i].index);
        gq_buffer_free(&c->batches[i].body);
    }
    free(c->batches);
    c->batches = NULL;
    c->batch_count = c->batches_done = 0;
}

static int add_batch(gq *c, topic *t, uint32_t partition, const gq_record *records, const size_t *index, size_t count) {
    batch *grown = realloc(c->batches, (c->batch_count + 1) * sizeof *grown);
    if (!grown) return 0;
    c->batches = grown;
    batch *b = c->batches + c->batch_count++;
    memset(b, 0, sizeof *b);
    b->lane = t->lanes + partition;
    b->shard = t->shards[partition];
    b->partition = partition;
    b->key = t->id * 65536 + partition;
    b->count = count;
    b->index = malloc(count * sizeof *b->index);
    if (!b->index) return 0;
    memcpy(b->index, index, count * sizeof *index);
    gq_put_array(&b->body, (uint32_t)count);
    for (size_t i = 0; i < count; i++) put_record(&b->body, records + index[i]);
    return !b->body.failed;
}

/* Sorts the records into batches of one partition each. */
static int pack(gq *c, topic *t, const gq_record *records, size_t count) {
    size_t *index = malloc((count ? count : 1) * sizeof *index);
    uint32_t *parts = malloc((count ? count : 1) * sizeof *parts);
    int good = index && parts;
    for (size_t i = 0; good && i < count; i++) parts[i] = part_of(t, records + i, i);
    for (uint32_t p = 0; good && p < t->parts; p++) {
        size_t n = 0, bytes = 0;
        for (size_t i = 0; good && i < count; i++) {
            if (parts[i] != p) continue;
            if (n && (n == BATCH_RECORDS || bytes + size_of(records + i) > BATCH_BYTES)) {
                good = add_batch(c, t, p, records, index, n);
                n = bytes = 0;
            }
            index[n++] = i;
            bytes += size_of(records + i);
        }
        if (good && n) good = add_batch(c, t, p, records, index, n);
    }
    free(index);
    free(parts);
    return good;
}

static int send_batches(gq *c, const gq_how *how, int64_t end_ms) {
    for (size_t i = 0; i < c->batch_count; i++) {
        batch *b = c->batches + i;
        if (b->done || b->sent) continue;
        int code = join(c, b->shard, end_ms); /* may hear of others, and change any of them */
        if (code) return code;
        int in_flight = 0, behind = 0;
        for (size_t k = 0; k < c->batch_count; k++) {
            batch *each = c->batches + k;
            if (each->lane != b->lane || each->done) continue;
            in_flight += each->sent;
            behind |= k < i && !each->sent; /* an earlier one has to go first */
        }
        if (b->done || b->sent || behind || in_flight >= IN_FLIGHT) continue;
        if (!b->sequence) b->sequence = ++b->lane->sequence;
        gq_buffer fields = {0};
        gq_put_array(&fields, 7);
        gq_put_int(&fields, b->key);
        gq_put_text(&fields, "stored");
        gq_put_text(&fields, how && how->route ? how->route : "");
        gq_put_int(&fields, how ? how->delay_ms : 0);
        gq_put_int(&fields, how ? how->ttl_ms : 0);
        gq_put_int(&fields, b->lane->producer);
        gq_put_int(&fields, (int64_t)b->sequence);
        b->request = say(c, PUBLISH_PLAIN, b->shard, &fields, &b->body);
        b->sent = b->request != 0;
    }
    return GQ_OK;
}

int gq_publish(gq *c, const char *name, const gq_record *records, size_t count, const gq_how *how, gq_place *places, int timeout_ms) {
    if (!c || !name || (!records && count)) return c ? fail(c, GQ_ARGUMENT, "no topic, or no records") : GQ_ARGUMENT;
    int64_t end_ms = deadline(timeout_ms);
    topic *t;
    gq_place *mine = places;
    int code = find_topic(c, name, &t, end_ms);
    if (!code && !mine && !(mine = calloc(count ? count : 1, sizeof *mine))) code = no_memory(c);
    if (!code && !pack(c, t, records, count)) code = no_memory(c);
    c->places = mine;
    c->resume_ms = 0;
    char why[sizeof c->text], refusal[sizeof c->code];
    while (!code && c->batches_done < c->batch_count) {
        if (!left(end_ms, 1)) break;
        if (now_ms() >= c->resume_ms) code = send_batches(c, how, end_ms);
        if (!code && c->batches_done < c->batch_count)
            code = pump(c, left(end_ms, c->resume_ms > now_ms() ? AGAIN_MS / 2 : PING_MS));
    }
    int asked = code == GQ_TIMEOUT || code == GQ_OK;
    for (size_t i = 0; i < c->batch_count; i++) {
        batch *b = c->batches + i;
        if (b->done && b->code == GQ_OK) continue;
        if (!b->done) { /* no later sequence of this producer may be taken for it */
            b->code = asked ? GQ_NOT_CONFIRMED : code;
            b->lane->producer = c->producers++;
            b->lane->sequence = 0;
        }
        for (size_t n = 0; n < b->count; n++) mine[b->index[n]] = (gq_place){b->partition, -1, 0, b->code};
        if (!code || code == GQ_TIMEOUT) code = b->code;
    }
    if (code == GQ_NOT_CONFIRMED) fail(c, code, "no answer came in time: it may be stored");
    snprintf(why, sizeof why, "%s", c->text);
    snprintf(refusal, sizeof refusal, "%s", c->code);
    free_batches(c);
    if (mine != places) free(mine);
    if (code == GQ_REFUSED && !strcmp(refusal, "unknown_topic")) { /* it may be made anew, under another id */
        for (topic **at = &c->topics; *at; at = &(*at)->next)
            if (!strcmp((*at)->name, name) && !c->subscriptions) {
                topic *gone = *at;
                *at = gone->next;
                free_topic(gone);
                break;
            }
    }
    return code;
}

/* --- consuming */

static void free_subscription(gq_subscription *s) {
    if (!s) return;
    drop_waiting(s, NULL);
    if (s->shown) release(s->shown);
    for (size_t i = 0; i < s->part_count; i++) {
        free(s->parts[i].keys);
        free(s->parts[i].held.at);
        free(s->parts[i].pending.at);
        free(s->parts[i].sent.what.at);
    }
    free(s->parts);
    free(s->group);
    free(s->start);
    free(s);
}

static int make_parts(gq_subscription *s) {
    topic *t = s->topic;
    s->parts = calloc(t->parts, sizeof *s->parts);
    for (uint32_t i = 0; s->parts && i < t->parts; i++) {
        size_t k = 0;
        while (k < s->part_count && s->parts[k].shard != t->shards[i]) k++;
        part *p = s->parts + k;
        if (k == s->part_count) {
            p->shard = t->shards[i];
            p->number = ++s->client->numbers;
            p->keys = calloc(t->parts, sizeof *p->keys);
            if (!p->keys) return 0;
            s->part_count++;
        }
        p->keys[p->key_count++] = t->id * 65536 + i;
    }
    return s->parts != NULL;
}

static void unlist(gq_subscription *s) {
    for (gq_subscription **at = &s->client->subscriptions; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            return;
        }
}

int gq_subscribe(gq *c, const char *name, const char *group, const gq_options *options, gq_subscription **subscription) {
    static const gq_options NONE = {0};
    if (!c || !name || !group || !*group || !subscription) return c ? fail(c, GQ_ARGUMENT, "no topic, or no group") : GQ_ARGUMENT;
    const gq_options *o = options ? options : &NONE;
    topic *t;
    int code = find_topic(c, name, &t, INT64_MAX);
    if (code) return code;
    gq_subscription *s = calloc(1, sizeof *s);
    if (!s) return no_memory(c);
    s->client = c;
    s->last = &s->first;
    s->topic = t;
    s->group = strdup(group);
    s->start = strdup(o->start ? o->start : "first");
    s->credit = o->credit ? o->credit : CREDIT;
    s->credit_bytes = o->credit_bytes ? o->credit_bytes : CREDIT_BYTES;
    s->lease_ms = o->lease_ms;
    if (!s->group || !s->start || !make_parts(s)) {
        free_subscription(s);
        return no_memory(c);
    }
    s->next = c->subscriptions;
    c->subscriptions = s;
    for (size_t i = 0; i < s->part_count && !code; i++) {
        over(c, s->parts[i].shard);
        code = join(c, s->parts[i].shard, INT64_MAX);
    }
    if (code) {
        unlist(s);
        free_subscription(s);
        return code;
    }
    *subscription = s;
    return GQ_OK;
}

static int join_all(gq_subscription *s, int64_t end_ms) {
    int code = GQ_OK;
    for (size_t i = 0; i < s->part_count && !code; i++) code = join(s->client, s->parts[i].shard, end_ms);
    return code;
}

/* Sends what is acked, where nothing is on its way. Whether something waits for its answer. */
static int send_acks(gq_subscription *s) {
    int waits = 0;
    for (size_t i = 0; i < s->part_count; i++) {
        part *p = s->parts + i;
        if (!p->sent.what.count && p->pending.count) {
            ranges swap = p->sent.what;
            p->sent.what = p->pending;
            p->pending = swap;
            while (p->sent.what.count > RANGES) { /* the rest goes with the next one */
                range r = p->sent.what.at[--p->sent.what.count];
                ranges_add(&p->pending, r.key, r.first, r.end);
            }
        }
        if (!p->sent.what.count) continue;
        waits = 1;
        shard *at = shard_of(s->client, p->shard);
        if (p->sent.request || !at || !at->joined || now_ms() < s->client->resume_ms) continue;
        gq_buffer fields = {0};
        gq_put_array(&fields, 2);
        gq_put_int(&fields, p->number);
        put_ranges(&fields, &p->sent.what, p->sent.what.count);
        p->sent.request = say(s->client, ACK, p->shard, &fields, NULL);
    }
    return waits;
}

int gq_next(gq_subscription *s, gq_message *message, int timeout_ms) {
    if (!s || !message) return GQ_ARGUMENT;
    int64_t end_ms = deadline(timeout_ms);
    if (s->shown) release(s->shown);
    s->shown = NULL;
    int code = now_ms() - s->client->pumped_ms >= PING_MS ? pump(s->client, 0) : GQ_OK;
    while (!code && !s->first) {
        int64_t join_ms = now_ms() + SILENT_MS; /* a short wait must not give up each time before the answer comes */
        code = join_all(s, end_ms > join_ms ? end_ms : join_ms);
        if (code == GQ_TIMEOUT) break;
        if (code) return code;
        send_acks(s);
        if (s->first) break;
        if (!left(end_ms, 1)) return fail(s->client, GQ_TIMEOUT, "no record came in time");
        code = pump(s->client, left(end_ms, PING_MS));
    }
    if (code) return code;
    waiting *w = s->shown = s->first;
    s->first = w->next;
    if (!s->first) s->last = &s->first;
    w->next = NULL;
    ranges_take(&w->part->held, w->key, w->message.offset); /* its lease may have ended, and it came again */
    if (!ranges_add(&w->part->held, w->key, w->message.offset, w->message.offset + 1)) return no_memory(s->client);
    *message = w->message;
    return GQ_OK;
}

static part *part_with(gq_subscription *s, uint32_t partition) {
    for (size_t i = 0; partition < s->topic->parts && i < s->part_count; i++)
        if (s->parts[i].shard == s->topic->shards[partition]) return s->parts + i;
    return NULL;
}

int gq_ack(gq_subscription *s, uint32_t partition, int64_t offset) {
    part *p = s ? part_with(s, partition) : NULL;
    if (!p) return s ? fail(s->client, GQ_ARGUMENT, "the topic has no such partition") : GQ_ARGUMENT;
    if (!ranges_add(&p->pending, s->topic->id * 65536 + partition, offset, offset + 1)) return no_memory(s->client);
    if (p->pending.count >= ACKS_WAITING || p->pending.at[p->pending.count - 1].end - p->pending.at[p->pending.count - 1].first >= ACKS_WAITING) {
        send_acks(s);
        return pump(s->client, 0);
    }
    return GQ_OK;
}

int gq_flush(gq_subscription *s, int timeout_ms) {
    if (!s) return GQ_ARGUMENT;
    int64_t end_ms = deadline(timeout_ms);
    int code = GQ_OK;
    while (!code) {
        code = join_all(s, end_ms);
        if (code || !send_acks(s)) break;
        if (!left(end_ms, 1)) return fail(s->client, GQ_TIMEOUT, "not all acks were answered in time");
        code = pump(s->client, left(end_ms, AGAIN_MS));
    }
    if (!code && s->refused) code = s->refused;
    if (!code && s->lost) code = fail(s->client, GQ_LOST, "others have some of the records by now");
    s->lost = s->refused = 0;
    return code;
}

typedef struct {
    int64_t number, key, offset, delay_ms;
    const char *reason;
} failure;

static void put_nack(gq_buffer *out, const void *what) {
    const failure *f = what;
    gq_put_array(out, 5);
    gq_put_int(out, f->number);
    range r = {f->key, f->offset, f->offset + 1};
    ranges one = {&r, 1, 1};
    put_ranges(out, &one, 1);
    gq_put_int(out, f->delay_ms);
    gq_put_bool(out, 1);
    gq_put_text(out, f->reason);
}

int gq_nack(gq_subscription *s, uint32_t partition, int64_t offset, const char *reason, int64_t delay_ms, int timeout_ms) {
    part *p = s ? part_with(s, partition) : NULL;
    if (!p) return s ? fail(s->client, GQ_ARGUMENT, "the topic has no such partition") : GQ_ARGUMENT;
    failure f = {p->number, s->topic->id * 65536 + partition, offset, delay_ms, reason ? reason : ""};
    int code = ask(s->client, NACK, p->shard, put_nack, &f, deadline(timeout_ms));
    if (!code) ranges_take(&p->held, f.key, offset);
    return code;
}

static void put_number(gq_buffer *out, const void *number) {
    gq_put_array(out, 1);
    gq_put_int(out, *(const int64_t *)number);
}

void gq_unsubscribe(gq_subscription *s) {
    if (!s) return;
    gq *c = s->client;
    int64_t end_ms = now_ms() + CLOSE_MS;
    gq_flush(s, CLOSE_MS);
    for (size_t i = 0; i < s->part_count; i++) {
        shard *at = shard_of(c, s->parts[i].shard);
        gq_buffer fields = {0};
        put_number(&fields, &s->parts[i].number);
        if (at && at->joined) once(c, UNSUBSCRIBE, s->parts[i].shard, &fields, end_ms);
        else gq_buffer_free(&fields);
    }
    unlist(s);
    free_subscription(s);
}

int gq_header_at(const gq_message *m, size_t index, const char **name, size_t *name_size, const void **value, size_t *value_size) {
    if (!m || index >= m->header_count) return GQ_ARGUMENT;
    gq_reader in = {m->headers, (const uint8_t *)m->headers + m->headers_size, 0};
    for (size_t i = 0; i <= index; i++) {
        *name_size = gq_get_bytes(&in, (const uint8_t **)name);
        *value_size = gq_get_bytes(&in, (const uint8_t **)value);
    }
    return in.bad ? GQ_ARGUMENT : GQ_OK;
}

/* --- opening, closing */

static int add_servers(gq *c, const char *text) {
    while (*text) {
        size_t size = strcspn(text, ",");
        char **grown = realloc(c->servers, (c->server_count + 1) * sizeof *grown);
        if (!grown) return 0;
        c->servers = grown;
        if (!(c->servers[c->server_count] = strndup(text, size))) return 0;
        c->server_count++;
        text += size + (text[size] == ',');
    }
    return c->server_count > 0;
}

int gq_open(gq **client, const char *servers) {
    if (!client) return GQ_ARGUMENT;
    *client = NULL;
    gq *c = calloc(1, sizeof *c);
    if (!c) return GQ_MEMORY;
    if (!servers) servers = getenv("GOSSIPQ_SERVER");
    if (!servers) servers = "tcp://127.0.0.1:7700";
    uint8_t digest[32];
    if (getrandom(c->key, sizeof c->key, 0) != (ssize_t)sizeof c->key || !add_servers(c, servers) || !(c->context = zmq_ctx_new())) {
        int code = *servers ? GQ_MEMORY : GQ_ARGUMENT;
        gq_close(c);
        return code;
    }
    gq_hmac_sha256(c->key, sizeof c->key, "session", 7, digest);
    memcpy(c->session, digest, sizeof c->session);
    c->session[0] |= 0x80;
    c->pumped_ms = now_ms();
    int code = dial(c);
    if (code) {
        gq_close(c);
        return code;
    }
    *client = c;
    return GQ_OK;
}

void gq_close(gq *c) {
    if (!c) return;
    while (c->subscriptions) gq_unsubscribe(c->subscriptions);
    if (c->socket) {
        int linger = 200;
        for (size_t i = 0; i < c->shard_count; i++)
            if (c->shards[i].joined) say_nothing(c, BYE, c->shards[i].number);
        zmq_setsockopt(c->socket, ZMQ_LINGER, &linger, sizeof linger);
        zmq_close(c->socket);
    }
    if (c->context) zmq_ctx_term(c->context);
    while (c->topics) {
        topic *next = c->topics->next;
        free_topic(c->topics);
        c->topics = next;
    }
    for (size_t i = 0; i < c->server_count; i++) free(c->servers[i]);
    free(c->servers);
    free(c->shards);
    gq_buffer_free(&c->answer);
    free(c);
}

int gq_ping(gq *c) {
    if (!c) return GQ_ARGUMENT;
    int code = pump(c, 0);
    for (gq_subscription *s = c->subscriptions; s && !code; s = s->next) code = join_all(s, now_ms() + PING_MS);
    return code == GQ_TIMEOUT ? GQ_OK : code;
}

const char *gq_error(const gq *c) { return c ? c->text : ""; }

const char *gq_error_code(const gq *c) { return c ? c->code : ""; }
