/* Opening and closing a client. */
#include "internal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

enum { KEEPER_BYTES = 256 * 1024 };

static int add_servers(gq *c, const char *text) {
    while (*(text += strspn(text, " "))) {
        size_t size = strcspn(text, ", ");
        char **grown = realloc(c->servers, (c->server_count + 1) * sizeof *grown);
        if (!grown) return 0;
        c->servers = grown;
        if (!(c->servers[c->server_count] = strndup(text, size))) return 0;
        c->server_count++;
        text += size;
        text += strspn(text, " ");
        text += *text == ',';
    }
    return c->server_count > 0;
}

static int digit(char letter) {
    if (letter >= '0' && letter <= '9') return letter - '0';
    if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
    return -1;
}

/* A name and 64 hexadecimal digits. */
static int read_key(const char *text, const char *name, uint8_t key[TOKEN_BYTES]) {
    if (strncmp(text, name, strlen(name))) return 0;
    text += strlen(name);
    for (size_t i = 0; i < TOKEN_BYTES; i++) {
        int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
        if (low < 0) return 0;
        key[i] = (uint8_t)(high << 4 | low);
    }
    return 1;
}

static int show_token(gq *c, const char *text) {
    c->token_size = TOKEN_BYTES;
    return read_key(text, "gq_", c->token);
}

/* Encrypts what is said; anybody may come, and the node alone shows who it is. */
static int use_door(gq *c, const char *text) {
    uint8_t key[TOKEN_BYTES];
    return read_key(text, "door_", key) && zmq_has("curve") && zmq_z85_encode(c->door, key, sizeof key) &&
           !zmq_curve_keypair(c->curve_public, c->curve_secret);
}

static const char *line_of(const char *text, const char *name) {
    for (; text; text = strchr(text, '\n') ? strchr(text, '\n') + 1 : NULL)
        if (!strncmp(text, name, strlen(name))) return text;
    return NULL;
}

static int read_credentials(gq *c, const char *path) {
    char text[512] = {0};
    struct stat about;
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    size_t size = fread(text, 1, sizeof text - 1, file);
    int good = size && !fstat(fileno(file), &about) && !(S_ISREG(about.st_mode) && about.st_mode & 077); /* others may not read it */
    fclose(file);
    const char *token = line_of(text, "gq_"), *door = line_of(text, "door_");
    good = good && token && show_token(c, token) && (!door || use_door(c, door));
    explicit_bzero(text, sizeof text);
    return good;
}

static int set_up(gq *c, const gq_connection *how) {
    c->process = gq_process();
    const char *servers = how->servers ? how->servers : getenv("GOSSIPQ_SERVER");
    if (!servers) servers = "tcp://127.0.0.1:7700";
    if (!add_servers(c, servers)) return *servers ? GQ_MEMORY : GQ_ARGUMENT;
    const char *file = how->credentials ? how->credentials : how->token ? NULL : getenv("GOSSIPQ_CREDENTIALS");
    if (how->token && !show_token(c, how->token)) return GQ_ARGUMENT;
    if (how->door && !use_door(c, how->door)) return GQ_ARGUMENT;
    if (file && !read_credentials(c, file)) return GQ_ARGUMENT;
    c->insecure = how->insecure || *c->door;
    c->forward = how->forward;
    for (size_t i = 0; c->token_size && !c->insecure && i < c->server_count; i++)
        if (!gq_here(c->servers[i])) return GQ_ARGUMENT;
    uint8_t digest[32];
    if (getrandom(c->key, sizeof c->key, 0) != (ssize_t)sizeof c->key || !(c->context = zmq_ctx_new())) return GQ_MEMORY;
    zmq_ctx_set(c->context, ZMQ_IO_THREADS, IO_THREADS);
    gq_hmac_sha256(c->key, sizeof c->key, "session", 7, digest);
    memcpy(c->session, digest, sizeof c->session);
    c->session[0] |= 0x80;
    c->pumped_ms = gq_now_ms();
    return gq_dial(c);
}

/* --- the keeper: a thread that sends acks, and which records are begun, while the user works. It only sends; what comes is taken by the functions of the API */

/* Which is locked is that of this process: in a child that was forked its keeper, which may hold it, is missing. */
void gq_lock(gq *c) {
    if (c->process == gq_process()) pthread_mutex_lock(&c->lock);
}

void gq_unlock(gq *c) {
    if (c->process == gq_process()) pthread_mutex_unlock(&c->lock);
}

