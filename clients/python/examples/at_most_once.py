"""Acks records on delivery, for records that are worthless when they are old. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    mq.publish_many("ticks", [b"17.3", b"17.4"])
    # -- in the guide
    for msg in mq.consume("ticks", group="screen", ack=False, stop_at_end=True):
        print(msg.value.decode())  # no ack; records in flight are lost if this program dies
    # --
    print("acked", sum(row.acked for row in mq.topic("ticks").groups()))
