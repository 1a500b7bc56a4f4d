"""Consumers that push: each record of a hook's group is a request, and its answer decides on the record."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.routing import BaseRoute

from gossipq import __version__
from gossipq.errors import GossipqError
from gossipq_client import Retry
from gossipq_client.aio import Message
from gossipq_gateway.dialect import Desk
from gossipq_gateway.webhooks import signatures
from gossipq_gateway.webhooks.addresses import PrivateAddress
from gossipq_gateway.webhooks.hooks import Hook
from gossipq_gateway.webhooks.posts import Answer, post

AGAIN_S = 5.0  #: after a refused subscription
RETRY_AFTER_S_MAX = 24 * 3_600
GONE = 410
LATER = (429, 502, 503, 504)  #: with these, Retry-After counts


class Webhooks:
    """Pushes the groups of all hooks while the gateway serves."""

    name = "webhooks"

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = hooks

    def routes(self, desk: Desk) -> Sequence[BaseRoute]:
        """Return none: webhooks only go out."""
        return ()

    @asynccontextmanager
    async def serve(self, desk: Desk) -> AsyncIterator[None]:
        """Push until the block ends. Records of requests without an answer go back to their groups."""
        tasks = [
            asyncio.create_task(Pusher(hook, desk).run())
            for hook in self._hooks
            for _ in range(hook.concurrency)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class Pusher:
    """One consumer of a hook's group: one request at a time."""

    def __init__(self, hook: Hook, desk: Desk) -> None:
        self._hook, self._desk, self._keys = hook, desk, hook.keys

    async def run(self) -> None:
        """Push until cancelled. A refused subscription, such as that of a missing topic, is logged and tried
        again."""
        hook = self._hook
        while True:
            try:
                options = {"credit": 1, **hook.consume_options}
                async for message in self._desk.mq.consume(hook.topic, group=hook.group, **options):
                    async with message:
                        await self._push(message)
            except GossipqError as error:
                self._desk.counters.error()
                self._desk.log.error("webhook stopped topic=%s reason=%s", hook.topic, error)
            await asyncio.sleep(AGAIN_S)

    async def _push(self, message: Message) -> None:
        """Send one record. Raises Retry, unless the answer is 2xx; the policy of the group decides on the
        pause, and after how many failures the record is a dead letter."""
        hook = self._hook
        self._desk.counters.request()
        self._desk.counters.delivered()
        try:
            async with asyncio.timeout(hook.timeout_s):
                answer = await post(
                    hook.url, self._headers(message), message.value, allow_private=hook.allow_private
                )
        except TimeoutError:
            self._failed(f"no answer within {hook.timeout_s:g} s")
        except PrivateAddress as error:
            self._failed(str(error))
        except (OSError, ValueError) as error:
            self._failed(f"{type(error).__name__}: {error}")
        else:
            await self._settle(answer)

    def _headers(self, message: Message) -> dict[str, str]:
        name = signatures.message_id(f"{message.topic_id}/{message.partition}/{message.offset}")
        seconds = self._desk.clock.now().wall_ms // 1_000
        is_json = message.value[:1] in (b"{", b"[")
        return {
            "content-type": "application/json" if is_json else "application/octet-stream",
            "user-agent": f"gossipq/{__version__}",
            **signatures.headers(self._keys, name, seconds, message.value),
        }

    async def _settle(self, answer: Answer) -> None:
        if 200 <= answer.status < 300:
            self._desk.counters.acked()
            return
        if answer.status == GONE:
            await self._pause()
        later = answer.retry_after_s if answer.status in LATER else None
        self._failed(f"HTTP {answer.status}", later)

    async def _pause(self) -> None:
        """The receiver wants no more: pause the group, until an operator resumes it."""
        hook = self._hook
        try:
            await self._desk.mq.group(hook.topic, hook.group).pause()
        except GossipqError as error:
            self._desk.log.error(
                "group not paused topic=%s group=%s reason=%s", hook.topic, hook.group, error
            )
        else:
            self._desk.log.error(
                "group paused topic=%s group=%s reason=HTTP %d; to go on: gossipq group resume %s %s",
                hook.topic,
                hook.group,
                GONE,
                hook.topic,
                hook.group,
            )

    def _failed(self, reason: str, delay_s: int | None = None) -> None:
        """Raises Retry."""
        self._desk.counters.error()
        raise Retry(None if delay_s is None else min(delay_s, RETRY_AFTER_S_MAX), f"webhook: {reason}")
