/* Opening and closing a client. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

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

static int digit(char letter) {
    if (letter >= '0' && letter <= '9') return letter - '0';
    if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
    return -1;
}

/* "gq_" and 64 hexadecimal digits. */
static int read_token(gq *c, const char *text) {
    if (!strncmp(text, "gq_", 3)) text += 3;
    for (size_t i = 0; i < TOKEN_BYTES; i++) {
        int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
        if (low < 0) return 0;
        c->token[i] = (uint8_t)(high << 4 | low);
    }
    c->token_size = TOKEN_BYTES;
    return 1;
}

static int read_credentials(gq *c, const char *path) {
    char text[512] = {0};
    struct stat about;
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    size_t size = fread(text, 1, sizeof text - 1, file);
    int safe = !fstat(fileno(file), &about) && !(S_ISREG(about.st_mode) && about.st_mode & 077); /* others may not read it */
    fclose(file);
    const char *token = !strncmp(text, "gq_", 3) ? text : strstr(text, "\ngq_"); /* other lines are not for us */
    int good = safe && size && token && read_token(c, token + (*token == '\n'));
    explicit_bzero(text, sizeof text);
    return good;
}

static int set_up(gq *c, const gq_connection *how) {
    const char *servers = how->servers ? how->servers : getenv("GOSSIPQ_SERVER");
    if (!servers) servers = "tcp://127.0.0.1:7700";
    if (!add_servers(c, servers)) return *servers ? GQ_MEMORY : GQ_ARGUMENT;
    const char *file = how->credentials ? how->credentials : how->token ? NULL : getenv("GOSSIPQ_CREDENTIALS");
    if (how->token && !read_token(c, how->token)) return GQ_ARGUMENT;
    if (file && !read_credentials(c, file)) return GQ_ARGUMENT;
    c->insecure = how->insecure || how->curve_server;
    c->forward = how->forward;
    for (size_t i = 0; c->token_size && !c->insecure && i < c->server_count; i++)
        if (!gq_here(c->servers[i])) return GQ_ARGUMENT;
    if (how->curve_server) {
        char own_public[41], own_secret[41];
        const char *given_public = how->curve_public, *given_secret = how->curve_secret;
        if (!given_public || !given_secret) { /* anybody may come; the node alone shows who it is */
            if (zmq_curve_keypair(own_public, own_secret)) return GQ_ARGUMENT;
            given_public = own_public;
            given_secret = own_secret;
        }
        if (strlen(how->curve_server) != 40 || strlen(given_public) != 40 || strlen(given_secret) != 40) return GQ_ARGUMENT;
        c->curve_server = strdup(how->curve_server);
        c->curve_public = strdup(given_public);
        c->curve_secret = strdup(given_secret);
        if (!c->curve_server || !c->curve_public || !c->curve_secret) return GQ_MEMORY;
    }
    uint8_t digest[32];
    if (getrandom(c->key, sizeof c->key, 0) != (ssize_t)sizeof c->key || !(c->context = zmq_ctx_new())) return GQ_MEMORY;
    gq_hmac_sha256(c->key, sizeof c->key, "session", 7, digest);
    memcpy(c->session, digest, sizeof c->session);
    c->session[0] |= 0x80;
    c->pumped_ms = gq_now_ms();
    return gq_dial(c);
}

int gq_open_with(gq **client, const gq_connection *how) {
    static const gq_connection NONE = {0};
    if (!client) return GQ_ARGUMENT;
    *client = NULL;
    gq *c = calloc(1, sizeof *c);
    if (!c) return GQ_MEMORY;
    int code = set_up(c, how ? how : &NONE);
    if (code) gq_close(c);
    else *client = c;
    return code;
}

int gq_open(gq **client, const char *servers) { return gq_open_with(client, &(gq_connection){.servers = servers}); }

void gq_close(gq *c) {
    if (!c) return;
    if (c->home) gq_confirm(c, c->waiting ? CLOSE_MS : 0);
    while (c->subscriptions) gq_unsubscribe(c->subscriptions);
    gq_drop_lanes(c);
    int linger = 200;
    for (size_t i = 0; c->home && i < c->shard_count; i++)
        if (c->shards[i].joined) gq_say_nothing(c, BYE, c->shards[i].number);
    for (link *l = c->home; l; l = l == c->home ? c->links : l->next) zmq_setsockopt(l->socket, ZMQ_LINGER, &linger, sizeof linger);
    while (c->links) gq_hang_up(c, c->links);
    gq_hang_up(c, c->home);
    if (c->context) zmq_ctx_term(c->context);
    while (c->topics) {
        topic *next = c->topics->next;
        gq_free_topic(c->topics);
        c->topics = next;
    }
    for (size_t i = 0; i < c->server_count; i++) free(c->servers[i]);
    for (size_t i = 0; i < c->shard_count; i++) free(c->shards[i].endpoint);
    free(c->servers);
    free(c->shards);
    free(c->curve_server);
    free(c->curve_public);
    if (c->curve_secret) explicit_bzero(c->curve_secret, strlen(c->curve_secret));
    free(c->curve_secret);
    gq_buffer_free(&c->answer);
    explicit_bzero(c->token, sizeof c->token);
    free(c);
}

int gq_ping(gq *c) {
    if (!c) return GQ_ARGUMENT;
    int64_t end_ms = gq_now_ms() + PING_MS;
    int code = gq_pump(c, 0);
    if (!code && c->active) code = gq_send_lanes(c, end_ms);
    for (gq_subscription *s = c->subscriptions; s && !code; s = s->next)
        for (size_t i = 0; i < s->part_count && !code; i++) code = gq_join(c, s->parts[i].shard, end_ms);
    return code == GQ_TIMEOUT ? GQ_OK : code;
}

const char *gq_error(const gq *c) { return c ? c->text : ""; }

const char *gq_error_code(const gq *c) { return c ? c->code : ""; }
