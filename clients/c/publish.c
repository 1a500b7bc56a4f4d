/* Records on their way: packed and sealed by partition, numbered, and kept until they are confirmed. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH_RECORDS = 4096, BATCH_BYTES = 256 * 1024, IN_FLIGHT = 64, WAITING_BYTES = 24 << 20, LINGER_MS = 5, LOOK_EACH = 32 };
enum { VALUE_MAX = 16 << 20, KEY_MAX = 4096, ID_MAX = 1024, HEADERS_MAX = 65536, ROUTE_MAX = 255, FLOW_MAX = 64, PRIORITY_MAX = 9 };

/* --- what has an outcome */

static void forget_request(gq *c, batch *b) {
    if (b->request && c->recent[b->request % RECENT] == b) c->recent[b->request % RECENT] = NULL;
    b->request = 0;
}

static void free_batch(gq *c, batch *b) {
    c->waiting_bytes -= b->bytes;
    c->waiting -= b->count;
    forget_request(c, b);
    zmq_msg_close(&b->body);
    free(b->places);
    free(b);
}

static void keep_failure(gq *c, int code) {
    if (code == GQ_OK || c->failed) return;
    c->failed = code;
    if (code == GQ_NOT_CONFIRMED) gq_fail(c, code, "no answer came in time: it may be stored");
    snprintf(c->failed_text, sizeof c->failed_text, "%s", c->text);
    snprintf(c->failed_code, sizeof c->failed_code, "%s", c->code);
}

static void settle(gq *c, batch *b, int code) {
    lane *l = b->lane;
    batch **at = &l->first;
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    if (l->unsent == b) l->unsent = b->next;
    if (l->last == &b->next) l->last = at;
    l->in_flight -= (size_t)b->sent;
    c->settled++;
    for (size_t i = 0; code != GQ_OK && b->places && i < b->count; i++)
        if (b->places[i]) *b->places[i] = (gq_place){l->partition, -1, 0, code};
    keep_failure(c, code);
    free_batch(c, b);
}

void gq_name_producer(gq *c, lane *l) {
    uint8_t text[12] = "producer", digest[32];
    for (int i = 0; i < 4; i++) text[8 + i] = l->producer_name[i] = (uint8_t)(l->producer >> (24 - 8 * i));
    gq_hmac_sha256(c->key, sizeof c->key, text, sizeof text, digest);
    memcpy(l->producer_name + 4, digest, 12);
}

static void unsend(gq *c, batch *b) {
    if (b->sent) b->lane->in_flight--;
    b->sent = 0;
    forget_request(c, b); /* what is still said of the last sending does not count */
}

/* Give new sequences to a batch of a lane and to the batches behind it. Not one of them is stored yet. */
static void renumber(gq *c, lane *l, batch *from, uint64_t sequence) {
    l->sequence = sequence - 1;
    l->unsent = from;
    for (batch *b = from; b; b = b->next) {
        unsend(c, b);
        b->before = 0;
        b->sequence = ++l->sequence;
        zmq_msg_t copy; /* the old bytes may still wait in the socket */
        if (zmq_msg_init_size(&copy, b->bytes) < 0) continue;
        memcpy(zmq_msg_data(&copy), zmq_msg_data(&b->body), b->bytes);
        gq_restamp(zmq_msg_data(&copy), b->bytes, l->producer_name, b->sequence);
        zmq_msg_move(&b->body, &copy);
        zmq_msg_close(&copy);
    }
}

/* Send all batches of a lane under a new producer. */
static void anew(gq *c, lane *l) {
    l->producer = c->producers++;
    gq_name_producer(c, l);
    renumber(c, l, l->first, 1);
}

batch *gq_batch_of(gq *c, uint64_t request) {
    if (!request) return NULL;
    batch *recent = c->recent[request % RECENT];
    if (recent && recent->request == request) return recent;
    for (lane *l = c->active; l; l = l->next)
        for (batch *b = l->first; b && b != l->unsent; b = b->next)
            if (b->request == request) return b;
    return NULL;
}

