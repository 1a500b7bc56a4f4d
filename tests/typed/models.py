"""Models of pydantic: published, consumed, fetched, read and handled as what they are."""

from pydantic import BaseModel

from gossipq import Client, Message, Receipt, Record, Subscription, connect


class Order(BaseModel):
    id: str
    cents: int


class Refund(BaseModel):
    order: Order


def bill(mq: Client) -> int:
    cents = 0
    orders: Subscription[Order] = mq.consume("orders", Order, group="billing", stop_at_end=True)
    for msg in orders:
        with msg:
            cents += msg.data.cents
    return cents


def pack(mq: Client) -> list[Order]:
    batch = mq.fetch("orders", Order, "packing", n=100, wait="100ms")
    orders = [msg.data for msg in batch]
    mq.ack(batch)
    return orders


def largest(mq: Client) -> Record[Order] | None:
    return max(mq.read("orders", Order), key=lambda record: record.data.cents, default=None)


def raw(mq: Client) -> bytes:
    for msg in mq.consume("orders", "archive"):
        return msg.data
    return b""


mq = connect()


@mq.consumer("refunds", group="billing")
def pay_back(refund: Refund, msg: Message) -> str:
    return f"{refund.order.id} {msg.ref}"


@mq.consumer("refunds", group="notices")
def tell(msg: Message[Refund]) -> int:
    return msg.data.order.cents


if __name__ == "__main__":
    receipt: Receipt = mq.publish("orders", Order(id="a", cents=5))
    print(receipt.offset, bill(mq), pack(mq), largest(mq), raw(mq))
