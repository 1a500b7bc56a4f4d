"""Publishes a report twice under one name, and three versions of a page. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    # -- in the guide
    first = mq.publish("reports", "report 7", unique="report:7")
    again = mq.publish("reports", "report 7", unique="report:7")  # nobody has acked the first one
    print(again.kept, again.ref == first.ref)
    for version in (1, 2, 3):  # debounce: one record, a second after the last change
        mq.publish("index", f"version {version}", unique="page:4", delay="1s", conflict="replace")
    # --
    (page,) = mq.fetch("index", "indexers", n=2, wait=30)
    print(page.value.decode())
    page.ack()
