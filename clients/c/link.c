/* Connections: the home, and straight to the leaders. Which shards are joined, and over which of them.
 *
 * There is one rule of recovery. A session ends by RESET, by a refusal that says so, by silence or by a lost connection. Then the client
 * joins the shard again: it sends HELLO, SUBSCRIBE for each subscription there, and each request that has no answer. It connects straight
 * to the leader of a shard if it knows the leader. Otherwise, or if the leader does not answer, its first node (the home) forwards. */
#include "internal.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DIRECT_MS = 1000, DETOUR_MS = 1000, DETOUR_MS_MAX = 30000, REDIAL_MS = 100, ROUTES_MS = 250, AT_ONCE = 256, DOOR_STEP = 100 };
enum { FRAME_BYTES_MAX = 17899520 }; /* PROTOCOL.md section 14 */

int64_t gq_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int gq_fail(gq *c, int code, const char *text) {
    c->code[0] = 0;
    snprintf(c->text, sizeof c->text, "%s", text);
    return code;
}

/* Fail a call with a code and a text, for errors found by the client itself and for refusals of a node. */
int gq_refuse(gq *c, const char *code, const char *form, ...) {
    va_list rest;
    va_start(rest, form);
    vsnprintf(c->text, sizeof c->text, form, rest);
    va_end(rest);
    snprintf(c->code, sizeof c->code, "%s", code);
    return GQ_REFUSED;
}

int gq_no_memory(gq *c) { return gq_fail(c, GQ_MEMORY, "no memory"); }

/* NULL is fine. */
int gq_check_text(gq *c, const char *what, const char *text) {
    for (size_t size; text && *text; text += size)
        if (!(size = gq_character(text))) return gq_refuse(c, "bad_request", "%s is not UTF-8; pass text that can be encoded as UTF-8", what);
    return GQ_OK;
}

int64_t gq_deadline(int timeout_ms) { return timeout_ms < 0 ? INT64_MAX : gq_now_ms() + timeout_ms; }

int64_t gq_left(int64_t end_ms, int64_t most_ms) {
    int64_t now = gq_now_ms();
    return end_ms <= now ? 0 : end_ms - now < most_ms ? end_ms - now : most_ms;
}

/* --- ranges */

