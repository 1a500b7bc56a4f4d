/* The sealed batch: PROTOCOL.md section 6. */
#include "pack.h"

#include <stdlib.h>
#include <string.h>

enum { RECORDS_MAX = 65536 };
static const uint8_t MAGIC[4] = {'G', 'Q', 'B', 1};
static const struct {
    uint32_t bit, width;
} FIXED[] = {{1, 4}, {2, 8}, {4, 8}, {8, 4}, {16, 4}, {32, 8}, {64, 4}, {128, 8}, {256, 1}, {512, 8}, {1024, 8}, {2048, 4}};
static const uint32_t KNOWN = 0xfff | GQ_KEYS | GQ_HEADERS | GQ_IDS | GQ_FLOWS | GQ_UNIQUES;

static size_t padded(size_t size) { return (size + 7) & ~(size_t)7; }

static void put_le(uint8_t *out, uint64_t value, int width) {
    for (int i = 0; i < width; i++) out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_le(const uint8_t *at, int width) {
    uint64_t value = 0;
    for (int i = width - 1; i >= 0; i--) value = value << 8 | at[i];
    return value;
}

/* --- packing */

static void begin(gq_column *c, uint32_t count) { /* a column begins when the first record has something for it */
    int32_t zero = 0;
    while (c->ends.size < (count + 1) * sizeof zero && !c->ends.failed) gq_put(&c->ends, &zero, sizeof zero);
}

static void add(gq_column *c, uint32_t count, const void *bytes, size_t size) {
    begin(c, count);
    gq_put(&c->data, bytes, size);
    int32_t end = (int32_t)c->data.size;
    gq_put(&c->ends, &end, sizeof end);
}

void gq_pack(gq_packing *p, const void *value, size_t value_size, const void *key, size_t key_size, uint32_t key_hash,
             const gq_buffer *headers, const void *id, size_t id_size, const gq_terms *terms) {
    int64_t ttl_ms = terms->ttl_ms;
    uint32_t n = p->count++;
    add(&p->values, n, value, value_size);
    if (key_size && !(p->columns & GQ_KEYS)) {
        uint32_t none = 0;
        for (uint32_t i = 0; i < n; i++) gq_put(&p->key_hashes, &none, sizeof none);
        p->columns |= GQ_KEYS | GQ_KEY_HASH;
    }
    if (p->columns & GQ_KEYS) {
        gq_put(&p->key_hashes, &key_hash, sizeof key_hash);
        add(&p->keys, n, key, key_size);
    }
    if (ttl_ms && !(p->columns & GQ_TTL)) {
        int64_t none = 0;
        for (uint32_t i = 0; i < n; i++) gq_put(&p->ttls, &none, sizeof none);
        p->columns |= GQ_TTL;
    }
    if (p->columns & GQ_TTL) gq_put(&p->ttls, &ttl_ms, sizeof ttl_ms);
    if (headers && headers->size) p->columns |= GQ_HEADERS;
    if (p->columns & GQ_HEADERS) add(&p->headers, n, headers ? headers->bytes : NULL, headers ? headers->size : 0);
    if (id_size && !(p->columns & GQ_IDS)) {
        uint64_t none = 0;
        for (uint32_t i = 0; i < n; i++) gq_put(&p->id_hashes, &none, sizeof none);
        p->columns |= GQ_IDS | GQ_ID_HASH;
    }
    if (p->columns & GQ_IDS) {
        uint64_t hash = gq_id_hash(id, id_size);
        gq_put(&p->id_hashes, &hash, sizeof hash);
        add(&p->ids, n, id, id_size);
    }
    if (terms->flow_size && !(p->columns & GQ_FLOWS)) {
        uint64_t none = 0;
        for (uint32_t i = 0; i < n; i++) gq_put(&p->flow_hashes, &none, sizeof none);
        p->columns |= GQ_FLOWS | GQ_FLOW_HASH;
    }
    if (p->columns & GQ_FLOWS) {
        uint64_t hash = gq_id_hash(terms->flow, terms->flow_size);
        gq_put(&p->flow_hashes, &hash, sizeof hash);
        add(&p->flows, n, terms->flow, terms->flow_size);
    }
    if (terms->priority != GQ_DEFAULT_PRIORITY && !(p->columns & GQ_PRIORITY)) {
        uint8_t none = GQ_DEFAULT_PRIORITY;
        for (uint32_t i = 0; i < n; i++) gq_put(&p->priorities, &none, sizeof none);
        p->columns |= GQ_PRIORITY;
    }
    if (p->columns & GQ_PRIORITY) gq_put(&p->priorities, &terms->priority, sizeof terms->priority);
}

size_t gq_packed_bytes(const gq_packing *p) {
    return p->values.data.size + p->keys.data.size + p->headers.data.size + p->ids.data.size + p->flows.data.size;
}

int gq_packing_failed(const gq_packing *p) {
    int failed = p->key_hashes.failed || p->ttls.failed || p->id_hashes.failed || p->places.failed || p->flow_hashes.failed ||
                 p->priorities.failed;
    const gq_column *columns[] = {&p->values, &p->keys, &p->headers, &p->ids, &p->flows};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) failed |= columns[i]->data.failed || columns[i]->ends.failed;
    return failed;
}

