"""Acks records on delivery, for records that are worthless when they are old. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    mq.publish_many("ticks", [b"17.3", b"17.4"])
    # -- in the guide
    for msg in mq.consume("ticks", group="screen", ack=False, stop_at_end=True):
        print(msg.value.decode())  # nothing to ack; what is on its way when this dies is not sent again
    # --
    print("acked", sum(row.acked for row in mq.topic("ticks").groups()))
