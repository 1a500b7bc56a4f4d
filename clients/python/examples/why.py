"""Asks why a record does not move, and what happened to it. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    parcel = mq.publish("parcels", b"to ada", delay="1h")
    # -- in the guide
    for standing in mq.why(ref=parcel.ref).standings:
        print(standing.state, "-", standing.because, "-", standing.next)
    mq.cancel(ref=parcel.ref, reason="lost")
    for step in mq.admin.trace(ref=parcel.ref):
        print(step.what, step.reason)
    # --