int gq_ranges_add(ranges *r, int64_t key, int64_t first, int64_t end) {
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

/* Takes offsets out, where they are there. 0: no memory. */
int gq_ranges_cut(ranges *r, int64_t key, int64_t first, int64_t end) {
    for (size_t i = 0; i < r->count;) {
        range at = r->at[i];
        if (at.key != key || at.end <= first || end <= at.first) {
            i++;
        } else if (first <= at.first && at.end <= end) {
            memmove(r->at + i, r->at + i + 1, (--r->count - i) * sizeof at);
        } else if (first <= at.first) {
            r->at[i++].first = end;
        } else {
            r->at[i++].end = first;
            if (end < at.end) { /* a new row for what lies behind, which does not touch this one */
                if (!gq_ranges_add(r, -1, 0, 0)) return 0;
                r->at[r->count - 1] = (range){key, end, at.end};
            }
        }
    }
    return 1;
}

int gq_ranges_have(const ranges *r, int64_t key, int64_t offset) {
    for (size_t i = r->count; i-- > 0;) /* mostly of those that came last */
        if (r->at[i].key == key && r->at[i].first <= offset && offset < r->at[i].end) return 1;
    return 0;
}

void gq_put_ranges(gq_buffer *out, const ranges *r) {
    gq_put_array(out, (uint32_t)r->count);
    for (size_t i = 0; i < r->count; i++) {
        gq_put_array(out, 3);
        gq_put_int(out, r->at[i].key);
        gq_put_int(out, r->at[i].first);
        gq_put_int(out, r->at[i].end);
    }
}

/* --- connections */

void gq_hang_up(gq *c, connection *l) {
    if (!l) return;
    for (size_t i = 0; i < c->shard_count; i++)
        if (c->shards[i].way == l) {
            gq_over(c, c->shards[i].number);
            c->shards[i].way = NULL;
        }
    if (l->socket) zmq_socket_monitor(l->socket, NULL, 0); /* first: libzmq waits for ever to tell of an event that nobody reads */
    if (l->monitor) zmq_close(l->monitor);
    if (l->socket) zmq_close(l->socket);
    for (connection **at = &c->links; *at; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            break;
        }
    free(l->endpoint);
    free(l);
}

static void set_int(void *socket, int option, int value) { zmq_setsockopt(socket, option, &value, sizeof value); }

/* A socket is new for each connection: an old one would send what it has queued before HELLO. NULL: c->text says why. */
static connection *call_up(gq *c, const char *endpoint) {
    connection *l = calloc(1, sizeof *l);
    char place[64];
    if (l) l->id = ++c->links_made;
    if (l) l->endpoint = strdup(endpoint);
    if (l) l->socket = zmq_socket(c->context, ZMQ_DEALER);
    if (!l || !l->socket || !l->endpoint) {
        gq_no_memory(c);
        gq_hang_up(c, l);
        return NULL;
    }
    set_int(l->socket, ZMQ_LINGER, 0);
    set_int(l->socket, ZMQ_SNDHWM, 0);
    set_int(l->socket, ZMQ_RCVHWM, 0);
    set_int(l->socket, ZMQ_IPV6, strchr(endpoint, '[') != NULL); /* tcp://[ADDRESS]:PORT; names stay with IPv4 */
    uint64_t thread = 1ull << l->id % IO_THREADS;
    zmq_setsockopt(l->socket, ZMQ_AFFINITY, &thread, sizeof thread);
    int64_t most = FRAME_BYTES_MAX;
    zmq_setsockopt(l->socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    if (*c->door) {
        zmq_setsockopt(l->socket, ZMQ_CURVE_SERVERKEY, c->door, sizeof c->door);
        zmq_setsockopt(l->socket, ZMQ_CURVE_PUBLICKEY, c->curve_public, sizeof c->curve_public);
        zmq_setsockopt(l->socket, ZMQ_CURVE_SECRETKEY, c->curve_secret, sizeof c->curve_secret);
    }
    snprintf(place, sizeof place, "inproc://monitor-%llu", (unsigned long long)l->id);
    int watched = !zmq_socket_monitor(l->socket, place, ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED);
    if (watched && (l->monitor = zmq_socket(c->context, ZMQ_PAIR))) {
        set_int(l->monitor, ZMQ_LINGER, 0);
        int linked;
        UNINTERRUPTED(linked, zmq_connect(l->monitor, place));
    } else if (watched) {
        zmq_socket_monitor(l->socket, NULL, 0); /* nobody would read it */
    }
    char door[300];
    const char *port = strrchr(endpoint, ':');
    if (*c->door && port && strlen(endpoint) < sizeof door - 8) {
        snprintf(door, sizeof door, "%.*s:%d", (int)(port - endpoint), endpoint, atoi(port + 1) + DOOR_STEP);
        port = door;
    } else {
        port = endpoint;
    }
    int failed;
    UNINTERRUPTED(failed, zmq_connect(l->socket, port));
    if (failed) {
        snprintf(c->text, sizeof c->text, "%s is no address: %s", endpoint, zmq_strerror(errno));
        c->code[0] = 0;
        gq_hang_up(c, l);
        return NULL;
    }
    l->heard_ms = gq_now_ms();
    return l;
}

int gq_dial(gq *c) {
    connection *made = NULL;
    for (size_t i = 0; i < c->server_count && !made; i++) {
        made = call_up(c, c->servers[c->server]);
        c->server = (c->server + 1) % c->server_count;
    }
    c->dialed_ms = c->looked_ms = gq_now_ms();
    if (!made) return GQ_ARGUMENT; /* a home that is gone is better than none */
    gq_hang_up(c, c->home);
    c->home = made;
    c->routes_ms = 0;
    return GQ_OK;
}

/* True if an address is on this machine. A name that only begins like a number, such as 127.0.0.1.example, can be any host. */
int gq_here(const char *endpoint) {
    if (!strncmp(endpoint, "ipc://", 6)) return 1;
    if (strncmp(endpoint, "tcp://", 6)) return 0;
    const char *host = endpoint + 6, *port = strrchr(host, ':');
    size_t size = port ? (size_t)(port - host) : 0;
    char text[INET_ADDRSTRLEN] = {0};
    uint8_t number[4];
    if (size < sizeof text) memcpy(text, host, size);
    return !strcmp(text, "localhost") || !strcmp(text, "[::1]") || (inet_pton(AF_INET, text, number) == 1 && number[0] == 127);
}

static void detour(shard *s) {
    s->detour_for_ms = s->detour_for_ms ? 2 * s->detour_for_ms : DETOUR_MS;
    if (s->detour_for_ms > DETOUR_MS_MAX) s->detour_for_ms = DETOUR_MS_MAX;
    s->detour_ms = gq_now_ms() + s->detour_for_ms;
}

/* True if the client may connect straight to the leader of a shard. A token does not leave this machine unencrypted. */
static int may_go_straight(const gq *c, const shard *s) {
    if (c->forward || !s->endpoint || !*s->endpoint || gq_now_ms() < s->detour_ms) return 0;
    return !c->token_size || c->insecure || gq_here(s->endpoint);
}

/* The connection straight to the leader of a shard; NULL: it has to be forwarded. */
static connection *straight(gq *c, shard *s) {
    if (!may_go_straight(c, s)) return NULL;
    for (connection *l = c->links; l; l = l->next)
        if (!strcmp(l->endpoint, s->endpoint)) return l->gone ? NULL : l;
    connection *made = call_up(c, s->endpoint);
    if (made) {
        made->next = c->links;
        c->links = made;
    } else {
        detour(s); /* it is no address */
    }
    return made;
}

/* --- shards */

shard *gq_shard_of(gq *c, uint16_t number) {
    for (size_t i = 0; i < c->shard_count; i++)
        if (c->shards[i].number == number) return c->shards + i;
    shard *grown = realloc(c->shards, (c->shard_count + 1) * sizeof *grown);
    if (!grown) return NULL;
    c->shards = grown;
    shard *made = c->shards + c->shard_count++;
    memset(made, 0, sizeof *made);
    made->number = number;
    made->heard_ms = gq_now_ms();
    return made;
}

static int uses(gq *c, uint16_t number) { return gq_parts_use(c, number) || gq_lanes_use(c, number); }

/* The session in a shard has ended: join the shard again before the next request. */
void gq_over(gq *c, uint16_t number) {
    shard *s = gq_shard_of(c, number);
    if (!s) return;
    s->joined = 0;
    s->ended = 1;
    s->ping = 0;
    s->mute_ms = 0;
    gq_parts_over(c, number);
    gq_lanes_over(c, number);
}

/* The node that was asked no longer leads the shard: use the home until the leader is known. */
void gq_not_leader(gq *c, uint16_t number) {
    shard *s = gq_shard_of(c, number);
    if (s && s->way && s->way != c->home && s->endpoint && !strcmp(s->way->endpoint, s->endpoint)) detour(s);
    gq_over(c, number);
}

/* Somebody's word on who leads a shard. A client that is there by way of the home goes on there. */
void gq_learn(gq *c, uint16_t number, uint64_t term, const uint8_t *endpoint, size_t size) {
    shard *s = gq_shard_of(c, number);
    if (!s || !size || term < s->route_term) return;
    int same = s->endpoint && strlen(s->endpoint) == size && !memcmp(s->endpoint, endpoint, size);
    if (!same) {
        char *kept = strndup((const char *)endpoint, size);
        if (!kept) return;
        free(s->endpoint);
        s->endpoint = kept;
        s->detour_ms = s->detour_for_ms = 0;
    }
    s->route_term = term;
    if (s->joined && s->way == c->home && may_go_straight(c, s)) gq_over(c, number);
}

static void learn_routes(gq *c, gq_reader in) {
    uint32_t fields = gq_get_array(&in);
    if (fields < 7) return;
    for (int i = 0; i < 6; i++) gq_skip(&in);
    uint32_t count = gq_get_array(&in);
    for (uint32_t i = 0; i < count && !in.bad; i++) {
        const uint8_t *endpoint;
        uint32_t parts = gq_get_array(&in);
        int64_t number = gq_get_int(&in), term = gq_get_int(&in);
        size_t size = gq_get_bytes(&in, &endpoint);
        for (uint32_t more = 3; more < parts; more++) gq_skip(&in);
        if (!in.bad && number >= 0 && number < HOME && term >= 0) gq_learn(c, (uint16_t)number, (uint64_t)term, endpoint, size);
    }
}

static connection *way_to(gq *c, uint16_t number) {
    if (number == HOME) return c->home;
    shard *s = gq_shard_of(c, number);
    return s && s->way ? s->way : c->home;
}

/* Sends a message; the request id, 0 = not sent. `fields` is freed, `body` is left as it was. */
uint64_t gq_say(gq *c, int verb, uint16_t number, gq_buffer *fields, zmq_msg_t *body) {
    uint8_t head[HEADER_BYTES] = {'G', 'Q', VERSION, (uint8_t)verb, (uint8_t)number, (uint8_t)(number >> 8)};
    uint64_t request = ++c->request;
    for (int i = 0; i < 8; i++) head[8 + i] = (uint8_t)(request >> (8 * i));
    gq_buffer all = {0};
    gq_put(&all, head, sizeof head);
    gq_put(&all, fields->bytes, fields->size);
    int bad = all.failed || fields->failed || c->process != gq_process();
    connection *l = way_to(c, number);
    gq_buffer_free(fields);
    if (!bad && l) {
        int sent;
        UNINTERRUPTED(sent, zmq_send(l->socket, all.bytes, all.size, ZMQ_DONTWAIT | (body ? ZMQ_SNDMORE : 0)));
        bad = sent < 0;
        if (!bad && body) { /* its bytes are shared, not copied */
            zmq_msg_t shared;
            zmq_msg_init(&shared);
            if (zmq_msg_copy(&shared, body) < 0) sent = -1;
            else UNINTERRUPTED(sent, zmq_msg_send(&shared, l->socket, ZMQ_DONTWAIT));
            bad = sent < 0;
            if (bad) {
                zmq_msg_close(&shared);
                l->gone = 1; /* half a message is on its way */
            }
        }
    }
    gq_buffer_free(&all);
    return bad || !l ? 0 : request;
}

uint64_t gq_say_nothing(gq *c, int verb, uint16_t number) {
    gq_buffer fields = {0};
    gq_put_array(&fields, 0);
    return gq_say(c, verb, number, &fields, NULL);
}

/* --- what comes */

void gq_keep_refusal(gq *c, gq_reader *in) {
    const uint8_t *code, *text, *hint = (const uint8_t *)"";
    uint32_t count = gq_get_array(in);
    size_t code_size = gq_get_bytes(in, &code), text_size = gq_get_bytes(in, &text), hint_size = 0;
    if (count > 2) hint_size = gq_get_bytes(in, &hint);
    c->retry_ms = count > 3 ? (int)gq_get_int(in) : 0;
    snprintf(c->code, sizeof c->code, "%.*s", (int)code_size, code);
    snprintf(c->text, sizeof c->text, "%.*s%s%.*s", (int)text_size, text, hint_size ? "; " : "", (int)hint_size, hint);
}

int64_t gq_refusal_detail(gq_reader in) {
    uint32_t count = gq_get_array(&in);
    for (uint32_t i = 0; i < 4 && i < count; i++) gq_skip(&in);
    return count > 4 ? gq_get_int(&in) : 0;
}

/* A not_leader may name a better place. */
static void learn_better(gq *c, uint16_t number, uint64_t term, gq_reader in) {
    const uint8_t *endpoint;
    uint32_t count = gq_get_array(&in);
    for (uint32_t i = 0; i < 5 && i < count; i++) gq_skip(&in);
    if (count < 6) return;
    size_t size = gq_get_bytes(&in, &endpoint);
    shard *s = gq_shard_of(c, number);
    if (!in.bad && size && s && term > s->route_term) gq_learn(c, number, term, endpoint, size);
}

int gq_later(const char *code) {
    static const char *const CODES[] = {"busy", "joining", "not_leader", "no_session", "no_subscription", "out_of_sequence"};
    for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++)
        if (!strcmp(code, CODES[i])) return 1;
    return 0;
}

int gq_ended(const char *code) {
    return !strcmp(code, "no_session") || !strcmp(code, "no_subscription") || !strcmp(code, "not_leader");
}

/* True if a refusal comes from a node that may be cut off from the others. */
static int away(gq_reader in) {
    const uint8_t *code;
    gq_get_array(&in);
    size_t size = gq_get_bytes(&in, &code);
    static const char *const CODES[] = {"not_leader", "busy", "joining"};
    for (size_t i = 0; !in.bad && i < sizeof CODES / sizeof *CODES; i++)
        if (size == strlen(CODES[i]) && !memcmp(code, CODES[i], size)) return 1;
    return 0;
}

static uint64_t get_u64(const uint8_t *at) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | at[i];
    return value;
}

