"""Forecast of a group: rates, consumers, and the time to catch up.

Computed from two looks at its counters. Pure.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gossipq.texts import many, span
from gossipq.values import ClientRow, GroupStats, PartitionStats
from gossipq_ops.sums import DONE, lag_of

SLOW_SHARE = 0.5  #: a consumer below this part of the median rate is slow
HOLDERS_SHOWN = 5
#: Two close looks cannot distinguish rates closer than this.

#: A backlog of less than this many seconds of work is ignored.
ABOUT_AS_FAST, LITTLE_S = 0.9, 1.0


class Look(NamedTuple):
    """Counters of one group on one topic at one time."""

    at_ms: int
    published: int
    done: int  #: finished in any way
    lag: int  #: published and not finished
    oldest_ms: int  #: age of the oldest unfinished record
    holders: tuple["Holder", ...]


class Holder(NamedTuple):
    """A consumer, over all workers. `acked` counts since it subscribed."""

    client: str
    in_flight: int
    held_ms: int
    acked: int
    rate: float = 0.0  #: records a second that it acked between two looks


class Outlook(NamedTuple):
    """The forecast.

    `caught_up_s` None: never at the present rates. `needed` is the number of similar consumers that
    would catch up; 0 = unknown.
    """

    in_rate: float
    done_rate: float
    lag: int
    oldest_ms: int
    caught_up_s: float | None
    holders: tuple[Holder, ...]  #: largest holder first
    slow: tuple[str, ...]
    needed: int
    keeps_up: bool = False  #: True if it is as fast as new records come, and the backlog is small


def look(
    at_ms: int,
    topic: str,
    group: str,
    partitions: Iterable[PartitionStats],
    groups: Iterable[GroupStats],
    clients: Iterable[ClientRow],
) -> Look:
    rows = [row for row in groups if (row.topic, row.group) == (topic, group)]
    return Look(
        at_ms,
        sum(row.published for row in partitions if row.topic == topic),
        sum(getattr(row, name) for row in rows for name in DONE),
        sum(map(lag_of, rows)),
        max((row.oldest_ms for row in rows), default=0),
        tuple(_holders(topic, group, clients)),
    )


def _holders(topic: str, group: str, clients: Iterable[ClientRow]) -> list[Holder]:
    found: dict[bytes, Holder] = {}
    for client in clients:
        for row in client.subscriptions:
            if row.group == group and topic in row.topic.split(", "):
                old = found.get(client.session, Holder(client.client, 0, 0, 0))
                found[client.session] = Holder(
                    client.client,
                    old.in_flight + row.in_flight,
                    max(old.held_ms, row.held_ms),
                    old.acked + row.acked,
                )
    return sorted(found.values(), key=lambda holder: (-holder.in_flight, holder.client))


def outlook(first: Look, last: Look) -> Outlook:
    seconds = max(0.001, (last.at_ms - first.at_ms) / 1_000)
    in_rate = max(0, last.published - first.published) / seconds
    done_rate = max(0, last.done - first.done) / seconds
    before = {holder.client: holder.acked for holder in first.holders}
    holders = tuple(
        holder._replace(rate=max(0, holder.acked - before.get(holder.client, 0)) / seconds)
        for holder in last.holders
    )
    keeps_up = done_rate >= ABOUT_AS_FAST * in_rate and 0 < last.lag <= LITTLE_S * done_rate
    caught_up_s = last.lag / (done_rate - in_rate) if done_rate > in_rate else None
    if keeps_up and caught_up_s is None:
        caught_up_s = last.lag / done_rate
    each = done_rate / len(holders) if holders else 0.0
    needed = math.ceil(in_rate / each * 1.1) if each and in_rate >= done_rate and not keeps_up else 0
    return Outlook(
        in_rate,
        done_rate,
        last.lag,
        last.oldest_ms,
        0.0 if not last.lag else caught_up_s,
        holders,
        _slow(holders),
        max(needed, len(holders) + 1) if needed else 0,
        keeps_up,
    )


def _slow(holders: Sequence[Holder]) -> tuple[str, ...]:
    """Return consumers with a rate far below the median, although they hold records."""
    if len(holders) < 2:
        return ()
    middle = sorted(holder.rate for holder in holders)[len(holders) // 2]
    return tuple(
        holder.client for holder in holders if holder.in_flight and holder.rate < SLOW_SHARE * middle
    )


def as_object(outlook: Outlook) -> dict[str, Any]:
    """Return the forecast for JSON."""
    return outlook._asdict() | {"holders": [holder._asdict() for holder in outlook.holders]}


def lines(outlook: Outlook) -> list[str]:
    """Return the forecast for people."""
    told = [f"{_rate(outlook.in_rate)} in, {_rate(outlook.done_rate)} done; {_lag(outlook)}"]
    if outlook.lag:
        told.append(_future(outlook))
    for holder in outlook.holders[:HOLDERS_SHOWN]:
        slow = ", slow" if holder.client in outlook.slow else ""
        held = f" for up to {span(holder.held_ms)}" if holder.in_flight else ""
        told.append(
            f"{holder.client} holds {many(holder.in_flight, 'record')}{held}, does {_rate(holder.rate)}{slow}"
        )
    if more := len(outlook.holders) - HOLDERS_SHOWN:
        told += [f"and {many(more, 'consumer')} more"] if more > 0 else []
    return told


def _lag(outlook: Outlook) -> str:
    if not outlook.lag:
        return "nothing waits"
    return f"{many(outlook.lag, 'record')} behind, the oldest for {span(outlook.oldest_ms)}"


def _future(outlook: Outlook) -> str:
    if outlook.keeps_up:
        return "keeps up"
    if outlook.caught_up_s is not None:
        return f"caught up in about {span(max(1_000, round(outlook.caught_up_s * 1_000)))}"
    if not outlook.holders:
        return "will not catch up: the group has no consumers"
    if not outlook.done_rate:
        return "will not catch up: nothing is acked"
    if outlook.needed:
        return f"will not catch up at this pace: about {many(outlook.needed, 'consumer')} like these would"
    return "will not catch up at this pace"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}/s" if per_second >= 10 or not per_second else f"{per_second:,.1f}/s"