static void place(batch *b, size_t at, int64_t offset, int duplicate) {
    if (b->places && at < b->count && b->places[at]) *b->places[at] = (gq_place){b->lane->partition, offset < 0 ? -1 : offset, duplicate, GQ_OK};
}

/* Read the offsets of records of batches with ids or delays. Such a batch has a row of its own too, which settles it. */
static void read_runs(gq *c, gq_reader in) {
    uint32_t fields = gq_get_array(&in);
    for (int i = 0; i < 3; i++) gq_skip(&in);
    uint32_t count = fields > 3 ? gq_get_array(&in) : 0;
    for (uint32_t i = 0; i < count && !in.bad; i++) {
        gq_get_array(&in);
        batch *b = gq_batch_of(c, (uint64_t)gq_get_int(&in));
        uint32_t runs = gq_get_array(&in);
        size_t n = 0;
        for (uint32_t k = 0; k < runs && !in.bad; k++) {
            uint32_t parts = gq_get_array(&in);
            int64_t records = gq_get_int(&in), offset = gq_get_int(&in);
            int duplicate = 0;
            for (uint32_t p = 2; p < parts; p++)
                if (p == 4) duplicate = gq_get_bool(&in);
                else gq_skip(&in);
            for (int64_t r = 0; r < records && b && n < b->count && !in.bad; r++, n++) place(b, n, offset < 0 ? -1 : offset + r, duplicate);
        }
    }
}

void gq_confirmed(gq *c, gq_reader in, uint16_t number, uint64_t term) {
    gq_reader rows = in, rest;
    uint32_t fields = gq_get_array(&rows);
    rest = rows;
    gq_skip(&rest);
    if (fields > 1) gq_skip(&rest);
    if (fields > 3) read_runs(c, in);
    uint32_t count = gq_get_array(&rows);
    for (uint32_t i = 0; i < count && !rows.bad; i++) {
        uint32_t parts = gq_get_array(&rows);
        batch *b = gq_batch_of(c, (uint64_t)gq_get_int(&rows));
        int64_t offset = gq_get_int(&rows);
        gq_get_int(&rows);
        int duplicate = gq_get_bool(&rows);
        for (uint32_t more = 4; more < parts; more++) gq_skip(&rows);
        if (rows.bad || !b) continue;
        for (size_t n = 0; b->places && n < b->count; n++) /* but for those that runs told of */
            if (b->places[n] && b->places[n]->code == GQ_PENDING) place(b, n, offset < 0 ? -1 : offset + (int64_t)n, duplicate);
        settle(c, b, GQ_OK);
    }
    if (fields > 2) { /* it went through a frontdoor */
        const uint8_t *direct;
        size_t size = gq_get_bytes(&rest, &direct);
        if (!rest.bad) gq_learn(c, number, term, direct, size);
    }
}

/* Refuse all batches of a lane. A batch that was sent over an earlier connection may be stored nevertheless. */
static void refuse_lane(gq *c, lane *l) {
    char text[sizeof c->text], code[sizeof c->code]; /* of the refusal: it is that of each */
    snprintf(text, sizeof text, "%s", c->text);
    snprintf(code, sizeof code, "%s", c->code);
    l->unknown = 0;
    while (l->first) {
        settle(c, l->first, l->first->before ? GQ_NOT_CONFIRMED : GQ_REFUSED);
        snprintf(c->text, sizeof c->text, "%s", text);
        snprintf(c->code, sizeof c->code, "%s", code);
    }
}

/* End batches that were sent over an earlier connection as "may be stored", and send the rest under a new producer. */
static void part_with_producer(gq *c, lane *l) {
    for (batch *each = l->first, *next; each; each = next) {
        next = each->next;
        if (each->before) settle(c, each, GQ_NOT_CONFIRMED);
    }
    anew(c, l);
}

