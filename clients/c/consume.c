/* Subscriptions: records that were delivered and wait, records that the user has, and acks in flight. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

enum { ACKS_LATE_MS = 2, LISTEN_MS = 1, BEGUN_MS = 5, SLOW_MS = 10, QUIET_ATTEMPTS = 2, RANGES = 1000, HOLDING_MAX = 16384 };
#define CREDIT 4000
#define CREDIT_BYTES (8 << 20)

/* --- what came */

static void release(stretch *s) {
    if (--s->frame->users == 0) {
        zmq_msg_close(&s->frame->body);
        free(s->frame);
    }
    free(s->settled.at);
    free(s);
}

static void append(gq_subscription *s, stretch *w) {
    w->next = NULL;
    *s->last = w;
    s->last = &w->next;
    s->repeats |= w->repeats;
}

/* The user is through with the record that was shown. */
static void leave_shown(gq_subscription *s) {
    stretch *w = s->shown;
    s->shown = NULL;
    if (!w || w->taken < w->count) return;
    if (s->first == w) {
        s->first = w->next;
        if (!s->first) s->last = &s->first;
    }
    release(w);
}

/* Drop the waiting records of a part, or of all parts with NULL. The leader redelivers them. */
static void drop_waiting(gq_subscription *s, const part *of) {
    for (size_t i = 0; i < s->part_count; i++)
        for (stretch *w; (!of || of == s->parts + i) && (w = s->parts[i].aside);) {
            s->parts[i].aside = w->next;
            release(w);
        }
    stretch **at = &s->first;
    while (*at) {
        stretch *w = *at;
        if (of && w->part != of) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        if (w == s->shown) w->count = w->taken; /* the user looks at a record of it */
        else release(w);
    }
    s->last = at;
}

/* End an ACK; its records are sent again with the next one. */
static void take_back(gq_subscription *s, part *p, ack *a) {
    for (size_t i = 0; i < a->sent.count && !a->gives_back; i++) /* records that were given back are not named as held */
        if (!gq_ranges_add(&p->pending, a->sent.at[i].key, a->sent.at[i].first, a->sent.at[i].end)) s->refused = GQ_MEMORY;
    free(a->sent.at);
    free(a);
}

static void take_all_back(gq_subscription *s, part *p) {
    for (ack *a; (a = p->acks);) {
        p->acks = a->next;
        take_back(s, p, a);
    }
}

void gq_parts_over(gq *c, uint16_t number) {
    for (gq_subscription *s = c->subscriptions; s; s = s->next)
        for (size_t i = 0; i < s->part_count; i++) {
            part *p = s->parts + i;
            if (p->shard != number) continue;
            drop_waiting(s, p);
            take_all_back(s, p);
            p->begun_count = 0;
            p->live = 0;
        }
}

int gq_parts_use(gq *c, uint16_t number) {
    for (gq_subscription *s = c->subscriptions; s; s = s->next)
        for (size_t i = 0; i < s->part_count; i++)
            if (s->parts[i].shard == number && !s->parts[i].over) return 1;
    return 0;
}

int gq_parts_of(gq *c, const topic *t) {
    for (gq_subscription *s = c->subscriptions; s; s = s->next)
        if (s->topic == t) return 1;
    return 0;
}

static gq_subscription *subscription_of(gq *c, uint16_t number, int64_t subscription, part **found) {
    for (gq_subscription *s = c->subscriptions; s; s = s->next)
        for (size_t i = 0; i < s->part_count; i++)
            if (s->parts[i].number == subscription && s->parts[i].shard == number) {
                *found = s->parts + i;
                return s;
            }
    return NULL;
}

/* --- The user does not see an acked record again, and sees a failed one only after its pause. A new leader may redeliver a record before it
 * receives the ack, because the client resends acks after a takeover. */

/* True if records of this range may have been delivered before: they are below the highest offset that was. */
static int come_again(part *p, int64_t key, int64_t first, int64_t end) {
    for (size_t i = 0; i < p->key_count; i++)
        if (p->keys[i] == key) {
            int before = first < p->high[i];
            if (end > p->high[i]) p->high[i] = end;
            return before;
        }
    return 0;
}

static int acked(const part *p, int64_t key, int64_t offset) {
    if (gq_ranges_have(&p->pending, key, offset)) return 1;
    for (const ack *a = p->acks; a; a = a->next)
        if (!a->gives_back && gq_ranges_have(&a->sent, key, offset)) return 1;
    return 0;
}

/* Keep a record back until its ack is answered, because another consumer may have acked it. Returns 0 when memory is short. */
static int put_aside(stretch *w, uint32_t index) {
    stretch *single = calloc(1, sizeof *single);
    if (!single) return 0;
    *single = *w;
    single->taken = index;
    single->count = index + 1;
    single->settled = (ranges){0};
    single->frame->users++;
    single->next = w->part->aside;
    w->part->aside = single;
    return 1;
}

/* Drop waiting deliveries of these records that arrived up to `came`. */
static void drop(gq_subscription *s, const part *p, range r, uint64_t came) {
    for (stretch *w = s->repeats ? s->first : NULL; w; w = w->next)
        if (w->repeats && w->part == p && w->came <= came && r.key == w->key && w->first < r.end && r.first < w->first + w->count)
            gq_ranges_add(&w->settled, r.key, r.first, r.end);
}

