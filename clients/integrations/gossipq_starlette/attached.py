"""A client and its handlers in the event loop of an application."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from gossipq.errors import BadRequest, GossipqError
from gossipq_client.aio import Client

log = logging.getLogger("gossipq.starlette")
READY_S = 0.8  #: a probe is answered within this time; Kubernetes waits 1 s by default
NOT_RUNNING = "the application is not running"
#: a pattern without matches, which the cluster answers to every user
NO_TOPIC = "gossipq.readyz*"


class Attached:
    """Connects a client when the application starts, runs its handlers, and closes it at the end.

        mq = gossipq.aio.connect()
        broker = Attached(mq)
        app = FastAPI(lifespan=broker.lifespan)

        @app.post("/orders/{item}")
        async def order(item: str, mq: Annotated[gossipq.aio.Client, Depends(broker)]) -> str:
            return (await mq.publish("orders", {"item": item})).ref

    An application may start and end several times in a process, as `TestClient` does: each start connects
    anew. With `handlers=False` the functions of `mq.consumer` do not run here, for example because
    `gossipq run` runs them elsewhere.
    """

    def __init__(self, mq: Client, *, handlers: bool = True) -> None:
        self.mq, self._handlers = mq, handlers
        self._trouble = NOT_RUNNING  #: why it is not ready; "" = it is

    async def __call__(self) -> Client:
        """Return the client, as a dependency of FastAPI."""
        return self.mq

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Connect for the life of an application. Raises Unreachable if no node answers in time, and
        ClientClosed."""
        async with self.running():
            yield

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Client]:
        """As `lifespan`, for use within a lifespan of your own."""
        async with self.mq:
            self._trouble = ""
            task = asyncio.create_task(self._run()) if self._handlers and self._has_handlers else None
            try:
                yield self.mq
            finally:
                self._trouble = NOT_RUNNING
                if task is not None:
                    self.mq.stop()
                    await task

    @property
    def _has_handlers(self) -> bool:
        try:
            return bool(self.mq.handlers.some())
        except BadRequest:
            return False

    async def _run(self) -> None:
        """Run the handlers. If they end by an error, the application is not ready any more."""
        try:
            await self.mq.run(signals=False)
        except Exception as error:
            self._trouble = f"handlers have ended: {error}"
            log.exception("handlers ended")

    async def why_not_ready(self) -> str:
        """Return why the application cannot work; "" if it can."""
        if self._trouble:
            return self._trouble
        try:
            await asyncio.wait_for(self.mq.topics(NO_TOPIC), READY_S)
        except TimeoutError:
            return f"the cluster has not answered within {READY_S:g} s"
        except GossipqError as error:
            return error.message or error.code
        return ""

    async def readyz(self, request: Request) -> JSONResponse:
        """Answer a probe: 200, or 503 with the reason."""
        why = await self.why_not_ready()
        return JSONResponse({"ready": not why, "why": why}, 503 if why else 200)
