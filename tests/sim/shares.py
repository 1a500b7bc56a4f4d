"""I17 and I18: how a leader divides the records of a shared group among its members.

I17: while a member has had nothing and others hold more than they can start, the leader asks these
to give records back. I18: a member gets records only while it holds few unstarted ones, by the work that
it has finished of late. Both are counted from the messages, the leases and the credit.
"""

from collections import defaultdict, deque
from collections.abc import Iterator

from gossipq import limits
from gossipq.core.delivery import Delivery, Subscription, prefetch
from gossipq.core.shard import Shard
from gossipq.messages import Ack, AckResults, Nack, Started
from gossipq.types import SessionId
from gossipq.values import Message

Name = tuple[int, SessionId, int]
"""Shard, session, number of the subscription."""
Work = tuple[int, bool, tuple[int, int]]
"""When, whether it ended, partition and offset."""

ASKED_WITHIN = 5  #: times UNEVEN_MS: a group is looked at once in UNEVEN_MS, and a turn takes its time
PERIODS = 3  #: a bound follows from the work of one period, and counts for another one


def held(shard: Shard, member: Subscription) -> tuple[int, int, int]:
    """How many records a member holds, how many of them have not begun, and since when it has the oldest."""
    assert member.group is not None
    count, unstarted, since_ms = 0, 0, shard.dispatch.turn.boot_ms
    for view in member.group.views.values():
        for first, end, lease in view.window.leases():
            if lease.owner == member.name:
                count += end - first
                unstarted += 0 if lease.started else end - first
                since_ms = min(since_ms, lease.since_ms)
    return count, unstarted, since_ms


class Shares:
    """The work that consumers reported to the leaders of one node, and the shares that these answered."""

    def __init__(self) -> None:
        self._work = defaultdict[Name, deque[Work]](deque)
        #: by shard, term and group: since when it lies unevenly, or was asked about that
        self._since: dict[tuple[int, int, int], int] = {}

    def heard(self, shard: int, session: SessionId, message: Message, now_ms: int) -> None:
        """A consumer works."""
        has_failed = isinstance(message, Nack) and bool(message.failed or message.dead)
        if isinstance(message, Ack | AckResults | Started) or has_failed:
            assert isinstance(message, Ack | AckResults | Nack | Started)
            work = self._work[shard, session, message.subscription]
            for partition, first, end in message.ranges:
                ended = not isinstance(message, Started)
                work.extend((now_ms, ended, (partition, offset)) for offset in range(first, end))

    def _worked(self, name: Name, now_ms: int) -> int:
        """Count the records that it began or finished of late."""
        work = self._work[name]
        while work and work[0][0] < now_ms - PERIODS * prefetch.PERIOD_MS:
            work.popleft()
        begun = {record for _, ended, record in work if not ended}
        done = [record for _, ended, record in work if ended]
        return len(done) + len(begun.difference(done))

    def delivered(self, shard: Shard, delivery: Delivery, session: SessionId, now_ms: int) -> Iterator[str]:
        """I18, after a turn in which the member got records."""
        member = shard.dispatch.subscriptions.get((session, delivery.subscription))
        if member is None or member.group is None or not member.ack:
            return
        if member.group.state.config.mode != "shared" or member.fetches:
            return
        _, unstarted, _ = held(shard, member)
        worked = self._worked((shard.id, session, member.number), now_ms)
        most = max(limits.PREFETCH_START, limits.PREFETCH_GROWTH * worked)
        if unstarted > most:
            yield f"I18 {session!r} holds {unstarted} records that it has not begun, and may hold {most}"

    def asked(self, shard: Shard, session: SessionId, number: int, now_ms: int) -> None:
        """A member is asked to give records back."""
        member = shard.dispatch.subscriptions.get((session, number))
        if member is not None and member.group is not None:
            self._since[shard.id, shard.term, member.group.id] = now_ms

    def look(self, shards: list[Shard], now_ms: int) -> Iterator[str]:
        """I17, after a turn."""
        uneven = {
            (shard.id, shard.term, group_id): shard
            for shard in shards
            if shard.serving
            for group_id in shard.dispatch.groups
            if self._is_uneven(shard, group_id)
        }
        self._since = {name: self._since.get(name, now_ms) for name in uneven}
        for name, since_ms in self._since.items():
            if now_ms - since_ms > ASKED_WITHIN * limits.UNEVEN_MS:
                self._since[name] = now_ms
                yield f"I17 group {name[2]} lies unevenly for {now_ms - since_ms} ms, and no member is asked"

    @staticmethod
    def _is_uneven(shard: Shard, group_id: int) -> bool:
        dispatch = shard.dispatch
        group = dispatch.groups[group_id]
        config = group.state.config
        if len(group.members) < 2 or config.mode != "shared" or config.paused:
            return False
        if dispatch.notices or group_id in dispatch.turn.dirty:
            return False  # the leader serves the group when a majority answers it again
        if any(map(dispatch.offers, group.views.values())):
            return False
        rows = [(member, *held(shard, member)) for member in group.members.values()]
        idle = sum(not count and member.has_credit and member.matches is None for member, count, _, _ in rows)
        busy = [count for _, count, _, _ in rows if count]
        if not idle or not busy:
            return False
        keep = max(1, sum(busy) // (len(busy) + idle))
        return any(
            member.shares and count > keep and dispatch.turn.boot_ms - since_ms >= limits.UNEVEN_MS
            for member, count, _, since_ms in rows
        )
