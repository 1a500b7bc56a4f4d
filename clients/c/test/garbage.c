/* Against somebody at $GOSSIPQ_SERVER who answers nonsense: nothing is believed, and nothing breaks. */
#include <gossipq.h>
#include <stdio.h>

int main(void) {
    gq *mq;
    gq_record r = {.value = "x", .value_size = 1};
    if (gq_open(&mq, NULL)) return 2;
    for (int i = 0; i < 20; i++) {
        int code = gq_publish(mq, "orders", &r, 1, NULL, NULL, 100);
        if (code == GQ_MEMORY) return 1;
        if (code == GQ_OK) fprintf(stderr, "nonsense was taken for a confirm\n");
        gq_ping(mq);
    }
    gq_close(mq);
    return 0;
}
