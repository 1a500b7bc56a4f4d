"""Handlers and requests: the decorator, running what it registered, asking and waiting for the reply."""

from collections.abc import Callable, Iterable
from typing import Any, Unpack

from gossipq.errors import BadRequest, NoReply
from gossipq.messages import Topics
from gossipq.types import META_SHARD
from gossipq_client.api.aio.consumer import Consumers, Message
from gossipq_client.api.aio.runner import Runner
from gossipq_client.handlers import Function, Registry, Requests, make_replies, shows, told, until_signal
from gossipq_client.io import REQUEST_SECONDS
from gossipq_client.session import ConsumeOptions, FetchOptions, joining
from gossipq_client.values import Common, PublishOptions, inputs, publish_options


class Workers(Consumers):
    """The part of a client that runs handlers, and asks those of others."""

    def __init__(self, addresses: list[str], name: str, timeout: float, key: bytes = b"") -> None:
        super().__init__(addresses, name, timeout, key)
        self.handlers = Registry()
        self._runner: Runner | None = None

    def _reset(self) -> None:
        super()._reset()
        self._requests = Requests()

    # --- handlers

    @shows(joining, FetchOptions, ConsumeOptions)
    def consumer(
        self,
        topics: str | Iterable[str],
        group: str | None = None,
        *,
        workers: int = 1,
        time_limit: inputs.Duration | None = None,
        batch_size: int | None = None,
        batch_wait: inputs.Duration | None = None,
        **options: Unpack[ConsumeOptions],
    ) -> Callable[[Function], Function]:
        """Makes a function the handler of records, once `run` is called; the function itself stays as it is.

        It takes the value, as the type of its argument says (bytes, str; from JSON: dict, list, a dataclass,
        a msgspec.Struct), or the message (no type, or Message), or one of each. Returning acks; Retry, Reject
        and other exceptions mean the same as in `with msg:`; what cannot be decoded is a dead letter. What it
        returns is the reply to a `request`. `workers` records are worked on at a time: the sync client runs
        functions in threads and coroutine functions on an event loop of their own, the asyncio client
        coroutine functions in tasks and all others in threads. A coroutine function that blocks the loop of
        an asyncio client for 5 s loses its records: the client falls silent. Who takes longer than
        `time_limit` (seconds, or "30s") has failed: a coroutine function is cancelled; a function in a
        thread cannot be stopped, and goes on without its message.

        With `batch_size` the function takes a list of values (list[Order]), a list of messages, or both in
        the same order. It gets `batch_size` records, or fewer if no more came within `batch_wait` (1 s) after
        the first one. Returning acks all messages of the list that the function did not settle itself, for
        example with `msg.nack()`. An exception fails them. A batch has no reply and no `time_limit`.
        """
        return self.handlers.consumer(
            topics,
            group,
            workers=workers,
            time_limit=time_limit,
            batch_size=batch_size,
            batch_wait=batch_wait,
            **options,
        )

    async def run(self, *, stop_at_end: bool = False, signals: bool = True) -> None:
        """Runs the handlers until `stop`, SIGTERM or Ctrl-C: then what runs is finished, and the rest goes
        back.

        With stop_at_end it ends when all records that can be delivered now have been handled; it does not
        wait for records that are delayed or wait for another attempt. It takes SIGTERM and SIGINT while
        it runs in the main thread; with signals=False not even there, for who has a server of its own to
        stop. Raises what a subscription was refused with, and BadRequest when it runs
        already, or there is no handler.
        """
        self._engine.check()
        if self._runner is not None:
            raise BadRequest("the handlers run already", hint="stop() ends them")
        runner = self._runner = Runner(self, self.handlers.some(), stop_at_end)
        try:
            with until_signal(runner.stop, signals):
                await runner.run()
        finally:
            self._runner = None

    def stop(self) -> None:
        """Ends `run`, from any thread, task, handler or signal handler."""
        runner = self._runner
        if runner is not None:
            runner.stop()

    # --- requests

    @shows(publish_options, Common, PublishOptions)
    async def request(
        self,
        topic: str,
        value: Any,
        *,
        timeout: inputs.Duration = REQUEST_SECONDS,
        **options: Unpack[PublishOptions],
    ) -> Message:
        """Publishes a request and waits for the reply: what the handler that works on it returns.

        Options as in `publish`. Raises UnknownTopic, and NoReply at once when nobody consumes the topic, when
        the handler failed (with its error) or returned nothing, else after `timeout` (seconds, or "5s"); what
        a handler has begun with goes on all the same.
        """
        seconds = inputs.duration_ms(timeout, "timeout", 1) / 1000
        await self._require_consumers(topic)
        await self._open_replies()
        requests, consuming = self._requests, self._engine.session.consuming
        correlation = self._do(requests.begin)
        deadline_ms = self._engine.now_ms() + seconds * 1000
        try:
            options["headers"] = requests.headers(correlation, options.get("headers"))
            pending = await self.publish(topic, value, **options)
            await pending.result(seconds)
            left_s = max(0.0, deadline_ms - self._engine.now_ms()) / 1000
            await self._until(lambda: requests.reply(correlation, consuming) is not None, left_s)
            reply = self._do(lambda: requests.reply(correlation, consuming))
            if reply is None:
                raise NoReply(
                    f"no reply from {topic!r} within {seconds:g} s", hint=f"gossipq group ls {topic}"
                )
            message = self._message(*reply)
            told(topic, message.headers, message.value)
            return message
        finally:
            requests.end(correlation)

    async def _require_consumers(self, topic: str) -> None:
        """Raises UnknownTopic, and NoReply when nobody consumes the topic in a group."""
        requests, now_ms = self._requests, self._engine.now_ms()
        if requests.heard(topic, now_ms):
            return
        known = await self._topic(topic, create=False)
        stats = await self._talk(self._engine.asking.stats(list(known.virtual or [topic]), ""))
        if not any(group.consumers for group in stats.groups):
            raise NoReply(f"nobody consumes {topic!r}", hint=f"gossipq group ls {topic}")
        requests.heard_ms[topic] = now_ms

    async def _open_replies(self) -> None:
        """Before the first request: the topic of replies, and this client's own route of it."""
        requests, consuming = self._requests, self._engine.session.consuming
        self._do(lambda: requests.renew(consuming))
        if requests.ready:
            return
        await self._ask(make_replies(), META_SHARD, Topics)

        def subscribe() -> None:
            """Once, whoever else is about to."""
            if requests.subscription is None:
                requests.route = self._engine.session.links.session.hex()
                requests.subscription = self._engine.subscribe(requests.joining(), False)

        self._do(subscribe)
        await self._require(lambda: requests.ready, self._timeout)
