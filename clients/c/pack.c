#include "pack.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH_MAX 32
#define REASON_MAX 2048

static atomic_int process; /* 0: not asked for yet in this process */

static void forget_process(void) { process = 0; }

static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_process); }

int gq_process(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int number = atomic_load_explicit(&process, memory_order_relaxed);
    if (number) return number;
    pthread_once(&once, watch_forks);
    number = getpid(); /* a system call, so not one for each record */
    process = number;
    return number;
}

void gq_put(gq_buffer *out, const void *bytes, size_t size) {
    if (out->failed) return;
    if (out->room - out->size < size) {
        size_t room = out->room ? out->room * 2 : 256; /* gq_buffer_free gives it back */
        while (room - out->size < size) room *= 2;
        uint8_t *grown = realloc(out->bytes, room);
        if (!grown) {
            out->failed = 1;
            return;
        }
        out->bytes = grown;
        out->room = room;
    }
    if (size) memcpy(out->bytes + out->size, bytes, size);
    out->size += size;
}

void gq_buffer_free(gq_buffer *out) {
    free(out->bytes);
    memset(out, 0, sizeof *out);
}

static void put_tagged(gq_buffer *out, uint8_t tag, uint64_t value, int width) {
    uint8_t raw[9] = {tag};
    for (int i = 0; i < width; i++) raw[1 + i] = (uint8_t)(value >> (8 * (width - 1 - i)));
    gq_put(out, raw, 1 + (size_t)width);
}

void gq_put_array(gq_buffer *out, uint32_t count) {
    if (count < 16) put_tagged(out, (uint8_t)(0x90 | count), 0, 0);
    else if (count < 65536) put_tagged(out, 0xdc, count, 2);
    else put_tagged(out, 0xdd, count, 4);
}

void gq_put_map(gq_buffer *out, uint32_t count) {
    if (count < 16) put_tagged(out, (uint8_t)(0x80 | count), 0, 0);
    else if (count < 65536) put_tagged(out, 0xde, count, 2);
    else put_tagged(out, 0xdf, count, 4);
}

void gq_put_int(gq_buffer *out, int64_t value) {
    if (value >= 0 && value < 128) put_tagged(out, (uint8_t)value, 0, 0);
    else if (value >= 0 && value <= UINT32_MAX) put_tagged(out, 0xce, (uint64_t)value, 4);
    else put_tagged(out, 0xd3, (uint64_t)value, 8);
}

void gq_put_bool(gq_buffer *out, int value) { put_tagged(out, value ? 0xc3 : 0xc2, 0, 0); }

void gq_put_nil(gq_buffer *out) { put_tagged(out, 0xc0, 0, 0); }

void gq_put_text(gq_buffer *out, const char *text) {
    size_t size = strlen(text);
    put_tagged(out, 0xdb, size, 4);
    gq_put(out, text, size);
}

size_t gq_character(const char *text) {
    const uint8_t *at = (const uint8_t *)text;
    if (*at < 0x80) return 1;
    size_t size = *at < 0xc2 || *at > 0xf4 ? 0 : *at < 0xe0 ? 2 : *at < 0xf0 ? 3 : 4;
    uint8_t low = *at == 0xe0 ? 0xa0 : *at == 0xf0 ? 0x90 : 0x80, high = *at == 0xed ? 0x9f : *at == 0xf4 ? 0x8f : 0xbf;
    for (size_t i = 1; i < size; i++, low = 0x80, high = 0xbf)
        if (at[i] < low || at[i] > high) return 0;
    return size;
}

void gq_put_reason(gq_buffer *out, const char *text) {
    char kept[REASON_MAX + 1];
    size_t used = 0, size;
    for (; *text; text += size, used += size) {
        size = gq_character(text);
        if (used + (size ? size : 1) > REASON_MAX) break;
        memcpy(kept + used, size ? text : "?", size ? size : 1);
        if (!size) size = 1;
    }
    kept[used] = 0;
    gq_put_text(out, kept);
}

void gq_put_bytes(gq_buffer *out, const void *bytes, size_t size) {
    put_tagged(out, 0xc6, size, 4);
    gq_put(out, bytes, size);
}

/* --- reading */

static uint64_t get_be(gq_reader *in, int width) {
    if (in->bad || in->end - in->at < width) {
        in->bad = 1;
        return 0;
    }
    uint64_t value = 0;
    for (int i = 0; i < width; i++) value = value << 8 | *in->at++;
    return value;
}

static uint32_t get_count(gq_reader *in, uint8_t fix, uint8_t tag16, uint8_t tag32) {
    uint8_t tag = (uint8_t)get_be(in, 1);
    uint64_t count = 0;
    if ((tag & 0xf0) == fix) count = tag & 0x0f;
    else if (tag == tag16) count = get_be(in, 2);
    else if (tag == tag32) count = get_be(in, 4);
    else in->bad = 1;
    if (count > (uint64_t)(in->end - in->at)) in->bad = 1; /* each thing has a byte at least */
    return in->bad ? 0 : (uint32_t)count;
}