void gq_publish_refused(gq *c, batch *b, gq_reader in) {
    lane *l = b->lane;
    int64_t detail = gq_refusal_detail(in);
    gq_keep_refusal(c, &in);
    if (!gq_later(c->code)) {
        if (!strcmp(c->code, "unknown_topic") || !strcmp(c->code, "wrong_shard")) { /* it may be made anew, under another id */
            l->unknown = 1;
            for (batch *each = l->first; each; each = each->next) unsend(c, each);
            l->unsent = l->first;
            return;
        }
        if (b->before) { /* an earlier sending may be stored, and has its sequence then */
            part_with_producer(c, l);
            return;
        }
        batch *behind = b->next; /* what is before it may be stored already: under another producer it would be twice */
        uint64_t sequence = b->sequence;
        settle(c, b, GQ_REFUSED);
        renumber(c, l, behind, sequence);
        return;
    }
    if (!strcmp(c->code, "out_of_sequence") && (uint64_t)detail < l->first->sequence) { /* the leader has forgotten the producer */
        part_with_producer(c, l);
        return;
    }
    if (!strcmp(c->code, "not_leader")) gq_not_leader(c, l->shard);
    else if (gq_ended(c->code)) gq_over(c, l->shard);
    for (batch *each = b; each && each->sent; each = each->next) unsend(c, each); /* from this one on, in order */
    if (!l->unsent || l->unsent->sequence > b->sequence) l->unsent = b;
    l->resume_ms = gq_now_ms() + (c->retry_ms > 0 ? c->retry_ms : AGAIN_MS);
}

void gq_lanes_over(gq *c, uint16_t number) {
    for (lane *l = c->active; l; l = l->next) {
        if (l->shard != number) continue;
        for (batch *b = l->first; b && b->sent; b = b->next) {
            b->before = 1;
            unsend(c, b);
        }
        l->unsent = l->first;
    }
}

int gq_lanes_use(gq *c, uint16_t number) {
    for (lane *l = c->active; l; l = l->next)
        if (l->shard == number) return 1;
    return 0;
}

/* --- packing */

static int64_t wall_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Mark an empty lane as idle. */
static void rest(lane *l) {
    l->listed = l->unknown = 0;
    if (l->open) gq_packing_free(l->open);
    free(l->open);
    l->open = NULL;
}

static void activate(gq *c, lane *l) {
    if (l->listed) return;
    l->listed = 1;
    l->next = c->active;
    c->active = l;
}

/* Seals what is packed in a lane. */
static int seal(gq *c, lane *l) {
    gq_packing *p = l->open;
    if (!p || !p->count) return GQ_OK;
    batch *b = calloc(1, sizeof *b);
    size_t size = gq_sealed_size(p);
    int failed = !b || gq_packing_failed(p) || zmq_msg_init_size(&b->body, size) < 0;
    if (!failed && p->places.size) {
        b->places = malloc(p->places.size);
        if (!b->places) {
            zmq_msg_close(&b->body);
            failed = 1;
        }
    }
    c->waiting_bytes -= gq_packed_bytes(p);
    if (failed) {
        c->waiting -= p->count;
        gq_packing_reset(p);
        free(b);
        return gq_no_memory(c);
    }
    if (b->places) memcpy(b->places, p->places.bytes, p->places.size);
    b->lane = l;
    b->count = p->count;
    b->bytes = size;
    b->sequence = ++l->sequence;
    b->sealed_ms = gq_now_ms();
    b->delay_ms = p->delay_ms;
    gq_seal(p, l->producer_name, b->sequence, wall_ms(), zmq_msg_data(&b->body));
    gq_packing_reset(p);
    *l->last = b;
    l->last = &b->next;
    if (!l->unsent) l->unsent = b;
    c->waiting_bytes += size;
    if (l->topic->turn == l->partition) l->topic->turn = (l->topic->turn + 1) % l->topic->parts;
    return GQ_OK;
}