/* The records of `done` are stored as acked. Deliveries of them that wait here are dropped. Records that were put aside and whose ack was
 * not stored are shown. */
static void drop_acked(gq_subscription *s, part *p, const ranges *done) {
    int found = 0;
    for (stretch *w = s->repeats ? s->first : NULL; w; w = w->next) found |= w->repeats;
    s->repeats = found;
    for (size_t i = 0; i < done->count; i++) drop(s, p, done->at[i], s->client->came);
    for (stretch **at = &p->aside; *at;) {
        stretch *w = *at;
        int64_t offset = w->first + w->taken;
        int stored = gq_ranges_have(done, w->key, offset);
        if (!stored && acked(p, w->key, offset)) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        if (stored) release(w);
        else append(s, w);
    }
}

void gq_deliver(gq *c, uint16_t number, gq_reader in, zmq_msg_t *body) {
    gq_get_array(&in);
    part *p;
    gq_subscription *s = subscription_of(c, number, gq_get_int(&in), &p);
    frame *f = s && p->live && !s->over ? calloc(1, sizeof *f) : NULL;
    if (!f) return; /* what cannot be kept comes again when its lease is over */
    zmq_msg_init(&f->body);
    zmq_msg_move(&f->body, body);
    f->users = 1;
    const uint8_t *at = zmq_msg_data(&f->body), *end = at + zmq_msg_size(&f->body);
    uint32_t count = gq_get_array(&in);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t fields = gq_get_array(&in);
        int64_t key = gq_get_int(&in), first = gq_get_int(&in), records = gq_get_int(&in), attempt = gq_get_int(&in), size = gq_get_int(&in);
        int again = 0;
        for (uint32_t more = 5; more < fields; more++)
            if (more == 8) again = gq_get_bool(&in);
            else gq_skip(&in);
        stretch *made = in.bad || size < 0 || size > end - at ? NULL : calloc(1, sizeof *made);
        if (!made) break;
        int good = gq_open_batch(at, (size_t)size, &made->columns) && made->columns.count == records;
        at += size;
        if (!good) { /* broken on its way: it comes again */
            free(made);
            continue;
        }
        made->part = p;
        made->frame = f;
        made->key = key;
        made->first = first;
        made->attempt = (int32_t)attempt;
        made->again = again;
        made->count = (uint32_t)records;
        made->came = ++c->came;
        made->repeats = come_again(p, key, first, first + records);
        f->users++;
        append(s, made);
    }
    if (--f->users == 0) {
        zmq_msg_close(&f->body);
        free(f);
    }
}

/* Note the start of a reader of new records, so that after a takeover it resumes there even if it has taken no record. */
static void begin_at(part *p, gq_reader ends) {
    uint32_t count = gq_get_array(&ends);
    for (uint32_t i = 0; i < count && !ends.bad; i++) {
        uint32_t fields = gq_get_array(&ends);
        int64_t key = gq_get_int(&ends), offset = gq_get_int(&ends);
        for (uint32_t more = 2; more < fields; more++) gq_skip(&ends);
        for (size_t k = 0; k < p->key_count && !ends.bad; k++)
            if (p->keys[k] == key && p->next[k] < 0) p->next[k] = offset;
    }
}

static void wake_keeper(gq *c, int64_t due_ms);

void gq_subscribed(gq *c, uint16_t number, gq_reader in, uint64_t term) {
    uint32_t fields = gq_get_array(&in);
    part *p;
    gq_subscription *s = subscription_of(c, number, gq_get_int(&in), &p);
    if (s) p->live = 1;
    if (s && *s->group && p->held.count) {
        p->tells_held = 1;
        wake_keeper(c, gq_now_ms());
    }
    gq_skip(&in);
    gq_reader ends = in;
    gq_skip(&in);
    if (s && !*s->group && !strcmp(s->start, "new")) begin_at(p, ends);
    const uint8_t *direct;
    size_t size = fields > 3 ? gq_get_bytes(&in, &direct) : 0;
    if (!in.bad && size) gq_learn(c, number, term, direct, size);
}

/* The ACK of that request, taken off the list of its part. */
static ack *ack_of(gq *c, uint64_t request, gq_subscription **of, part **at) {
    for (gq_subscription *s = c->subscriptions; s && request; s = s->next)
        for (size_t i = 0; i < s->part_count; i++)
            for (ack **a = &s->parts[i].acks; *a; a = &(*a)->next) {
                if ((*a)->request != request) continue;
                ack *found = *a;
                *a = found->next;
                *of = s;
                *at = s->parts + i;
                return found;
            }
    return NULL;
}

