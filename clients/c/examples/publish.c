#include <gossipq.h>
#include <stdio.h>

int main(void) {
    gq *mq;
    gq_place place;
    gq_record coffee = {.value = "one coffee", .value_size = 10, .key = "ada", .key_size = 3};
    if (gq_open(&mq, NULL)) return 1; /* $GOSSIPQ_SERVER, or tcp://127.0.0.1:7700 */
    int code = gq_publish(mq, "orders", &coffee, 1, NULL, &place, 10000);
    if (code) fprintf(stderr, "%s\n", gq_error(mq));
    else printf("stored at offset %lld\n", (long long)place.offset);
    gq_close(mq);
    return code;
}
