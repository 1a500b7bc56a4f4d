"""Publishes records by schedules: at 7 o'clock on weekdays, and each second. Needs a node: gossipq node"""

from zoneinfo import ZoneInfo

import gossipq

with gossipq.connect() as mq:
    # -- in the guide
    mq.schedule("reports", {"kind": "daily"}, name="nightly", cron="0 7 * * mon-fri", tz="Europe/Berlin")
    mq.schedule("pulse", b"beat", name="seconds", every="1s", overlap="skip")
    for at in mq.schedules.show("reports", "nightly").next[:2]:
        print("next at", at.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M"))
    mq.schedules.run("reports", "nightly")  # one record now, besides
    # --
    (report,) = mq.fetch("reports", "printers", n=1, wait=5)
    print("report", report.value.decode())
    report.ack()
    (beat,) = mq.fetch("pulse", "doctors", n=1, wait=10)
    print("pulse", beat.value.decode())
    beat.ack()
    mq.schedules.remove("pulse", "seconds")