void gq_acked(gq *c, uint64_t request, int verb, gq_reader in) {
    gq_subscription *s;
    part *p;
    ack *a = ack_of(c, request, &s, &p);
    if (!a) return;
    if (a->gives_back) { /* if it is refused, the leader is told anew what is held here */
        take_back(s, p, a);
        if (verb == REFUSED) gq_over(c, p->shard);
        return;
    }
    if (verb == REFUSED) {
        gq_keep_refusal(c, &in);
        if (gq_later(c->code)) {
            take_back(s, p, a);
            if (!strcmp(c->code, "not_leader")) gq_not_leader(c, p->shard);
            else if (gq_ended(c->code)) gq_over(c, p->shard);
            p->resume_ms = gq_now_ms() + AGAIN_MS;
            return;
        }
        s->refused = GQ_REFUSED;
    }
    for (size_t n = 0; verb != REFUSED && n < a->sent.count; n++) /* else the user has them still */
        gq_ranges_cut(&p->held, a->sent.at[n].key, a->sent.at[n].first, a->sent.at[n].end);
    if (verb == REFUSED) a->sent.count = 0;
    uint32_t fields = verb == ACKED ? gq_get_array(&in) : 0, lost = fields ? gq_get_array(&in) : 0;
    for (uint32_t n = 0; n < lost && !in.bad; n++) {
        gq_get_array(&in);
        int64_t key = gq_get_int(&in), first = gq_get_int(&in), end = gq_get_int(&in);
        gq_ranges_cut(&a->sent, key, first, end);
        if (!in.bad && !gq_ranges_add(&s->lost, key, first, end)) s->refused = GQ_MEMORY;
    }
    drop_acked(s, p, &a->sent);
    free(a->sent.at);
    free(a);
}

/* --- subscribing */

/* Write the ranges of the records that the user has, and of those that wait here. */
static void put_holding(gq_buffer *out, const gq_subscription *s, const part *p) {
    ranges holding = {0};
    for (size_t i = 0; i < p->held.count; i++) gq_ranges_add(&holding, p->held.at[i].key, p->held.at[i].first, p->held.at[i].end);
    for (const stretch *w = s->first; w; w = w->next)
        if (w->part == p && w->taken < w->count) gq_ranges_add(&holding, w->key, w->first + w->taken, w->first + w->count);
    if (holding.count > HOLDING_MAX) holding.count = HOLDING_MAX; /* more ranges are refused; records of the others are redelivered */
    gq_put_ranges(out, &holding);
    free(holding.at);
}

static void put_subscribe(gq_buffer *out, const gq_subscription *s, const part *p) {
    gq_put_array(out, 14);
    gq_put_int(out, p->number);
    gq_put_text(out, s->group);
    gq_put_array(out, (uint32_t)p->key_count);
    for (size_t i = 0; i < p->key_count; i++) {
        int at = p->next[i] >= 0;
        gq_put_array(out, at ? 3 : 2);
        gq_put_int(out, p->keys[i]);
        gq_put_text(out, at ? "offset" : s->start);
        if (at) gq_put_int(out, p->next[i]);
    }
    gq_put_int(out, s->credit);
    gq_put_int(out, s->credit_bytes);
    gq_put_array(out, s->lease_ms ? 2 : 0);
    if (s->lease_ms) {
        gq_put_nil(out);
        gq_put_int(out, s->lease_ms);
    }
    gq_put_bool(out, 0);
    if (*s->group) put_holding(out, s, p);
    else gq_put_nil(out);
    gq_put_array(out, 0);
    gq_put_bool(out, 1);
    gq_put_array(out, 0);
    gq_put_bool(out, 1); /* auto */
    gq_put_bool(out, 0); /* records come sealed */
    gq_put_bool(out, *s->group != 0); /* shares */
}

static void put_unsubscribe(gq_buffer *out, int64_t number) {
    gq_put_array(out, 1);
    gq_put_int(out, number);
}

/* Ends in a shard what goes on there, since it has not heard of that. */
static int leave_in(gq *c, uint16_t number, int64_t end_ms) {
    for (size_t i = 0; i < c->left.count;) {
        range r = c->left.at[i];
        if (r.key != number) {
            i++;
            continue;
        }
        gq_buffer fields = {0};
        put_unsubscribe(&fields, r.first);
        int code = gq_once(c, UNSUBSCRIBE, number, &fields, end_ms);
        if (code) return code;
        gq_reader in = gq_answer_of(c);
        if (c->answer_verb == REFUSED) gq_keep_refusal(c, &in);
        if (c->answer_verb == REFUSED && gq_later(c->code)) return GQ_OK;
        c->answer_verb = ACKED;
        gq_ranges_cut(&c->left, r.key, r.first, r.first + 1);
    }
    return GQ_OK;
}

/* Withdraw the credit from the other shards, because the user will not take more records. */
static void borrow_no_more(gq_subscription *s) {
    s->credit = s->credit_bytes = 0;
    for (size_t i = 0; i < s->part_count; i++) {
        part *p = s->parts + i;
        if (p->over || !p->live) continue;
        gq_buffer fields = {0};
        put_subscribe(&fields, s, p);
        gq_say(s->client, SUBSCRIBE, p->shard, &fields, NULL);
    }
}

/* It was refused for good: that is for its user, and nothing to others. */
static void end(gq_subscription *s, part *p) {
    gq *c = s->client;
    s->over = p->over = 1;
    take_all_back(s, p);
    if (p->pending.count) s->refused = GQ_REFUSED;
    p->pending.count = 0;
    gq_shard_of(c, p->shard)->patient_ms = gq_now_ms() + AGAIN_MS; /* it is there: it refused just now */
    snprintf(s->over_text, sizeof s->over_text, "%s", c->text);
    snprintf(s->over_code, sizeof s->over_code, "%s", c->code);
    if (!strcmp(c->code, "unknown_topic") || !strcmp(c->code, "wrong_shard")) s->topic->stale = 1; /* it may be made anew, under another id */
    borrow_no_more(s);
}

