"""Publishes once and stores a copy in each of several topics. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    # -- in the guide
    mq.topic("new-orders").bind(["billing-in", "audit-in"])
    mq.publish("new-orders", b"17 apples")  # done when both have it
    # --
    for name in ("billing-in", "audit-in"):
        for msg in mq.consume(name, group="copies", stop_at_end=True):
            with msg:
                print(name, msg.value.decode())
