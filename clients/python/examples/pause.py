"""Stops a group without stopping its consumers. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    mq.publish_many("jobs", [b"resize cat.png", b"resize dog.png"])
    workers = mq.consume("jobs", group="workers")
    with next(workers) as msg:
        print(msg.value.decode())
    # -- in the guide
    mq.admin.pause("jobs", "workers")  # nothing is handed out; records in flight can still be acked
    for stand in mq.admin.why_group("jobs", "workers"):
        print(stand.state, "-", stand.because, "-", stand.next)
    mq.admin.resume("jobs", "workers")
    # --
    with next(workers) as msg:
        print(msg.value.decode())