static int ended(gq_subscription *s) {
    snprintf(s->client->text, sizeof s->client->text, "%s", s->over_text);
    snprintf(s->client->code, sizeof s->client->code, "%s", s->over_code);
    return GQ_REFUSED;
}

/* SUBSCRIBE to all that is subscribed in a shard. c->answer is REFUSED if that is to be tried again. */
int gq_subscribe_in(gq *c, uint16_t number, int64_t end_ms) {
    int code = leave_in(c, number, end_ms);
    if (code || c->answer_verb == REFUSED) return code;
    for (gq_subscription *s = c->subscriptions; s; s = s->next)
        for (size_t i = 0; i < s->part_count; i++) {
            if (s->parts[i].shard != number || s->parts[i].over) continue;
            gq_buffer fields = {0};
            put_subscribe(&fields, s, s->parts + i);
            s->parts[i].said = 1;
            code = gq_once(c, SUBSCRIBE, number, &fields, end_ms);
            if (code) return code;
            if (c->answer_verb != REFUSED) continue;
            gq_reader in = gq_answer_of(c);
            gq_keep_refusal(c, &in);
            if (gq_later(c->code)) return GQ_OK;
            end(s, s->parts + i);
            c->answer_verb = SUBSCRIBED;
        }
    return GQ_OK;
}

static void free_subscription(gq_subscription *s) {
    if (!s) return;
    if (s->shown) {
        stretch *shown = s->shown;
        int listed = s->first == shown;
        s->shown = NULL;
        if (!listed) release(shown);
    }
    drop_waiting(s, NULL);
    for (size_t i = 0; i < s->part_count; i++) {
        free(s->parts[i].keys);
        free(s->parts[i].next);
        free(s->parts[i].high);
        free(s->parts[i].held.at);
        take_all_back(s, s->parts + i);
        free(s->parts[i].pending.at);
        free(s->parts[i].begun);
    }
    free(s->lost.at);
    free(s->told.at);
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
            s->part_count++;
            p->shard = t->shards[i];
            p->number = ++s->client->numbers;
            p->keys = calloc(t->parts, sizeof *p->keys);
            p->next = calloc(t->parts, sizeof *p->next);
            p->high = calloc(t->parts, sizeof *p->high);
            if (!p->keys || !p->next || !p->high) return 0;
        }
        p->next[p->key_count] = -1;
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

/* Unsubscribe wherever the subscription may exist. Otherwise the leader would deliver records that the user never gets. */
static void leave(gq_subscription *s) {
    for (size_t i = 0; i < s->part_count; i++) {
        part *p = s->parts + i;
        if (!p->said) continue;
        shard *at = gq_shard_of(s->client, p->shard);
        gq_ranges_add(&s->client->left, p->shard, p->number, p->number + 1);
        if (!at || !at->way) continue;
        gq_buffer fields = {0};
        put_unsubscribe(&fields, p->number);
        gq_say(s->client, UNSUBSCRIBE, p->shard, &fields, NULL);
    }
}

static int subscribe(gq *c, topic *t, const char *group, const gq_options *o, gq_subscription **subscription, int64_t end_ms) {
    int code = GQ_OK;
    gq_subscription *s = calloc(1, sizeof *s);
    if (!s) return gq_no_memory(c);
    s->client = c;
    s->last = &s->first;
    s->topic = t;
    s->group = strdup(group ? group : "");
    s->start = strdup(o->start ? o->start : "first");
    s->credit = o->credit ? o->credit : CREDIT;
    s->credit_bytes = o->credit_bytes ? o->credit_bytes : CREDIT_BYTES;
    s->lease_ms = o->lease_ms;
    s->took_ms = -1;
    if (!s->group || !s->start || !make_parts(s)) {
        free_subscription(s);
        return gq_no_memory(c);
    }
    s->next = c->subscriptions;
    c->subscriptions = s;
    for (size_t i = 0; i < s->part_count && !code; i++) {
        gq_be_patient(c, s->parts[i].shard, end_ms);
        gq_over(c, s->parts[i].shard);
        code = gq_join(c, s->parts[i].shard, end_ms);
        if (!code && s->over) code = ended(s);
    }
    if (code) {
        leave(s);
        unlist(s);
        free_subscription(s);
        return code;
    }
    *subscription = s;
    return GQ_OK;
}

static int subscribe_to(gq *c, const char *name, const char *group, const gq_options *o, gq_subscription **subscription) {
    if (!name || !subscription) return gq_fail(c, GQ_ARGUMENT, "no topic, or no place for the subscription");
    if (gq_check_text(c, "the name of the group", group)) return GQ_REFUSED;
    if (o->start && strcmp(o->start, "first") && strcmp(o->start, "new")) return gq_refuse(c, "bad_request", "start=%s; write first or new", o->start);
    if (o->lease_ms && !(group && *group)) return gq_refuse(c, "bad_request", "lease_ms without a group; name one");
    int64_t end_ms = gq_deadline(o->timeout_ms > 0 ? o->timeout_ms : -1);
    topic *t = NULL, *known = NULL;
    int code = gq_start_keeper(c);
    while (!code) {
        code = gq_find_topic(c, name, &t, end_ms);
        if (!code) code = subscribe(c, t, group, o, subscription, end_ms);
        if (code != GQ_REFUSED || known || !t || !t->stale) break; /* else it may be there anew */
        known = t;
        code = GQ_OK;
    }
    return code;
}