static void hear(gq *c, connection *l, const uint8_t *bytes, size_t size, zmq_msg_t *body) {
    if (size < HEADER_BYTES || memcmp(bytes, "GQ", 2)) return;
    int verb = bytes[3];
    uint16_t number = (uint16_t)(bytes[4] | bytes[5] << 8);
    uint64_t request = get_u64(bytes + 8), term = get_u64(bytes + 16);
    if (bytes[2] != VERSION) {
        if (!request || request == c->asked) c->other_version = bytes[2];
        return;
    }
    gq_reader in = {bytes + HEADER_BYTES, bytes + size, 0}, whole = in;
    gq_skip(&whole);
    if (whole.bad || whole.at != whole.end) return; /* cut off, or of somebody who is no node */
    shard *s = NULL;
    for (size_t i = 0; i < c->shard_count; i++)
        if (c->shards[i].number == number) s = c->shards + i;
    if (s && (l == s->way || !s->way)) {
        s->heard_ms = gq_now_ms();
        s->mute_ms = 0;
        if (term > s->term) s->term = term;
        if (verb == REFUSED && away(in)) s->away_ms = s->away_ms ? s->away_ms : s->heard_ms;
        else if (verb != REFUSED && verb != WELCOME) s->away_ms = 0;
    }
    if (verb == WELCOME && number == HOME) learn_routes(c, in);
    if (verb == REFUSED && s && term) learn_better(c, number, term, in);
    if (verb == RESET) {
        gq_get_array(&in);
        uint32_t count = gq_get_array(&in);
        for (uint32_t i = 0; i < count && !in.bad; i++) {
            uint16_t each = (uint16_t)gq_get_int(&in);
            if (way_to(c, each) == l) gq_over(c, each); /* else of a way that it has left */
        }
    } else if (verb == CONFIRM) {
        gq_confirmed(c, in, number, term);
    } else if (verb == DELIVER) {
        if (body && s && l == s->way && term >= s->term) gq_deliver(c, number, in, body); /* else of an old leader, or an old way */
    } else if (verb == SHARE) {
        if (s && l == s->way && term >= s->term) gq_share(c, number, in);
    } else if (request && request == c->asked) {
        if (verb == SUBSCRIBED) gq_subscribed(c, number, in, term);
        c->answer.size = 0;
        gq_put(&c->answer, in.at, (size_t)(in.end - in.at));
        c->answer_verb = verb;
        c->answer_came = c->came;
        c->answered = !c->answer.failed;
    } else if (verb == REFUSED && s && request && s->ping == request) {
        gq_keep_refusal(c, &in);
        if (gq_ended(c->code)) gq_over(c, number);
    } else if (verb == REFUSED && gq_batch_of(c, request)) {
        gq_publish_refused(c, gq_batch_of(c, request), in);
    } else if (verb == REFUSED || verb == ACKED) {
        gq_acked(c, request, verb, in);
    }
}

