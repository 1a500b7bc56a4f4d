"""Asks why a record does not move, and prints its history. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    parcel = mq.publish("parcels", b"to ada", delay="1h")
    # -- in the guide
    for standing in mq.record(parcel.ref).why().standings:
        print(standing.state, "-", standing.because, "-", standing.next)
    mq.record(parcel.ref).cancel(reason="lost")
    for step in mq.record(parcel.ref).trace():
        print(step.what, step.reason)
    # --
