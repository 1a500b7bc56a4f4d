"""The asyncio twin: many under way, a fetch, an atomic step."""

import asyncio

from gossipq_client import Backpressure, Receipt, aio


async def produce(mq: aio.Client, count: int) -> list[Receipt]:
    pending: list[aio.PendingReceipt] = []
    for number in range(count):
        try:
            pending.append(mq.post("lines", f"{number}", wait=1.0, headers={"n": str(number)}))
        except Backpressure:
            await mq.flush("5s")
    return [await each for each in pending]


async def step(mq: aio.Client) -> int:
    done = 0
    for msg in await mq.fetch("lines", "steps", n=10, wait="100ms"):
        receipt = await msg.ack_with("counts", msg.value, timeout=5)
        done += receipt.count
    async for msg in mq.consume("counts", "sums", stop_at_end=True):
        async with msg:
            done += len(msg.headers) + (msg.key is not None)
    return done


async def go_on(mq: aio.Client, kept: dict[int, int]) -> dict[int, int]:
    async for msg in mq.read("counts", start={"counts": kept}):
        kept[msg.partition] = msg.offset + 1
    return kept


async def main() -> None:
    async with aio.connect("127.0.0.1:7700", wait="5s") as mq:
        await mq.create_topic("lines", if_not_exists=True)
        await mq.create_topic("counts", beside="lines", if_not_exists=True)
        receipts = await produce(mq, 100)
        last: Receipt = await mq.publish("lines", b"end")
        print(len(receipts), last.offset, await step(mq))


if __name__ == "__main__":
    asyncio.run(main())