int gq_lanes_of(gq *c, const topic *t) {
    for (lane *l = c->active; l; l = l->next)
        if (l->topic == t) return 1;
    return 0;
}

/* Look up topics again that their leader does not know. Batches that cannot move to the new topic are refused. */
static int renew_lanes(gq *c, int64_t end_ms) {
    for (lane *l = c->active; l;) {
        if (!l->unknown) {
            l = l->next;
            continue;
        }
        topic *t = l->topic, *now = t;
        int code = gq_renew_topic(c, t, 0, &now, end_ms);
        if (code && code != GQ_REFUSED) return code;
        if (now == t) {
            if (code) t->stale = 1;
            else gq_refuse(c, "unknown_topic", "its leader does not know the topic");
            for (l = c->active; l; l = l->next)
                if (l->topic == t && l->unknown) refuse_lane(c, l);
        }
        l = c->active;
    }
    return GQ_OK;
}

/* Sends what may go out in a lane whose shard is joined. */
static void send_lane(gq *c, lane *l) {
    while (l->unsent && l->in_flight < IN_FLIGHT) {
        batch *b = l->unsent;
        gq_buffer fields = {0};
        gq_put_array(&fields, 3);
        gq_put_int(&fields, l->topic->id * 65536 + l->partition);
        gq_put_text(&fields, "stored");
        gq_put_int(&fields, gq_now_ms() - b->sealed_ms);
        b->request = gq_say(c, PUBLISH, l->shard, &fields, &b->body);
        if (!b->request) return;
        b->sent = 1;
        l->in_flight++;
        l->unsent = b->next;
        c->recent[b->request % RECENT] = b;
    }
}

/* Sends all that may go out, and seals what has waited for long enough, or everything with `all`. */
static int send_lanes(gq *c, int64_t end_ms, int all) {
    int code = renew_lanes(c, end_ms);
    if (code) return code;
    int64_t now = gq_now_ms();
    for (lane **at = &c->active; *at;) {
        lane *l = *at;
        if (l->open && l->open->count && (all || now - l->open->began_ms >= LINGER_MS)) {
            code = seal(c, l);
            if (code) return code;
        }
        if (!l->first && !(l->open && l->open->count)) { /* nothing to do */
            *at = l->next;
            rest(l);
            continue;
        }
        at = &l->next;
    }
    for (lane *l = c->active; l; l = l->next) {
        if (!l->unsent || l->unknown || l->in_flight >= IN_FLIGHT || now < l->resume_ms) continue;
        shard *s = gq_shard_of(c, l->shard);
        if (s && !s->joined) {
            code = gq_join(c, l->shard, end_ms); /* hears of others; but lanes leave the list only above */
            if (code == GQ_REFUSED) refuse_lane(c, l);
            else if (code) return code;
            s = gq_shard_of(c, l->shard);
        }
        if (s && s->joined && !l->unknown) send_lane(c, l);
    }
    return GQ_OK;
}

int gq_send_lanes(gq *c, int64_t end_ms) { return send_lanes(c, end_ms, 1); }

static int same(const gq_packing *p, const gq_how *how) {
    return !strcmp(p->route, how && how->route ? how->route : "") && p->delay_ms == (how ? how->delay_ms : 0);
}

static int begin(gq *c, lane *l, const gq_how *how) {
    if (!l->open && !(l->open = calloc(1, sizeof *l->open))) return gq_no_memory(c);
    gq_packing *p = l->open;
    snprintf(p->route, sizeof p->route, "%s", how && how->route ? how->route : "");
    p->delay_ms = how ? how->delay_ms : 0;
    p->began_ms = gq_now_ms();
    activate(c, l);
    return GQ_OK;
}