static void *keep(void *client) {
    gq *c = client;
    pthread_mutex_lock(&c->lock);
    while (!c->closing) {
        int64_t due_ms = c->due_ms;
        if (!due_ms) {
            pthread_cond_wait(&c->wake, &c->lock);
        } else if (gq_now_ms() < due_ms) {
            struct timespec due = {due_ms / 1000, due_ms % 1000 * 1000000};
            pthread_cond_timedwait(&c->wake, &c->lock, &due);
        } else {
            c->due_ms = gq_catch_up(c);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Signals stay with the threads of the user. */
int gq_start_keeper(gq *c) {
    pthread_attr_t small;
    sigset_t all, before;
    if (c->keeping) return GQ_OK;
    if (pthread_attr_init(&small)) return gq_no_memory(c);
    pthread_attr_setstacksize(&small, KEEPER_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    c->keeping = !pthread_create(&c->keeper, &small, keep, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&small);
    return c->keeping ? GQ_OK : gq_fail(c, GQ_MEMORY, "no thread can be started, which sends acks");
}

static void end_keeper(gq *c) {
    pthread_mutex_lock(&c->lock);
    c->closing = 1;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    if (c->keeping) pthread_join(c->keeper, NULL);
}

static int set_up_keeping(gq *c) {
    pthread_mutexattr_t again; /* functions of the API call others */
    pthread_condattr_t steady;
    if (pthread_mutexattr_init(&again)) return 0;
    pthread_mutexattr_settype(&again, PTHREAD_MUTEX_RECURSIVE);
    int failed = pthread_mutex_init(&c->lock, &again);
    pthread_mutexattr_destroy(&again);
    if (failed || pthread_condattr_init(&steady)) return 0;
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    failed = pthread_cond_init(&c->wake, &steady);
    pthread_condattr_destroy(&steady);
    return !failed;
}

int gq_open_with(gq **client, const gq_connection *how) {
    static const gq_connection NONE = {0};
    if (!client) return GQ_ARGUMENT;
    *client = NULL;
    gq *c = calloc(1, sizeof *c);
    if (!c || !set_up_keeping(c)) {
        free(c);
        return GQ_MEMORY;
    }
    int code = set_up(c, how ? how : &NONE);
    if (code) gq_close(c);
    else *client = c;
    return code;
}

int gq_open(gq **client, const char *servers) { return gq_open_with(client, &(gq_connection){.servers = servers}); }

int gq_close(gq *c) {
    if (!c || c->process != gq_process()) return GQ_OK; /* all of it is its parent's */
    end_keeper(c);
    int64_t end_ms = gq_deadline(CLOSE_MS); /* of all that it waits for */
    int result = c->home ? gq_confirm(c, c->waiting ? CLOSE_MS : 0) : GQ_OK;
    while (c->subscriptions) {
        int code = gq_end_subscription(c->subscriptions, end_ms);
        if (!result) result = code;
    }
    gq_drop_lanes(c);
    int linger = 200;
    for (size_t i = 0; c->home && i < c->shard_count; i++)
        if (c->shards[i].joined) gq_say_nothing(c, BYE, c->shards[i].number);
    for (connection *l = c->home; l; l = l == c->home ? c->links : l->next) zmq_setsockopt(l->socket, ZMQ_LINGER, &linger, sizeof linger);
    while (c->links) gq_hang_up(c, c->links);
    gq_hang_up(c, c->home);
    int ended = 0;
    if (c->context) UNINTERRUPTED(ended, zmq_ctx_term(c->context));
    while (c->topics) {
        topic *next = c->topics->next;
        gq_free_topic(c->topics);
        c->topics = next;
    }
    for (size_t i = 0; i < c->server_count; i++) free(c->servers[i]);
    for (size_t i = 0; i < c->shard_count; i++) free(c->shards[i].endpoint);
    free(c->servers);
    free(c->shards);
    free(c->polled);
    free(c->left.at);
    gq_buffer_free(&c->answer);
    explicit_bzero(c->token, sizeof c->token);
    explicit_bzero(c->curve_secret, sizeof c->curve_secret);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->lock);
    free(c);
    return result;
}

static int ping(gq *c) {
    int64_t end_ms = gq_now_ms() + PING_MS;
    int code = gq_pump(c, 0);
    if (!code && c->active) code = gq_send_lanes(c, end_ms);
    for (gq_subscription *s = c->subscriptions; s && !code; s = s->next)
        for (size_t i = 0; i < s->part_count && !code; i++) code = gq_join(c, s->parts[i].shard, end_ms);
    gq_catch_up(c);
    return code == GQ_TIMEOUT ? GQ_OK : code;
}

int gq_ping(gq *c) {
    if (!c) return GQ_ARGUMENT;
    gq_lock(c);
    int code = ping(c);
    gq_unlock(c);
    return code;
}

const char *gq_error(const gq *c) { return c ? c->text : ""; }

const char *gq_error_code(const gq *c) { return c ? c->code : ""; }