static int receive(zmq_msg_t *message, void *socket) {
    int size;
    UNINTERRUPTED(size, zmq_msg_recv(message, socket, ZMQ_DONTWAIT));
    return size;
}

/* Read the frames that have arrived over a connection. Returns 1 if there was one. */
static int take(gq *c, connection *l) {
    int took = 0;
    for (; took < AT_ONCE; took++) {
        zmq_msg_t control, body, more;
        zmq_msg_init(&control);
        if (receive(&control, l->socket) < 0) {
            zmq_msg_close(&control);
            break;
        }
        zmq_msg_init(&body);
        int frames = 1;
        if (zmq_msg_more(&control) && receive(&body, l->socket) >= 0) frames = 2;
        for (int rest = frames == 2 && zmq_msg_more(&body); rest;) { /* of somebody who is no node */
            zmq_msg_init(&more);
            rest = receive(&more, l->socket) >= 0 && zmq_msg_more(&more);
            zmq_msg_close(&more);
            frames = 3;
        }
        l->heard_ms = gq_now_ms();
        if (frames < 3) hear(c, l, zmq_msg_data(&control), zmq_msg_size(&control), frames == 2 ? &body : NULL);
        zmq_msg_close(&control);
        zmq_msg_close(&body);
    }
    return took;
}

