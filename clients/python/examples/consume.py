"""Consumes records one by one. The consumers of a group share them. Needs a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    for msg in mq.consume("orders", group="billing", stop_at_end=True):
        with msg:  # acks at its end; an exception fails the record (redelivered after 1 s)
            print(msg.offset, msg.key, msg.value.decode(), msg.headers)
