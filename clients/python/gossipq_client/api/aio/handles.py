"""Handles of a topic, a group, dead letters and a record: each has the verbs for the thing that it names.

To make a handle sends nothing. Each verb asks the cluster, and raises Unreachable if no node answers within
the client's timeout.
"""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Unpack

from gossipq.values import GroupOptions
from gossipq.wire.schemas import Schema
from gossipq_client import answers
from gossipq_client.answers import value_of
from gossipq_client.api.aio.operator import Operator
from gossipq_client.api.aio.schemas import Schemas
from gossipq_client.operations import DeadLetter, Ranges, StoredRecord
from gossipq_client.session import Receipt
from gossipq_client.values import (
    Address,
    GroupPolicy,
    TopicPolicy,
    delay_of,
    group_options,
    inputs,
    topic_options,
)


class TopicHandle:
    """A topic, as `mq.topic("orders")`. Verbs raise NotFound if the topic does not exist."""

    def __init__(self, operator: Operator, schemas: Schemas, name: str) -> None:
        self._operator, self._schemas, self.name = operator, schemas, name

    def __repr__(self) -> str:
        return f"<topic {self.name}>"

    async def describe(self) -> "answers.TopicDetails":
        """Return the id, the partitions and the policy of the topic."""
        return value_of(
            answers.TopicDetails, await self._operator.run(self._operator.asking.described(self.name))
        )

    async def configure(self, **policy: Unpack[TopicPolicy]) -> "answers.TopicDetails":
        """Change the policy of the topic; options that are not given stay. Options as in `create_topic`.
        Raises BadRequest."""
        changed = self._operator.asking.set_topic(self.name, topic_options(**policy))
        return value_of(answers.TopicDetails, await self._operator.run(changed))

    async def delete(self) -> None:
        """Delete the topic with its records and groups."""
        await self._operator.run(self._operator.asking.delete_topic(self.name))
        self._schemas.forget(self.name)

    async def purge(self, partition: int | None = None, *, dry_run: bool = False) -> int:
        """Remove all records that the topic, or one of its partitions, has now. Scheduled records and dead
        letters stay, also replayed ones. Returns the number of removed records."""
        return await self._operator.run(self._operator.asking.purge_topic(self.name, partition, dry_run))

    async def bind(self, targets: Sequence[str]) -> "answers.TopicDetails":
        """Make the topic a virtual one: each record that is published to it is copied to these topics. A
        topic that does not exist is created; a virtual one gets the new targets. Raises BadRequest."""
        bound = await self._operator.run(self._operator.asking.bind_topic(self.name, targets))
        return value_of(answers.TopicDetails, bound)

    async def groups(self) -> "list[answers.GroupCounters]":
        """Return counters of each group of the topic, one entry for each partition."""
        rows = (await self._operator.run(self._operator.asking.stats([self.name]))).groups
        return [value_of(answers.GroupCounters, row) for row in rows]

    async def positions(self, start: inputs.Start = "first") -> "dict[int, answers.Span]":
        """For each partition the offset where a reader would start, and the one behind its last record."""
        where = inputs.start_of(start, self._operator.wall_ms)
        return await self._operator.run(self._operator.asking.positions(self.name, where))

    async def schema(self) -> Schema | None:
        """Return the schema of the topic, if it has one. `mq.schema` makes this client check by it."""
        return await self._schemas.of(self.name)

    async def next_schema(self, declared: Any) -> Schema:
        """Return what `mq.schema(topic, declared)` would declare, and change nothing. Raises BadRequest as
        that does."""
        return await self._schemas.next(self.name, declared)

    async def delete_schema(self) -> None:
        """Remove the schema of the topic; its records stay as they are."""
        await self._schemas.delete(self.name)


