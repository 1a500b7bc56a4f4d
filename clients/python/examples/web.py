"""A web application that publishes records, and handles records of other programs.

Needs fastapi, uvicorn, and a node:

uvicorn web:app
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import gossipq

mq = gossipq.aio.connect()


@mq.consumer("signups", group="mails")
async def welcome(user: dict[str, str]) -> None:
    print("welcome", user["name"])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with mq:
        handlers = asyncio.create_task(mq.run(signals=False))
        yield
        mq.stop()
        await handlers


app = FastAPI(lifespan=lifespan)


@app.post("/signups/{name}")
async def sign_up(name: str) -> dict[str, str]:
    receipt = await mq.publish("signups", {"name": name})
    return {"ref": receipt.ref}
