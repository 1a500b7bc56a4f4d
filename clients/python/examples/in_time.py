"""Reads all partitions of a topic as one stream, in the order of publish time. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    mq.create_topic("trips", partitions=4, if_not_exists=True)
    for number in range(20):
        mq.publish("trips", b"trip %d" % number, key=b"car %d" % (number % 7))
    # -- in the guide
    for msg in mq.read("trips", order="time", late_after="10s"):
        print(msg.value.decode(), "late" if msg.late else "in time")
    # --
