"""Takes records by the batch, and acks by the batch: the fast way. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    while batch := mq.fetch("orders", group="archive", n=1000, wait=0.5):
        print(len(batch), "records,", sum(map(len, batch.values())), "bytes")
        mq.ack_soon(batch)
