"""Executes queue_server's requests with gossipq.

A queue is a topic, and all consumers share a group. Options of a produce decide about redelivery.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gossipq import limits
from gossipq.errors import GossipqError
from gossipq_client.aio import Message
from gossipq_client.answers import GroupCounters, PartitionCounters
from gossipq_client.values import GIVEN_BACK
from gossipq_dialects.acks import Acks
from gossipq_dialects.names import name_of, topic_of
from gossipq_dialects.postbox import Postbox, Stored
from gossipq_dialects.queue_server import wire
from gossipq_dialects.queue_server.outlets import Outlets
from gossipq_gateway.dialect import Desk
from gossipq_gateway.numbers import whole
from gossipq_ops.sums import lag_of

RETRY, TTL, NUMBER = "queue_server_retry", "queue_server_ttl", "queue_server_msg_id"
DELAY_S_MAX = limits.DELAY_MS_MAX // 1_000
LISTED_MAX = 1_000  #: queues in one answer
HELD_MAX = 100_000  #: unconfirmed messages; above this, consumers get no further ones

Answer = Callable[[bytes], None]
Wanted = Callable[[], bool]


@dataclass
class Hidden:
    """A delivered message, until it is confirmed or redelivered."""

    message: Message
    timer: asyncio.TimerHandle


class Broker:
    def __init__(self, desk: Desk, group: str, told: Callable[[], wire.Told]) -> None:
        self._desk, self._group, self._told = desk, group, told
        self._post, self._acks = Postbox(desk), Acks(desk)
        self._outlets = Outlets(desk.mq, group)
        self._hidden: dict[tuple[str, int], Hidden] = {}
        self._asked: set[asyncio.Task[None]] = set()

    def ask(self, request: wire.Request, answer: Answer, wanted: Wanted) -> None:
        """Handle a request. `answer` is called once; `wanted` tells
        whether the client still waits.
        """
        match request:
            case wire.Answered():
                if request.is_error:
                    self._desk.counters.error()
                answer(request.answer)
            case wire.Leader():
                answer(wire.answer(request.members, **wire.leader(self._told())))
            case wire.Monitor() | wire.Listing():
                task = asyncio.ensure_future(self._tell(request, answer))
                self._asked.add(task)
                task.add_done_callback(self._asked.discard)
            case _:
                try:
                    topic = topic_of(request.queue)
                except GossipqError as error:
                    self._refuse(request, error, answer)
                    return
                self._work(request, topic, answer, wanted)

    def sweep(self) -> None:
        self._outlets.sweep()

    async def close(self) -> None:
        """Stop, and give unconfirmed messages back."""
        await self._outlets.close()
        await self._post.settled()
        await self._acks.settled()
        for hidden in self._hidden.values():
            hidden.timer.cancel()
            hidden.message.settle(GIVEN_BACK)
        self._hidden.clear()

    def _work(
        self, request: wire.Produce | wire.Consume | wire.Confirm, topic: str, answer: Answer, wanted: Wanted
    ) -> None:
        match request:
            case wire.Produce():
                self._produce(request, topic, answer)
            case wire.Consume():
                self._consume(request, topic, answer, wanted)
            case wire.Confirm():
                self._confirm(request, topic, answer)

    def _refuse(self, request: wire.Request, error: GossipqError, answer: Answer) -> None:
        """Answer an error. The protocol has only one error."""
        self._desk.counters.error()
        self._desk.log.warning("%s: %s", type(request).__name__.lower(), error)
        members = request.members if not isinstance(request, wire.Answered) else {}
        shown = wire.echo(members) if isinstance(request, wire.Produce) else members
        answer(wire.refusal(shown, "system error"))

    # --- produce

    def _produce(self, request: wire.Produce, topic: str, answer: Answer) -> None:
        now_s = self._now_s()
        headers: tuple[tuple[str, str], ...] = ()
        if request.retry_s:
            headers = (RETRY, str(request.retry_s)), (TTL, str(request.ttl_s))
        delay_s, number = min(max(0, request.due_s - now_s), DELAY_S_MAX), 0
        if delay_s:
            number = wire.scheduled_number(os.urandom(7))
            headers = *headers, (NUMBER, str(number))

        def done(stored: list[Stored], error: GossipqError | None) -> None:
            if error is not None:
                self._refuse(request, error, answer)
                return
            numbers = [number or wire.number_of(each.partition, each.offset) for each in stored]
            answer(wire.produced(request.members, numbers))

        self._post.put(topic, request.data.encode(), done, headers=headers, delay_s=delay_s)

    # --- consume

    def _consume(self, request: wire.Consume, topic: str, answer: Answer, wanted: Wanted) -> None:
        if len(self._hidden) >= HELD_MAX:
            answer(wire.answer(request.members))
            return

        def taken(message: Message | None, error: GossipqError | None) -> None:
            if error is not None:
                self._refuse(request, error, answer)
            elif message is None:
                answer(wire.answer(request.members))
            elif not wanted():
                message.settle(GIVEN_BACK)
            else:
                self._hand_out(request, topic, message, answer, wanted)

        self._outlets.take(topic, taken)

    def _hand_out(
        self, request: wire.Consume, topic: str, message: Message, answer: Answer, wanted: Wanted
    ) -> None:
        headers, now_s = message.headers_shown, self._now_s()
        retry_s = whole(headers.get(RETRY))
        number = whole(headers.get(NUMBER)) or wire.number_of(message.partition, message.offset)
        text = message.value.decode(errors="replace")

        def give(held: bool) -> None:
            if not held:  # another consumer has it: take the next one
                self._consume(request, topic, answer, wanted)
                return
            self._desk.counters.delivered()
            answer(wire.answer(request.members, msg_id=number, data=text))

        if retry_s > 0 and now_s + retry_s < whole(headers.get(TTL)):
            self._hide(topic, number, message, retry_s)
            give(True)
        else:  # its last attempt: ack before it is delivered
            self._acks.put(message, give)

    def _hide(self, topic: str, number: int, message: Message, retry_s: int) -> None:
        known = self._hidden.pop((topic, number), None)
        if known is not None:
            known.timer.cancel()
        timer = asyncio.get_running_loop().call_later(
            min(retry_s, 86_400 * 365), self._show_again, topic, number
        )
        self._hidden[topic, number] = Hidden(message, timer)

    def _show_again(self, topic: str, number: int) -> None:
        self._hidden.pop((topic, number)).message.settle(GIVEN_BACK)

    def _confirm(self, request: wire.Confirm, topic: str, answer: Answer) -> None:
        """Confirm a message. Returns code 0 in any case, like the original."""
        hidden = self._hidden.pop((topic, request.number), None)
        if hidden is None:
            answer(wire.answer(request.members))
            return
        hidden.timer.cancel()
        self._acks.put(hidden.message, lambda held: answer(wire.answer(request.members)))

    # --- state of queues

    async def _tell(self, request: "wire.Monitor | wire.Listing", answer: Answer) -> None:
        try:
            told = self._told()
            if isinstance(request, wire.Listing):
                rows = await self._queues(request.pattern)
                found: dict[str, Any] = {"queue_count": len(rows), "queue_list": rows[:LISTED_MAX]}
            else:
                found = await self._queue(topic_of(request.queue))
            answer(wire.answer(request.members, **found, **wire.leader(told), node_id=told.node))
        except GossipqError as error:
            self._refuse(request, error, answer)

    async def _queue(self, topic: str) -> dict[str, Any]:
        stats = await self._desk.mq.admin.stats([topic])
        partitions = [row for row in stats.partitions if row.topic == topic]
        groups = [row for row in stats.groups if row.topic == topic]
        last = [wire.number_of(row.partition, row.next - 1) for row in partitions if row.next]
        return {
            "size": self._size(topic, partitions, groups),
            "max_id": max(last, default=0),
            "wait_status": self._waits_s(topic, groups),
            "trans_id": sum(row.published for row in partitions),
        }

    async def _queues(self, pattern: str) -> list[dict[str, Any]]:
        """Return the queues with messages, by name."""
        infos = await self._desk.mq.topics()
        names = sorted(
            (name_of(info.name), info.name)
            for info in infos
            if not info.config.virtual and not info.name.startswith("_") and pattern in name_of(info.name)
        )
        stats = await self._desk.mq.admin.stats([topic for _, topic in names[:LISTED_MAX]])
        return [
            {
                "size": self._size(topic, stats.partitions, stats.groups),
                "wait_status": self._waits_s(topic, stats.groups),
                "name": name,
            }
            for name, topic in names[:LISTED_MAX]
        ] + [{"size": 0, "wait_status": 0, "name": name} for name, _ in names[LISTED_MAX:]]

    def _size(
        self, topic: str, partitions: Sequence[PartitionCounters], groups: Sequence[GroupCounters]
    ) -> int:
        """Count the unfinished messages, including scheduled ones."""
        rows = [row for row in groups if row.topic == topic and row.group == self._group]
        mine = [row for row in partitions if row.topic == topic]
        scheduled = sum(row.scheduled for row in mine)
        if not rows:
            return scheduled + sum(row.next - row.first for row in mine)
        return scheduled + sum(map(lag_of, rows))

    def _waits_s(self, topic: str, groups: Sequence[GroupCounters]) -> int:
        """Return how long the oldest one has waited, in seconds."""
        rows = [row for row in groups if row.topic == topic and row.group == self._group]
        return max((row.oldest // timedelta(seconds=1) for row in rows), default=0)

    def _now_s(self) -> int:
        return self._desk.clock.now().wall_ms // 1_000
