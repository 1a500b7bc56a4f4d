"""Publishes the same order twice. The cluster stores it once, because both have the same id.

Needs a node: gossipq node
"""

import gossipq

with gossipq.connect() as mq:
    # -- in the guide
    for _ in range(2):  # say, a program that was not sure and started over
        receipt = mq.publish("incoming", b"17 apples", id="order-17")
        print(receipt.ref, "known already" if receipt.duplicate else "new")
    # --
