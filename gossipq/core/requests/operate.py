"""Requests of operators about whole topics and groups: PURGE_TOPIC, SET_GROUP, SEEK_GROUP, DROP_GROUP,
SHOW_GROUP. A part of mending.

A group with dead letters is moved or removed only if the request says so, so that no record is lost
silently.
"""

from collections.abc import Callable

from gossipq.core.delivery import NOTHING, Dispatch, alarm_lag, ruling
from gossipq.core.desk import Desk, Request
from gossipq.core.ledger import Cursor, GroupState, Ledger, purge_plan
from gossipq.core.requests.busy_flows import FLOWS_SHOWN_MAX, busy_flows
from gossipq.core.requests.consume import ConsumeRequests, check_group, check_group_name, check_one_shard
from gossipq.core.requests.topics_here import TopicsHere
from gossipq.core.storage import log, payloads
from gossipq.errors import BadRequest, OffsetOutOfRange, WrongState
from gossipq.messages import Done, SetGroup
from gossipq.operator_messages import DropGroup, GroupShown, PurgeTopic, SeekGroup, ShowGroup, Sought
from gossipq.texts import many
from gossipq.types import PartitionKey, partition_of, topic_id_of
from gossipq.values import FlowRow, Message, Rate, SoughtRow, Start

Propose = Callable[[Request, int, bytes, Message], None]