/* Note if a connection is lost, or could not be made. */
static void watch(connection *l) {
    zmq_msg_t event;
    zmq_msg_init(&event);
    while (l->monitor && receive(&event, l->monitor) >= 0) l->gone = 1;
    zmq_msg_close(&event);
}

static int take_all(gq *c) {
    int took = 0;
    for (connection *l = c->home; l; l = l == c->home ? c->links : l->next) {
        watch(l); /* before its last words are taken */
        took += take(c, l);
    }
    return took;
}

static void wait_for(gq *c, int64_t wait_ms) {
    size_t room = 0, count = 0;
    for (connection *l = c->home; l; l = l == c->home ? c->links : l->next) room += 2;
    if (room > c->polled_room) {
        zmq_pollitem_t *grown = realloc(c->polled, 2 * room * sizeof *grown);
        if (grown) c->polled = grown;
        if (grown) c->polled_room = 2 * room;
    }
    for (connection *l = c->home; l && count + 2 <= c->polled_room; l = l == c->home ? c->links : l->next) {
        c->polled[count++] = (zmq_pollitem_t){l->socket, 0, ZMQ_POLLIN, 0};
        if (l->monitor) c->polled[count++] = (zmq_pollitem_t){l->monitor, 0, ZMQ_POLLIN, 0};
    }
    zmq_poll(c->polled, (int)count, (long)wait_ms);
}

