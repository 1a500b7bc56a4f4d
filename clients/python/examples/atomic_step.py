"""Acks a record and publishes its result in one step: the cluster stores both, or neither.

Needs a node: gossipq node
"""

import gossipq

with gossipq.connect() as mq:
    # -- in the guide
    mq.create_topic("words", if_not_exists=True)
    mq.create_topic("lengths", beside="words", if_not_exists=True)  # in one shard: one entry of its log
    # --
    mq.publish_many("words", [b"apple", b"fig"])
    # -- in the guide
    for msg in mq.consume("words", group="measure", stop_at_end=True):
        msg.ack_with("lengths", f"{msg.value.decode()} {len(msg.value)}")  # or neither
    # --
    for msg in mq.read("lengths"):
        print(msg.value.decode())