class GroupHandle:
    """A group of a topic, as `mq.group("orders", "billing")`. Verbs raise NotFound if the topic does not
    exist."""

    def __init__(self, operator: Operator, topic: str, name: str) -> None:
        self._operator, self.topic, self.name = operator, topic, name

    def __repr__(self) -> str:
        return f"<group {self.name} of {self.topic}>"

    async def describe(self, flows: int = 0) -> "answers.GroupRules":
        """Return the policy of the group, the origin of each value, and its consumers. Raises BadRequest for
        an unknown group. `flows`: as many flows with the most records, and of those that wait longest."""
        return answers.group_rules(
            await self._operator.run(self._operator.asking.group_policy(self.topic, self.name, flows))
        )

    async def configure(self, **policy: Unpack[GroupPolicy]) -> None:
        """Change the policy of the group in each shard of the topic. Raises BadRequest for an unknown group,
        and Refused for another mode while the group has consumers.

        Durations are seconds, a timedelta, or text such as "30s". Options that are not given stay:

        mode=None: "shared", "exclusive" (one consumer at a time) or "key_ordered" (each key in order); it
            can be changed while the group has no consumer
        lease=None: how long a consumer may hold a record without a sign of life
        in_flight_max=None: records per partition that may be in flight at a time
        attempts_max=None: failures after which a record is a dead letter
        backoff=None: pause after the first, second ... failure; the last one repeats
        parked_max=None: records per partition that can wait for an earlier record of their key
        paused=None: True stops all deliveries of the group
        alarm_lag=None: records of a partition that it may be behind without an alarm; 0 = any number
        order=None: which record is next: "arrival", "priority" (the higher one first) or "fair" (one of
            each flow in turn, the higher priority first)
        weights=None: records that a flow gets in its turn, by the name of the flow; others get 1
        concurrency=None: records of the group that may be in flight, over all partitions; 0 = no limit
        flow_concurrency=None: records of each flow that may be in flight; 0 = no limit
        rate=None: deliveries of the group in a time, as "10/s", "600/1m" or "10/s burst 20"; "none" = no
            limit
        flow_rate=None: the same for each flow
        flow_backlog=None: records of each flow that may wait in a partition; a publish beyond raises
            Refused; 0 = no bound
        age_after=None: records that wait longer get one of ten deliveries, whatever their priority; 0 =
            they do not
        """
        await self._set(group_options(**policy))

    async def pause(self) -> None:
        """Stop delivering to the group until `resume`. Records in flight can still be acked."""
        await self._set(GroupOptions(paused=True))

    async def resume(self) -> None:
        """Deliver to the group again after `pause`."""
        await self._set(GroupOptions(paused=False))

    async def _set(self, options: GroupOptions) -> None:
        await self._operator.run(self._operator.asking.set_group(self.topic, self.name, options))

    async def counters(self) -> "list[answers.GroupCounters]":
        """Return the counters of the group, one entry for each partition where it exists."""
        rows = (await self._operator.run(self._operator.asking.stats([self.topic]))).groups
        return [value_of(answers.GroupCounters, row) for row in rows if row.group == self.name]

    async def lag(self) -> int:
        """Return how many records the group has not finished: ready, in flight, or to be tried again."""
        return sum(row.ready + row.in_flight + row.retrying + row.parked for row in await self.counters())

    async def why(self) -> "list[answers.GroupStand]":
        """Explain for each partition why the group stands still, or that it does not. Empty for a group that
        does not exist."""
        return await self._operator.run(self._operator.asking.why_group(self.topic, self.name))

    async def seek(self, to: inputs.Start, *, dry_run: bool = False) -> "list[answers.SoughtPosition]":
        """Move the group to another position: "first", "new", an offset, an aware datetime, "-10m". Its
        counters start over.

        Raises Refused while it has consumers or dead letters."""
        rows = await self._operator.run(self._operator.asking.seek_group(self.topic, self.name, to, dry_run))
        return [value_of(answers.SoughtPosition, row) for row in rows]

    async def delete(self, *, dead: bool = False) -> int:
        """Delete the group; with `dead` also if it has dead letters, which go with it. Returns the number of
        shards that had it.

        Raises Refused while it has consumers."""
        return await self._operator.run(self._operator.asking.delete_group(self.topic, self.name, dead))

    async def ack_below(self, ends: Mapping[int, int]) -> None:
        """Ack for the group all records below these offsets (partition -> offset), except those that its
        consumers hold. A reader that keeps positions of its own, such as Spark, uses it to show its lag and
        to make retention wait for it. A new group begins at the first record."""
        await self._operator.run(self._operator.asking.ack_below(self.topic, self.name, ends))

    async def ack_delivered(self, deliveries: "Collection[answers.Delivery]") -> "set[answers.Delivery]":
        """Ack deliveries for the group, whichever clients they went to: for a program that passes records on
        to others, and hears of them again when it may have been restarted. Returns those that came too late,
        because their record was delivered again since, or is a dead letter. Raises BadRequest."""
        return await self._operator.run(
            self._operator.asking.ack_delivered(self.topic, self.name, deliveries)
        )