int gq_subscribe(gq *c, const char *name, const char *group, const gq_options *options, gq_subscription **subscription) {
    static const gq_options NONE = {0};
    if (!c) return GQ_ARGUMENT;
    gq_lock(c);
    int code = subscribe_to(c, name, group, options ? options : &NONE, subscription);
    gq_unlock(c);
    return code;
}

static int join_all(gq_subscription *s, int64_t end_ms) {
    int code = GQ_OK;
    for (size_t i = 0; i < s->part_count && !code; i++)
        if (!s->parts[i].over) code = gq_join(s->client, s->parts[i].shard, end_ms);
    return code;
}

static void put_last(part *p, ack *a) {
    ack **last = &p->acks;
    while (*last) last = &(*last)->next;
    *last = a;
}

/* Send the acks of a part. While an ACK is under way the others wait for its answer and so travel together, unless they are `late`. */
static void send_part(gq_subscription *s, part *p, int late) {
    gq *c = s->client;
    while (p->pending.count && (late || !p->acks)) {
        shard *at = gq_shard_of(c, p->shard);
        ack *a = at && at->joined && gq_now_ms() >= p->resume_ms ? calloc(1, sizeof *a) : NULL;
        if (!a) return;
        a->sent = p->pending;
        p->pending = (ranges){0};
        while (a->sent.count > RANGES) { /* the rest goes with the next one */
            range r = a->sent.at[--a->sent.count];
            if (!gq_ranges_add(&p->pending, r.key, r.first, r.end)) s->refused = GQ_MEMORY;
        }
        gq_buffer fields = {0};
        gq_put_array(&fields, 2);
        gq_put_int(&fields, p->number);
        gq_put_ranges(&fields, &a->sent);
        a->request = gq_say(c, ACK, p->shard, &fields, NULL);
        if (!a->request) {
            take_back(s, p, a);
            return;
        }
        put_last(p, a);
    }
}

/* Sends all acks. Returns whether an ack waits to be sent or answered. */
static int send_acks(gq_subscription *s) {
    int waits = 0;
    for (size_t i = 0; i < s->part_count; i++) {
        part *p = s->parts + i;
        send_part(s, p, 0);
        waits |= p->acks || p->pending.count;
    }
    return waits;
}

/* --- records that the user has begun with, and those that it has not */

static void tell_begun(gq_subscription *s, part *p, const ranges *r) {
    shard *at = gq_shard_of(s->client, p->shard);
    if (!at || !at->joined || !r->count) return;
    gq_buffer fields = {0};
    gq_put_array(&fields, 2);
    gq_put_int(&fields, p->number);
    gq_put_ranges(&fields, r);
    gq_say(s->client, STARTED, p->shard, &fields, NULL);
}

/* Tell a leader that was joined just now which records the user has. */
static void tell_held(gq_subscription *s, part *p) {
    shard *at = gq_shard_of(s->client, p->shard);
    if (!at || !at->joined) return;
    for (size_t i = 0; i < p->held.count; i += RANGES) {
        size_t count = p->held.count - i < RANGES ? p->held.count - i : RANGES;
        tell_begun(s, p, &(ranges){p->held.at + i, count, count});
    }
    p->tells_held = 0;
}

/* Tell the leader which records the user has had for BEGUN_MS. Returns when to look again; 0: nothing is left to tell. */
static int64_t tell_old(gq_subscription *s, part *p, int64_t now) {
    if (p->tells_held) tell_held(s, p);
    if (p->tells_held) return now + BEGUN_MS;
    size_t count = 0;
    ranges old = {0};
    while (count < p->begun_count && count < RANGES && p->begun[count].since_ms + BEGUN_MS <= now) {
        gq_ranges_add(&old, p->begun[count].key, p->begun[count].offset, p->begun[count].offset + 1);
        count++;
    }
    tell_begun(s, p, &old);
    free(old.at);
    p->begun_count -= count;
    if (p->begun_count) memmove(p->begun, p->begun + count, p->begun_count * sizeof *p->begun);
    return p->begun_count ? p->begun[0].since_ms + BEGUN_MS : 0;
}

/* Send all acks that wait, and tell which records have begun. Returns when the keeper is to do it again; 0: nothing waits. */
int64_t gq_catch_up(gq *c) {
    int64_t due_ms = 0, now = gq_now_ms();
    for (gq_subscription *s = c->subscriptions; s; s = s->next)
        for (size_t i = 0; i < s->part_count; i++) {
            send_part(s, s->parts + i, 1);
            int64_t next_ms = tell_old(s, s->parts + i, now);
            if (next_ms && (!due_ms || next_ms < due_ms)) due_ms = next_ms;
        }
    return due_ms;
}

static void wake_keeper(gq *c, int64_t due_ms) {
    if (c->due_ms && c->due_ms <= due_ms) return;
    c->due_ms = due_ms;
    pthread_cond_signal(&c->wake);
}

/* The user gets a record. If it might kill its consumer, or takes long, the leader hears of that before; else in BEGUN_MS, if the user still
 * has the record then. */
