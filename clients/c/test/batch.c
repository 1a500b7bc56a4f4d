/* Seals records of every kind and opens them again. Then opens the same bytes with some of them changed and a correct CRC: a reader of any
 * accepted batch must stay within its bytes. For valgrind. */
#include "pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 3000, RECORDS = 9 };
static const uint8_t PRODUCER[16] = "producer";

static unsigned walk(const gq_opened *o) { /* looks at every byte, so that valgrind sees what lies outside */
    const gq_opened_column *columns[] = {&o->values, &o->keys, &o->headers, &o->ids, &o->flows, &o->uniques};
    unsigned sum = 0;
    for (uint32_t i = 0; i < o->count; i++) sum += (unsigned)gq_ttl_at(o, i) + gq_priority_at(o, i);
    for (size_t i = 0; i < o->route_size; i++) sum += (unsigned char)o->route[i];
    for (uint32_t i = 0; i < o->count; i++)
        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
            const void *bytes;
            size_t size = gq_column_at(columns[c], i, &bytes);
            for (size_t k = 0; k < size; k++) sum += ((const uint8_t *)bytes)[k];
        }
    return sum;
}

static int64_t ttl_of(unsigned kind, unsigned i) { return kind & 4 && i % 3 ? 5000 + i : 0; } /* a batch may have several */

static size_t flow_of(unsigned kind, unsigned i) { return kind & 64 && i % 4 ? 3 : 0; }
static uint8_t priority_of(unsigned kind, unsigned i) { return (uint8_t)(kind & 128 && i % 2 ? i : GQ_DEFAULT_PRIORITY); }

static int has_its_terms(unsigned kind, const gq_opened *o) {
    for (uint32_t i = 0; i < o->count; i++) {
        const void *flow;
        if (gq_ttl_at(o, i) != ttl_of(kind, i) || gq_priority_at(o, i) != priority_of(kind, i)) return 0;
        if (gq_column_at(&o->flows, i, &flow) != flow_of(kind, i)) return 0;
    }
    return 1;
}

static int sealed(unsigned kind, uint8_t **out, size_t *size) {
    gq_packing p = {0};
    gq_buffer headers = {0};
    gq_put_map(&headers, 1);
    gq_put_text(&headers, "name");
    gq_put_bytes(&headers, "value", 5);
    snprintf(p.route, sizeof p.route, "%s", kind & 1 ? "eu.fr" : "");
    p.delay_ms = kind & 2 ? 1000 : 0;
    for (unsigned i = 0; i < RECORDS; i++) {
        char value[32];
        int length = snprintf(value, sizeof value, "%.*u", (int)(i * 2), i);
        int key = kind & 8 && i % 2, id = kind & 16 && i % 3;
        gq_terms terms = {ttl_of(kind, i), "ada", flow_of(kind, i), priority_of(kind, i)};
        gq_pack(&p, value, (size_t)length, "key", key ? 3 : 0, key ? gq_key_hash("key", 3) : 0, kind & 32 && i % 4 ? &headers : NULL, "id",
                id ? 2 : 0, &terms);
    }
    *size = gq_sealed_size(&p);
    *out = malloc(*size);
    if (*out) gq_seal(&p, PRODUCER, 7, 12345, *out);
    gq_packing_free(&p);
    gq_buffer_free(&headers);
    return *out != NULL;
}

int main(void) {
    unsigned sum = 0, taken = 0;
    srand(7);
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint8_t *bytes;
        size_t size;
        gq_opened o;
        if (!sealed(round % 256, &bytes, &size)) return 2;
        if (!gq_open_batch(bytes, size, &o) || o.count != RECORDS || o.publish_ms != 12345 || !has_its_terms(round % 256, &o)) {
            fprintf(stderr, "round %u: what was sealed does not open\n", round);
            return 1;
        }
        sum += walk(&o);
        for (int changes = rand() % 4 + 1; changes--;) bytes[8 + (size_t)rand() % (size - 8)] = (uint8_t)(rand() % 3 ? rand() : 0xff);
        size_t cut = rand() % 4 ? size : (size_t)rand() % size;
        uint8_t *exact = malloc(cut ? cut : 1); /* so that one byte too far is seen */
        if (!exact) return 2;
        memcpy(exact, bytes, cut);
        if (cut >= GQ_BATCH_HEADER) gq_restamp(exact, cut, PRODUCER, 7);
        if (gq_open_batch(exact, cut, &o)) {
            taken++;
            sum += walk(&o);
        }
        free(exact);
        free(bytes);
    }
    printf("%u changed ones opened, %u\n", taken, sum);
    return 0;
}