class DeadLettersHandle:
    """Dead letters of a group, as `mq.dead("orders", "billing")`, or of all groups of a topic. Verbs raise
    NotFound if the topic does not exist, and BadRequest."""

    def __init__(self, operator: Operator, topic: str, group: str) -> None:
        self._operator, self.topic, self.group = operator, topic, group

    def __repr__(self) -> str:
        return f"<dead letters of {self.group or 'all groups'} of {self.topic}>"

    async def letters(
        self, *, values: bool = True, partition: int | None = None, start: int = 0
    ) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters from offset `start` on. Without values they cost less, and neighbours are
        one."""
        asked = self._operator.asking.dead_letters(self.topic, self.group, values, partition, start)
        for page in await self._operator.run(asked):
            while page.after >= 0:
                for letter in await self._operator.run(page.page()):
                    yield letter

    async def replay(
        self, ranges: Ranges | None = None, *, to: str | None = None, dry_run: bool = False
    ) -> int:
        """Make dead letters ready for their group again, with fresh counters: all, or those of (partition,
        first, end) ranges.

        With `to` they are published to that topic instead, and purged here. Returns how many.
        """
        return await self._operator.run(
            self._operator.asking.replay_dead(self.topic, self.group, ranges, to, dry_run)
        )

    async def purge(self, ranges: Ranges | None = None, *, dry_run: bool = False) -> int:
        """Delete dead letters for good. Returns how many."""
        return await self._operator.run(
            self._operator.asking.purge_dead(self.topic, self.group, ranges, dry_run)
        )


class RecordHandle:
    """One record, as `mq.record(ref)`. Verbs raise NotFound if it does not exist, Refused if it is in another
    state than the verb needs, and BadRequest."""

    def __init__(self, operator: Operator, address: Address) -> None:
        self._operator, self._address = operator, address

    def __repr__(self) -> str:
        return f"<record {self._address}>"

    async def show(self) -> StoredRecord:
        """Return the record itself, also while it is scheduled or a dead letter."""
        return await self._operator.run(self._operator.asking.show(self._address))

    async def why(self, group: str = "") -> "answers.Explanation":
        """Explain the record for a group, or for each group: its state, the reason, and the command that
        changes it."""
        return await self._operator.run(self._operator.asking.why(self._address, group))

    async def trace(self, group: str = "") -> "list[answers.Step]":
        """Return the steps in the life of the record, as far as the topic's `trace` keeps them."""
        steps = await self._operator.run(self._operator.asking.trace(self._address, group))
        return [value_of(answers.Step, step) for step in steps]

    async def cancel(self, reason: str = "", *, running: bool = False) -> str:
        """Void the record, if no consumer holds it and not every group has acked it. Returns its ref.

        running: also if a consumer holds it, whose `msg.cancelled` becomes true then
        """
        return await self._operator.run(self._operator.asking.cancel(self._address, reason, running))

    async def reschedule(self, delay: inputs.Duration | None = None, *, at: inputs.Time | None = None) -> str:
        """Give a scheduled record another due time: `delay` from now (seconds, or "5m"), or `at` (an aware
        datetime, or seconds since 1970). Returns its ref."""
        delay_ms = delay_of(self._operator.now, delay, at)
        return await self._operator.run(self._operator.asking.reschedule(self._address, delay_ms))

    async def requeue(self, group: str) -> str:
        """Deliver the record to a group once more: acked, retrying, parked or dead, it is ready now. Returns
        its ref."""
        return await self._operator.run(self._operator.asking.requeue(self._address, group))

    async def edit(
        self, value: inputs.Value | None = None, *, headers: inputs.Headers | None = None
    ) -> Receipt:
        """Replace the record by one with another value or other headers, and void the old one. None keeps
        what it was."""
        raw, raw_headers = inputs.edited(value, headers)
        return await self._operator.run(self._operator.asking.edit(self._address, raw, raw_headers))