/* True if the home has not reached the leader of some shard for a long time: it may be cut off from the others. */
static int cut_off(gq *c, int64_t now) {
    int found = 0;
    for (size_t i = 0; i < c->shard_count; i++) {
        const shard *s = c->shards + i;
        found |= s->way == c->home && s->away_ms && now - s->away_ms > SILENT_MS;
    }
    if (c->server_count == 1 || !found) return 0;
    for (size_t i = 0; i < c->shard_count; i++) c->shards[i].away_ms = 0;
    return 1;
}

/* Ends what is lost: the home goes to the next server, what was at a leader goes by the home. */
static int look(gq *c, int64_t now) {
    for (connection *l = c->links, *next; l; l = next) {
        next = l->next;
        if (!l->gone) continue;
        for (size_t i = 0; i < c->shard_count; i++)
            if (c->shards[i].way == l) detour(c->shards + i);
        gq_hang_up(c, l);
    }
    if ((c->home->gone && now - c->dialed_ms >= REDIAL_MS) || now - c->home->heard_ms > SILENT_MS || cut_off(c, now)) return gq_dial(c);
    return GQ_OK;
}

static void show(gq *c, int64_t now) {
    c->looked_ms = now;
    gq_say_nothing(c, PING, HOME);
    for (size_t i = 0; i < c->shard_count; i++) {
        shard *s = c->shards + i;
        if (!s->joined || !uses(c, s->number)) continue;
        if (s->ping && now - s->heard_ms > SILENT_MS) {
            if (s->way != c->home) detour(s);
            gq_over(c, s->number);
        } else {
            s->ping = gq_say_nothing(c, PING, s->number);
        }
    }
}

/* Read the frames that have arrived, or wait up to `wait_ms` for the first one, and send a sign of life. While this function waits, it also
 * sends the acks of the keeper thread, which cannot get the lock. */
int gq_pump(gq *c, int64_t wait_ms) {
    if (c->process != gq_process()) return gq_fail(c, GQ_ARGUMENT, "another process has opened this client, and was forked: open one here");
    int64_t now = gq_now_ms();
    if (now - c->pumped_ms > PING_MS) { /* nobody listened: silence says nothing */
        for (connection *l = c->home; l; l = l == c->home ? c->links : l->next) l->heard_ms = now;
        for (size_t i = 0; i < c->shard_count; i++) c->shards[i].heard_ms = now;
    }
    if (!take_all(c) && wait_ms > 0) {
        wait_for(c, c->due_ms ? gq_left(c->due_ms, wait_ms) : wait_ms);
        take_all(c);
        now = gq_now_ms();
        if (c->due_ms && c->due_ms <= now) c->due_ms = gq_catch_up(c);
    }
    c->pumped_ms = now;
    int code = look(c, now);
    if (!code && now - c->looked_ms >= PING_MS) show(c, now);
    return code;
}

/* --- asking */

/* One question and its answer, which is in c->answer then. GQ_TIMEOUT: none came for so long that it is asked again. */
int gq_once(gq *c, int verb, uint16_t number, gq_buffer *fields, int64_t end_ms) {
    connection *l = way_to(c, number);
    uint64_t id = l->id; /* a new one may lie where this one was */
    int direct = l != c->home;
    c->answered = c->other_version = 0;
    c->asked = gq_say(c, verb, number, fields, NULL);
    int64_t until_ms = gq_now_ms() + (direct && verb == HELLO ? DIRECT_MS : SILENT_MS);
    while (!c->answered && way_to(c, number)->id == id && gq_left(end_ms, 1) && gq_left(until_ms, 1)) {
        int code = gq_pump(c, gq_left(end_ms, gq_left(until_ms, PING_MS)));
        if (code) return code;
        if (c->other_version)
            return gq_refuse(c, "wrong_version", "the node speaks protocol version %d, this client %d", c->other_version, VERSION);
    }
    c->asked = 0;
    return c->answered ? GQ_OK : GQ_TIMEOUT;
}

gq_reader gq_answer_of(gq *c) { return (gq_reader){c->answer.bytes, c->answer.bytes + c->answer.size, 0}; }

static void pause(gq *c, int64_t end_ms) {
    int64_t until_ms = gq_now_ms() + (c->retry_ms > 0 ? c->retry_ms : AGAIN_MS);
    while (gq_left(until_ms, 1) && gq_left(end_ms, 1)) gq_pump(c, gq_left(until_ms, 10));
}

static void put_hello(gq *c, gq_buffer *out) {
    gq_put_array(out, 7);
    gq_put_bytes(out, c->session, sizeof c->session);
    gq_put_text(out, "c");
    gq_put_text(out, GQ_VERSION);
    gq_put_bytes(out, c->token, c->token_size);
    gq_put_text(out, "");
    gq_put_bytes(out, c->key, sizeof c->key);
    gq_put_bool(out, 1);
}

