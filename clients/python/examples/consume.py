"""Consumes records one by one. The consumers of a group share them. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    for msg in mq.consume("orders", group="billing", stop_at_end=True):
        with msg:  # left well: acked; left by an exception: failed, comes again after a second
            print(msg.offset, msg.key, msg.value.decode(), msg.headers)
