"""The operator: why a record does not move, what happened to it, and the verbs that change it."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Unpack

from gossipq.messages import Identity, Members
from gossipq.values import AccessChange, AccessTable, GroupOptions, TopicInfo, TraceEvent
from gossipq_client.api.aio.consumer import Consumers, Message
from gossipq_client.api.aio.schemas import Schemas
from gossipq_client.handlers import shows
from gossipq_client.operations import (
    DeadLetter,
    Delivery,
    GroupStand,
    Progress,
    Ranges,
    Result,
    Search,
    Span,
    StoredRecord,
    Talk,
    progress,
)
from gossipq_client.session import Receipt
from gossipq_client.values import GroupPolicy, address, group_options, inputs


class Menders:
    """The part of `mq.admin` that explains and mends.

    A record is named by (topic, partition, offset), by ref= (of its receipt), or by topic and id=. Raises
    NotFound for an unknown record, Refused if it is not in the state that the verb needs, and BadRequest.
    """

    def __init__(self, client: Consumers, schemas: Schemas) -> None:
        self._client, self._schemas, self._asking = client, schemas, client._engine.asking

    async def _talk(self, talk: Talk[Result]) -> Result:
        return await self._client._talk(talk)

    # --- explain

    async def why_group(self, topic: str, group: str) -> list[GroupStand]:
        """Why a group stands still, or does not: one for each partition, none for a group that is not
        there."""
        return await self._talk(self._asking.why_group(topic, group))

    async def trace(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        group: str = "",
    ) -> list[TraceEvent]:
        """Return the steps in the life of a record, as far as the topic's `trace` keeps them."""
        return await self._talk(self._asking.trace(address(topic, partition, offset, ref, id), group))

    async def show(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
    ) -> StoredRecord:
        """The record itself, also while it is scheduled or a dead letter."""
        return await self._talk(self._asking.show(address(topic, partition, offset, ref, id)))

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
    ) -> AsyncIterator[Message]:
        """Records between `start` and `end` (offsets, aware datetimes, "-10m") with this key, this text in
        their value, these headers; at most `limit`. `progress` is told now and then how many were looked at,
        and of how many."""
        wall_ms = self._client._engine.clock.now().wall_ms
        search = Search(start, end, key, contains, header, limit, progress, wall_ms)
        return self._found(topic, start, search)

    async def _found(self, topic: str, start: inputs.Start, search: Search) -> AsyncIterator[Message]:
        await self._talk(self._asking.cover(topic, search))
        if search.over:
            return
        async for record in self._client.consume(topic, start=start, stop_at_end=True):
            if search.wants(record):
                yield record
            if search.over:
                return
        search.report()

    # --- mend one record

    async def requeue(
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
        return await self._talk(self._asking.requeue(address(topic, partition, offset, ref, id), group))

    async def edit(
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
        return await self._talk(
            self._asking.edit(address(topic, partition, offset, ref, id), raw, raw_headers)
        )

    # --- dead letters

    async def dead_letters(
        self,
        topic: str,
        group: str = "",
        *,
        values: bool = True,
        partition: int | None = None,
        start: int = 0,
    ) -> AsyncIterator[DeadLetter]:
        """Dead letters of a group, or of all, from offset `start` on. Without values they cost less, and
        neighbours are one."""
        for letters in await self._talk(self._asking.dead_letters(topic, group, values, partition, start)):
            while letters.after >= 0:
                for letter in await self._talk(letters.page()):
                    yield letter

    async def replay_dead(
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
        return await self._talk(self._asking.replay_dead(topic, group, ranges, to, dry_run))

    async def purge_dead(
        self, topic: str, group: str, ranges: Ranges | None = None, *, dry_run: bool = False
    ) -> int:
        """Dead letters go for good. Returns how many."""
        return await self._talk(self._asking.purge_dead(topic, group, ranges, dry_run))

    # --- groups and virtual topics

    async def pause(self, topic: str, group: str) -> None:
        """Stop delivering to a group until `resume`."""
        await self._talk(self._asking.set_group(topic, group, GroupOptions(paused=True)))

    async def resume(self, topic: str, group: str) -> None:
        """Goes on after `pause`."""
        await self._talk(self._asking.set_group(topic, group, GroupOptions(paused=False)))

    @shows(group_options, GroupPolicy)
    async def set_group(self, topic: str, group: str, **policy: Unpack[GroupPolicy]) -> None:
        """Change the policy of a group in the shards of a topic. Raises BadRequest for an unknown group, and
        Refused for another mode while the group has consumers."""
        await self._talk(self._asking.set_group(topic, group, group_options(**policy)))

    async def positions(self, topic: str, start: inputs.Start = "first") -> dict[int, Span]:
        """For each partition the offset where a reader would start, and the one behind its last record."""
        where = inputs.start_of(start, self._client._engine.clock.now().wall_ms)
        return await self._talk(progress.positions(self._asking, topic, where))

    async def ack_below(self, topic: str, group: str, ends: Mapping[int, int]) -> None:
        """Ack for a group all records below these offsets (partition -> offset), except those that its
        consumers hold. A reader that keeps positions of its own, such as Spark, uses it to show its lag and
        to make retention wait for it. A new group begins at the first record."""
        await self._talk(progress.ack_below(self._asking, self._client._engine.session, topic, group, ends))

    async def ack_delivered(self, topic: str, group: str, deliveries: Collection[Delivery]) -> set[Delivery]:
        """Ack deliveries for a group, whichever clients they went to: for a program that passes records on to
        others, and hears of them again when it may have been restarted. Returns those that came too late,
        because their record was delivered again since, or is a dead letter. Raises NotFound,
        BadRequest."""
        return await self._talk(progress.ack_delivered(self._asking, topic, group, deliveries))

    async def bind_topic(self, name: str, targets: Sequence[str]) -> TopicInfo:
        """Makes a virtual topic, or binds it to other topics: what is published to it is copied to each of
        them."""
        return await self._talk(self._asking.bind_topic(name, targets))

    # --- the roster

    async def members(self) -> Members:
        """The nodes of the cluster, as the leader of its meta shard has them."""
        return await self._talk(self._asking.members())

    async def set_member(self, name: str, state: str, secret: bytes = b"") -> Members:
        """Drains a node ("leaving"), takes it back ("in"), or off the roster ("gone"). `secret` is what the
        nodes of the cluster share; it is not sent. Raises BadRequest, Refused."""
        return await self._talk(self._asking.set_member(name, state, secret))

    async def set_cluster_options(self, options: dict[str, str], secret: bytes = b"") -> Members:
        """Changes options of [cluster], dotted key -> JSON text; the answer has all of them. `secret` is what
        the nodes of the cluster share; it is not sent. Raises BadRequest, Refused."""
        return await self._talk(self._asking.set_cluster_options(options, secret))

    # --- users

    async def whoami(self) -> Identity:
        """Return the user of this client, as the connected node sees it, and its permissions in a closed
        cluster."""
        return await self._talk(self._asking.whoami())

    async def access(self) -> AccessTable:
        """Users and roles of the cluster. Raises Forbidden."""
        return await self._talk(self._asking.access())

    async def set_access(self, change: AccessChange, secret: bytes = b"") -> AccessTable:
        """Changes users and roles, closes or opens the cluster; the answer is the whole table. `secret` is
        what the nodes of the cluster share, and not sent; who has the permission `cluster` needs none. Raises
        BadRequest, Refused."""
        return await self._talk(self._asking.set_access(change, secret))
