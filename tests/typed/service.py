"""An application of FastAPI that publishes models, and handles records of other programs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from pydantic import BaseModel

from gossipq import NotConfirmed, aio

mq = aio.connect(timeout="5s")


class SignUp(BaseModel):
    name: str
    age: int | None = None


@mq.consumer("signups", group="mails", workers=4)
async def welcome(user: SignUp, msg: aio.Message) -> None:
    if user.age is None:
        await msg.nack(delay="1m", reason="age is not known yet")
        return
    print("welcome", user.name)


async def ages() -> list[int]:
    found: list[int] = []
    async for msg in mq.consume("signups", SignUp, group="statistics", stop_at_end=True):
        async with msg:
            found.append(msg.data.age or 0)
    batch = await mq.fetch("signups", SignUp, group="samples", n=10)
    return found + [msg.data.age or 0 for msg in batch]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    async with mq:
        handlers = asyncio.create_task(mq.run(signals=False))
        yield
        mq.stop()
        await handlers


app = FastAPI(lifespan=lifespan)


@app.post("/signups")
async def sign_up(user: SignUp) -> dict[str, str]:
    try:
        receipt = await mq.publish("signups", user, key=user.name)
    except NotConfirmed as unsure:
        return {"error": unsure.message}
    return {"ref": receipt.ref}
