"""The shop: takes orders by HTTP. Needs a node, fastapi and uvicorn: uvicorn shop:app"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from order import Order

from gossipq_client import aio

mq = aio.connect()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with mq:
        await mq.create_topic("orders", if_not_exists=True)
        await mq.create_topic("receipts", beside="orders", if_not_exists=True)  # for bank.py
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def place(order: Order) -> dict[str, str]:
    """Answers when the order is on disk. The same order again is stored once, because of its id."""
    receipt = await mq.publish("orders", order, key=order.customer, id=order.number)
    return {"ref": receipt.ref}