/* Asks the home who leads what, but not in each turn of a loop. */
static int ask_routes(gq *c, int64_t end_ms) {
    if (c->forward || (c->routes_ms && gq_now_ms() - c->routes_ms < ROUTES_MS)) return GQ_OK;
    gq_buffer hello = {0};
    put_hello(c, &hello);
    int code = gq_once(c, HELLO, HOME, &hello, end_ms);
    if (code == GQ_TIMEOUT) return GQ_OK; /* the next question will find out */
    c->routes_ms = gq_now_ms();
    return code;
}

/* After a refusal by a shard, wait a moment before asking it again, so that a user's loop does not ask in each turn. */
void gq_be_patient(gq *c, uint16_t number, int64_t end_ms) {
    shard *s;
    while ((s = gq_shard_of(c, number)) && gq_left(s->patient_ms, 1) && gq_left(end_ms, 1)) gq_pump(c, gq_left(s->patient_ms, 10));
}

/* HELLO, and SUBSCRIBE to all that is subscribed there, until it is so. */
int gq_join(gq *c, uint16_t number, int64_t end_ms) {
    for (;;) {
        shard *s = gq_shard_of(c, number);
        if (s && s->joined) return GQ_OK;
        gq_be_patient(c, number, end_ms);
        if (!(s = gq_shard_of(c, number))) return gq_no_memory(c);
        if (!gq_left(end_ms, 1) && *s->refusal_code) return gq_refuse(c, s->refusal_code, "%s", s->refusal);
        if (!gq_left(end_ms, 1)) return gq_fail(c, GQ_TIMEOUT, "no node has answered in time");
        *s->refusal_code = 0;
        s->way = NULL;
        int code = ask_routes(c, end_ms);
        if (code) return code;
        if (!(s = gq_shard_of(c, number))) continue;
        connection *direct = straight(c, s);
        s->way = direct ? direct : c->home;
        s->ended = 0;
        gq_buffer hello = {0};
        put_hello(c, &hello);
        code = gq_once(c, HELLO, number, &hello, end_ms);
        if (!code && c->answer_verb != REFUSED) code = gq_subscribe_in(c, number, end_ms);
        if (code && code != GQ_TIMEOUT) return code;
        if (!(s = gq_shard_of(c, number))) continue;
        if (code == GQ_TIMEOUT && direct && s->way == direct) detour(s);
        if (!code && c->answer_verb == REFUSED) {
            gq_reader in = gq_answer_of(c);
            gq_keep_refusal(c, &in);
            if (!gq_later(c->code)) {
                s->patient_ms = gq_now_ms() + HELLO_AGAIN_MS;
                snprintf(s->refusal, sizeof s->refusal, "%s", c->text);
                snprintf(s->refusal_code, sizeof s->refusal_code, "%s", c->code);
                return GQ_REFUSED;
            }
            if (direct) detour(s); /* it leads no more */
            pause(c, end_ms);
            code = GQ_TIMEOUT;
        }
        if (code || !(s = gq_shard_of(c, number)) || !s->way || s->ended) continue;
        s->joined = 1;
        s->ping = 0;
        s->heard_ms = gq_now_ms();
        if (direct) s->detour_for_ms = 0;
    }
}

/* The answer to a question, however long it takes; `make` writes its fields. It is not asked (again) once `over` is set, which may be
 * NULL: that is GQ_REFUSED. */
int gq_ask(gq *c, int verb, uint16_t number, void (*make)(gq_buffer *, const void *), const void *what, const int *over, int64_t end_ms) {
    for (;;) {
        shard *s = gq_shard_of(c, number);
        if (s && s->mute_ms && gq_now_ms() - s->mute_ms > SILENT_MS) gq_over(c, number);
        int code = gq_join(c, number, end_ms);
        if (code) return code;
        if (over && *over) return GQ_REFUSED;
        gq_buffer fields = {0};
        make(&fields, what);
        code = gq_once(c, verb, number, &fields, end_ms);
        if (code == GQ_TIMEOUT && gq_left(end_ms, 1)) {
            gq_over(c, number);
            continue;
        }
        if (code == GQ_TIMEOUT) {
            s = gq_shard_of(c, number);
            if (s && !s->mute_ms) s->mute_ms = gq_now_ms();
            return gq_fail(c, code, "no node has answered in time");
        }
        if (code) return code;
        if (c->answer_verb != REFUSED) return GQ_OK;
        gq_reader in = gq_answer_of(c);
        gq_keep_refusal(c, &in);
        if (!gq_later(c->code)) return GQ_REFUSED;
        if (gq_ended(c->code)) gq_over(c, number);
        pause(c, end_ms);
    }
}

