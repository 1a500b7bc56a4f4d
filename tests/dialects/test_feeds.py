"""Records for connections, over a fake subscription."""

import asyncio
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gossipq.errors import GossipqError
from gossipq_client.values import GIVEN_BACK, Outcome
from gossipq_dialects.feeds import Feed
from gossipq_dialects.moonmq import fanouts
from gossipq_gateway.numbers import whole


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("17", 17),
        ("9223372036854775807", 2**63 - 1),
        ("", 0),
        ("-1", 0),
        ("x", 0),
        ("٣", 0),
        (b"1", 0),
        (None, 0),
    ],
)
def test_numbers_of_headers(text: str | bytes | None, number: int) -> None:
    assert whole(text) == number


def test_a_number_without_end_is_none() -> None:
    """Python refuses it by a ValueError, which ended the consumers of the queue."""
    assert whole("9" * 5_000) == 0


class Record:
    outcome: Outcome | None = None

    def settle(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Bound:
    """A subscription that brings one record, and then nothing."""

    def __init__(self, record: Record) -> None:
        self._record, self.closed = record, False

    async def __aiter__(self) -> AsyncIterator[Record]:
        yield self._record
        await asyncio.sleep(60)

    async def aclose(self) -> None:
        self.closed = True


class Clumsy:
    """A connection that cannot take a record."""

    error: GossipqError | None = None

    def has_room(self) -> bool:
        return True

    def give(self, message: Any) -> None:
        raise ValueError("a record that nobody thought of")

    def ended(self, error: GossipqError) -> None:
        self.error = error


def test_a_record_that_cannot_be_given_ends_the_feed_and_goes_back() -> None:
    asyncio.run(_ends())


async def _ends() -> None:
    """Else who joins later would wait for ever, and the record would stay."""
    record, over, taker = Record(), list[bool](), Clumsy()
    subscription = Bound(record)
    feed = Feed(lambda: cast(Any, subscription), lambda: over.append(True))
    feed.join(taker)
    await asyncio.wait_for(feed.ended(), 5)
    assert over
    assert taker.error is not None
    assert record.outcome == GIVEN_BACK
    assert subscription.closed


class Reads:
    """Somebody who is bound to a queue, and acks nothing."""

    error: GossipqError | None = None

    def __init__(self) -> None:
        self.had = list[int]()

    def has_room(self) -> bool:
        return True

    def give(self, message: Any) -> None:
        self.had.append(message.offset)

    def ended(self, error: GossipqError) -> None:
        self.error = error


def test_who_is_bound_hears_that_messages_for_all_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """When consumers that left have left too many messages: otherwise a new one would wait for
    messages without readers.
    """
    monkeypatch.setattr(fanouts, "LEFT_MAX", 2)
    asyncio.run(_begins_anew())


async def _begins_anew() -> None:
    desk = cast(Any, SimpleNamespace(log=logging.getLogger("test")))
    fanout = fanouts.Fanout(desk, "q", "g")
    stays, leaves = Reads(), Reads()
    fanout.join(stays)
    fanout.join(leaves)
    for offset in range(3):
        for share in fanout._shares.values():
            share.waiting.append(cast(Any, SimpleNamespace(offset=offset)))
            share.offer()
    assert stays.had == leaves.had == [0, 1, 2]
    fanout.leave(leaves)
    assert fanout.is_over
    await fanout.close()
    assert stays.error is not None
