"""The asyncio operator: the same names as the sync one, awaited."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Unpack

from gossipq.messages import Explained, GroupExplained, Members
from gossipq.values import GroupOptions, Step, TopicInfo
from gossipq_client import inputs, progress
from gossipq_client.aio_consumer import Consumers, Message
from gossipq_client.asking import Ranges
from gossipq_client.policies import GroupPolicy, group_options
from gossipq_client.receipts import Receipt
from gossipq_client.refs import address
from gossipq_client.searching import Progress, Search
from gossipq_client.stored import DeadLetter, StoredRecord
from gossipq_client.terms import delay_of


class Menders(Consumers):
    """The part of a client that explains and mends."""

    # --- explain

    async def why(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        group: str = "",
    ) -> Explained:
        """As the sync `why`."""
        return await self.talk(self.engine.asking.why(address(topic, partition, offset, ref, id), group))

    async def why_group(self, topic: str, group: str) -> GroupExplained:
        """As the sync `why_group`."""
        return await self.talk(self.engine.asking.why_group(topic, group))

    async def trace(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        group: str = "",
    ) -> list[Step]:
        """As the sync `trace`."""
        return await self.talk(self.engine.asking.trace(address(topic, partition, offset, ref, id), group))

    async def show(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
    ) -> StoredRecord:
        """As the sync `show`."""
        return await self.talk(self.engine.asking.show(address(topic, partition, offset, ref, id)))

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
        """As the sync `find`, for `async for`."""
        search = Search(start, end, key, contains, header, limit, progress, self.engine.clock.now().wall_ms)
        return self._found(topic, start, search)

    async def _found(self, topic: str, start: inputs.Start, search: Search) -> AsyncIterator[Message]:
        await self.talk(self.engine.asking.cover(topic, search))
        if search.over:
            return
        async for record in self.consume(topic, start=start, stop_at_end=True):
            if search.wants(record):
                yield record
            if search.over:
                return
        search.report()

    # --- mend one record

    async def cancel(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        reason: str = "",
    ) -> str:
        """As the sync `cancel`."""
        return await self.talk(self.engine.asking.cancel(address(topic, partition, offset, ref, id), reason))

    async def reschedule(
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
        """As the sync `reschedule`."""
        delay_ms = delay_of(self.engine.clock.now, delay, at)
        return await self.talk(self.engine.asking.reschedule(address(topic, partition, offset, ref, id), delay_ms))

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
        """As the sync `requeue`."""
        return await self.talk(self.engine.asking.requeue(address(topic, partition, offset, ref, id), group))

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
        """As the sync `edit`."""
        raw, raw_headers = inputs.edited(value, headers)
        return await self.talk(self.engine.asking.edit(address(topic, partition, offset, ref, id), raw, raw_headers))

    # --- dead letters

    async def dead_letters(
        self, topic: str, group: str = "", *, values: bool = True, partition: int | None = None, start: int = 0
    ) -> AsyncIterator[DeadLetter]:
        """As the sync `dead_letters`, for `async for`."""
        for letters in await self.talk(self.engine.asking.dead_letters(topic, group, values, partition, start)):
            while letters.after >= 0:
                for letter in await self.talk(letters.page()):
                    yield letter

    async def replay_dead(
        self, topic: str, group: str, ranges: Ranges | None = None, *, to: str | None = None, dry_run: bool = False
    ) -> int:
        """As the sync `replay_dead`."""
        return await self.talk(self.engine.asking.replay_dead(topic, group, ranges, to, dry_run))

    async def purge_dead(self, topic: str, group: str, ranges: Ranges | None = None, *, dry_run: bool = False) -> int:
        """As the sync `purge_dead`."""
        return await self.talk(self.engine.asking.purge_dead(topic, group, ranges, dry_run))

    # --- groups and virtual topics

    async def pause(self, topic: str, group: str) -> None:
        """As the sync `pause`."""
        await self.talk(self.engine.asking.set_group(topic, group, GroupOptions(paused=True)))

    async def resume(self, topic: str, group: str) -> None:
        """As the sync `resume`."""
        await self.talk(self.engine.asking.set_group(topic, group, GroupOptions(paused=False)))

    async def set_group(self, topic: str, group: str, **policy: Unpack[GroupPolicy]) -> None:
        """As the sync `set_group`."""
        await self.talk(self.engine.asking.set_group(topic, group, group_options(**policy)))

    async def positions(self, topic: str, start: inputs.Start = "first") -> dict[int, tuple[int, int]]:
        """As the sync `positions`."""
        where = inputs.start_of(start, self.engine.clock.now().wall_ms)
        return await self.talk(progress.positions(self.engine.asking, self.engine.session, topic, where))

    async def ack_below(self, topic: str, group: str, ends: Mapping[int, int]) -> None:
        """As the sync `ack_below`."""
        await self.talk(progress.ack_below(self.engine.asking, self.engine.session, topic, group, ends))

    async def bind_topic(self, name: str, targets: Sequence[str]) -> TopicInfo:
        """As the sync `bind_topic`."""
        return await self.talk(self.engine.asking.bind_topic(name, targets))

    # --- the roster

    async def members(self) -> Members:
        """As the sync `members`."""
        return await self.talk(self.engine.asking.members())

    async def set_member(self, name: str, state: str) -> Members:
        """As the sync `set_member`."""
        return await self.talk(self.engine.asking.set_member(name, state))
