"""Fetches records and acks them in batches, which is the fastest way. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    while batch := mq.fetch("orders", group="archive", n=1000, wait=0.5):
        print(len(batch), "records,", sum(map(len, batch.values())), "bytes")
        mq.ack_soon(batch)
