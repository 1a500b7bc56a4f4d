"""SQS and received messages when something fails on the way, with fake clients."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from gossipq.errors import Forbidden
from gossipq.times import time_of
from gossipq_client.values import GIVEN_BACK, Outcome
from gossipq_gateway.counters import Metrics
from gossipq_gateway.leases import Leases
from gossipq_gateway.sqs.actions import Actions, Asked
from gossipq_gateway.sqs.queues import Queue

REDRIVE = {"RedrivePolicy": '{"deadLetterTargetArn": "arn:aws:sqs:x:0:dead", "maxReceiveCount": 3}'}


class Item:
    """A message as the client has it."""

    def __init__(self, offset: int, attempt: int = 1, key: bytes = b"a") -> None:
        self.offset, self.attempt, self.key, self.ref = offset, attempt, key, f"q/0/{offset}"
        self.value, self.headers_shown, self.lost, self.publish_time, self.id = (
            b"x",
            dict[str, str | bytes](),
            False,
            time_of(0),
            None,
        )
        self.topic_id = 3
        self.header_bytes, self.outcome = b"", cast(Outcome | None, None)

    def settle(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Caller:
    """Somebody, with a client whose publishes do that."""

    def __init__(self, came: list[Item], publish: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.leases, self.mq, self.came, self._publish = Leases[Any]("g"), self, came, publish
        self._now_ms, self.published = 0, list[tuple[tuple[object, ...], dict[str, object]]]()

    def now_ms(self) -> int:
        """Each look at it takes a moment."""
        self._now_ms += 50
        return self._now_ms

    async def fetch(self, *asked: object) -> list[Item]:
        came, self.came = self.came, []
        return came

    async def publish(self, *what: object, **options: object) -> None:
        self.published.append((what, options))
        await self._publish()

    async def ack(self, what: object) -> None:
        pass


class Table:
    def __init__(self, queue: Queue) -> None:
        self.find = lambda name: queue


def asked(caller: Caller, wait_s: int = 0) -> Asked:
    data = {"QueueUrl": "http://h/sqs/0/q", "WaitTimeSeconds": wait_s, "MaxNumberOfMessages": 10}
    return Asked(cast(Any, caller), b"", data, "h", Metrics().of("sqs"), 0)


async def forbids() -> None:
    raise Forbidden("not there")


async def keeps() -> None:
    pass


async def hangs() -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize("publish", [forbids, hangs])
def test_what_was_fetched_goes_back_when_a_dead_letter_cannot_be_kept(
    publish: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """The same when the caller leaves meanwhile: no caller would have a handle for the record,
    and its lease would go on.
    """
    came = [Item(0), Item(1, attempt=4), Item(2)]
    actions = Actions(cast(Any, Table(Queue("q", REDRIVE))))

    async def run() -> None:
        await asyncio.wait_for(actions.receive(asked(Caller(came, publish))), 0.05)

    with pytest.raises((Forbidden, TimeoutError)):
        asyncio.run(run())
    assert [each.outcome for each in came] == [GIVEN_BACK] * 3


def test_a_dead_letter_keeps_its_headers_as_they_are() -> None:
    """Also those of a client of another make, which cannot be read."""
    (foreign,) = came = [Item(0, attempt=4)]
    foreign.header_bytes, foreign.headers_shown = b"\xc1", {"gossipq-unreadable-headers": b"\xc1"}
    caller = Caller(came, keeps)
    assert asyncio.run(Actions(cast(Any, Table(Queue("q", REDRIVE)))).receive(asked(caller))) == {}
    options = {"key": b"a", "flow": "a", "headers": b"\xc1", "id": "q/q/0/0"}
    assert caller.published == [(("dead", b"x"), options)]


def test_groups_of_a_session_that_was_ended_are_not_busy_any_more() -> None:
    """A caller that asks again gets another client: the records of the first
    one come again, in order.
    """
    actions = Actions(cast(Any, Table(Queue("q.fifo", {}))))

    async def receive(caller: Caller) -> list[str]:
        found = await actions.receive(asked(caller))
        return [each["Body"] for each in found.get("Messages", ())]

    async def run() -> None:
        assert await receive(Caller([Item(0)], hangs)) == ["x"]
        second = Caller([Item(0)], hangs)
        assert await receive(second) == ["x"], "its group is not that of a session which is over"
        second.came = [Item(1)]
        assert await receive(second) == [], "while the first one of the group is in hand"

    asyncio.run(run())


def test_a_group_waits_while_a_dead_letter_that_was_received_with_it_is_moved() -> None:
    """Another receive got its second message meanwhile, before the first."""
    over, first, second = came = [Item(0, attempt=4, key=b"b"), Item(1), Item(2)]
    waits = asyncio.Event()

    async def moving() -> None:
        await waits.wait()

    async def run() -> None:
        actions, caller = Actions(cast(Any, Table(Queue("q.fifo", REDRIVE)))), Caller(came, moving)
        two = asked(caller)
        two.data["MaxNumberOfMessages"] = 2
        receiving = asyncio.create_task(actions.receive(two))
        await asyncio.sleep(0)
        assert await actions.receive(asked(caller)) == {}, "the first of the group is not handed out yet"
        actions.rest(10**9, 0)
        assert second.outcome == GIVEN_BACK
        caller.came = [second]
        assert await actions.receive(asked(caller)) == {}, "also when nobody has asked for a while"
        waits.set()
        (message,) = (await receiving)["Messages"]
        assert message["ReceiptHandle"].startswith("sqs@q/0/1~")
        assert await actions.receive(asked(caller)) == {}
        caller.leases.drop(caller.leases.find(message["ReceiptHandle"]), acked=True)
        (message,) = (await actions.receive(asked(caller)))["Messages"]
        assert message["ReceiptHandle"].startswith("sqs@q/0/2~")

    asyncio.run(run())
    assert (over.outcome, first.outcome) == (None, None)
