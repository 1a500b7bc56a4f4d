"""Opens a durable queue in a directory, without a server."""

import gossipq

with gossipq.embedded.open("queue") as mq:
    mq.publish("jobs", b"resize cat.png", headers={"width": "640"})
    batch = mq.fetch("jobs", group="workers", n=10)
    for msg in batch:
        print(msg.offset, msg.value.decode(), msg.headers["width"])
    mq.ack(batch)
