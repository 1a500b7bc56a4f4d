"""Lets one consumer of a group work at a time. Another one takes over when it ends.

Needs a node: gossipq node
"""

import gossipq

with gossipq.connect() as first, gossipq.connect() as second:
    first.publish_many("steps", [b"lift", b"turn"])
    # -- in the guide
    robot = first.consume("steps", group="robot", mode="exclusive")  # strictly serial: one record under way
    with next(robot) as msg:
        print("first:", msg.value.decode())
    # --
    print("second:", second.fetch("steps", "robot", mode="exclusive", wait=0.5).values())
    robot.close()  # or its process dies
    batch = second.fetch("steps", "robot", mode="exclusive", wait=10)
    print("second:", batch.values())
    second.ack(batch)
