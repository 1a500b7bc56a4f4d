"""Finds a record by its value, replaces it, and delivers it again. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    mq.publish_many("letters", [b"Dear Ada", b"Deer Bob"])
    # -- in the guide
    for msg in mq.read("letters", start="-1h").where(contains="Deer", limit=10):
        new = mq.record(msg.topic, msg.partition, msg.offset).edit(value="Dear Bob")  # both or neither
    # --
    for msg in mq.consume("letters", group="post", stop_at_end=True):
        with msg:
            print(msg.offset, msg.value.decode())
    mq.flush()
    # -- in the guide
    mq.record(new.ref).requeue(group="post")  # redelivered, to this group only
    # --
    print("again:", mq.fetch("letters", "post").values())
