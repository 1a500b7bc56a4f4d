"""Publishes, consumes by a loop, acks and rejects."""

from dataclasses import dataclass

import msgspec

from gossipq_client import Client, LeaseLost, NotConfirmed, Receipt, Reject, Retry, connect


@dataclass
class Order:
    id: str
    cents: int


def publish(mq: Client, orders: list[Order]) -> list[Receipt]:
    pending = [mq.post("orders", order, key=order.id, ttl="1h", id=order.id) for order in orders]
    receipts: list[Receipt] = []
    for each in pending:
        try:
            receipts.append(each.result(timeout="5s"))
        except NotConfirmed as error:
            print(error.message, error.hint)
    return receipts


def work(mq: Client) -> int:
    cents = 0
    with mq.subscribe("orders", group="billing", start="first", backoff=["1s", "30s"], wait="1m") as sub:
        for msg in sub:
            with msg:
                order = msgspec.json.decode(msg.value, type=Order)
                if order.cents < 0:
                    raise Reject("negative")
                if msg.attempt > 3:
                    raise Retry(delay="5m")
                cents += order.cents
            if cents > 1_000:
                sub.stop()
    return cents


def main() -> None:
    with connect("tcp://127.0.0.1:7700", timeout=5) as mq:
        mq.create_topic("orders", 4, retention="7d", if_not_exists=True)
        first: Receipt = mq.publish("orders", Order("a", 1), timeout=30)
        print(first.ref, publish(mq, [Order("b", 2)]))
        try:
            print(work(mq))
        except LeaseLost as lost:
            print(lost)


if __name__ == "__main__":
    main()
