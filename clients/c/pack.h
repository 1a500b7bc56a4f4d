/* msgpack, CRC-32 and HMAC-SHA256, as far as the client needs them. */
#ifndef GOSSIPQ_PACK_H
#define GOSSIPQ_PACK_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint8_t *bytes;
    size_t size, room;
    int failed; /* no memory: what was put since is missing */
} gq_buffer;

void gq_put(gq_buffer *out, const void *bytes, size_t size);
void gq_put_array(gq_buffer *out, uint32_t count);
void gq_put_map(gq_buffer *out, uint32_t count);
void gq_put_int(gq_buffer *out, int64_t value);
void gq_put_bool(gq_buffer *out, int value);
void gq_put_nil(gq_buffer *out);
void gq_put_text(gq_buffer *out, const char *text);
void gq_put_bytes(gq_buffer *out, const void *bytes, size_t size);
void gq_buffer_free(gq_buffer *out);

typedef struct {
    const uint8_t *at, *end;
    int bad; /* it is not what was asked for: all answers are 0 since */
} gq_reader;

uint32_t gq_get_array(gq_reader *in);
uint32_t gq_get_map(gq_reader *in);
int64_t gq_get_int(gq_reader *in);
int gq_get_bool(gq_reader *in);
size_t gq_get_bytes(gq_reader *in, const uint8_t **bytes); /* bytes or a text */
void gq_skip(gq_reader *in);

uint32_t gq_crc32(const void *bytes, size_t size);
void gq_hmac_sha256(const uint8_t *key, size_t key_size, const void *text, size_t size, uint8_t digest[32]);

#endif