static void put_headers(gq_buffer *out, const gq_record *r) {
    gq_put_map(out, (uint32_t)r->header_count);
    for (size_t i = 0; i < r->header_count; i++) {
        gq_put_text(out, r->headers[i].name);
        gq_put_bytes(out, r->headers[i].value, r->headers[i].value_size);
    }
}

static int refuse(gq *c, const char *what, size_t size, size_t most) {
    return gq_refuse(c, "too_large", "%s of %zu bytes; at most %zu are allowed", what, size, most);
}

static int check(gq *c, const gq_record *r, const gq_buffer *headers) {
    if (r->value_size > VALUE_MAX) return refuse(c, "value", r->value_size, VALUE_MAX);
    if (r->key_size > KEY_MAX) return refuse(c, "key", r->key_size, KEY_MAX);
    if (r->id_size > ID_MAX) return refuse(c, "id", r->id_size, ID_MAX);
    if (headers->size > HEADERS_MAX) return refuse(c, "headers", headers->size, HEADERS_MAX);
    for (size_t i = 0; i < r->header_count; i++)
        if (gq_check_text(c, "the name of a header", r->headers[i].name)) return GQ_REFUSED;
    return headers->failed ? gq_no_memory(c) : GQ_OK;
}

/* One record into the batch of its partition; `headers` as they are packed. */
static int put(gq *c, topic *t, const gq_record *r, const gq_buffer *headers, const gq_how *how, gq_place *place_of) {
    int code = GQ_OK;
    gq_terms terms = {.priority = GQ_DEFAULT_PRIORITY};
    if (how) {
        terms.ttl_ms = how->ttl_ms;
        terms.flow = how->flow;
        terms.flow_size = how->flow ? strlen(how->flow) : 0;
        if (how->has_priority) terms.priority = (uint8_t)how->priority;
    }
    const void *chooser = r->key_size ? r->key : terms.flow_size ? terms.flow : r->id;
    size_t chooser_size = r->key_size ? r->key_size : terms.flow_size ? terms.flow_size : r->id_size;
    uint32_t hash = chooser_size ? gq_crc32(chooser, chooser_size) : 0;
    lane *l = t->lanes + (chooser_size ? hash % t->parts : t->turn);
    size_t bytes = r->value_size + r->key_size + r->id_size + headers->size + terms.flow_size;
    if (l->open && l->open->count &&
        (!same(l->open, how) || l->open->count >= BATCH_RECORDS || gq_packed_bytes(l->open) + bytes > BATCH_BYTES))
        code = seal(c, l);
    if (!code && (!l->open || !l->open->count)) code = begin(c, l, how);
    if (!code) {
        gq_packing *p = l->open;
        if (place_of) {
            gq_place *none = NULL;
            while (p->places.size < p->count * sizeof none) gq_put(&p->places, &none, sizeof none);
            *place_of = (gq_place){l->partition, -1, 0, GQ_PENDING};
        }
        if (place_of || p->places.size) gq_put(&p->places, &place_of, sizeof place_of);
        gq_pack(p, r->value, r->value_size, r->key, r->key_size, r->key_size ? (hash ? hash : 1) : 0, headers, r->id, r->id_size,
                &terms);
        c->waiting++;
        c->waiting_bytes += bytes;
    } else if (place_of) {
        *place_of = (gq_place){l->partition, -1, 0, code};
    }
    return code;
}

static int add(gq *c, topic *t, const gq_record *r, const gq_how *how, gq_place *place_of) {
    gq_buffer headers = {0};
    if (r->header_count) put_headers(&headers, r);
    int code = check(c, r, &headers);
    if (!code) code = put(c, t, r, &headers, how, place_of);
    else if (place_of) *place_of = (gq_place){0, -1, 0, code};
    gq_buffer_free(&headers);
    return code;
}

