"""The asyncio client's handlers and requests: the same names as those of the sync client, awaited."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Unpack

from gossipq.errors import BadRequest, NoReply
from gossipq.messages import Topics
from gossipq.types import META_SHARD
from gossipq_client import inputs
from gossipq_client.aio_consumer import Consumers, Message
from gossipq_client.aio_running import Runner
from gossipq_client.engine import REQUEST_SECONDS
from gossipq_client.handlers import Function, Registry
from gossipq_client.joining import ConsumeOptions
from gossipq_client.requests import Requests, make_replies
from gossipq_client.running import until_signal
from gossipq_client.terms import PublishOptions


class Workers(Consumers):
    """The part of a client that runs handlers, and asks those of others."""

    def __init__(self, addresses: list[str], name: str, timeout: float) -> None:
        super().__init__(addresses, name, timeout)
        self.handlers = Registry()
        self._runner: Runner | None = None
        self._requests = Requests(self.engine.session.links.session.hex())

    # --- handlers

    def consumer(
        self,
        topics: str | Iterable[str],
        group: str | None = None,
        *,
        workers: int = 1,
        **options: Unpack[ConsumeOptions],
    ) -> Callable[[Function], Function]:
        """As the sync `consumer`: `workers` tasks for an `async def` handler, threads for one that is not."""
        return self.handlers.consumer(topics, group, workers=workers, **options)

    async def run(self, *, stop_at_end: bool = False) -> None:
        """As the sync `run`; cancelling it ends it in the same orderly way."""
        self.engine.check()
        if self._runner is not None:
            raise BadRequest("the handlers run already", hint="stop() ends them")
        runner = self._runner = Runner(self, self.handlers.some(), stop_at_end)
        try:
            with until_signal(partial(asyncio.get_running_loop().call_soon_threadsafe, runner.stop)):
                await runner.run()
        finally:
            self._runner = None

    def stop(self) -> None:
        """Ends `run`, from a handler or another task."""
        if self._runner is not None:
            self._runner.stop()

    # --- requests

    async def request(
        self,
        topic: str,
        value: inputs.Value,
        *,
        timeout: inputs.Duration = REQUEST_SECONDS,
        **options: Unpack[PublishOptions],
    ) -> Message:
        """As the sync `request`."""
        seconds = inputs.duration_ms(timeout, "timeout", 1) / 1000
        await self._open_replies()
        requests, consuming = self._requests, self.engine.session.consuming
        correlation, deadline_ms = requests.begin(), self.engine.now_ms() + seconds * 1000
        try:
            options["headers"] = requests.headers(correlation, options.get("headers"))
            await (await self.publish(topic, value, **options)).result(seconds)
            left = max(0.0, deadline_ms - self.engine.now_ms()) / 1000
            await self.until(lambda: requests.reply(correlation, consuming) is not None, left)
            reply = requests.reply(correlation, consuming)
            if reply is None:
                raise NoReply(f"no reply from {topic!r} within {seconds:g} s", hint=f"gossipq group ls {topic}")
            return self.message(*reply)
        finally:
            requests.end(correlation)

    async def _open_replies(self) -> None:
        """Before the first request: the topic of replies, and this client's own route of it."""
        requests = self._requests
        if requests.ready:
            return
        await self.ask(make_replies(), META_SHARD, Topics)
        if requests.subscription is None:
            requests.subscription = self.engine.subscribe(requests.joining(), False)
        await self._require(lambda: requests.ready, self.timeout)
