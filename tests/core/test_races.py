"""Any two requests at once, in either order in the log. Every copy reaches the same state, each
request is answered, and removed topics and groups leave no rows.
"""

from array import array
from collections.abc import Callable

import pytest

from core.harness import FakeWorker, client, counters, single
from gossipq import limits
from gossipq.core.desk import Client
from gossipq.core.ledger import Ledger, Sweeper
from gossipq.core.requests import Watch
from gossipq.core.storage import INDEX_KEY, Entry
from gossipq.core.storage.tables import MemoryTables
from gossipq.messages import (
    Ack,
    Cancel,
    CreateTopic,
    DropTopic,
    Edit,
    Extend,
    ListDead,
    Nack,
    Publish,
    PurgeDead,
    ReplayDead,
    Requeue,
    Reschedule,
    Resolve,
    SetGroup,
    Subscribe,
    Unsubscribe,
    Why,
    WhyGroup,
)
from gossipq.operator_messages import DropGroup, GroupShown, PurgeTopic, SeekGroup, SetTopic, ShowGroup
from gossipq.types import DELAY, topic_id_of
from gossipq.values import GroupOptions, Message, Ref, Start, TopicOptions
from gossipq.wire import batch as batches
from gossipq.wire.opener import Opener

ADA, BOB, EVE = client("ada"), client("bob"), client("eve")
HOUR_MS = limits.HOUR_MS


