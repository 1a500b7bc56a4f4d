# Made by clients/python/make_twins.py from api/aio/menders.py: change that, then run it.
"""The operator: why a record does not move, what happened to it, and the verbs that change it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Unpack

from gossipq.messages import Explained, GroupExplained, Members
from gossipq.values import GroupOptions, Step, TopicInfo
from gossipq_client.api.sync.consumer import Consumers, Message
from gossipq_client.operations import DeadLetter, Progress, Ranges, Search, StoredRecord, progress
from gossipq_client.session import Receipt
from gossipq_client.values import GroupPolicy, address, delay_of, group_options, inputs


class Menders(Consumers):
    """The part of a client that explains and mends.

    A record is named by (topic, partition, offset), by ref= (of its receipt), or by topic and id=. Raises
    UnknownRecord when there is none, WrongState when it is not where the verb wants it, BadRequest,
    UnknownTopic.
    """

    # --- explain

    def why(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        group: str = "",
    ) -> Explained:
        """Where a record stands for a group, or for each: its state, because of what, and the command that
        changes it."""
        return self.talk(self.engine.asking.why(address(topic, partition, offset, ref, id), group))

    def why_group(self, topic: str, group: str) -> GroupExplained:
        """Why a group stands still, or does not: one row for each partition."""
        return self.talk(self.engine.asking.why_group(topic, group))

    def trace(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        group: str = "",
    ) -> list[Step]:
        """What happened to a record, as far as the topic's `trace` keeps it."""
        return self.talk(self.engine.asking.trace(address(topic, partition, offset, ref, id), group))

    def show(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
    ) -> StoredRecord:
        """The record itself, also while it is scheduled or a dead letter."""
        return self.talk(self.engine.asking.show(address(topic, partition, offset, ref, id)))

    def find(
        self,
        topic: str,
        *,
        start: inputs.Start = "first",
        end: inputs.Start | None = None,
        key: inputs.Value | None = None,
        contains: inputs.Value | None = None,
        header: inputs.Headers | None = None,
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Message]:
        """Records between `start` and `end` (offsets, aware datetimes, "-10m") with this key, this text in
        their value, these headers; at most `limit`. `progress` is told now and then how many were looked at,
        and of how many."""
        search = Search(start, end, key, contains, header, limit, progress, self.engine.clock.now().wall_ms)
        return self._found(topic, start, search)

    def _found(self, topic: str, start: inputs.Start, search: Search) -> Iterator[Message]:
        self.talk(self.engine.asking.cover(topic, search))
        if search.over:
            return
        for record in self.consume(topic, start=start, stop_at_end=True):
            if search.wants(record):
                yield record
            if search.over:
                return
        search.report()

    # --- mend one record

    def cancel(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        reason: str = "",
    ) -> str:
        """Voids a record that no consumer holds and not every group has acked. Returns its ref, as the next
        three do."""
        return self.talk(self.engine.asking.cancel(address(topic, partition, offset, ref, id), reason))

    def reschedule(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        delay: inputs.Duration | None = None,
        at: inputs.Time | None = None,
    ) -> str:
        """Another due time for a scheduled record: `delay` from now, or `at`."""
        delay_ms = delay_of(self.engine.clock.now, delay, at)
        return self.talk(self.engine.asking.reschedule(address(topic, partition, offset, ref, id), delay_ms))

    def requeue(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        group: str,
    ) -> str:
        """Hands a record to a group once more: acked, retrying, parked or dead, it is ready now."""
        return self.talk(self.engine.asking.requeue(address(topic, partition, offset, ref, id), group))

    def edit(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        value: inputs.Value | None = None,
        headers: inputs.Headers | None = None,
    ) -> Receipt:
        """A record with another value or other headers takes the place of the old one, which is voided; None
        = as it was."""
        raw, raw_headers = inputs.edited(value, headers)
        return self.talk(
            self.engine.asking.edit(address(topic, partition, offset, ref, id), raw, raw_headers)
        )

    # --- dead letters

    def dead_letters(
        self,
        topic: str,
        group: str = "",
        *,
        values: bool = True,
        partition: int | None = None,
        start: int = 0,
    ) -> Iterator[DeadLetter]:
        """Dead letters of a group, or of all, from offset `start` on. Without values they cost less, and
        neighbours are one."""
        for letters in self.talk(self.engine.asking.dead_letters(topic, group, values, partition, start)):
            while letters.after >= 0:
                yield from self.talk(letters.page())

    def replay_dead(
        self,
        topic: str,
        group: str,
        ranges: Ranges | None = None,
        *,
        to: str | None = None,
        dry_run: bool = False,
    ) -> int:
        """Dead letters are ready for their group again, with fresh counters: all, or those of (partition,
        first, end) ranges.

        With `to` they are published to that topic instead, and purged here. Returns how many.
        """
        return self.talk(self.engine.asking.replay_dead(topic, group, ranges, to, dry_run))

    def purge_dead(
        self, topic: str, group: str, ranges: Ranges | None = None, *, dry_run: bool = False
    ) -> int:
        """Dead letters go for good. Returns how many."""
        return self.talk(self.engine.asking.purge_dead(topic, group, ranges, dry_run))

    # --- groups and virtual topics

    def pause(self, topic: str, group: str) -> None:
        """Nothing is handed out to the group until `resume`."""
        self.talk(self.engine.asking.set_group(topic, group, GroupOptions(paused=True)))

    def resume(self, topic: str, group: str) -> None:
        """Goes on after `pause`."""
        self.talk(self.engine.asking.set_group(topic, group, GroupOptions(paused=False)))

    def set_group(self, topic: str, group: str, **policy: Unpack[GroupPolicy]) -> None:
        """Changes the policy of a group in the shards of a topic. Raises BadRequest when there is no such
        group.

        Policy: lease, in_flight_max, attempts_max, backoff, parked_max, paused; see GroupPolicy.
        """
        self.talk(self.engine.asking.set_group(topic, group, group_options(**policy)))

    def positions(self, topic: str, start: inputs.Start = "first") -> dict[int, tuple[int, int]]:
        """For each partition the offset where a reader would start, and the one behind its last record."""
        where = inputs.start_of(start, self.engine.clock.now().wall_ms)
        return self.talk(progress.positions(self.engine.asking, self.engine.session, topic, where))

    def ack_below(self, topic: str, group: str, ends: Mapping[int, int]) -> None:
        """Acks for a group everything below these offsets (partition -> offset) but what its consumers hold:
        for who reads without a group and keeps positions of its own, as Spark does, so that its lag is seen
        and retention waits for it. A new group begins at the first record."""
        self.talk(progress.ack_below(self.engine.asking, self.engine.session, topic, group, ends))

    def bind_topic(self, name: str, targets: Sequence[str]) -> TopicInfo:
        """Makes a virtual topic, or binds it to other topics: what is published to it is copied to each of
        them."""
        return self.talk(self.engine.asking.bind_topic(name, targets))

    # --- the roster

    def members(self) -> Members:
        """The nodes of the cluster, as the leader of its meta shard has them."""
        return self.talk(self.engine.asking.members())

    def set_member(self, name: str, state: str, secret: bytes = b"") -> Members:
        """Drains a node ("leaving"), takes it back ("in"), or off the roster ("gone"). `secret` is what the
        nodes of the cluster share; it is not sent. Raises BadRequest, WrongState."""
        return self.talk(self.engine.asking.set_member(name, state, secret))

    def set_cluster_options(self, options: dict[str, str], secret: bytes = b"") -> Members:
        """Changes options of [cluster], dotted key -> JSON text; the answer has all of them. `secret` is what
        the nodes of the cluster share; it is not sent. Raises BadRequest, WrongState."""
        return self.talk(self.engine.asking.set_cluster_options(options, secret))
