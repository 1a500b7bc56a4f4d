"""Publishes and consumes with asyncio: the same names, awaited. Needs a node: gossipq node"""

import asyncio

import gossipq


async def main() -> None:
    async with gossipq.aio.connect() as mq:
        receipt = await mq.publish("hello", "one")
        print("on disk at offset", receipt.offset)
        async for msg in mq.consume("hello", group="greeters", stop_at_end=True):
            async with msg:
                print(msg.offset, msg.value.decode())


asyncio.run(main())
