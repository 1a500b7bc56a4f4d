/* msgpack, the sealed batch, CRC-32, HMAC-SHA256 and BLAKE2b, as far as the client needs them. */
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
/* Write a reason as UTF-8: invalid bytes as ?, and at most its first 2 KiB, because nodes do not keep more. */
void gq_put_reason(gq_buffer *out, const char *text);
/* Bytes of the character of UTF-8 that begins there; 0: none does. */
size_t gq_character(const char *text);
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

int gq_process(void); /* its number */

uint32_t gq_crc32(const void *bytes, size_t size);
void gq_hmac_sha256(const uint8_t *key, size_t key_size, const void *text, size_t size, uint8_t digest[32]);
uint64_t gq_id_hash(const void *id, size_t size); /* of no id: 0 */
uint32_t gq_key_hash(const void *key, size_t size);

/* --- the sealed batch, PROTOCOL.md section 6 */

enum { GQ_KEY_HASH = 1, GQ_DELAY = 2, GQ_TTL = 4, GQ_ID_HASH = 32, GQ_FLOW_HASH = 128, GQ_PRIORITY = 256 };
enum { GQ_KEYS = 0x10000, GQ_HEADERS = 0x20000, GQ_IDS = 0x40000, GQ_FLOWS = 0x80000, GQ_UNIQUES = 0x100000 };
enum { GQ_DEFAULT_PRIORITY = 5 };
enum { GQ_BATCH_HEADER = 56 };

typedef struct {
    gq_buffer data, ends; /* ends: int32, one more than there are records, once there is one */
} gq_column;

/* A batch that is being packed. `columns` has a bit for each column that at least one record uses. */
typedef struct packing {
    uint32_t count, columns;
    gq_column values, keys, headers, ids, flows;
    /* ttls: int64 each, in milliseconds, 0 = as the topic says; priorities: a byte each */
    gq_buffer key_hashes, ttls, id_hashes, flow_hashes, priorities, places;
    char route[256];
    int64_t delay_ms, began_ms;
} gq_packing;

size_t gq_packed_bytes(const gq_packing *p);
int gq_packing_failed(const gq_packing *p);
void gq_packing_reset(gq_packing *p);
void gq_packing_free(gq_packing *p);
typedef struct {
    int64_t ttl_ms;
    const void *flow;
    size_t flow_size;
    uint8_t priority;
} gq_terms;

/* Add one record. `headers` is a msgpack map, of size 0 for a record without headers. */
void gq_pack(gq_packing *p, const void *value, size_t value_size, const void *key, size_t key_size, uint32_t key_hash,
             const gq_buffer *headers, const void *id, size_t id_size, const gq_terms *terms);
size_t gq_sealed_size(const gq_packing *p);
void gq_seal(const gq_packing *p, const uint8_t producer[16], uint64_t sequence, int64_t publish_ms, uint8_t *out);
void gq_restamp(uint8_t *sealed, size_t size, const uint8_t producer[16], uint64_t sequence);

typedef struct {
    const uint8_t *ends, *data; /* ends: count + 1 of int32; NULL: there is no such column */
} gq_opened_column;

typedef struct {
    uint32_t count;
    int64_t publish_ms;
    const char *route;
    size_t route_size;
    const uint8_t *ttls, *priorities; /* NULL: no record has its own */
    gq_opened_column values, keys, headers, ids, flows, uniques;
} gq_opened;

/* True if these bytes are a batch. Then all pointers of `opened` are within them. */
int gq_open_batch(const uint8_t *bytes, size_t size, gq_opened *opened);
int64_t gq_ttl_at(const gq_opened *opened, uint32_t index);
uint8_t gq_priority_at(const gq_opened *opened, uint32_t index);
size_t gq_column_at(const gq_opened_column *column, uint32_t index, const void **bytes);

#endif