static gq_buffer *buffer_of(gq_packing *p, int i) {
    gq_buffer *all[] = {&p->values.data, &p->values.ends, &p->keys.data, &p->keys.ends, &p->headers.data, &p->headers.ends,
                        &p->ids.data, &p->ids.ends, &p->key_hashes, &p->id_hashes, &p->places, &p->ttls, &p->flows.data, &p->flows.ends,
                        &p->flow_hashes, &p->priorities};
    return (size_t)i < sizeof all / sizeof *all ? all[i] : NULL;
}

void gq_packing_reset(gq_packing *p) {
    gq_buffer *b;
    for (int i = 0; (b = buffer_of(p, i)); i++) b->size = (size_t)(b->failed = 0);
    p->count = p->columns = 0;
}

void gq_packing_free(gq_packing *p) {
    gq_buffer *b;
    for (int i = 0; (b = buffer_of(p, i)); i++) gq_buffer_free(b);
}

static size_t column_size(const gq_column *c, uint32_t count) { return padded(4 * ((size_t)count + 1)) + padded(c->data.size); }

static uint32_t columns_of(const gq_packing *p) { return p->columns | (p->delay_ms ? GQ_DELAY : 0); }

size_t gq_sealed_size(const gq_packing *p) {
    size_t size = GQ_BATCH_HEADER + padded(strlen(p->route)), n = p->count;
    uint32_t columns = columns_of(p);
    if (columns & GQ_KEY_HASH) size += padded(4 * n);
    if (columns & GQ_DELAY) size += 8 * n;
    if (columns & GQ_TTL) size += 8 * n;
    if (columns & GQ_ID_HASH) size += 8 * n;
    if (columns & GQ_FLOW_HASH) size += 8 * n;
    if (columns & GQ_PRIORITY) size += padded(n);
    if (columns & GQ_KEYS) size += column_size(&p->keys, p->count);
    if (columns & GQ_HEADERS) size += column_size(&p->headers, p->count);
    if (columns & GQ_IDS) size += column_size(&p->ids, p->count);
    if (columns & GQ_FLOWS) size += column_size(&p->flows, p->count);
    return size + column_size(&p->values, p->count);
}

static uint8_t *put_part(uint8_t *out, const void *bytes, size_t size) {
    if (size) memcpy(out, bytes, size);
    memset(out + size, 0, padded(size) - size);
    return out + padded(size);
}

static uint8_t *put_same(uint8_t *out, int64_t value, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) put_le(out + 8 * (size_t)i, (uint64_t)value, 8);
    return out + 8 * (size_t)count;
}

static uint8_t *put_column(uint8_t *out, const gq_column *c) {
    return put_part(put_part(out, c->ends.bytes, c->ends.size), c->data.bytes, c->data.size);
}

/* The numbers of columns are those of this machine while they are packed. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "columns are written as they lie in memory: a machine of the other byte order has to turn them"
#endif

void gq_seal(const gq_packing *p, const uint8_t producer[16], uint64_t sequence, int64_t publish_ms, uint8_t *out) {
    size_t size = gq_sealed_size(p), route = strlen(p->route);
    uint32_t columns = columns_of(p);
    memset(out, 0, GQ_BATCH_HEADER);
    memcpy(out, MAGIC, 4);
    put_le(out + 8, size, 4);
    put_le(out + 12, p->count, 4);
    put_le(out + 40, (uint64_t)publish_ms, 8);
    put_le(out + 48, columns, 4);
    put_le(out + 52, route, 2);
    uint8_t *at = put_part(out + GQ_BATCH_HEADER, p->route, route);
    if (columns & GQ_KEY_HASH) at = put_part(at, p->key_hashes.bytes, p->key_hashes.size);
    if (columns & GQ_DELAY) at = put_same(at, p->delay_ms, p->count);
    if (columns & GQ_TTL) at = put_part(at, p->ttls.bytes, p->ttls.size);
    if (columns & GQ_ID_HASH) at = put_part(at, p->id_hashes.bytes, p->id_hashes.size);
    if (columns & GQ_FLOW_HASH) at = put_part(at, p->flow_hashes.bytes, p->flow_hashes.size);
    if (columns & GQ_PRIORITY) at = put_part(at, p->priorities.bytes, p->priorities.size);
    if (columns & GQ_KEYS) at = put_column(at, &p->keys);
    if (columns & GQ_HEADERS) at = put_column(at, &p->headers);
    if (columns & GQ_IDS) at = put_column(at, &p->ids);
    if (columns & GQ_FLOWS) at = put_column(at, &p->flows);
    put_column(at, &p->values);
    gq_restamp(out, size, producer, sequence);
}

void gq_restamp(uint8_t *sealed, size_t size, const uint8_t producer[16], uint64_t sequence) {
    memcpy(sealed + 16, producer, 16);
    put_le(sealed + 32, sequence, 8);
    put_le(sealed + 4, gq_crc32(sealed + 8, size - 8), 4);
}

/* --- opening */