/* Packs the records of a batch again, for another topic: nothing of it is stored. */
static void repack(gq *c, const batch *b, topic *to) {
    gq_opened o;
    if (!gq_open_batch(zmq_msg_data((zmq_msg_t *)&b->body), b->bytes, &o)) return; /* it is what `seal` has made */
    char route[ROUTE_MAX + 1];
    snprintf(route, sizeof route, "%.*s", (int)o.route_size, o.route);
    int64_t waited_ms = gq_now_ms() - b->sealed_ms;
    gq_how how = {.route = route, .delay_ms = b->delay_ms > waited_ms ? b->delay_ms - waited_ms : 0, .has_priority = 1};
    for (uint32_t i = 0; i < o.count; i++) {
        gq_record r = {0};
        r.value_size = gq_column_at(&o.values, i, &r.value);
        r.key_size = gq_column_at(&o.keys, i, &r.key);
        r.id_size = gq_column_at(&o.ids, i, &r.id);
        const void *raw;
        gq_buffer headers = {.size = gq_column_at(&o.headers, i, &raw)};
        headers.bytes = (uint8_t *)raw; /* it is only read */
        how.ttl_ms = gq_ttl_at(&o, i);
        how.priority = gq_priority_at(&o, i);
        const void *flow;
        char text[FLOW_MAX + 1];
        size_t size = gq_column_at(&o.flows, i, &flow);
        snprintf(text, sizeof text, "%.*s", (int)size, (const char *)flow);
        how.flow = text;
        keep_failure(c, put(c, to, &r, &headers, &how, b->places ? b->places[i] : NULL));
    }
}

/* The topic was deleted and created again. Batches in flight to the old one move to the new one in the same order, each record to the
 * partition of its key there. */
void gq_move_lanes(gq *c, const topic *from, topic *to) {
    for (lane **at = &c->active; *at;) {
        lane *l = *at;
        if (l->topic != from) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        seal(c, l);
        rest(l);
        for (batch *b = l->first, *next; b; b = next) {
            next = b->next;
            repack(c, b, to);
            free_batch(c, b);
        }
        l->first = l->unsent = NULL;
        l->last = &l->first;
        l->in_flight = 0;
    }
}

static int check_how(gq *c, const gq_how *how) {
    if (how->route && strlen(how->route) > ROUTE_MAX) return refuse(c, "route", strlen(how->route), ROUTE_MAX);
    if (how->flow && strlen(how->flow) > FLOW_MAX) return refuse(c, "flow", strlen(how->flow), FLOW_MAX);
    if (how->has_priority && (how->priority < 0 || how->priority > PRIORITY_MAX))
        return gq_refuse(c, "bad_request", "priority %d; it is a number from 0 to %d", how->priority, PRIORITY_MAX);
    int code = gq_check_text(c, "the route", how->route);
    return code ? code : gq_check_text(c, "the flow", how->flow);
}

/* Until there is room for more. */
static int make_room(gq *c, int64_t end_ms) {
    while (c->waiting_bytes > WAITING_BYTES) {
        int code = send_lanes(c, end_ms, 1);
        if (!code && !gq_left(end_ms, 1)) code = GQ_TIMEOUT;
        if (!code && c->waiting_bytes > WAITING_BYTES) code = gq_pump(c, gq_left(end_ms, AGAIN_MS));
        if (code == GQ_TIMEOUT) return gq_fail(c, code, "too much waits for its confirm");
        if (code) return code;
    }
    return GQ_OK;
}