/* --- topics */

static void put_resolve(gq_buffer *out, const char *name, int make) {
    gq_put_array(out, 2);
    gq_put_array(out, 1);
    gq_put_text(out, name);
    gq_put_bool(out, make);
}

static void put_find(gq_buffer *out, const void *name) { put_resolve(out, name, 0); }

static void put_make(gq_buffer *out, const void *name) { put_resolve(out, name, 1); }

void gq_free_topic(topic *t) {
    if (!t) return;
    free(t->name);
    free(t->shards);
    free(t->lanes);
    free(t);
}

static topic *read_topic(gq *c, const char *name) {
    gq_reader in = gq_answer_of(c);
    gq_get_array(&in);
    if (!gq_get_array(&in)) {
        gq_refuse(c, "unknown_topic", "no topic %s; gossipq topic create %s", name, name);
        return NULL;
    }
    topic *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    gq_get_array(&in);
    t->id = gq_get_int(&in);
    gq_skip(&in);
    gq_skip(&in);
    gq_skip(&in);
    t->parts = gq_get_array(&in);
    t->name = strdup(name);
    t->shards = calloc(t->parts ? t->parts : 1, sizeof *t->shards);
    t->lanes = calloc(t->parts ? t->parts : 1, sizeof *t->lanes);
    if (!t->name || !t->shards || !t->lanes || in.bad || !t->parts) {
        if (in.bad) gq_fail(c, GQ_ARGUMENT, "the node's answer cannot be read");
        else if (!t->parts) gq_refuse(c, "bad_request", "%s is a virtual topic; name the real ones", name);
        gq_free_topic(t);
        return NULL;
    }
    for (uint32_t i = 0; i < t->parts; i++) {
        lane *l = t->lanes + i;
        int64_t number = gq_get_int(&in);
        if (in.bad || number < 0 || number >= HOME) {
            gq_fail(c, GQ_ARGUMENT, "the node's answer cannot be read");
            gq_free_topic(t);
            return NULL;
        }
        t->shards[i] = (uint16_t)number;
        *l = (lane){.topic = t, .partition = i, .shard = t->shards[i], .producer = c->producers++};
        l->last = &l->first;
        gq_name_producer(c, l);
    }
    return t;
}

static int look_up(gq *c, const char *name, int make, topic **found, int64_t end_ms) {
    int code = gq_ask(c, RESOLVE, 0, make ? put_make : put_find, name, NULL, end_ms);
    if (code) return code;
    gq_fail(c, GQ_OK, "no memory");
    if ((*found = read_topic(c, name))) return GQ_OK;
    return !*c->code ? GQ_ARGUMENT : GQ_REFUSED;
}

/* Forget topics that were deleted, if no lane and no subscription needs them. */
static void drop_stale(gq *c) {
    for (topic **at = &c->topics; *at;) {
        topic *t = *at;
        if (!t->stale || gq_lanes_of(c, t) || gq_parts_of(c, t)) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        if (c->last_topic == t) c->last_topic = NULL;
        gq_free_topic(t);
    }
}

/* Looks a topic up again: it may have been made anew, under another id. Then what is to be published there moves along. */
int gq_renew_topic(gq *c, topic *t, int make, topic **now, int64_t end_ms) {
    topic *made;
    int code = look_up(c, t->name, make, &made, end_ms);
    if (code) return code;
    *now = made->id == t->id ? t : made;
    if (*now == t) {
        t->stale = 0;
        gq_free_topic(made);
        return GQ_OK;
    }
    t->stale = 1;
    made->next = c->topics;
    c->topics = made;
    gq_move_lanes(c, t, made);
    drop_stale(c);
    return GQ_OK;
}

int gq_find_topic(gq *c, const char *name, topic **found, int64_t end_ms) {
    if (c->last_topic && !c->last_topic->stale && !strcmp(c->last_topic->name, name)) {
        *found = c->last_topic;
        return GQ_OK;
    }
    if (gq_check_text(c, "the name of the topic", name)) return GQ_REFUSED;
    if (strchr(name, '*')) return gq_refuse(c, "bad_name", "%s is a pattern; name the topic", name); /* any that fits would be it */
    topic *t = c->topics;
    while (t && strcmp(t->name, name)) t = t->next; /* the newest of that name is the first */
    int code = GQ_OK;
    if (t && t->stale) {
        code = gq_renew_topic(c, t, 1, &t, end_ms);
    } else if (!t && !(code = look_up(c, name, 1, &t, end_ms))) {
        t->next = c->topics;
        c->topics = t;
    }
    if (code) return code;
    *found = c->last_topic = t;
    return GQ_OK;
}