class Scene:
    """A topic with records in every state. Records 0 to 3 are acked, and 4 is dead. 5 waits
    for another attempt. 6 to 9 are leased to `ada` or ready. 10 is edited away, 11 is new,
    and two more are scheduled.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, consuming: bool) -> None:
        self.written: dict[int, list[Entry]] = {0: [], 1: []}
        self.noting = True
        apply = Ledger.apply

        def noted(ledger: Ledger, entry: Entry) -> object:
            if self.noting:
                self.written[ledger.shard].append(entry)
            return apply(ledger, entry)

        monkeypatch.setattr(Ledger, "apply", noted)
        self.worker = worker = FakeWorker()
        self.partition = partition = single(
            worker.topic("orders", TopicOptions(backoff_ms=[500], attempts_max=1))
        )
        self.topic_id = topic_id_of(partition)
        for sequence in range(1, 6):
            worker.publish(partition, [b"x", b"y"], b"p" * 16, sequence)
        self.scheduled = self.publish_at(worker)
        worker.subscribe(ADA, partition)
        worker.ask(1, ADA, Ack(1, [(partition, 0, 4)]))
        worker.ask(1, ADA, Nack(1, [(partition, 4, 5)]))
        worker.ask(1, ADA, Nack(1, [(partition, 5, 6)], HOUR_MS, failed=False))
        if not consuming:
            worker.turn(lambda: worker.end_session(ADA.session))
        worker.publish(partition, [b"late", b"later"])
        worker.settle()
        self.answers: list[tuple[bytes, object]] = []

    def publish_at(self, worker: FakeWorker) -> int:
        """Schedules two records for one hour later and returns the index of their entry."""
        worker.publish(self.partition, [b"a", b"b"], fixed={DELAY: array("q", [HOUR_MS, HOUR_MS + 1])})
        return worker.shards[1].ledger.applied

    def send(self, name: bytes, request: "Request") -> None:
        """Sends one request and stores its answers under a name."""
        shard, who, message, batch = request(self)
        origin = (b"c", name)
        if isinstance(message, Publish):
            self.worker.take(shard, origin, 1, who, message, batches.check(batch), batch)
        else:
            self.worker.step(shard, origin, 1, who, message, batch=batch)

    def turn(self, *steps: Callable[[], None]) -> None:
        effects = self.worker.turn(*steps)
        for each in effects.values():
            self.answers += [(origin[1], message) for origin, _, message in each.replies if origin]
            self.answers += [(origin[1], message) for origin, _, message, _ in each.enclosed]
            self.answers += [(origin[1], rows) for origin, rows in each.confirms.items()]
        self.worker.seen += effects.values()

    def ref(self, offset: int) -> Ref:
        return Ref(self.partition, offset)


Request = Callable[[Scene], tuple[int, Client, Message, bytes]]
ONE = bytes(batches.seal([b"new"]))
LATER = bytes(batches.seal([b"new"], fixed={DELAY: array("q", [HOUR_MS])}))

REQUESTS: dict[str, Request] = {
    "remove the topic": lambda s: (0, EVE, DropTopic("orders"), b""),
    "make the topic": lambda s: (0, EVE, CreateTopic("orders", TopicOptions(), if_not_exists=True), b""),
    "alter the topic": lambda s: (0, EVE, SetTopic("orders", TopicOptions(ttl_ms=HOUR_MS)), b""),
    "resolve": lambda s: (0, EVE, Resolve(["orders"], create=True), b""),
    "subscribe": lambda s: (1, BOB, Subscribe(1, "billing", [Start(s.partition)], 10, 10_000), b""),
    "subscribe with another policy": lambda s: (
        1,
        BOB,
        Subscribe(1, "billing", [Start(s.partition)], 10, 10_000, GroupOptions(in_flight_max=7)),
        b"",
    ),
    "subscribe anew": lambda s: (1, BOB, Subscribe(1, "other", [Start(s.partition)], 10, 10_000), b""),
    "read": lambda s: (1, BOB, Subscribe(2, "", [Start(s.partition)], 10, 10_000), b""),
    "unsubscribe": lambda s: (1, ADA, Unsubscribe(1), b""),
    "publish": lambda s: (1, EVE, Publish(s.partition), ONE),
    "publish the next": lambda s: (
        1,
        EVE,
        Publish(s.partition),
        bytes(batches.seal([b"n"], producer=b"p" * 16, sequence=6)),
    ),
    "schedule": lambda s: (1, EVE, Publish(s.partition), LATER),
    "step": lambda s: (1, ADA, Publish(s.partition, subscription=1, acks=[(s.partition, 6, 7)]), ONE),
    "ack": lambda s: (1, ADA, Ack(1, [(s.partition, 6, 8)]), b""),
    "nack": lambda s: (1, ADA, Nack(1, [(s.partition, 6, 8)]), b""),
    "extend": lambda s: (1, ADA, Extend(1, [(s.partition, 6, 8)], 5_000), b""),
    "set the group": lambda s: (1, EVE, SetGroup(s.topic_id, "billing", GroupOptions(lease_ms=7_000)), b""),
    "pause": lambda s: (1, EVE, SetGroup(s.topic_id, "billing", GroupOptions(paused=True)), b""),
    "seek": lambda s: (1, EVE, SeekGroup(s.topic_id, "billing", [Start(s.partition, "offset", 2)]), b""),
    "seek a group to be": lambda s: (
        1,
        EVE,
        SeekGroup(s.topic_id, "other", [Start(s.partition)], config=s.worker.settings.group),
        b"",
    ),
    "drop the group": lambda s: (1, EVE, DropGroup(s.topic_id, "billing", dead=True), b""),
    "show the group": lambda s: (1, EVE, ShowGroup(s.topic_id, "billing"), b""),
    "cancel": lambda s: (1, EVE, Cancel(s.ref(11)), b""),
    "cancel what is dead": lambda s: (1, EVE, Cancel(s.ref(4)), b""),
    "cancel what is scheduled": lambda s: (1, EVE, Cancel(Ref(s.partition, -1, s.scheduled, 0)), b""),
    "reschedule": lambda s: (1, EVE, Reschedule(Ref(s.partition, -1, s.scheduled, 0), 5), b""),
    "edit": lambda s: (1, EVE, Edit(s.ref(11)), ONE),
    "edit what is scheduled": lambda s: (1, EVE, Edit(Ref(s.partition, -1, s.scheduled, 0)), ONE),
    "requeue what is acked": lambda s: (1, EVE, Requeue(s.ref(0), "billing"), b""),
    "requeue what is dead": lambda s: (1, EVE, Requeue(s.ref(4), "billing"), b""),
    "requeue what waits": lambda s: (1, EVE, Requeue(s.ref(5), "billing"), b""),
    "replay": lambda s: (1, EVE, ReplayDead(s.partition, "billing"), b""),
    "purge the dead": lambda s: (1, EVE, PurgeDead(s.partition, "billing"), b""),
    "purge the topic": lambda s: (1, EVE, PurgeTopic(s.partition, 6), b""),
    "list the dead": lambda s: (1, EVE, ListDead(s.partition), b""),
}


def rows_of(tables: MemoryTables) -> dict[bytes, bytes]:
    """The state rows that all copies have in common."""
    return {key: row for key, row in tables.state.rows.items() if key not in (b"H", b"K", b"M")}


def check_copy(scene: Scene, shard: int) -> None:
    """Checks that another copy has the same rows after it applied the same log."""
    tables = MemoryTables()
    ledger = Ledger(shard, tables, Opener())
    for entry in scene.written[shard]:
        if entry.body:
            tables.body.put(INDEX_KEY.pack(entry.index), entry.body)
        ledger.apply(entry)
    ledger.flush()
    mine = scene.worker.shards[shard]
    for each, its_tables, log_state in (
        (mine.ledger, scene.worker.tables[shard], mine.replica.log),
        (ledger, tables, None),
    ):
        sweeper = Sweeper(its_tables, each, log_state or mine.replica.log, whole=True)
        sweeper.keep_from = 0
        while sweeper.behind:
            sweeper.sweep(1_000)
        each.flush()
    assert rows_of(tables) == rows_of(scene.worker.tables[shard])
    assert set(tables.body.rows) == set(scene.worker.tables[shard].body.rows), "batches that are kept"


def check_whole(scene: Scene) -> None:
    """Checks that the state is consistent and that all readers of it work."""
    shard = scene.worker.shards[1]
    ledger = shard.ledger
    for partition, state in ledger.partitions.items():
        assert state.topic_id in ledger.topics, partition
    for partition, cursors in ledger.cursors.items():
        assert partition in ledger.partitions, "a group in a partition that is gone"
        assert cursors, "an empty dict of cursors"
        assert set(cursors) <= set(ledger.groups), "a cursor of a group that is gone"
        assert not any(cursor.unaccounted() for cursor in cursors.values())
    for group in ledger.groups.values():
        assert ledger.group_ids[group.topic_id, group.name] == group.id
        assert any(group.id in cursors for cursors in ledger.cursors.values()), "a group without a partition"
    assert len(ledger.group_ids) == len(ledger.groups)
    for live in shard.dispatch.groups:
        assert live in ledger.groups, "dispatch serves a group that is gone"
    partitions, groups = counters(ledger, shard.dispatch)
    assert len(partitions) == len(ledger.partitions)
    for row in groups:
        done = row.acked + row.dead + row.voided + row.dropped + row.removed
        assert row.ready + row.in_flight + row.retrying + row.parked + done >= 0
    Watch("n1").look([ledger], shard.desk.boot_ms)


LOOKS: tuple[Request, ...] = (
    lambda s: (1, EVE, ShowGroup(s.topic_id, "billing"), b""),
    lambda s: (1, EVE, ShowGroup(s.topic_id, "other"), b""),
    lambda s: (1, EVE, Why(s.ref(4)), b""),
    lambda s: (1, EVE, WhyGroup("billing", [s.partition]), b""),
    lambda s: (1, EVE, ListDead(s.partition), b""),
)


@pytest.mark.parametrize(
    ("turns", "consuming"),
    [
        pytest.param(1, False, marks=pytest.mark.slow),
        (1, True),
        pytest.param(2, True, marks=pytest.mark.slow),
    ],
    ids=["in one turn, nobody consumes", "in one turn", "in two turns"],
)
@pytest.mark.parametrize("first", REQUESTS)
def test_any_two_requests_at_once(
    monkeypatch: pytest.MonkeyPatch, first: str, turns: int, consuming: bool
) -> None:
    wrong: list[str] = []
    for second in REQUESTS:
        try:
            with monkeypatch.context() as patch:
                _race(patch, first, second, turns, consuming)
        except Exception as error:
            wrong.append(f"{first}, then {second}: {type(error).__name__}: {error}")
    assert not wrong, "\n" + "\n".join(wrong)


def _race(monkeypatch: pytest.MonkeyPatch, first: str, second: str, turns: int, consuming: bool) -> None:
    scene = Scene(monkeypatch, consuming)
    steps = [lambda: scene.send(b"first", REQUESTS[first]), lambda: scene.send(b"second", REQUESTS[second])]
    if turns == 1:
        scene.turn(*steps)
    else:
        for step in steps:
            scene.turn(step)
    for _ in range(4):
        scene.worker.advance(limits.SECOND_MS)
        scene.turn()
    asked = [name for name, _ in scene.answers]
    assert sorted(asked) == [b"first", b"second"], f"each is answered once: {scene.answers}"
    check_whole(scene)
    for number, look in enumerate(LOOKS):
        scene.turn(lambda look=look, number=number: scene.send(b"look%d" % number, look))
    assert len(scene.answers) == 2 + len(LOOKS)
    scene.noting = False
    for shard in (0, 1):
        check_copy(scene, shard)
    scene.worker.restart()
    check_whole(scene)


@pytest.mark.slow
@pytest.mark.parametrize("first", REQUESTS)
def test_any_two_requests_that_the_disk_refuses_and_again(
    monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Neither request leaves a trace or gets an answer; afterwards the disk accepts both."""
    wrong: list[str] = []
    for second in REQUESTS:
        try:
            with monkeypatch.context() as patch:
                _race_again(patch, first, second)
        except Exception as error:
            wrong.append(f"{first}, then {second}: {type(error).__name__}: {error}")
    assert not wrong, "\n" + "\n".join(wrong)