uint32_t gq_get_array(gq_reader *in) { return get_count(in, 0x90, 0xdc, 0xdd); }

uint32_t gq_get_map(gq_reader *in) { return get_count(in, 0x80, 0xde, 0xdf); }

int64_t gq_get_int(gq_reader *in) {
    uint8_t tag = (uint8_t)get_be(in, 1);
    if (in->bad) return 0;
    if (tag < 0x80) return tag;
    if (tag >= 0xe0) return (int8_t)tag;
    switch (tag) {
    case 0xcc: return (int64_t)get_be(in, 1);
    case 0xcd: return (int64_t)get_be(in, 2);
    case 0xce: return (int64_t)get_be(in, 4);
    case 0xcf: return (int64_t)get_be(in, 8);
    case 0xd0: return (int8_t)get_be(in, 1);
    case 0xd1: return (int16_t)get_be(in, 2);
    case 0xd2: return (int32_t)get_be(in, 4);
    case 0xd3: return (int64_t)get_be(in, 8);
    }
    in->bad = 1;
    return 0;
}

int gq_get_bool(gq_reader *in) {
    uint8_t tag = (uint8_t)get_be(in, 1);
    if (tag != 0xc2 && tag != 0xc3) in->bad = 1;
    return tag == 0xc3;
}

size_t gq_get_bytes(gq_reader *in, const uint8_t **bytes) {
    uint8_t tag = (uint8_t)get_be(in, 1);
    uint64_t size = 0;
    if ((tag & 0xe0) == 0xa0) size = tag & 0x1f;
    else if (tag == 0xc4 || tag == 0xd9) size = get_be(in, 1);
    else if (tag == 0xc5 || tag == 0xda) size = get_be(in, 2);
    else if (tag == 0xc6 || tag == 0xdb) size = get_be(in, 4);
    else in->bad = 1;
    if (in->bad || size > (uint64_t)(in->end - in->at)) {
        in->bad = 1;
        *bytes = (const uint8_t *)"";
        return 0;
    }
    *bytes = in->at;
    in->at += size;
    return (size_t)size;
}

static void skip_bytes(gq_reader *in, uint64_t size) {
    if (in->bad || size > (uint64_t)(in->end - in->at)) in->bad = 1;
    else in->at += size;
}

static void skip(gq_reader *in, int depth) {
    if (depth > DEPTH_MAX || in->at >= in->end) in->bad = 1;
    if (in->bad) return;
    uint8_t tag = *in->at;
    uint64_t inside = 0;
    if ((tag & 0xf0) == 0x90 || tag == 0xdc || tag == 0xdd) inside = gq_get_array(in);
    else if ((tag & 0xf0) == 0x80 || tag == 0xde || tag == 0xdf) inside = 2 * (uint64_t)gq_get_map(in);
    else if ((tag & 0xe0) == 0xa0 || (tag >= 0xc4 && tag <= 0xc6) || (tag >= 0xd9 && tag <= 0xdb)) {
        const uint8_t *bytes;
        gq_get_bytes(in, &bytes);
    } else if (tag < 0x80 || tag >= 0xe0 || (tag >= 0xcc && tag <= 0xd3)) gq_get_int(in);
    else if (tag == 0xc0 || tag == 0xc2 || tag == 0xc3) skip_bytes(in, 1);
    else if (tag == 0xca) skip_bytes(in, 5);
    else if (tag == 0xcb) skip_bytes(in, 9);
    else in->bad = 1; /* extensions are not in this protocol */
    for (uint64_t i = 0; i < inside && !in->bad; i++) skip(in, depth + 1);
}

void gq_skip(gq_reader *in) { skip(in, 0); }

/* --- hashes */

/* Eight bytes a step: table n has what a byte does that lies n bytes before the end of the step. */
static uint32_t crc_table[8][256];

__attribute__((constructor)) static void make_crc_table(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        crc_table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int n = 1; n < 8; n++) crc_table[n][i] = crc_table[n - 1][i] >> 8 ^ crc_table[0][crc_table[n - 1][i] & 0xff];
}

uint32_t gq_crc32(const void *bytes, size_t size) {
    const uint8_t *at = bytes;
    uint32_t crc = 0xffffffffu;
    for (; size >= 8; size -= 8, at += 8) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        crc = crc_table[7][low & 0xff] ^ crc_table[6][low >> 8 & 0xff] ^ crc_table[5][low >> 16 & 0xff] ^ crc_table[4][low >> 24] ^
              crc_table[3][at[4]] ^ crc_table[2][at[5]] ^ crc_table[1][at[6]] ^ crc_table[0][at[7]];
    }
    while (size--) crc = crc >> 8 ^ crc_table[0][(crc ^ *at++) & 0xff];
    return ~crc;
}