static void begin_record(gq_subscription *s, part *p, const stretch *w, int64_t offset) {
    int64_t now = s->shown_ms = gq_now_ms();
    int aloud = w->again || w->attempt > QUIET_ATTEMPTS || s->took_ms < 0 || s->took_ms >= SLOW_MS;
    if (!aloud && p->begun_count == p->begun_room) {
        size_t room = p->begun_room ? 2 * p->begun_room : 16;
        beginning *grown = realloc(p->begun, room * sizeof *grown);
        if (grown) p->begun = grown;
        if (grown) p->begun_room = room;
        else aloud = 1;
    }
    if (aloud) {
        range one = {w->key, offset, offset + 1};
        tell_begun(s, p, &(ranges){&one, 1, 1});
    } else {
        p->begun[p->begun_count++] = (beginning){w->key, offset, now};
        wake_keeper(s->client, now + BEGUN_MS);
    }
}

/* The user is through with its last record. */
static void end_pace(gq_subscription *s) {
    if (s->shown_ms) s->took_ms = gq_now_ms() - s->shown_ms;
    s->shown_ms = 0;
}

/* A record is settled: its begin need not be told. */
static void forget_begun(part *p, int64_t key, int64_t offset) {
    for (size_t i = p->begun_count; i-- > 0;) {
        if (p->begun[i].key != key || p->begun[i].offset != offset) continue;
        memmove(p->begun + i, p->begun + i + 1, (--p->begun_count - i) * sizeof *p->begun);
        return;
    }
}

/* Take the records behind the first `kept` that wait in a part off the list. */
static ranges cut_waiting(gq_subscription *s, const part *p, int64_t kept) {
    ranges found = {0};
    stretch **at = &s->first;
    while (*at) {
        stretch *w = *at;
        int64_t count = w->count - w->taken;
        if (w->part == p && count > kept && found.count < RANGES &&
            gq_ranges_add(&found, w->key, w->first + w->taken + kept, w->first + w->count)) {
            w->count = w->taken + (uint32_t)kept;
            count = kept;
        }
        if (w->part == p) kept -= count;
        if (w->count > w->taken || w == s->shown) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        release(w);
    }
    s->last = at;
    return found;
}

/* Another consumer of the group is idle: give it the records that wait here, except for the first `keep`. */
void gq_share(gq *c, uint16_t number, gq_reader in) {
    gq_get_array(&in);
    part *p;
    gq_subscription *s = subscription_of(c, number, gq_get_int(&in), &p);
    int64_t keep = gq_get_int(&in), has = 0, waiting = 0;
    ack *a = in.bad || !s || !p->live ? NULL : calloc(1, sizeof *a);
    if (!a) return;
    for (size_t i = 0; i < p->held.count; i++) has += p->held.at[i].end - p->held.at[i].first;
    for (const stretch *w = s->first; w; w = w->next)
        if (w->part == p) waiting += w->count - w->taken;
    int64_t kept = keep > has ? keep - has : 0;
    a->gives_back = 1;
    a->sent = waiting > kept ? cut_waiting(s, p, kept) : (ranges){0};
    if (a->sent.count) {
        gq_buffer fields = {0};
        gq_put_array(&fields, 4);
        gq_put_int(&fields, p->number);
        gq_put_ranges(&fields, &a->sent);
        gq_put_int(&fields, -1);
        gq_put_bool(&fields, 0);
        a->request = gq_say(c, NACK, p->shard, &fields, NULL);
    }
    if (a->request) put_last(p, a);
    else take_back(s, p, a); /* if it could not be sent, the connection is lost, and the leader hears anew what is held here */
}

/* Send a new ack of a part now, or let the keeper send it with others in ACKS_LATE_MS: the user may call nothing for long. */
static int leave_soon(gq_subscription *s, part *p) {
    gq *c = s->client;
    int64_t now = gq_now_ms();
    int code = p->acks && now - c->pumped_ms >= LISTEN_MS ? gq_pump(c, 0) : GQ_OK;
    if (!code) send_part(s, p, 0);
    if (p->pending.count) wake_keeper(c, now + ACKS_LATE_MS);
    return code;
}

/* --- taking */

static void show(gq_message *m, stretch *w, uint32_t index) {
    const gq_opened *o = &w->columns;
    memset(m, 0, sizeof *m);
    m->partition = (uint32_t)(w->key & 0xffff);
    m->offset = w->first + index;
    m->attempt = w->attempt;
    m->time_ms = o->publish_ms;
    m->value_size = gq_column_at(&o->values, index, &m->value);
    m->key_size = gq_column_at(&o->keys, index, &m->key);
    m->id_size = gq_column_at(&o->ids, index, &m->id);
    m->route = o->route;
    m->route_size = o->route_size;
    if (!o->headers.ends) return;
    const void *raw;
    size_t size = gq_column_at(&o->headers, index, &raw);
    if (!size) return;
    gq_reader in = {raw, (const uint8_t *)raw + size, 0};
    uint32_t count = gq_get_map(&in);
    m->headers = in.at;
    m->headers_size = (size_t)(in.end - in.at);
    for (uint32_t i = 0; i < 2 * count && !in.bad; i++) gq_get_bytes(&in, (const uint8_t **)&raw);
    m->header_count = in.bad ? 0 : count; /* nodes do not look into headers */
}

