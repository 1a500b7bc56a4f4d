"""Gives each customer a fair share, and urgent records precedence. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    mq.create_topic("posts", partitions=1, if_not_exists=True)
    mq.publish_many("posts", [b"big 1", b"big 2", b"big 3", b"big 4"], flow="big")
    mq.publish_many("posts", [b"ada 1", b"ada 2"], flow="ada")
    mq.publish("posts", b"urgent", flow="big", priority=9)
    # -- in the guide
    for msg in mq.consume("posts", group="sender", order="fair", credit=1, stop_at_end=True):
        with msg:
            print(msg.value.decode())
    # --
    # -- in the guide
    mq.group("posts", "sender").configure(flow_rate="10/s burst 20", flow_concurrency=2, weights={"ada": 3})
    # --
