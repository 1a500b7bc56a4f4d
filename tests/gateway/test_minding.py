"""The gateway's timed work for its callers, with fake clients."""

import asyncio
from typing import Any, cast

import pytest

from gossipq.errors import ClientClosed, Unreachable
from gossipq.types import Now
from gossipq_gateway import callers
from gossipq_gateway.callers import CALLERS_MAX, IDLE_MS, Caller, Callers
from gossipq_gateway.counters import Metrics
from gossipq_gateway.v1 import streams
from gossipq_gateway.v1.positions import Place, Positions


class Fake:
    """A client that takes a moment to close."""

    def __init__(self) -> None:
        self.closed = False

    def __await__(self) -> Any:
        return asyncio.sleep(0).__await__()

    async def close(self) -> None:
        await asyncio.sleep(0.02)
        self.closed = True


class Clock:
    def __init__(self) -> None:
        self.ms = 0

    def now(self) -> Now:
        return Now(self.ms, self.ms)


def pool(clock: Clock, made: list[Fake]) -> Callers:
    def connect(token: bytes | None) -> Any:
        made.append(Fake())
        return made[-1]

    return Callers(connect, cast(Any, clock), "g")


def test_a_caller_that_made_way_while_another_one_was_closed_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one task that ends leases over HTTP must not die of it."""
    monkeypatch.setattr(callers, "LOOK_S", 0.01)
    asyncio.run(_crowd())


async def _crowd() -> None:
    clock, made = Clock(), list[Fake]()
    crowd = pool(clock, made)
    for number in range(CALLERS_MAX):
        async with crowd.of(b"%d" % number):
            pass
    clock.ms = IDLE_MS
    minding = asyncio.create_task(crowd.mind())
    await asyncio.sleep(0.015)  # the first one is being closed
    for number in range(3):
        async with crowd.of(b"new %d" % number):
            pass
    await asyncio.sleep(0.2)
    assert not minding.done(), minding.exception()
    minding.cancel()
    assert sum(each.closed for each in made) > 3
    await crowd.close()


def test_a_session_that_a_request_found_ended_meanwhile_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "LOOK_S", 0.01)
    asyncio.run(_ended())


async def _ended() -> None:
    clock, made = Clock(), list[Fake]()
    crowd = pool(clock, made)
    async with crowd.of(b"first"):
        pass
    async with crowd.of(b"second") as second:
        pass
    clock.ms = IDLE_MS

    async def ended() -> None:
        raise ClientClosed("an operator has ended the session")

    second.mind = ended  # type: ignore[method-assign]
    minding = asyncio.create_task(crowd.mind())
    await asyncio.sleep(0.015)
    with pytest.raises(ClientClosed):
        async with crowd.of(b"second"):
            raise ClientClosed("an operator has ended the session")
    async with crowd.of(b"second") as anew:
        assert anew is not second
        await asyncio.sleep(0.1)
        assert not minding.done(), minding.exception()
        async with crowd.of(b"second") as same:
            assert same is anew, "who came anew stays"
    minding.cancel()
    await crowd.close()


def test_who_leaves_a_stream_at_its_first_line_does_not_count_any_more() -> None:
    asyncio.run(_left())


async def _left() -> None:
    caller = Caller(cast(Any, Fake), cast(Any, Clock()), "g")
    where = Positions({"orders": Place(12, {0: 5})})
    told = streams._told(caller, cast(Any, None), where, Metrics().of("http"))
    assert await anext(told) == b": gossipq\nid: orders@12/0:5\n\n"
    assert caller.users == 1
    await cast(Any, told).aclose()
    assert caller.users == 0


class Unreached(Fake):
    """A client that reaches no node at first."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def __await__(self) -> Any:
        return self._connected().__await__()

    async def _connected(self) -> None:
        self.asked += 1
        first = self.asked == 1
        await asyncio.sleep(0.01)
        if first:
            raise Unreachable("no node answers")


def test_who_waited_for_a_connection_that_fails_has_no_caller_that_nobody_minds() -> None:
    """The next waiting caller connected after all. Yet no lease of that connection
    ended, and it was never closed.
    """
    asyncio.run(_in_vain())


async def _in_vain() -> None:
    made = list[Unreached]()

    def connect(token: bytes | None) -> Any:
        made.append(Unreached())
        return made[-1]

    crowd = Callers(connect, cast(Any, Clock()), "g")

    async def ask() -> Caller:
        async with crowd.of(b"same") as caller:
            return caller

    found = await asyncio.gather(*(ask() for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in found] == [Unreachable] * 3
    assert [each.asked for each in made] == [1], "they share one attempt"


def test_streams_share_clients_in_small_groups() -> None:
    """A client looks at all of its subscriptions at each delivery, which took seconds with 1,000 of them."""
    asyncio.run(_grouped())


async def _grouped() -> None:
    made = list[Fake]()

    def connect() -> Any:
        made.append(Fake())
        return made[-1]

    caller = Caller(connect, cast(Any, Clock()), "g")
    count = callers.STREAMS_OF_CLIENT_MAX
    readers = await asyncio.gather(*(caller.reader() for _ in range(2 * count + 1)))
    assert [sum(reader.mq is each for reader in readers) for each in made] == [count, count, 1]
    for reader in readers[count : 2 * count]:
        await caller.leave(reader)
    assert [each.closed for each in made] == [False, True, False]
    again = await caller.reader()
    assert again.mq is cast(Any, made[2])
    await caller.close()
    assert all(each.closed for each in made)
    await caller.leave(again)


def test_a_stream_that_finds_no_cluster_leaves_nothing_behind() -> None:
    asyncio.run(_unreached())


async def _unreached() -> None:
    made = list[Any]()

    def connect() -> Any:
        made.append(Fake() if not made else Unreached())
        return made[-1]

    caller = Caller(connect, cast(Any, Clock()), "g")
    for _ in range(callers.STREAMS_OF_CLIENT_MAX):
        await caller.reader()
    for _ in range(2):
        with pytest.raises(Unreachable):
            await caller.reader()
    assert [each.closed for each in made] == [False, True, True]
