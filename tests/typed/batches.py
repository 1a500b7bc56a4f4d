"""Handlers of batches, in modules, with hooks; and lists that are published and read."""

from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID, uuid4

from gossipq import Handlers, Message, Reject, connect

sales = Handlers()


@dataclass
class Sale:
    id: UUID
    amount: Decimal


@sales.on_startup
def begin() -> None:
    print("begins")


@sales.consumer("sales", group="totals", batch_size=500, batch_wait="1s", workers=2)
def add(batch: list[Sale]) -> None:
    if not batch:
        raise Reject("an empty batch")
    print(sum(sale.amount for sale in batch))


@sales.consumer("sales", group="checks", batch_size=10)
async def check(batch: list[Sale], messages: list[Message]) -> None:
    for sale, msg in zip(batch, messages, strict=True):
        if sale.amount < 0:
            await msg_reject(msg)


async def msg_reject(msg: Message) -> None:
    msg.reject("less than nothing")


def main() -> None:
    with connect() as mq:
        mq.include(sales)
        receipt = mq.publish_many("sales", [Sale(uuid4(), Decimal("1.5")) for _ in range(1_000)])
        mq.run(stop_at_end=True, max_records=receipt.count)
        total = sum((record.data.amount for record in mq.read("sales", Sale)), Decimal())
        print(total)


if __name__ == "__main__":
    main()