static int post(gq *c, const char *name, const gq_record *records, size_t count, const gq_how *how, gq_place *places, int timeout_ms) {
    if (!name || (!records && count)) return gq_fail(c, GQ_ARGUMENT, "no topic, or no records");
    topic *t = NULL;
    int code = GQ_OK, first = GQ_OK;
    if (how) code = check_how(c, how);
    if (!code && c->waiting_bytes > WAITING_BYTES) code = make_room(c, gq_deadline(timeout_ms));
    if (!code) code = gq_find_topic(c, name, &t, gq_deadline(timeout_ms));
    char why[sizeof c->text] = "", refusal[sizeof c->code];
    for (size_t i = 0; i < count; i++) {
        int one = code ? code : add(c, t, records + i, how, places ? places + i : NULL);
        if (code && places) places[i] = (gq_place){0, -1, 0, code};
        if (one && !first) {
            first = one;
            snprintf(why, sizeof why, "%s", c->text);
            snprintf(refusal, sizeof refusal, "%s", c->code);
        }
    }
    c->posted++;
    if (!code && (count > 1 || (how && how->delay_ms) || c->posted % LOOK_EACH == 0)) {
        int all = count > 1 || (how && how->delay_ms);
        if (all || gq_now_ms() - c->pumped_ms >= 1) {
            int64_t end_ms = gq_deadline(timeout_ms);
            code = send_lanes(c, end_ms, all);
            if (!code) code = gq_pump(c, 0);
            if (!first && code != GQ_TIMEOUT) first = code; /* it is taken: what is late goes out by and by */
            else if (code == GQ_REFUSED) code = GQ_OK;
        }
    }
    if (first && *why && first != code) {
        snprintf(c->text, sizeof c->text, "%s", why);
        snprintf(c->code, sizeof c->code, "%s", refusal);
    }
    return first ? first : code == GQ_TIMEOUT ? GQ_OK : code;
}

int gq_post(gq *c, const char *name, const gq_record *records, size_t count, const gq_how *how, gq_place *places, int timeout_ms) {
    if (!c) return GQ_ARGUMENT;
    gq_lock(c);
    int code = post(c, name, records, count, how, places, timeout_ms);
    gq_unlock(c);
    return code;
}

static int confirm(gq *c, int timeout_ms) {
    int64_t end_ms = gq_deadline(timeout_ms);
    int code = GQ_OK;
    while (!code && c->waiting) {
        code = send_lanes(c, end_ms, 1);
        if (code || !c->waiting) break;
        int64_t left_ms = gq_left(end_ms, AGAIN_MS);
        code = gq_pump(c, left_ms);
        if (!code && !left_ms && c->waiting) return gq_fail(c, GQ_TIMEOUT, "not all is confirmed: it may be stored");
    }
    if (!code && c->failed) {
        code = c->failed;
        snprintf(c->text, sizeof c->text, "%s", c->failed_text);
        snprintf(c->code, sizeof c->code, "%s", c->failed_code);
    }
    if (code != GQ_TIMEOUT) c->failed = GQ_OK;
    return code;
}

int gq_confirm(gq *c, int timeout_ms) {
    if (!c) return GQ_ARGUMENT;
    gq_lock(c);
    int code = confirm(c, timeout_ms);
    gq_unlock(c);
    return code;
}

static int wait_for_outcome(gq *c, int timeout_ms) {
    int64_t end_ms = gq_deadline(timeout_ms);
    uint64_t before = c->settled;
    int code = GQ_OK;
    while (!code && c->waiting && c->settled == before) {
        int64_t join_ms = gq_now_ms() + SILENT_MS; /* a short wait must not give up each time before the answer comes */
        code = send_lanes(c, end_ms > join_ms ? end_ms : join_ms, 1);
        if (code == GQ_TIMEOUT) code = GQ_OK;
        if (code || !c->waiting || c->settled != before) break;
        int64_t left_ms = gq_left(end_ms, AGAIN_MS);
        code = gq_pump(c, left_ms);
        if (!code && !left_ms && c->settled == before) return gq_fail(c, GQ_TIMEOUT, "nothing was confirmed in time");
    }
    return code;
}

int gq_wait(gq *c, int timeout_ms) {
    if (!c) return GQ_ARGUMENT;
    gq_lock(c);
    int code = wait_for_outcome(c, timeout_ms);
    gq_unlock(c);
    return code;
}

