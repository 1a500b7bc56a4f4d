"""Pauses a group. Its consumers stay connected and get no records until it is resumed.

Needs a node: gossipq node
"""

import gossipq

with gossipq.connect() as mq:
    mq.publish_many("jobs", [b"resize cat.png", b"resize dog.png"])
    workers = mq.consume("jobs", group="workers")
    with next(workers) as msg:
        print(msg.value.decode())
    # -- in the guide
    mq.group("jobs", "workers").pause()  # delivers nothing; records in flight can still be acked
    for stand in mq.group("jobs", "workers").why():
        print(stand.state, "-", stand.because, "-", stand.next)
    mq.group("jobs", "workers").resume()
    # --
    with next(workers) as msg:
        print(msg.value.decode())