class OperateRequests:
    def __init__(
        self,
        desk: Desk,
        ledger: Ledger,
        dispatch: Dispatch,
        topics: TopicsHere,
        consuming: ConsumeRequests,
        propose: Propose,
    ) -> None:
        """`propose` logs an entry; the outcome of that entry is answered to its last argument."""
        self._desk = desk
        self._ledger = ledger
        self._dispatch = dispatch
        self._propose = propose
        self._topics, self._consuming = topics, consuming
        self.handlers: dict[type[Message], Callable[[Request], None]] = {
            PurgeTopic: self._purge,
            SetGroup: self._set_group,
            SeekGroup: self._seek,
            DropGroup: self._drop,
            ShowGroup: self._show,
        }

    def _purge(self, request: Request) -> None:
        message: PurgeTopic = request.message
        state = self._ledger.partitions.get(message.partition)
        if state is None:
            raise self._topics.unknown(message.partition)
        if not 0 <= message.before <= state.next:
            raise BadRequest(f"before = {message.before}", hint=f"0 to {state.next} are allowed")
        if message.dry_run:
            self._desk.reply(request, Done(max(0, message.before - state.first)))
            return
        trim = purge_plan(self._ledger, message.partition, message.before)
        if trim is None:
            self._desk.reply(request, Done(0))
        else:
            self._propose(request, log.TRIM, payloads.encode(trim), Done(trim.first - state.first))

    # --- groups ---------------------------------------------------------------------------------------------

    def _group(self, topic_id: int, name: str) -> GroupState:
        group = self._ledger.group(topic_id, name)
        if group is None:
            raise self._ledger.no_group(topic_id, name)
        return group

    def _idle(self, group: GroupState, doing: str) -> None:
        """Raises WrongState while the group has consumers, or while records are leased to a
        consumer that may still be alive.
        """
        live = self._dispatch.groups.get(group.id)
        if live is None:
            return
        consumers = len({member.session for member in live.members.values()})
        held = sum(view.window.in_flight for view in live.views.values())
        if consumers:
            text = f"group {group.name} has {many(consumers, 'consumer')}"
            raise WrongState(text, hint=f"stop {'them' if consumers > 1 else 'it'} before {doing}")
        if held:
            hint = "they go back within seconds if it is gone; `gossipq client ls` shows who is there"
            raise WrongState(f"a consumer holds {many(held, 'record')} of group {group.name}", hint=hint)

    def _cursors(self, group: GroupState) -> dict[PartitionKey, Cursor]:
        return {
            partition: found[group.id]
            for partition, found in self._ledger.cursors.items()
            if group.id in found
        }

    def _without_dead(self, group: GroupState, doing: str) -> None:
        dead = sum(cursor.state.dead for cursor in self._cursors(group).values())
        if dead:
            topic = self._ledger.topics[group.topic_id].name
            raise WrongState(
                f"group {group.name} has {many(dead, 'dead letter')}, which {doing} would lose",
                hint=(
                    f"first: gossipq dlq replay {topic} -g {group.name}, or gossipq dlq purge {topic} -g "
                    f"{group.name}"
                ),
            )

    def _set_group(self, request: Request) -> None:
        message: SetGroup = request.message
        group = self._group(message.topic_id, message.group)
        config = message.config.over(group.config)
        check_group(config)
        if config.mode != group.config.mode:
            self._idle(group, "changing its mode")
            check_one_shard(config, self._ledger.topics[group.topic_id].shards)
        if config == group.config:
            self._desk.reply(request, Done(0))
            return
        change = payloads.GroupChange(group.topic_id, group.name, config, [], group.version)
        self._propose(request, log.GROUP, payloads.encode(change), Done(1))

    def _seek(self, request: Request) -> None:
        message: SeekGroup = request.message
        group = self._ledger.group(message.topic_id, message.group)
        if group is not None:
            self._idle(group, "moving the group")
            self._without_dead(group, "moving the group")
        elif message.config is None:
            raise self._ledger.no_group(message.topic_id, message.group)
        else:
            check_group(message.config)
            check_group_name(message.group)
        mine = sorted(
            partition for partition in self._ledger.partitions if topic_id_of(partition) == message.topic_id
        )
        # a moved group gets a new id, which it has in all partitions of the shard
        if sorted(start.partition for start in message.starts) != mine:
            hint = "name each partition of the topic in this shard once"
            raise BadRequest(f"a group moves in all {len(mine)} partitions of a shard", hint=hint)
        starts = [Start(start.partition, "offset", self._place(start)) for start in message.starts]
        answer = Sought([self._moved(group, start) for start in starts])
        if message.dry_run:
            self._desk.reply(request, answer)
        elif group is not None:
            payload = payloads.encode(payloads.Regroup(group.id, starts))
            self._propose(request, log.REGROUP, payload, answer)
        else:
            assert message.config is not None, "checked above"
            self._consuming.admit_group(request.sender, len(starts))
            made = payloads.GroupChange(
                message.topic_id, message.group, message.config, starts, owners=request.sender.payers
            )
            self._propose(request, log.GROUP, payloads.encode(made), answer)

    def _place(self, start: Start) -> int:
        """The offset that a start means. Raises OffsetOutOfRange, BadRequest."""
        state = self._ledger.partitions[start.partition]
        if start.kind in ("first", "new"):
            return state.first if start.kind == "first" else state.next
        if start.kind == "time":
            return self._ledger.offset_at(start.partition, start.value)
        if start.kind != "offset":
            raise BadRequest(f"start {start.kind!r}", hint="one of first, new, offset, time")
        if not state.first <= start.value <= state.next:
            text = f"offset {start.value} of partition {partition_of(start.partition)} cannot be read"
            raise OffsetOutOfRange(text, hint=f"{state.first} to {state.next} can", detail=state.first)
        return start.value

    def _moved(self, group: GroupState | None, start: Start) -> SoughtRow:
        partition, after = start.partition, start.value
        state = self._ledger.partitions[partition]
        cursor = self._ledger.cursors.get(partition, {}).get(group.id) if group else None
        if cursor is None:
            return SoughtRow(partition, after, after, 0, 0)
        undone = sum(high - low for low, high in cursor.fresh(after, state.next))
        skipped = sum(high - low for low, high in cursor.fresh(0, after))
        if cursor.exceptional:
            waits = cursor.state.retrying + cursor.state.parked
            # counts rows on the side with fewer offsets, which is empty at
            # either end of a partition
            if state.next - after < after - state.first:
                above = sum(found.total for found in cursor.exceptions.overlap(after, state.next))
            else:
                above = waits - sum(found.total for found in cursor.exceptions.overlap(0, after))
            undone, skipped = undone + above, skipped + waits - above
        void = self._ledger.voids.get(partition)
        void_records = (
            state.next - after - sum(high - low for low, high in void.missing(after, state.next))
            if void
            else 0
        )
        return SoughtRow(
            partition, cursor.state.cursor, after, state.next - after - undone - void_records, skipped
        )

    def _drop(self, request: Request) -> None:
        message: DropGroup = request.message
        group = self._ledger.group(message.topic_id, message.group)
        if group is None:
            self._desk.reply(request, Done(0))
            return
        self._idle(group, "removing the group")
        if not message.dead:
            self._without_dead(group, "removing the group")
        if message.dry_run:
            self._desk.reply(request, Done(1))
        else:
            payload = payloads.encode(payloads.Regroup(group.id, [], message.dead))
            self._propose(request, log.REGROUP, payload, Done(1))

    def _show(self, request: Request) -> None:
        message: ShowGroup = request.message
        group = self._group(message.topic_id, message.group)
        live = self._dispatch.groups.get(group.id)
        consumers = sorted({member.consumer for member in live.members.values()}) if live else []
        flows: list[FlowRow] = []
        for view in live.views.values() if live is not None and message.flows else ():
            most = min(message.flows, FLOWS_SHOWN_MAX)
            flows += busy_flows(self._ledger, view, self._desk.boot_ms, self._desk.leader_ms, most)
        self._desk.reply(request, GroupShown(group.config, self._policy(group), consumers, flows))

    def _policy(self, group: GroupState) -> list[tuple[str, str, str]]:
        config, topic = group.config, self._ledger.topics[group.topic_id].config
        rules = ruling(NOTHING, config, topic, self._dispatch.attempts.cluster)
        lag = alarm_lag(config, topic)
        return [
            ("mode", config.mode, "group"),
            ("lease_ms", str(rules.lease_ms), rules.lease_by),
            ("attempts_max", str(rules.attempts_max), rules.attempts_by),
            ("backoff_ms", ", ".join(map(str, rules.backoff_ms)), rules.backoff_by),
            ("in_flight_max", str(config.in_flight_max), "group"),
            ("parked_max", str(config.parked_max), "group"),
            ("alarm_lag", str(lag), "none" if not lag else "topic" if config.alarm_lag is None else "group"),
            ("order", config.order, "group"),
            ("weights", ", ".join(f"{flow}={weight}" for flow, weight in config.weights.items()), "group"),
            *((name, str(getattr(config, name)), "group") for name in ("concurrency", "flow_concurrency")),
            *((name, rate_text(getattr(config, name)), "group") for name in ("rate", "flow_rate")),
            *((name, str(getattr(config, name)), "group") for name in ("flow_backlog", "age_after_ms")),
            ("group_idle_ms", str(topic.group_idle_ms), "topic" if topic.group_idle_ms else "none"),
        ]


def rate_text(rate: Rate) -> str:
    """Return a rate as users write it; "none" without a limit."""
    if not rate.records:
        return "none"
    units = {1_000: "s", 60_000: "m", 3_600_000: "h"}
    return f"{rate.records}/{units.get(rate.per_ms, f'{rate.per_ms}ms')}" + (
        f" burst {rate.burst}" if rate.burst else ""
    )
