"""Publishes records for later: after a delay, or at a time. Reschedules one of them.

Needs a node: gossipq node
"""

from datetime import UTC, datetime, timedelta

import gossipq

with gossipq.connect() as mq:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    # -- in the guide
    mq.publish("reminders", "tea is ready", delay="1s", ttl="10m")  # useless after ten minutes
    call = mq.publish("reminders", "call ada", at=tomorrow)
    mq.record(call.ref).reschedule(delay="2s")  # or .cancel()
    # --
    print("scheduled as", call.ref)
    for msg in mq.consume("reminders", group="me"):
        with msg:
            print(msg.value.decode())
        if msg.value == b"call ada":
            break
