"""Consumes all topics that match a pattern with one group, also topics that are created later.

Needs a node: gossipq node
"""

import gossipq

with gossipq.connect() as mq:
    mq.publish("sensors.rain", b"3 mm")
    # -- in the guide
    for msg in mq.consume("sensors.*", group="weather"):  # or ["sensors.rain", "sensors.wind"]
        with msg:
            print(msg.topic, msg.value.decode())
        # --
        if msg.topic == "sensors.wind":
            break
        mq.publish("sensors.wind", b"7 m/s")