def _race_again(monkeypatch: pytest.MonkeyPatch, first: str, second: str) -> None:
    scene = Scene(monkeypatch, consuming=True)
    steps = [lambda: scene.send(b"first", REQUESTS[first]), lambda: scene.send(b"second", REQUESTS[second])]
    if scene.worker.turn(*steps, commit=False):
        return  # both requests only read, so the disk has nothing to store
    check_whole(scene)
    scene.worker.subscribe(ADA, scene.partition)
    scene.turn(*steps)
    for _ in range(4):
        scene.worker.advance(limits.SECOND_MS)
        scene.turn()
    asked = [name for name, _ in scene.answers if name in (b"first", b"second")]
    assert sorted(asked) == [b"first", b"second"], f"each is answered once: {scene.answers}"
    check_whole(scene)


IDLE_REQUESTS = [
    *(name for name in REQUESTS if name.startswith(("subscribe", "seek", "drop", "remove", "set", "pause"))),
    *("read", "publish", "purge the topic", "show the group"),
]


class IdleScene(Scene):
    """A topic whose group will be removed as unused: two of its four records are acked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, consuming=False)
        worker = self.worker
        worker.ask(0, EVE, DropTopic("orders"))
        self.partition = single(worker.topic("orders", TopicOptions(group_idle_ms=HOUR_MS)))
        self.topic_id = topic_id_of(self.partition)
        worker.publish(self.partition, [b"a", b"b", b"c", b"d"])
        worker.subscribe(ADA, self.partition)
        worker.ask(1, ADA, Ack(1, [(self.partition, 0, 2)]))
        worker.turn(lambda: worker.end_session(ADA.session))
        worker.settle()
        for _ in range(2):
            worker.advance(limits.MINUTE_MS)
            worker.turn()
        worker.advance(HOUR_MS)
        worker.seen.clear()

    def race(self, idle_first: bool, *steps: Callable[[], None]) -> None:
        """The leader finds the group unused at the end of a turn, and the removal waits for the
        next sync. Requests come in that turn or in the next one.
        """
        if idle_first:
            self.turn()
            assert self.worker.shards[1].ledger.groups, "the entry is on its way"
        self.turn(*steps)


@pytest.mark.parametrize("idle_first", [True, False], ids=["the group goes first", "the group goes last"])
@pytest.mark.parametrize("name", IDLE_REQUESTS)
def test_any_request_beside_a_group_that_goes_as_unused(
    monkeypatch: pytest.MonkeyPatch, name: str, idle_first: bool
) -> None:
    scene = IdleScene(monkeypatch)
    scene.race(idle_first, lambda: scene.send(b"asked", REQUESTS[name]))
    for _ in range(4):
        scene.worker.advance(limits.SECOND_MS)
        scene.turn()
    assert [who for who, _ in scene.answers] == [b"asked"], f"it is answered once: {scene.answers}"
    check_whole(scene)
    scene.noting = False
    for shard in (0, 1):
        check_copy(scene, shard)
    scene.worker.restart()
    check_whole(scene)


@pytest.mark.parametrize("idle_first", [True, False], ids=["the group goes first", "the group goes last"])
@pytest.mark.parametrize(
    "options", [GroupOptions(), GroupOptions(in_flight_max=7)], ids=["as it was", "altered"]
)
def test_who_subscribes_when_a_group_goes_as_unused_finds_it_where_it_was(
    monkeypatch: pytest.MonkeyPatch, options: GroupOptions, idle_first: bool
) -> None:
    scene = IdleScene(monkeypatch)
    worker, start = scene.worker, Start(scene.partition, "new")
    worker.seen.clear()
    asks = [
        lambda who=who: worker.step(
            1, (b"c", who.session), 1, who, Subscribe(1, "billing", [start], 10, 10_000, options)
        )
        for who in (BOB, ADA)
    ]
    scene.race(idle_first, *asks)
    worker.tick(limits.SECOND_MS)
    given = sorted(offset for _, first, end, _ in worker.taken() for offset in range(first, end))
    assert given == [2, 3], "nothing is skipped, nothing comes again"
    shown = worker.ask(1, EVE, ShowGroup(scene.topic_id, "billing"))
    assert isinstance(shown, GroupShown)
    assert shown.consumers == ["ada", "bob"]
    assert shown.config.in_flight_max == options.over(worker.settings.group).in_flight_max