uint32_t gq_key_hash(const void *key, size_t size) {
    if (!size) return 0;
    uint32_t hash = gq_crc32(key, size);
    return hash ? hash : 1;
}

typedef struct {
    uint32_t state[8];
    uint8_t block[64];
    uint64_t size;
} sha256;

static uint32_t rotate(uint32_t value, int by) { return value >> by | value << (32 - by); }

static void sha256_block(sha256 *sha) {
    static const uint32_t K[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
        0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
        0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
        0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
        0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
        0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++) {
        const uint8_t *at = sha->block + 4 * i;
        w[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(v, sha->state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
        uint32_t one = v[7] + a + ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
        uint32_t b = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
        uint32_t two = b + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) sha->state[i] += v[i];
}

static void sha256_add(sha256 *sha, const void *bytes, size_t size) {
    const uint8_t *at = bytes;
    while (size--) {
        sha->block[sha->size++ % 64] = *at++;
        if (sha->size % 64 == 0) sha256_block(sha);
    }
}

static void sha256_begin(sha256 *sha) {
    static const uint32_t START[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(sha->state, START, sizeof START);
    sha->size = 0;
}

static void sha256_end(sha256 *sha, uint8_t digest[32]) {
    uint64_t bits = sha->size * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(sha, "\x80", 1);
    while (sha->size % 64 != 56) sha256_add(sha, "", 1);
    sha256_add(sha, length, 8);
    for (int i = 0; i < 32; i++) digest[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

void gq_hmac_sha256(const uint8_t *key, size_t key_size, const void *text, size_t size, uint8_t digest[32]) {
    uint8_t inner[64] = {0}, outer[64] = {0};
    sha256 sha;
    memcpy(inner, key, key_size); /* at most 64 */
    memcpy(outer, key, key_size);
    for (int i = 0; i < 64; i++) {
        inner[i] ^= 0x36;
        outer[i] ^= 0x5c;
    }
    sha256_begin(&sha);
    sha256_add(&sha, inner, 64);
    sha256_add(&sha, text, size);
    sha256_end(&sha, digest);
    sha256_begin(&sha);
    sha256_add(&sha, outer, 64);
    sha256_add(&sha, digest, 32);
    sha256_end(&sha, digest);
}

/* --- BLAKE2b with a digest of 8 bytes, RFC 7693 */

static const uint64_t BLAKE_START[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
                                        0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
static const uint8_t BLAKE_ORDER[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

static uint64_t rotate64(uint64_t value, int by) { return value >> by | value << (64 - by); }

static void mix(uint64_t v[16], int a, int b, int c, int d, uint64_t x, uint64_t y) {
    v[a] += v[b] + x;
    v[d] = rotate64(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = rotate64(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = rotate64(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotate64(v[b] ^ v[c], 63);
}

static void blake_block(uint64_t state[8], const uint8_t block[128], uint64_t so_far, int last) {
    uint64_t v[16], m[16];
    for (int i = 0; i < 8; i++) {
        v[i] = state[i];
        v[i + 8] = BLAKE_START[i];
    }
    v[12] ^= so_far;
    if (last) v[14] = ~v[14];
    for (int i = 0; i < 16; i++) {
        m[i] = 0;
        for (int k = 7; k >= 0; k--) m[i] = m[i] << 8 | block[8 * i + k];
    }
    for (int round = 0; round < 12; round++) {
        const uint8_t *o = BLAKE_ORDER[round % 10];
        mix(v, 0, 4, 8, 12, m[o[0]], m[o[1]]);
        mix(v, 1, 5, 9, 13, m[o[2]], m[o[3]]);
        mix(v, 2, 6, 10, 14, m[o[4]], m[o[5]]);
        mix(v, 3, 7, 11, 15, m[o[6]], m[o[7]]);
        mix(v, 0, 5, 10, 15, m[o[8]], m[o[9]]);
        mix(v, 1, 6, 11, 12, m[o[10]], m[o[11]]);
        mix(v, 2, 7, 8, 13, m[o[12]], m[o[13]]);
        mix(v, 3, 4, 9, 14, m[o[14]], m[o[15]]);
    }
    for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[i + 8];
}

uint64_t gq_id_hash(const void *id, size_t size) {
    if (!size) return 0;
    uint64_t state[8];
    memcpy(state, BLAKE_START, sizeof state);
    state[0] ^= 0x01010000 ^ 8;
    const uint8_t *at = id;
    uint64_t so_far = 0;
    while (size > 128) {
        so_far += 128;
        blake_block(state, at, so_far, 0);
        at += 128;
        size -= 128;
    }
    uint8_t block[128] = {0};
    memcpy(block, at, size);
    blake_block(state, block, so_far + size, 1);
    return state[0];
}