static int32_t end_at(const uint8_t *ends, uint32_t index) { return (int32_t)(uint32_t)get_le(ends + 4 * (size_t)index, 4); }

/* Returns the start of the next column, or NULL if these bytes are not a column. */
static const uint8_t *open_column(const uint8_t *at, const uint8_t *end, uint32_t count, gq_opened_column *column) {
    size_t ends = padded(4 * ((size_t)count + 1));
    if ((size_t)(end - at) < ends) return NULL;
    column->ends = at;
    column->data = at + ends;
    int32_t before = end_at(at, 0);
    if (before < 0) return NULL;
    for (uint32_t i = 1; i <= count; i++) {
        int32_t now = end_at(at, i);
        if (now < before) return NULL;
        before = now;
    }
    size_t data = padded((size_t)before - (size_t)end_at(at, 0));
    return (size_t)(end - column->data) < data ? NULL : column->data + data;
}

int gq_open_batch(const uint8_t *bytes, size_t size, gq_opened *o) {
    memset(o, 0, sizeof *o);
    if (size < GQ_BATCH_HEADER || memcmp(bytes, MAGIC, 4) || get_le(bytes + 8, 4) != size) return 0;
    uint32_t columns = (uint32_t)get_le(bytes + 48, 4);
    o->count = (uint32_t)get_le(bytes + 12, 4);
    o->publish_ms = (int64_t)get_le(bytes + 40, 8);
    o->route_size = (size_t)get_le(bytes + 52, 2);
    o->route = (const char *)bytes + GQ_BATCH_HEADER;
    if (!o->count || o->count > RECORDS_MAX || columns & ~KNOWN || gq_crc32(bytes + 8, size - 8) != get_le(bytes + 4, 4)) return 0;
    const uint8_t *end = bytes + size, *at = bytes + GQ_BATCH_HEADER;
    size_t skip = padded(o->route_size);
    size_t ttls = 0, priorities = 0;
    for (size_t i = 0; i < sizeof FIXED / sizeof *FIXED; i++) {
        if (FIXED[i].bit == GQ_TTL) ttls = skip;
        if (FIXED[i].bit == GQ_PRIORITY) priorities = skip;
        if (columns & FIXED[i].bit) skip += padded((size_t)o->count * FIXED[i].width);
    }
    if ((size_t)(end - at) < skip) return 0;
    if (columns & GQ_TTL) o->ttls = at + ttls;
    if (columns & GQ_PRIORITY) o->priorities = at + priorities;
    at += skip;
    if (columns & GQ_KEYS) at = open_column(at, end, o->count, &o->keys);
    if (at && columns & GQ_HEADERS) at = open_column(at, end, o->count, &o->headers);
    if (at && columns & GQ_IDS) at = open_column(at, end, o->count, &o->ids);
    if (at && columns & GQ_FLOWS) at = open_column(at, end, o->count, &o->flows);
    if (at && columns & GQ_UNIQUES) at = open_column(at, end, o->count, &o->uniques);
    if (at) at = open_column(at, end, o->count, &o->values);
    return at == end;
}

int64_t gq_ttl_at(const gq_opened *o, uint32_t index) { return o->ttls ? (int64_t)get_le(o->ttls + 8 * (size_t)index, 8) : 0; }

uint8_t gq_priority_at(const gq_opened *o, uint32_t index) { return o->priorities ? o->priorities[index] : GQ_DEFAULT_PRIORITY; }

size_t gq_column_at(const gq_opened_column *column, uint32_t index, const void **bytes) {
    if (!column->ends) {
        *bytes = "";
        return 0;
    }
    int32_t base = end_at(column->ends, 0), first = end_at(column->ends, index);
    *bytes = column->data + (first - base);
    return (size_t)(end_at(column->ends, index + 1) - first);
}