/* A reader's record is done when the user asks for the next one. Its ack only returns the credit that it took. */
static int taken(gq_subscription *s, part *p, int64_t key, int64_t offset, int repeats) {
    if (*s->group) {
        if (repeats && !gq_ranges_cut(&p->held, key, offset, offset + 1)) return 0; /* its lease ended, and it came again */
        return gq_ranges_add(&p->held, key, offset, offset + 1);
    }
    for (size_t i = 0; i < p->key_count; i++)
        if (p->keys[i] == key) p->next[i] = offset + 1;
    if (!gq_ranges_add(&p->pending, key, offset, offset + 1)) return 0;
    leave_soon(s, p); /* what fails there is told by the call that waits */
    return 1;
}

static int wait_for_some(gq_subscription *s, int64_t end_ms) {
    int code = GQ_OK;
    while (!code && !s->first) {
        int64_t join_ms = gq_now_ms() + SILENT_MS; /* a short wait must not give up each time before the answer comes */
        code = join_all(s, end_ms > join_ms ? end_ms : join_ms);
        if (code) return code;
        if (s->over && !s->first) return ended(s);
        int64_t most_ms = send_acks(s) ? AGAIN_MS : PING_MS; /* what was refused for now is sent again then */
        if (!code) code = gq_send_lanes(s->client, end_ms > join_ms ? end_ms : join_ms);
        if (code && code != GQ_TIMEOUT) return code;
        if (s->first) break;
        int64_t left_ms = gq_left(end_ms, most_ms);
        code = gq_pump(s->client, left_ms);
        if (!code && !left_ms && !s->first) return gq_fail(s->client, GQ_TIMEOUT, "no record came in time");
    }
    return code;
}

static int next(gq_subscription *s, gq_message *message, int timeout_ms) {
    gq *c = s->client;
    end_pace(s);
    for (int64_t end_ms = -1;;) {
        leave_shown(s);
        int code = gq_now_ms() - c->pumped_ms >= PING_MS ? gq_pump(c, 0) : GQ_OK;
        if (!s->first && end_ms < 0) end_ms = gq_deadline(timeout_ms);
        if (!code && !s->first) code = wait_for_some(s, end_ms);
        if (code) return code;
        stretch *w = s->shown = s->first;
        uint32_t index = w->taken++;
        int64_t offset = w->first + index;
        int again = w->repeats && *s->group;
        if (again && (gq_ranges_have(&w->settled, w->key, offset) || (acked(w->part, w->key, offset) && put_aside(w, index)))) continue;
        show(message, w, index);
        if (!taken(s, w->part, w->key, offset, w->repeats)) return gq_no_memory(c);
        if (*s->group) begin_record(s, w->part, w, offset);
        return GQ_OK;
    }
}

int gq_next(gq_subscription *s, gq_message *message, int timeout_ms) {
    if (!s || !message) return GQ_ARGUMENT;
    gq_lock(s->client);
    int code = next(s, message, timeout_ms);
    gq_unlock(s->client);
    return code;
}

static part *part_with(gq_subscription *s, uint32_t partition) {
    for (size_t i = 0; partition < s->topic->parts && i < s->part_count; i++)
        if (s->parts[i].shard == s->topic->shards[partition]) return s->parts + i;
    return NULL;
}

/* True if the user has that record and has not acked or failed it. */
static int has(const gq_subscription *s, const part *p, uint32_t partition, int64_t offset) {
    return gq_ranges_have(&p->held, s->topic->id * 65536 + partition, offset);
}

static const char NOT_HELD[] = "the subscription has not given out this record, or it is settled";

static int acknowledge(gq_subscription *s, uint32_t partition, int64_t offset) {
    part *p = part_with(s, partition);
    if (!*s->group) return GQ_OK; /* a reader's records are done when the next is asked for */
    if (!p || !has(s, p, partition, offset)) return gq_fail(s->client, GQ_ARGUMENT, NOT_HELD);
    if (p->over) return ended(s);
    int64_t key = s->topic->id * 65536 + partition;
    end_pace(s);
    forget_begun(p, key, offset);
    if (!gq_ranges_add(&p->pending, key, offset, offset + 1)) return gq_no_memory(s->client);
    return leave_soon(s, p);
}

int gq_ack(gq_subscription *s, uint32_t partition, int64_t offset) {
    if (!s) return GQ_ARGUMENT;
    gq_lock(s->client);
    int code = acknowledge(s, partition, offset);
    gq_unlock(s->client);
    return code;
}

/* Fail with the records of `told`, as many as there is room for. */
static int fail_lost(gq_subscription *s) {
    gq *c = s->client;
    int code = gq_fail(c, GQ_LOST, "others have these acked records by now:");
    for (size_t i = 0; i < s->told.count; i++) {
        range r = s->told.at[i];
        size_t at = strlen(c->text);
        int all = r.end - r.first == 1;
        snprintf(c->text + at, sizeof c->text - at, all ? "%s %s/%d/%lld" : "%s %s/%d/%lld to %lld", i ? "," : "", s->topic->name,
                 (int)(r.key & 0xffff), (long long)r.first, (long long)(r.end - 1));
    }
    return code;
}

size_t gq_lost(const gq_subscription *s, gq_place *places, size_t room) {
    size_t count = 0;
    for (size_t i = 0; s && i < s->told.count; i++)
        for (int64_t offset = s->told.at[i].first; offset < s->told.at[i].end; offset++, count++)
            if (count < room) places[count] = (gq_place){(uint32_t)(s->told.at[i].key & 0xffff), offset, 0, GQ_LOST};
    return count;
}

