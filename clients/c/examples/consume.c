#include <gossipq.h>
#include <stdio.h>

int main(void) {
    gq *mq;
    gq_subscription *orders;
    gq_message m;
    if (gq_open(&mq, NULL) || gq_subscribe(mq, "orders", "kitchen", NULL, &orders)) return 1;
    while (gq_next(orders, &m, 5000) == GQ_OK) {
        printf("%.*s: %.*s\n", (int)m.key_size, (const char *)m.key, (int)m.value_size, (const char *)m.value);
        gq_ack(orders, m.partition, m.offset); /* or gq_nack(..): then it comes again */
    }
    gq_close(mq);
    return 0;
}
