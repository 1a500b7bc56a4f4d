"""The requests of consumers: checked here, served by dispatch, logged through the shard."""

from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from gossipq.core.delivery import (
    EXCLUSIVE,
    MODES,
    NOTHING,
    NUMBER_MAX,
    Dispatch,
    Policy,
    Subscription,
    Waiter,
    check_limits,
    check_order,
    check_patterns,
    check_policy,
    ruling,
    within,
)
from gossipq.core.desk import Asker, Client, Desk, Request
from gossipq.core.ledger import GroupState, Ledger, Outcome
from gossipq.core.requests.idle import IdleGroups
from gossipq.core.requests.topics_here import TopicsHere
from gossipq.core.storage import ShardSettings, log, payloads
from gossipq.errors import BadName, BadRequest, Busy, NoSubscription, OffsetOutOfRange
from gossipq.limits import (
    CREDIT_BYTES_MAX,
    CREDIT_MAX,
    DELAY_MS_MAX,
    ERROR_BYTES_MAX,
    LEASE_TOTAL_MS_MAX,
    MOVED_RANGES_MAX,
    NAME_BYTES_MAX,
    PROGRESS_TEXT_BYTES_MAX,
    RANGES_MAX,
    RESULT_BYTES_MAX,
    RESULT_KEPT_MS_MAX,
    RESULT_KIND_BYTES_MAX,
)
from gossipq.messages import (
    Ack,
    AckDelivered,
    Acked,
    AckResults,
    Credit,
    Extend,
    Nack,
    Recall,
    Recalled,
    ReportProgress,
    Started,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from gossipq.rates import Payer, check_owned
from gossipq.types import Index, Offset, partition_of, topic_id_of
from gossipq.values import GroupConfig, Message, Range, Start

DEAD_REASONS = ("", "rejected", "undecodable")
STARTS = ("first", "new", "offset", "time")


class Made(msgspec.Struct, frozen=True):
    """The policy and version that a group will have after an entry is applied. A new group will
    count for its owners, once for each of its partitions in this shard.
    """

    index: Index
    config: GroupConfig
    version: int
    owners: tuple[Payer, ...] = ()
    partitions: int = 0


class ConsumeRequests:
    def __init__(
        self,
        desk: Desk,
        ledger: Ledger,
        dispatch: Dispatch,
        topics: TopicsHere,
        settings: ShardSettings,
        idle: IdleGroups,
    ) -> None:
        defaults = settings.group
        self._desk = desk
        self._ledger = ledger
        self._dispatch = dispatch
        self._defaults = defaults
        self._topics = topics
        self._quota = settings.quota
        self._idle = idle
        self._default_config = GroupConfig(
            in_flight_max=defaults.in_flight_max, parked_max=defaults.parked_max
        )
        # (topic id, name) -> groups on their way to the log
        self._making: dict[tuple[int, str], Made] = {}
        self._handlers: dict[type[Message], Callable[[Request], None]] = {
            Subscribe: self._subscribe,
            Unsubscribe: self._unsubscribe,
            Credit: self._credit,
            Recall: self._recall,
            Ack: self._ack,
            AckDelivered: self._ack_delivered,
            AckResults: self._ack_results,
            ReportProgress: self._report,
            Nack: self._nack,
            Extend: self._extend,
            Started: self._started,
        }

    def serve(self, request: Request) -> None:
        """Serve a request. Raises the error with which it must be refused."""
        self._handlers[type(request.message)](request)

    def _subscribe(self, request: Request) -> None:
        message: Subscribe = request.message
        client = request.sender
        group, making = self._group(message), self._being_made(message)
        # a group on its way to the log decides: the next consumer must see the policy that it will have
        config = message.config.over(
            making.config if making else group.config if group else self._default_config
        )
        if making is not None and making.config.mode != config.mode:
            raise Busy(f"group {message.group} is being made with another mode", retry_after_ms=20)
        self._check(message, config)
        self._check_quota(client, message, group or making)
        partitions = [start.partition for start in message.starts]
        known = group is not None and all(group.id in self._ledger.cursors.get(p, ()) for p in partitions)
        # an entry may be removing the idle group now: then it is created again, where it was
        stays = group is None or self._idle.touch(group.id)
        if not message.group or (group is not None and known and stays and group.config == config):
            self._attach(request, client, message)
            return
        starts = [
            Start(start.partition, "offset", self._position(start)) if start.kind == "time" else start
            for start in message.starts
        ]
        if making is not None:
            before = making
        elif group is not None and stays:
            before = Made(0, group.config, group.version)
        else:
            before = Made(0, config, 0, owners=client.payers)
        if group is not None and not stays:
            starts = self._where(group, starts)
        # the leader resolved times to offsets above: an entry must mean the same on every copy
        name = _topic_id(message), message.group
        change = payloads.GroupChange(
            topic_id=_topic_id(message),
            name=message.group,
            config=config,
            starts=starts,
            version=before.version,
            owners=before.owners,
        )
        payload = payloads.encode(change)
        index = self._desk.propose(log.GROUP, payload)
        changes = not before.version or config != before.config
        self._making[name] = Made(
            index, config, before.version + changes, before.owners, before.partitions + len(starts)
        )
        self._desk.pending.add(index, partial(self._joined, client, message), request)
        # clients send credit before they hear that the group exists; it is kept until the entry is applied
        self._dispatch.joins((client.session, message.subscription), index, client.payers)

    def _where(self, group: GroupState, starts: list[Start]) -> list[Start]:
        """Positions of a group that is created again: its present ones in all partitions that it
        knows, then those of `starts` in other partitions.
        """
        first = {partition: state.first for partition, state in self._ledger.partitions.items()}
        here = {
            partition: Start(partition, "offset", max(first[partition], cursors[group.id].state.cursor))
            for partition, cursors in self._ledger.cursors.items()
            if group.id in cursors
        }
        return [*here.values(), *(start for start in starts if start.partition not in here)]

    def _check_quota(self, client: Client, message: Subscribe, group: GroupState | Made | None) -> None:
        """Raises BadRequest if the client's accounts may have no further subscription."""
        quota = self._quota
        if self._dispatch.numbers.counts(client.session, message.subscription) > quota.subscriptions:
            raise BadRequest(
                f"more subscriptions than the quota cluster.quota.subscriptions, {quota.subscriptions}",
                hint="end one, or raise it in cluster.toml",
            )
        account = client.payers
        for payer in account:
            most = payer.most(quota, "subscriptions")
            if self._dispatch.numbers.of_payer(client.session, message.subscription, payer) > most:
                raise BadRequest(
                    f"{payer.text} has as many subscriptions as the quota "
                    f"cluster.quota.{payer.quota('subscriptions')} allows, {most}",
                    hint="end one, or raise it in cluster.toml",
                )
        if message.group and group is None:
            self.admit_group(client, len(message.starts))
        elif isinstance(group, GroupState):
            cursors = self._ledger.cursors
            fresh = [start for start in message.starts if group.id not in cursors.get(start.partition, ())]
            self._check_groups(group.owners, len(fresh))

    def admit_group(self, client: Client, partitions: int) -> None:
        """Count a new group, once for each of its `partitions` here. Raises BadRequest."""
        most = self._quota.groups
        if len(self._ledger.groups) + len(self._making) >= most:
            raise BadRequest(
                f"this shard has as many groups as the quota cluster.quota.groups allows, {most}",
                hint="remove one: gossipq group rm TOPIC GROUP; or raise it in cluster.toml",
            )
        self._check_groups(client.payers, max(1, partitions))

    def _check_groups(self, owners: tuple[Payer, ...], count: int) -> None:
        for owner in owners:
            coming = sum(made.partitions for made in self._making.values() if owner in made.owners)
            owned = self._ledger.owned.count("groups", owner) + coming
            check_owned(self._quota, owner, "groups", owned=owned, count=count)

    def _being_made(self, message: Subscribe) -> Made | None:
        """The same group on its way to the log, or None."""
        return (
            self._making.get((_topic_id(message), message.group))
            if message.group and message.starts
            else None
        )

    def _group(self, message: Subscribe) -> GroupState | None:
        return (
            self._ledger.group(_topic_id(message), message.group)
            if message.group and message.starts
            else None
        )

    def _check(self, message: Subscribe, config: GroupConfig) -> None:
        within("credit_records", message.credit_records, 0, CREDIT_MAX)
        within("credit_bytes", message.credit_bytes, 0, CREDIT_BYTES_MAX)
        check_patterns(message.routes)
        _bounded(
            message.holding or [], RANGES_MAX, "leave some out of `holding`: these records are redelivered"
        )
        if len(message.group.encode("utf-8", "replace")) > NAME_BYTES_MAX:
            raise BadName(f"group name of more than {NAME_BYTES_MAX} bytes")
        if message.group:
            if len({topic_id_of(start.partition) for start in message.starts}) != 1:
                raise BadRequest("a subscription of a group covers one topic", hint="send one for each topic")
            check_group(config)
            self._check_mode(message, config)
            if self._group(message) is None:
                check_group_name(message.group)
        if len({start.partition for start in message.starts}) < len(message.starts):
            raise BadRequest("a partition is named twice")
        group = self._group(message)
        for start in message.starts:
            state = self._ledger.partitions.get(start.partition)
            if state is None:
                raise self._topics.unknown(start.partition)
            if start.kind not in STARTS:
                raise BadRequest(f"start {start.kind!r}", hint=f"one of {', '.join(STARTS)}")
            known = group is not None and group.id in self._ledger.cursors.get(start.partition, ())
            if not known and start.kind == "offset" and not state.first <= start.value <= state.next:
                text = f"offset {start.value} of partition {partition_of(start.partition)} cannot be read"
                raise OffsetOutOfRange(text, hint=f"{state.first} to {state.next} can", detail=state.first)

    def _check_mode(self, message: Subscribe, config: GroupConfig) -> None:
        """Raises BadRequest if a consumer names another mode: a mode belongs to the group, and the
        consumer would change it for all others.
        """
        group = self._group(message)
        topic = self._ledger.topics.get(_topic_id(message))
        if group is not None and group.config.mode != config.mode:
            name = topic.name if topic is not None else "TOPIC"
            raise BadRequest(
                f"group {group.name} is {group.config.mode}, not {config.mode}",
                hint=(
                    f"consume without a mode; or stop its consumers and run: gossipq group set {name} "
                    f"{group.name} --mode {config.mode}"
                ),
            )
        shards = topic.shards if topic is not None else []
        check_one_shard(config, [self._ledger.shard, *message.shards, *shards])

    def _joined(
        self, client: Client, message: Subscribe, asker: Asker, index: Index, outcome: Outcome
    ) -> None:
        """Called when the GROUP entry is applied. The consumer that waited for it joins, unless it
        has replaced or ended its subscription meanwhile.
        """
        making, name = self._being_made(message), (client.session, message.subscription)
        if making is not None and making.index == index:
            del self._making[_topic_id(message), message.group]
        joining = self._dispatch.joining.get(name)
        if joining is None or joining.index != index:
            error = BadRequest(
                f"subscription {message.subscription} was replaced or ended before its group was stored"
            )
            self._desk.refuse(asker, error)
        elif outcome.error:
            self._dispatch.unsubscribe(name)
            self._desk.refuse_by(asker, outcome)
        elif self._group(message) is None:  # a later entry of the same turn removed it
            self._dispatch.unsubscribe(name)
            self._desk.refuse(asker, Busy(f"group {message.group} was removed just now", retry_after_ms=20))
        else:
            self._attach(asker, client, message)
            joined = self._dispatch.subscriptions[name]
            self._dispatch.grant_credit(joined, joining.credit_records, joining.credit_bytes)

    def _attach(self, asker: Asker, client: Client, message: Subscribe) -> None:
        group = self._group(message)
        policies = self._policies(group.config, message) if group else []
        # the shortest lease and the fewest failures of its topics, for records without their own
        lease_ms = min((policy.lease_ms for policy in policies), default=0)
        attempts_max = min((policy.attempts_max for policy in policies), default=0)
        subscription = Subscription(client.session, client.consumer, asker.origin, message, lease_ms)
        starts = [start for start in message.starts if start.partition in self._ledger.partitions]
        positions = [(start.partition, 0 if group else self._position(start)) for start in starts]
        self._dispatch.subscribe(subscription, group.id if group else None, positions, client.payers)
        if message.holding is not None:
            self._dispatch.keep(subscription, message.holding, self._desk.boot_ms, lease_ms)
        mode = group.config.mode if group else ""
        answer = Subscribed(
            message.subscription,
            lease_ms,
            subscription.ends(self._ledger),
            mode=mode,
            attempts_max=attempts_max,
        )
        self._desk.reply(asker, answer)

    def _policies(self, config: GroupConfig, message: Subscribe) -> list[Policy]:
        """For each partition of a subscription, the policy of records without their own."""
        return [
            ruling(NOTHING, config, self._ledger.config(start.partition), self._defaults)
            for start in message.starts
            if start.partition in self._ledger.partitions
        ]

    def _position(self, start: Start) -> Offset:
        state = self._ledger.partitions[start.partition]
        if start.kind == "time":
            return self._ledger.offset_at(start.partition, start.value)
        return {"first": state.first, "new": state.next}.get(start.kind, start.value)

    def subscription(self, client: Client, number: int, grouped: bool = True) -> Subscription:
        """The subscription with this number. Raises BadRequest if the session has none."""
        found = self._dispatch.subscriptions.get((client.session, number))
        if found is None:
            raise NoSubscription(
                f"no subscription {number} in this session", hint="subscribe again", detail=number
            )
        if grouped and found.group is None:
            raise BadRequest(
                "a subscription without a group has nothing to ack", hint="subscribe with a group"
            )
        return found

    def _unsubscribe(self, request: Request) -> None:
        message: Unsubscribe = request.message
        self._dispatch.unsubscribe((request.sender.session, message.subscription))
        self._desk.reply(request, Acked())

    def _credit(self, request: Request) -> None:
        message: Credit = request.message
        client = request.sender
        within("records", message.records, 0, CREDIT_MAX)
        within("bytes", message.bytes, 0, CREDIT_BYTES_MAX)
        joining = self._dispatch.joining.get((client.session, message.subscription))
        if joining is not None:  # a client may grant more credit before SUBSCRIBED arrives
            joining.credit_records += message.records
            joining.credit_bytes += message.bytes
            return
        subscription = self.subscription(client, message.subscription, grouped=False)
        self._dispatch.grant_credit(subscription, message.records, message.bytes)

    def _recall(self, request: Request) -> None:
        message: Recall = request.message
        subscription = self.subscription(request.sender, message.subscription, grouped=False)
        count, size_bytes = self._dispatch.recall(subscription)
        self._desk.reply(request, Recalled(message.subscription, count, size_bytes))

    def _ack(self, request: Request) -> None:
        message: Ack = request.message
        client = request.sender
        _bounded(message.ranges, RANGES_MAX)
        auto = self.subscription(client, message.subscription, grouped=False).auto
        subscription = self.subscription(client, message.subscription, grouped=not auto)
        if auto:
            self._dispatch.settle(subscription, message.ranges)
        if auto and (subscription.group is None or not subscription.ack):
            self._desk.reply(request, Acked())  # only the credit changes
        else:
            self._dispatch.settlement.ack(
                subscription, message.ranges, request.origin, request.request_id, message.unseen
            )

    def _ack_delivered(self, request: Request) -> None:
        message: AckDelivered = request.message
        if message.partition not in self._ledger.partitions:
            raise self._topics.unknown(message.partition)
        group = self._ledger.group(topic_id_of(message.partition), message.group)
        active = self._dispatch.groups.get(group.id) if group is not None else None
        view = active.views.get(message.partition) if active is not None else None
        if view is None:
            raise self._ledger.no_cursor(message.partition, message.group)
        if len(message.deliveries) > MOVED_RANGES_MAX:
            text = f"{len(message.deliveries)} deliveries; at most {MOVED_RANGES_MAX} are allowed"
            raise BadRequest(text, hint="send them in several requests")
        for offset, attempt in message.deliveries:
            within("offset", offset, 0, NUMBER_MAX - 1)
            within("attempt", attempt, 1, NUMBER_MAX - 1)
        # the last delivery of each record counts
        deliveries = list(dict(sorted(message.deliveries)).items())
        self._dispatch.settlement.ack_delivered(
            view, request.sender.consumer, deliveries, request.origin, request.request_id
        )

    def _ack_results(self, request: Request) -> None:
        message: AckResults = request.message
        subscription = self.subscription(request.sender, message.subscription)
        if not subscription.ack:
            raise BadRequest("the records of this subscription are acked before they are sent")
        count = len(message.results) + sum([len(run.values) for run in message.runs])
        if not 0 < count <= MOVED_RANGES_MAX:
            raise BadRequest(f"{count} results", hint=f"1 to {MOVED_RANGES_MAX} are allowed")
        _bounded(message.ranges, MOVED_RANGES_MAX)
        for result in message.results:
            _check_result(result.keep_ms, result.kind, len(result.value))
            within("offset", result.offset, 0, NUMBER_MAX - 1)
        for run in message.runs:
            _check_result(run.keep_ms, run.kind, max(map(len, run.values), default=0))
            within("offset", run.first, 0, NUMBER_MAX - count)
        if subscription.auto:
            self._dispatch.settle(subscription, message.ranges)
        self._dispatch.settlement.ack_with_results(
            subscription, message.ranges, message.results, message.runs, request.origin, request.request_id
        )

    def _report(self, request: Request) -> None:
        message: ReportProgress = request.message
        subscription = self.subscription(request.sender, message.subscription)
        if not 0 < len(message.rows) <= MOVED_RANGES_MAX:
            raise BadRequest(f"{len(message.rows)} reports", hint=f"1 to {MOVED_RANGES_MAX} are allowed")
        for row in message.rows:
            within("offset", row.offset, 0, NUMBER_MAX - 1)
            within("bytes of a text", len(row.text.encode()), 0, PROGRESS_TEXT_BYTES_MAX)
            if not 0.0 <= row.done <= 1.0:
                raise BadRequest(f"a progress of {row.done}", hint="0 to 1 are allowed")
        held = self._dispatch.settlement.holds
        mine = [row for row in message.rows if held(subscription, row.partition, row.offset)]
        lost = [(row.partition, row.offset, row.offset + 1) for row in message.rows if row not in mine]
        if not mine:
            self._desk.reply(request, Acked(lost))
            return
        assert subscription.group is not None, "readers are refused before"
        payload = payloads.encode(payloads.ProgressReports(subscription.group.id, mine))
        # a report may be lost in a crash, so it costs no sync
        index = self._desk.propose(log.PROGRESS, payload, promise=False)
        self._desk.pending.add(index, partial(self._reported, lost), request)

    def _reported(self, lost: list[Range], asker: Asker, index: Index, outcome: Outcome) -> None:
        self._desk.answer(asker, outcome, Acked(lost))

    def _nack(self, request: Request) -> None:
        message: Nack = request.message
        within("delay_ms", message.delay_ms, -1, DELAY_MS_MAX)
        _bounded(message.ranges, MOVED_RANGES_MAX)
        if message.dead not in DEAD_REASONS:
            raise BadRequest(f"dead = {message.dead!r}", hint=f"one of {', '.join(DEAD_REASONS[1:])}")
        subscription = self.subscription(request.sender, message.subscription)
        waiter = Waiter(request.origin, request.request_id)
        if subscription.auto:
            self._dispatch.settle(subscription, message.ranges)
        reason = message.reason[:ERROR_BYTES_MAX]  # the report may have to wait for its turn
        name = message.delay_ms, message.failed, reason, message.dead
        if message.pause_flow:
            self._pause_flows(subscription, message.ranges, message.delay_ms, reason)
        self._dispatch.settlement.nack(subscription, message.ranges, waiter, *name)
        if not waiter.entries:
            self._desk.reply(request, Acked(waiter.lost))

    def _pause_flows(
        self, subscription: Subscription, ranges: list[Range], delay_ms: int, reason: str
    ) -> None:
        """Raises BadRequest."""
        within("delay_ms of a pause", delay_ms, 1, DELAY_MS_MAX)
        assert subscription.group is not None, "readers are refused before"
        until_ms = self._desk.due_after(delay_ms)
        rows = self._dispatch.flow_pauses.pause(subscription, ranges, until_ms, reason)
        if rows:
            self._desk.propose(
                log.PAUSE_FLOWS, payloads.encode(payloads.PauseFlows(subscription.group.id, rows))
            )

    def _started(self, request: Request) -> None:
        message: Started = request.message
        _bounded(message.ranges, MOVED_RANGES_MAX)
        self._dispatch.settlement.start(
            self.subscription(request.sender, message.subscription), message.ranges
        )

    def _extend(self, request: Request) -> None:
        message: Extend = request.message
        within("lease_ms", message.lease_ms, 1, LEASE_TOTAL_MS_MAX)
        _bounded(message.ranges, MOVED_RANGES_MAX)
        subscription = self.subscription(request.sender, message.subscription)
        lost = self._dispatch.settlement.extend(
            subscription, message.ranges, message.lease_ms, self._desk.boot_ms
        )
        self._desk.reply(request, Acked(lost))


def _topic_id(message: Subscribe) -> int:
    """The topic of a group: all partitions belong to one topic."""
    return topic_id_of(message.starts[0].partition)


def _check_result(keep_ms: int, kind: str, size: int) -> None:
    """Check results of `size` bytes at the most. Raises BadRequest."""
    within("keep_ms", keep_ms, 1, RESULT_KEPT_MS_MAX)
    within("bytes of a result", size, 0, RESULT_BYTES_MAX)
    within("bytes of a kind", len(kind.encode()), 0, RESULT_KIND_BYTES_MAX)


def _bounded(ranges: list[Range], most: int, hint: str = "send them in several requests") -> None:
    """Raises BadRequest if all the ranges together would take longer than a turn may."""
    if len(ranges) > most:
        raise BadRequest(f"{len(ranges)} ranges; at most {most} are allowed", hint=hint)


def check_group_name(name: str) -> None:
    """Raises BadName for a new group if its name looks like another one, for
    example with blanks at its ends.
    """
    if name != name.strip() or not name.isprintable():
        raise BadName(
            f"group name {name!r}",
            hint="blanks at its ends, and characters that do not show, are not allowed",
        )


def check_one_shard(config: GroupConfig, shards: Iterable[int]) -> None:
    """Raises BadRequest if an exclusive group would read several shards: two leaders
    cannot agree on one consumer.
    """
    count = len(set(shards))
    if config.mode == EXCLUSIVE and count > 1:
        raise BadRequest(
            f"an exclusive group reads one shard, and this one would read {count}",
            hint=(
                "use a topic of one partition, or make the topics beside each other: topic create NAME "
                "--beside OTHER"
            ),
        )


def check_group(config: GroupConfig) -> None:
    """Raises BadRequest, naming the field that is wrong."""
    if config.mode not in MODES:
        raise BadRequest(f"mode {config.mode!r}", hint=f"one of {', '.join(MODES)}")
    check_order(config)
    check_limits(config)
    check_policy(config)
