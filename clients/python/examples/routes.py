"""Consumes only records of some routes. Other records wait for a consumer that takes them.

Needs a node: gossipq node
"""

import gossipq

with gossipq.connect() as mq:
    # -- in the guide
    mq.publish("trades", b"17 apples", route="eu.fr")
    mq.publish("trades", b"3 pears", route="us.ny")
    for msg in mq.consume("trades", group="desk", route=["eu.*", "asia.#"], stop_at_end=True):
        with msg:
            print(msg.route, msg.value.decode())
    # --
    print("nobody takes", sum(row.unmatched for row in mq.topic("trades").groups()))