size_t gq_waiting(const gq *c) { return c ? c->waiting : 0; }

/* Drop the pointers to these places, because their owner no longer waits for the outcome. */
static void detach(gq *c, const gq_place *places, size_t count) {
    for (lane *l = c->active; l; l = l->next) {
        for (batch *b = l->first; b; b = b->next)
            for (size_t i = 0; b->places && i < b->count; i++)
                if (b->places[i] >= places && b->places[i] < places + count) b->places[i] = NULL;
        gq_place **open = l->open ? (gq_place **)(void *)l->open->places.bytes : NULL;
        for (size_t i = 0; open && i < l->open->places.size / sizeof *open; i++)
            if (open[i] >= places && open[i] < places + count) open[i] = NULL;
    }
}

static int publish(gq *c, const char *name, const gq_record *records, size_t count, const gq_how *how, gq_place *places, int timeout_ms) {
    if (!name || (!records && count)) return gq_fail(c, GQ_ARGUMENT, "no topic, or no records");
    int64_t end_ms = gq_deadline(timeout_ms);
    gq_place *mine = places ? places : calloc(count ? count : 1, sizeof *mine);
    if (!mine) return gq_no_memory(c);
    for (size_t i = 0; i < count; i++) mine[i] = (gq_place){0, -1, 0, GQ_PENDING};
    int code = post(c, name, records, count, how, mine, timeout_ms);
    char why[sizeof c->text], refusal[sizeof c->code];
    snprintf(why, sizeof why, "%s", c->text);
    snprintf(refusal, sizeof refusal, "%s", c->code);
    int said = code, failed = c->failed;
    size_t at = 0;
    for (code = said == GQ_REFUSED ? GQ_OK : said; !code;) {
        while (at < count && mine[at].code != GQ_PENDING) at++;
        if (at == count) break;
        code = send_lanes(c, end_ms, 1);
        if (!code && mine[at].code == GQ_PENDING && !gq_left(end_ms, 1)) code = GQ_TIMEOUT;
        if (!code && mine[at].code == GQ_PENDING) code = gq_pump(c, gq_left(end_ms, AGAIN_MS));
    }
    int first = GQ_OK, waits = 0;
    for (size_t i = 0; i < count; i++) {
        waits |= mine[i].code == GQ_PENDING;
        if (mine[i].code == GQ_PENDING) mine[i].code = GQ_NOT_CONFIRMED;
        if (!first) first = mine[i].code;
    }
    if (!failed && c->failed && !said) {
        snprintf(c->text, sizeof c->text, "%s", c->failed_text);
        snprintf(c->code, sizeof c->code, "%s", c->failed_code);
    } else if (said) {
        snprintf(c->text, sizeof c->text, "%s", why);
        snprintf(c->code, sizeof c->code, "%s", refusal);
    }
    if (!failed) c->failed = GQ_OK;
    if (code == GQ_TIMEOUT && !said) gq_fail(c, code, "no answer came in time: it may be stored");
    if (waits) detach(c, mine, count);
    if (mine != places) free(mine);
    return said && said != GQ_REFUSED ? said : first ? first : code;
}

int gq_publish(gq *c, const char *name, const gq_record *records, size_t count, const gq_how *how, gq_place *places, int timeout_ms) {
    if (!c) return GQ_ARGUMENT;
    gq_lock(c);
    int code = publish(c, name, records, count, how, places, timeout_ms);
    gq_unlock(c);
    return code;
}

void gq_drop_lanes(gq *c) {
    gq_fail(c, GQ_OK, "the client was closed before it was confirmed: it may be stored");
    for (lane *l = c->active; l; l = l->next) {
        seal(c, l);
        while (l->first) settle(c, l->first, GQ_NOT_CONFIRMED);
        if (l->open) gq_packing_free(l->open);
        free(l->open);
        l->open = NULL;
    }
    c->active = NULL;
}
