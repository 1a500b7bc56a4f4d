"""Handles records of one key in order, one at a time. Records of other keys do not wait.

Needs a node: gossipq node
"""

import gossipq

CHANGES = [("ada", b"ada +5"), ("ada", b"ada -1"), ("bob", b"bob +2"), ("bob", b"bob -2")]
done = []

with gossipq.connect() as mq:
    mq.publish_many("accounts", [value for _, value in CHANGES], keys=[key for key, _ in CHANGES])
    # -- in the guide
    for msg in mq.consume("accounts", group="ledger", mode="key_ordered"):
        with msg:  # no other consumer of the group has a record of this key now
            if msg.value == b"ada +5" and msg.attempt == 1:
                raise gossipq.Retry("300ms")  # the later records of ada wait for it
            done.append(msg.value.decode())
        # --
        if len(done) == len(CHANGES):
            break
    print(done)