static int flush(gq_subscription *s, int64_t end_ms) {
    int code = GQ_OK;
    while (!code) {
        code = join_all(s, end_ms);
        if (code || !send_acks(s)) break;
        int64_t left_ms = gq_left(end_ms, AGAIN_MS);
        code = gq_pump(s->client, left_ms);
        if (!code && !left_ms && send_acks(s)) return gq_fail(s->client, GQ_TIMEOUT, "not all acks were answered in time");
    }
    if (!code && s->refused) code = s->over ? ended(s) : s->refused;
    ranges swap = s->told;
    s->told = s->lost;
    s->lost = swap;
    s->lost.count = 0;
    if (!code && s->told.count) code = fail_lost(s);
    s->refused = 0;
    return code;
}

int gq_flush(gq_subscription *s, int timeout_ms) {
    if (!s) return GQ_ARGUMENT;
    gq_lock(s->client);
    int code = flush(s, gq_deadline(timeout_ms));
    gq_unlock(s->client);
    return code;
}

typedef struct {
    int64_t number, key, offset, delay_ms;
    const char *reason;
    int counts; /* as a failure */
} failure;

static void put_nack(gq_buffer *out, const void *what) {
    const failure *f = what;
    gq_put_array(out, 5);
    gq_put_int(out, f->number);
    range r = {f->key, f->offset, f->offset + 1};
    ranges one = {&r, 1, 1};
    gq_put_ranges(out, &one);
    gq_put_int(out, f->delay_ms);
    gq_put_bool(out, f->counts);
    gq_put_reason(out, f->reason);
}

static int give_back(gq_subscription *s, uint32_t partition, int64_t offset, failure f, int timeout_ms) {
    part *p = part_with(s, partition);
    if (p && p->over) return ended(s);
    if (!p || !has(s, p, partition, offset)) return gq_fail(s->client, GQ_ARGUMENT, NOT_HELD);
    end_pace(s);
    f.number = p->number;
    f.key = s->topic->id * 65536 + partition;
    f.offset = offset;
    int code = gq_ask(s->client, NACK, p->shard, put_nack, &f, &p->over, gq_deadline(timeout_ms));
    if (code) return p->over ? ended(s) : code;
    gq_ranges_cut(&p->held, f.key, offset, offset + 1);
    gq_reader in = gq_answer_of(s->client);
    if (gq_get_array(&in) && gq_get_array(&in)) return gq_fail(s->client, GQ_LOST, "others have this record by now");
    drop(s, p, (range){f.key, offset, offset + 1}, s->client->answer_came);
    return GQ_OK;
}

int gq_nack(gq_subscription *s, uint32_t partition, int64_t offset, const char *reason, int64_t delay_ms, int timeout_ms) {
    if (!s) return GQ_ARGUMENT;
    gq_lock(s->client);
    failure f = {.delay_ms = delay_ms, .reason = reason ? reason : "", .counts = 1};
    int code = give_back(s, partition, offset, f, timeout_ms);
    gq_unlock(s->client);
    return code;
}

int gq_release(gq_subscription *s, uint32_t partition, int64_t offset, int timeout_ms) {
    if (!s) return GQ_ARGUMENT;
    gq_lock(s->client);
    failure f = {.delay_ms = -1, .reason = ""};
    int code = give_back(s, partition, offset, f, timeout_ms);
    gq_unlock(s->client);
    return code;
}

int gq_end_subscription(gq_subscription *s, int64_t end_ms) {
    gq *c = s->client;
    char text[sizeof c->text], refusal[sizeof c->code];
    int result = flush(s, end_ms);
    snprintf(text, sizeof text, "%s", c->text);
    snprintf(refusal, sizeof refusal, "%s", c->code);
    for (size_t i = 0; i < s->part_count; i++) {
        part *p = s->parts + i;
        shard *at = gq_shard_of(c, p->shard);
        gq_buffer fields = {0};
        int said = at && at->joined;
        if (said) put_unsubscribe(&fields, p->number);
        said = said && !gq_once(c, UNSUBSCRIBE, p->shard, &fields, end_ms) && c->answer_verb != REFUSED;
        if (!said) gq_ranges_add(&c->left, p->shard, p->number, p->number + 1);
    }
    unlist(s);
    free_subscription(s);
    snprintf(c->text, sizeof c->text, "%s", text);
    snprintf(c->code, sizeof c->code, "%s", refusal);
    return result;
}

int gq_unsubscribe(gq_subscription *s) {
    if (!s) return GQ_OK;
    gq *c = s->client;
    gq_lock(c);
    int code = gq_end_subscription(s, gq_deadline(CLOSE_MS));
    gq_unlock(c);
    return code;
}

int gq_header_at(const gq_message *m, size_t index, const char **name, size_t *name_size, const void **value, size_t *value_size) {
    if (!m || index >= m->header_count) return GQ_ARGUMENT;
    gq_reader in = {m->headers, (const uint8_t *)m->headers + m->headers_size, 0};
    for (size_t i = 0; i <= index && !in.bad; i++) {
        *name_size = gq_get_bytes(&in, (const uint8_t **)name);
        *value_size = gq_get_bytes(&in, (const uint8_t **)value);
    }
    return in.bad ? GQ_ARGUMENT : GQ_OK;
}
