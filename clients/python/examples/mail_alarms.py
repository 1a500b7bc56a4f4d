"""Mails the alarms of the last half hour, each half hour.

python mail_alarms.py SMTPHOST:PORT FROM TO
python mail_alarms.py localhost:25 gossipq@host me@host
"""

import json
import smtplib
import sys
import time
from email.message import EmailMessage

import gossipq

HALF_HOUR_S = 1_800


def report(events: list[dict], sender: str, to: str) -> EmailMessage:
    """Return a mail: first the alarms that are still raised, then the cleared ones."""
    last = {(event["node"], event["name"], event["subject"]): event for event in events}
    raised = [event for event in last.values() if event["event"] == "raised"]
    over = [event for event in last.values() if event["event"] == "cleared"]
    mail = EmailMessage()
    mail["From"], mail["To"] = sender, to
    mail["Subject"] = f"gossipq: {len(raised)} raised, {len(over)} cleared"
    lines = [f"{e['severity'].upper()} on {e['node']}: {e['text']}\n  {e['command']}" for e in raised]
    lines += [f"cleared on {event['node']}: {event['name']} {event['subject']}" for event in over]
    mail.set_content("\n\n".join(lines) + "\n")
    return mail


def send(mq: gossipq.Client, smtp: str, sender: str, to: str) -> int:
    """Mail all new events, and ack them when the mail server has the mail. Return their number."""
    batches = []
    while batch := mq.fetch("_alarms", group="mail", n=1_000, wait=1.0):
        batches.append(batch)
    events = [json.loads(value) for batch in batches for value in batch.values()]
    if events:
        with smtplib.SMTP(smtp, timeout=30) as server:  # if it raises, the events are redelivered
            server.send_message(report(events, sender, to))
        for batch in batches:
            mq.ack(batch)
    return len(events)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    with gossipq.connect() as mq:
        while True:
            send(mq, *sys.argv[1:4])
            time.sleep(HALF_HOUR_S)
