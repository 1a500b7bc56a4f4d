"""Retries a record after a pause, and rejects a record that is wrong. Needs a node: gossipq node"""

import gossipq

paid = []


def pay(payment: gossipq.Message) -> None:
    if not payment.value.endswith(b"EUR"):
        raise gossipq.Reject("not an amount")  # a dead letter at once
    if payment.attempt < 3:
        raise gossipq.Retry(reason="the bank is closed")  # a failure; Retry("1h") names the pause
    paid.append(payment.value)


with gossipq.connect() as mq:
    mq.publish_many("payments", [b"10 EUR", b"nonsense", b"20 EUR"])
    # -- in the guide
    for msg in mq.consume("payments", group="bank", attempts_max=5, backoff=["100ms", "1s", "10m"]):
        with msg:  # acks at its end; after its fifth exception a record is a dead letter
            pay(msg)
        # --
        print(msg.value.decode(), "attempt", msg.attempt)
        if len(paid) == 2:
            break
