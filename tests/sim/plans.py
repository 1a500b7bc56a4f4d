"""A client that sets schedules and removes them or their topic, and the checks of their ticks (P24)."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gossipq.messages import (
    CreateTopic,
    Done,
    DropSchedule,
    DropTopic,
    RefusedMessage,
    SetSchedule,
    Topics,
)
from gossipq.types import partition_key
from gossipq.values import Message, Schedule, TopicOptions
from gossipq.wire import batch as batches
from sim.clients import PATIENCE_MS, Party
from sim.history import LOOSE, Copy, History, Plan

if TYPE_CHECKING:
    from sim.world import World

TOPIC = "plans"
PLANS_SHARE = 0.3  #: of the runs
EVERY_MS = (1_000, 1_500, 4_000)
LASTS_MS = 2_000, 9_000  #: until a schedule is removed
WITH_TOPIC = 0.2  #: of the schedules are removed with their topic, which is made anew


class Planner(Party):
    """Sets one schedule after the other; each request is sent until it is answered."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "planner")
        self.partition = self.waiting = self.made = 0
        self.home_shard = 0
        self.topics = 0
        self.message: Message | None = None
        self.batch = b""
        self.next()

    @property
    def plans(self) -> list[Plan]:
        return self.world.history.plans

    @property
    def topic(self) -> str:
        return f"{TOPIC}-{self.topics}"

    def next(self) -> None:
        """Make the topic, then set a schedule, then remove it, and so on."""
        if not self.partition:
            self.message = CreateTopic(self.topic, TopicOptions(partitions=1), if_not_exists=True)
        elif self.stopped:  # the last schedule stays: its ticks go on when all is healed
            self.message = None
            return
        elif self.plans and not self.plans[-1].dropped_ms:
            plan = self.plans[-1]
            plan.drop_ms = plan.drop_ms or self.world.now
            self.message, self.batch = DropSchedule(self.partition, plan.name), b""
            if self.dice.random() < WITH_TOPIC:
                plan.with_topic = True
                self.message = DropTopic(self.topic, idempotency_key=self.topic.encode())
                self.partition = 0
        else:
            self.message = self.plan()
        self.send()

    def plan(self) -> SetSchedule:
        self.made += 1
        plan = Plan(f"plan-{self.made}", self.partition, self.dice.choice(EVERY_MS), self.world.now)
        self.plans.append(plan)
        value = b"%s-%s" % (LOOSE, plan.name.encode())
        self.world.history.attempted.add(value)
        self.batch = bytes(batches.seal([value]))
        missed, jitter_ms = self.dice.choice(("none", "last", "all")), self.dice.choice((0, 0, 700))
        return SetSchedule(
            self.partition,
            Schedule(plan.name, every_ms=plan.every_ms, missed=missed, missed_max=3, jitter_ms=jitter_ms),
        )

    def send(self) -> None:
        assert self.message is not None
        self.shard = self.home_shard if self.partition else 0
        if isinstance(self.message, SetSchedule):
            self.plans[-1].requests += 1
        self.waiting = self.ask(self.message, self.batch)
        self.world.at(PATIENCE_MS, self.again, self.waiting)

    def again(self, request_id: int) -> None:
        if request_id == self.waiting:
            self.turn_away()
            self.send()

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if request_id != self.waiting:
            return
        if isinstance(answer, RefusedMessage):
            if answer.code == "not_leader":
                self.turn_away()
            self.world.at(50, self.again, request_id)
            return
        self.waiting = 0
        pause_ms = 50
        if isinstance(self.message, DropTopic):
            self.plans[-1].dropped_ms = sent_ms
            self.topics += 1
        elif isinstance(answer, Topics):
            found = answer.topics[0]
            self.partition, self.home_shard = partition_key(found.id, 0), found.shards[0]
        elif isinstance(answer, Done) and isinstance(self.message, DropSchedule):
            self.plans[-1].dropped_ms = sent_ms
        elif isinstance(answer, Done):
            self.plans[-1].made_ms = sent_ms
            pause_ms = self.dice.randrange(*LASTS_MS)
        self.world.at(pause_ms, self.next)


def ticks_of(copy: Copy, plan: Plan) -> Iterator[tuple[int, int]]:
    """Yields the tick of each record of a schedule, and when it was stored."""
    for offset, name in (copy.ids or {}).get(plan.partition, {}).items():
        schedule, _, at = name.decode().partition("/")
        if schedule == plan.name:
            tick_ms = round(datetime.fromisoformat(at).timestamp() * 1_000)
            yield tick_ms, copy.given[plan.partition][offset]


def ticks_come_once(history: History) -> Iterator[str]:
    """P24: a tick of a schedule is stored once, over all leaders, and it is one of its ticks."""
    for copy in history.copies:
        for plan in history.plans:
            seen: dict[int, int] = defaultdict(int)
            for tick_ms, _ in ticks_of(copy, plan):
                seen[tick_ms] += 1
            for tick_ms, count in seen.items():
                if count > 1:
                    yield f"P24 {copy.name} has {count} records of tick {tick_ms} of {plan.name}"
                if tick_ms % plan.every_ms:
                    yield f"P24 {copy.name} has a record of {plan.name} at {tick_ms}, which is no tick"


def ticks_are_in_time(history: History) -> Iterator[str]:
    """P24: no tick is stored before it is due, before its schedule was asked for, or after the leader
    confirmed that it was removed. A request to set it that was sent twice may come after its removal.
    """
    for copy in history.copies:
        for plan in history.plans:
            for tick_ms, stored_ms in ticks_of(copy, plan):
                if stored_ms < tick_ms - history.wall_ms:
                    yield f"P24 {copy.name} stored tick {tick_ms} of {plan.name} at {stored_ms}"
                is_removed = plan.dropped_ms and plan.requests == 1 and not plan.with_topic
                if is_removed and stored_ms > plan.dropped_ms + 2 * history.clock_error_ms:
                    yield (
                        f"P24 {copy.name} stored tick {tick_ms} of {plan.name} at {stored_ms}; it was "
                        f"removed at {plan.dropped_ms}"
                    )


PLAN_CHECKS = [ticks_come_once, ticks_are_in_time]
