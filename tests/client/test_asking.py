"""Operators' questions and repairs, played by hand: which partitions are asked, which messages are
sent, how answers are used.
"""

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import pytest
from msgspec.structs import replace

from client.hand import LEADER, OTHER, SHARD, Hand, Sent
from gossipq import limits
from gossipq.errors import BadRequest, TopicFull, UnknownRecord, UnknownTopic, WrongState
from gossipq.messages import (
    BindTopic,
    Cancel,
    Challenge,
    Confirm,
    DeadLetters,
    Done,
    Edit,
    Explained,
    GroupExplained,
    ListDead,
    Publish,
    PurgeDead,
    ReplayDead,
    Requeue,
    Reschedule,
    Resolve,
    SetAccess,
    SetGroup,
    Show,
    Shown,
    Stats,
    StatsReply,
    Subscribe,
    Subscribed,
    Topics,
    Trace,
    Traced,
    Unsubscribe,
    Why,
    WhyGroup,
)
from gossipq.operator_messages import Clients, Grown, Growth, ListClients
from gossipq.times import time_of
from gossipq.types import ATTEMPTS, IDS, KEYS, TTL, partition_key
from gossipq.values import (
    AccessChange,
    ClientRow,
    DeadLetter,
    GroupOptions,
    GroupStats,
    GrowthRow,
    Message,
    PartitionStats,
    Ref,
    Route,
    Run,
    Standing,
    TopicConfig,
    TopicInfo,
    TraceEvent,
)
from gossipq.wire import batch as wire
from gossipq.wire import frames, proofs
from gossipq.wire.batch import id_hash
from gossipq_client import testing
from gossipq_client.answers import GroupStand
from gossipq_client.operations.orders import Operating
from gossipq_client.operations.questions import Asking, Talk
from gossipq_client.operations.search import Search
from gossipq_client.values import inputs
from gossipq_client.values.refs import address

WALL_MS = 1_000_000


class World:
    """Answers a session's requests as `rules` say: class of message -> function of it that gives an answer or
    an error code."""

    def __init__(self) -> None:
        self.hand = Hand()
        for shard in range(8):
            self.hand.session.links.lane(shard)
        self.hand.up(LEADER)
        self.asking = Asking(self.hand.session)
        self.topics = {"t": TopicInfo(7, "t", 1, TopicConfig(), [SHARD])}
        self.rules: dict[type[Message], Callable[[Any], Any]] = {Resolve: self._resolve}
        self.heard: list[tuple[int, Message]] = []  #: (shard, request) but for look-ups
        self.bodies: list[bytes] = []
        self.keys: list[bytes] = []  #: of requests that have one

    def _resolve(self, message: Resolve) -> Topics:
        assert not message.create, "an operator makes no topics"
        return Topics(
            [info for name, info in self.topics.items() if name in message.names or "*" in message.names[0]]
        )

    def topic(
        self, shards: Sequence[int], name: str = "t", topic_id: int = 7, virtual: Sequence[str] = ()
    ) -> TopicInfo:
        config = TopicConfig(len(shards), virtual=list(virtual))
        info = self.topics[name] = TopicInfo(topic_id, name, 1, config, list(shards))
        return info

    def hear(self, talk: Talk[Any]) -> Any:
        """The outcome of a talk; each thing it waits for must be answered by then."""
        try:
            while True:
                step = next(talk)
                while sent := self.hand.sent():
                    for each in sent:
                        self._answer(each)
                assert step.done, "a talk waits for what was sent"
        except StopIteration as end:
            return end.value

    def _answer(self, sent: Sent) -> None:
        if not isinstance(sent.body, Resolve):
            body = sent.body
            if getattr(body, "idempotency_key", b""):
                self.keys.append(body.idempotency_key)  # type: ignore[attr-defined]
                body = replace(body, idempotency_key=b"")
            self.heard.append((sent.header.shard, body))
            self.bodies.append(sent.raw)
        answer = self.rules[type(sent.body)](sent.body)
        if isinstance(answer, str):
            self.hand.refuse(sent, answer)
            return
        body, second = answer if isinstance(answer, tuple) else (answer, None)
        if isinstance(body, Confirm):
            rows = [(sent.header.request_id, *row[1:]) for row in body.rows]
            body = Confirm(rows, runs=[(sent.header.request_id, runs) for _, runs in body.runs])
        request_id = 0 if isinstance(body, Confirm) else sent.header.request_id  # confirms are joined
        message = [frames.encode(body, sent.header.shard, request_id, 1)]
        self.hand.session.arrived(sent.endpoint, message if second is None else [*message, bytes(second)])

    @property
    def said(self) -> list[Message]:
        return [message for _, message in self.heard]


@pytest.fixture
def world() -> World:
    return World()


AT = address("t", 0, 17, None)
BY_REF = address("t/0/@40.2", None, None, None)
BY_ID = address("t", None, None, "order-17")
PARTITION = partition_key(7, 0)


def test_a_proof_is_of_the_request_as_it_is_sent(world: World) -> None:
    nonce, hand = b"n" * 16, world.hand
    talk = world.asking.set_access(AccessChange(), b"secret of the cluster")
    next(talk)
    (first,) = hand.sent(SetAccess)
    hand.answer(first, Challenge(nonce))
    next(talk)
    (proven,) = hand.sent(SetAccess)
    token = proofs.token(b"secret of the cluster", hand.session.calls.cluster)
    assert proofs.proves(token, nonce, proven.body)
    assert proven.body.idempotency_key == first.body.idempotency_key != b""


class TestOneRecord:
    def test_why(self, world: World) -> None:
        answer = Explained(Ref(PARTITION, 17), [Standing("g", "ready", "no consumer")], ["published 08:00"])
        world.rules[Why] = lambda message: answer
        (standing,) = (found := world.hear(world.asking.why(AT, "g"))).standings
        assert (found.ref, found.partition, found.offset) == ("t/0/17", 0, 17)
        assert (standing.group, standing.state, standing.because) == ("g", "ready", "no consumer")
        assert (standing.time, found.lines) == (None, ("published 08:00",))
        assert world.heard == [(SHARD, Why(Ref(PARTITION, 17), "g"))]

    def test_trace(self, world: World) -> None:
        world.rules[Trace] = lambda message: Traced([TraceEvent(1, "published")])
        assert world.hear(world.asking.trace(BY_REF, "")) == [TraceEvent(1, "published")]
        assert world.said == [Trace(Ref(PARTITION, -1, 40, 2))]

    def test_an_id_is_looked_for_in_all_partitions(self, world: World) -> None:
        world.topic([1, 2, 3])
        likely = crc32(b"order-17") % 3
        other = (likely + 2) % 3 if likely != 0 else 2

        def cancel(message: Cancel) -> Done | str:
            where = message.ref.partition & 0xFFFF
            return Done(1, Ref(message.ref.partition, 99)) if where == other else "unknown_record"

        world.rules[Cancel] = cancel
        assert world.hear(world.asking.cancel(BY_ID, "wrong")) == f"t/{other}/99"
        asked = [message.ref.partition & 0xFFFF for message in world.said if isinstance(message, Cancel)]
        assert (asked[0], asked[-1]) == (likely, other)
        assert world.said[0] == Cancel(Ref(partition_key(7, likely), id_hash=id_hash(b"order-17")), "wrong")
        assert [shard for shard, _ in world.heard] == [number + 1 for number in asked]

    def test_an_id_that_is_nowhere(self, world: World) -> None:
        world.topic([1, 2, 3])
        world.rules[Why] = lambda message: "unknown_record"
        with pytest.raises(UnknownRecord):
            world.hear(world.asking.why(BY_ID, ""))
        assert len(world.heard) == 3

    def test_any_other_refusal_ends_the_search(self, world: World) -> None:
        world.topic([1, 2, 3])
        world.rules[Cancel] = lambda message: "wrong_state"
        with pytest.raises(WrongState):
            world.hear(world.asking.cancel(BY_ID, ""))
        assert len(world.heard) == 1

    def test_refs_come_back_as_asked_when_the_answer_has_none(self, world: World) -> None:
        world.rules |= {Reschedule: lambda message: Done(1), Requeue: lambda message: Done(1)}
        assert world.hear(world.asking.reschedule(BY_REF, 500)) == "t/0/@40.2"
        assert world.hear(world.asking.requeue(AT, "g")) == "t/0/17"
        assert world.said == [Reschedule(Ref(PARTITION, -1, 40, 2), 500), Requeue(Ref(PARTITION, 17), "g")]

    def test_show(self, world: World) -> None:
        body = wire.seal(
            [b"v"],
            publish_ms=5_000,
            route=b"eu",
            keys=[b"k"],
            headers=[inputs.header_bytes({"a": "b"})],
            ids=[b"i"],
        )
        world.rules[Show] = lambda message: (Shown(Ref(PARTITION, 17), 6_500), body)
        shown = world.hear(world.asking.show(BY_ID))
        assert (shown.topic, shown.partition, shown.offset, shown.ref) == ("t", 0, 17, "t/0/17")
        assert (shown.value, shown.key, shown.headers, shown.route, shown.id) == (
            b"v",
            b"k",
            {"a": "b"},
            "eu",
            "i",
        )
        assert (shown.publish_time, shown.stored_time) == (time_of(5_000), time_of(6_500))

    def test_unknown_and_virtual_topics(self, world: World) -> None:
        world.topic([], "v", 9, ["t"])
        with pytest.raises(UnknownTopic, match="nothere"):
            world.hear(world.asking.why(address("nothere", 0, 1, None), ""))
        with pytest.raises(UnknownTopic):
            world.hear(world.asking.why(address("t*", 0, 1, None), ""))
        with pytest.raises(BadRequest, match="virtual") as refused:
            world.hear(world.asking.why(address("v", 0, 1, None), ""))
        assert refused.value.hint == "its records are in t"
        with pytest.raises(BadRequest, match="partitions 0 to 0, not 3"):
            world.hear(world.asking.why(address("t", 3, 1, None), ""))
        assert not world.heard


class TestEdit:
    def shown(self, ref: Ref) -> Callable[[Show], tuple[Shown, bytes]]:
        columns = {
            TTL: wire.array("q", [9]),
            ATTEMPTS: wire.array("I", [3]),
            wire.DELAY: wire.array("q", [5]),
        }
        headers = [inputs.header_bytes({"a": "b"})]
        body = wire.seal([b"old"], route=b"eu", keys=[b"k"], headers=headers, ids=[b"i"], fixed=columns)
        return lambda message: (Shown(ref, 1), bytes(body))

    def test_what_is_not_edited_stays_but_for_the_id_and_the_due_time(self, world: World) -> None:
        world.rules[Show] = self.shown(Ref(PARTITION, 17))
        world.rules[Edit] = lambda message: Confirm([(0, 40, 1, False)])
        receipt = world.hear(world.asking.edit(BY_ID, b"new", None))
        assert (receipt.ref, receipt.offset, receipt.copies) == ("t/0/40", 40, 1)
        assert world.said[-1] == Edit(Ref(PARTITION, 17))
        batch = wire.Batch(world.bodies[-1])
        assert (batch.values(), batch.column(KEYS), batch.column(IDS), batch.route) == (
            [b"new"],
            [b"k"],
            None,
            b"eu",
        )
        assert batch.column(wire.HEADERS) == [inputs.header_bytes({"a": "b"})]
        assert {bit: list(batch.fixed(bit) or ()) for bit in wire.FIXED} == {
            **{bit: [] for bit in wire.FIXED},
            TTL: [9],
            ATTEMPTS: [3],
        }

    def test_headers_alone_and_a_record_that_stays_scheduled(self, world: World) -> None:
        world.rules[Show] = self.shown(Ref(PARTITION, -1, 40, 2))
        world.rules[Edit] = lambda message: Confirm([(0, -1, 1, False)], runs=[(0, [Run(1, -1, 77, 0)])])
        receipt = world.hear(world.asking.edit(BY_REF, None, b""))
        assert (receipt.ref, receipt.offset) == ("t/0/@77.0", -1)
        batch = wire.Batch(world.bodies[-1])
        assert (batch.values(), batch.column(wire.HEADERS)) == ([b"old"], None)

    def test_nothing_to_edit(self) -> None:
        with pytest.raises(BadRequest, match="nothing to edit"):
            inputs.edited(None, None)


class TestGroups:
    def test_a_policy_goes_to_each_shard_once(self, world: World) -> None:
        world.topic([1, 2, 1, 2])
        world.rules[SetGroup] = lambda message: Done(1)
        world.hear(world.asking.set_group("t", "g", GroupOptions(paused=True)))
        assert world.heard == [(shard, SetGroup(7, "g", GroupOptions(paused=True))) for shard in (1, 2)]

    def test_a_group_that_is_not_there(self, world: World) -> None:
        world.rules[SetGroup] = lambda message: "bad_request"
        with pytest.raises(BadRequest):
            world.hear(world.asking.set_group("t", "g", GroupOptions()))
        for group in ("", None):
            with pytest.raises(BadRequest, match="no group named"):
                world.hear(world.asking.set_group("t", group, GroupOptions()))  # type: ignore[arg-type]

    def test_why_a_group_stands_still(self, world: World) -> None:
        world.topic([2, 1, 2])
        world.rules[WhyGroup] = lambda message: GroupExplained(
            [(key, "paused", "b", "n", 5) for key in message.partitions]
        )
        rows = world.hear(world.asking.why_group("t", "g"))
        assert rows == [GroupStand(number, "paused", "b", "n", time_of(5)) for number in range(3)]
        assert world.said == [
            WhyGroup("g", [partition_key(7, 0), partition_key(7, 2)]),
            WhyGroup("g", [partition_key(7, 1)]),
        ]


class TestVirtual:
    def test_binding(self, world: World) -> None:
        info = TopicInfo(9, "v", 2, TopicConfig(virtual=["a", "b"]), [])
        world.rules[BindTopic] = lambda message: Topics([info])
        assert world.hear(world.asking.bind_topic("v", ("a", "b"))) == info
        assert world.heard == [(0, BindTopic("v", ["a", "b"]))]
        assert world.hand.session.publishing.topics["v"].virtual == ["a", "b"]

    @pytest.mark.parametrize("targets", [[], "ab", ["a", "a"], ["a", "v"]])
    def test_bad_targets(self, world: World, targets: Sequence[str]) -> None:
        with pytest.raises(BadRequest, match="virtual topic 'v'"):
            world.hear(world.asking.bind_topic("v", targets))
        assert not world.heard


def letter(
    offset: int, count: int = 1, number: int = 0, values: Sequence[bytes] = ()
) -> tuple[DeadLetter, bytes]:
    """A row of DEAD_LETTERS with its batch."""
    raw = wire.seal(list(values), keys=[b"k"] * count, route=b"eu", publish_ms=1_000) if values else b""
    row = DeadLetter(partition_key(7, number), "g", offset, count, "failures", "boom", 3, 2, 5_000, len(raw))
    return row, bytes(raw)


def answer(*letters: tuple[DeadLetter, bytes], more: int = -1) -> tuple[DeadLetters, bytes]:
    return DeadLetters([row for row, _ in letters], more), b"".join(raw for _, raw in letters)


class TestDeadLetters:
    def all(self, world: World, *how: Any) -> list[Any]:
        found = []
        for letters in world.hear(world.asking.dead_letters(*how)):
            while letters.after >= 0:
                found += world.hear(letters.page())
        return found

    def test_pages_and_partitions(self, world: World) -> None:
        world.topic([1, 2])
        pages = {
            (0, 5): answer(letter(6, 2, 0, [b"a", b"b"]), more=8),
            (0, 8): answer(letter(9, 1, 0, [b"c"])),
            (1, 5): answer(),
        }
        world.rules[ListDead] = lambda message: pages[message.partition & 0xFFFF, message.after]
        found = self.all(world, "t", "g", True, None, 5)
        assert [(each.ref, each.value, each.count) for each in found] == [
            ("t/0/6", b"a", 1),
            ("t/0/7", b"b", 1),
            ("t/0/9", b"c", 1),
        ]
        first = found[0]
        assert (first.group, first.reason, first.error, first.attempts, first.failures) == (
            "g",
            "failures",
            "boom",
            3,
            2,
        )
        assert (first.key, first.route) == (b"k", "eu")
        assert (first.time, first.publish_time) == (time_of(5_000), time_of(1_000))

    def test_without_values_neighbours_are_one(self, world: World) -> None:
        world.rules[ListDead] = lambda message: DeadLetters([letter(6, 1_000)[0]])
        (found,) = self.all(world, "t", "", False, 0, 0)
        assert (found.offset, found.count, found.value) == (6, 1_000, b"")
        assert world.said == [ListDead(PARTITION, "", 0, bodies=False)]

    @pytest.mark.parametrize("where", [(1, 0), (-1, 0), (0, -1)])
    def test_bad_places(self, world: World, where: tuple[int, int]) -> None:
        with pytest.raises(BadRequest):
            self.all(world, "t", "g", True, *where)

    def test_replay_and_purge_of_ranges(self, world: World) -> None:
        world.topic([1, 2])
        world.rules |= {ReplayDead: lambda message: Done(3), PurgeDead: lambda message: Done(4)}
        assert world.hear(world.asking.replay_dead("t", "g", [(1, 5, 8), (1, 9, 10)], None, True)) == 3
        assert world.hear(world.asking.purge_dead("t", "g", None, False)) == 8
        assert world.heard == [
            (2, ReplayDead(partition_key(7, 1), "g", [(5, 8), (9, 10)], True)),
            (1, PurgeDead(partition_key(7, 0), "g")),
            (2, PurgeDead(partition_key(7, 1), "g")),
        ]

    @pytest.mark.parametrize("wrong", [(2, 0, 1), (-1, 0, 1), (0, 5, 5), (0, 6, 5), (0, -1, 5)])
    def test_bad_ranges(self, world: World, wrong: tuple[int, int, int]) -> None:
        with pytest.raises(BadRequest, match="range"):
            world.hear(world.asking.purge_dead("t", "g", [wrong], False))
        assert not world.heard

    def test_a_group_must_be_named(self, world: World) -> None:
        for talk in (
            world.asking.replay_dead("t", "", None, None, False),
            world.asking.purge_dead("t", "", None, False),
        ):
            with pytest.raises(BadRequest, match="no group"):
                world.hear(talk)


class TestReplayTo:
    """Replay into another topic: published under an id that names the old place, then purged."""

    @pytest.fixture
    def moving(self, world: World) -> World:
        world.topic([SHARD])
        world.topic([5], "other", 8)
        world.rules[ListDead] = lambda message: answer(letter(6, 2, 0, [b"a", b"b"]), letter(9, 1, 0, [b"c"]))
        world.rules[Publish] = lambda message: Confirm([(0, 0, 1, False)])
        world.rules[PurgeDead] = lambda message: Done(sum(end - first for first, end in message.ranges))
        return world

    def test_all(self, moving: World) -> None:
        assert moving.hear(moving.asking.replay_dead("t", "g", None, "other", False)) == 3
        listed, *published, purged = moving.heard
        assert isinstance(listed[1], ListDead)
        assert purged == (SHARD, PurgeDead(PARTITION, "g", [(6, 7), (7, 8), (9, 10)]))
        batches = [
            wire.Batch(raw)
            for (_, message), raw in zip(moving.heard, moving.bodies, strict=True)
            if raw and isinstance(message, Publish)
        ]
        assert {shard for shard, _ in published} == {5}
        assert [value for batch in batches for value in batch.values()] == [b"a", b"b", b"c"]
        assert [each for batch in batches for each in batch.column(IDS) or ()] == [
            b"t/0/6@g",
            b"t/0/7@g",
            b"t/0/9@g",
        ]
        assert {batch.route for batch in batches} == {b"eu"}

    def test_headers_stay_as_they_are_stored(self, moving: World) -> None:
        """Also those of a client of another make: unreadable, or text in a longer form than ours."""
        foreign = [b"\xc1", b"\x81\xd9\x01a\xa1x", b""]
        body = bytes(wire.seal([b"a", b"b", b"c"], headers=foreign, publish_ms=1_000))
        row = DeadLetter(PARTITION, "g", 6, 3, "failures", "boom", 3, 2, 5_000, len(body))
        moving.rules[ListDead] = lambda message: (DeadLetters([row], -1), body)
        assert moving.hear(moving.asking.replay_dead("t", "g", None, "other", False)) == 3
        batches = [wire.Batch(raw) for raw in moving.bodies if raw]
        assert [each for batch in batches for each in batch.column(wire.HEADERS) or [b""]] == foreign

    def test_only_what_is_asked_for(self, moving: World) -> None:
        assert moving.hear(moving.asking.replay_dead("t", "g", [(0, 7, 8)], "other", False)) == 1
        assert moving.said[0] == ListDead(PARTITION, "g", 7, bodies=True)
        assert moving.said[-1] == PurgeDead(PARTITION, "g", [(7, 8)])

    def test_what_is_not_confirmed_is_not_purged(self, moving: World) -> None:
        moving.rules[Publish] = lambda message: "topic_full"
        with pytest.raises(TopicFull):
            moving.hear(moving.asking.replay_dead("t", "g", None, "other", False))
        assert not any(isinstance(message, PurgeDead) for message in moving.said)

    def test_a_topic_that_is_gone_is_not_made_again(self, moving: World) -> None:
        for dry_run in (False, True):
            with pytest.raises(UnknownTopic, match="gone"):
                moving.hear(moving.asking.replay_dead("t", "g", None, "gone", dry_run))
        assert not moving.heard

    def test_a_dry_run_moves_nothing(self, moving: World) -> None:
        moving.rules[ReplayDead] = lambda message: Done(3)
        assert moving.hear(moving.asking.replay_dead("t", "g", None, "other", True)) == 3
        assert moving.said == [ReplayDead(PARTITION, "g", [], True)]


class TestCover:
    """Between which offsets a search lies."""

    def search(
        self, start: inputs.Start = "first", end: inputs.Start | None = None
    ) -> tuple[Search, list[tuple[int, int]]]:
        told: list[tuple[int, int]] = []
        return Search(start, end, None, None, None, None, lambda *at: told.append(at), WALL_MS), told

    @pytest.fixture
    def readers(self, world: World) -> World:
        world.topic([1, 2])
        positions = {"first": 10, "time": 40}

        def subscribed(message: Subscribe) -> Subscribed:
            found = [(each.partition, positions.get(each.kind, each.value), 100) for each in message.starts]
            return Subscribed(message.subscription, 0, found)

        world.rules |= {Subscribe: subscribed, Unsubscribe: lambda message: Done(0)}
        return world

    @pytest.mark.parametrize(
        ("start", "end", "total"),
        [
            ("first", None, 180),
            ("first", 50, 80),
            ("-10m", None, 120),
            ("first", "-10m", 60),
            (20, 10**9, 160),
        ],
    )
    def test_how_much_there_is(
        self, readers: World, start: inputs.Start, end: inputs.Start | None, total: int
    ) -> None:
        search, told = self.search(start, end)
        readers.hear(readers.asking.cover("t", search))
        assert told == [(0, total)]
        opened = [message.subscription for message in readers.said if isinstance(message, Subscribe)]
        closed = [message.subscription for message in readers.said if isinstance(message, Unsubscribe)]
        assert opened == closed
        assert all(
            not message.group and not message.credit_records
            for message in readers.said
            if isinstance(message, Subscribe)
        )

    def test_all_shards_are_asked_at_once(self, readers: World) -> None:
        info = readers.topic([1, 2, 3])
        assert len(readers.hear(readers.asking.spans([info]))) == 3
        kinds = [type(message) for message in readers.said]
        assert kinds == [Subscribe] * 3 + [Unsubscribe] * 3

    def test_a_shard_that_refuses_leaves_no_reader_in_others(self, readers: World) -> None:
        info, opened = readers.topic([1, 2, 3]), readers.rules[Subscribe]

        def subscribed(message: Subscribe) -> Subscribed | str:
            return "unknown_topic" if message.starts[0].partition & 0xFFFF == 1 else opened(message)

        readers.rules[Subscribe] = subscribed
        with pytest.raises(UnknownTopic):
            readers.hear(readers.asking.spans([info]))
        assert [shard for shard, message in readers.heard if isinstance(message, Unsubscribe)] == [1, 3]

    def test_a_pattern_leaves_virtual_topics_out(self, readers: World) -> None:
        readers.topic([], "v", 9, ["t"])
        search, _ = self.search()
        readers.hear(readers.asking.cover("*", search))
        assert not search.over

    def test_nothing_to_look_at(self, readers: World) -> None:
        search, _ = self.search(100)
        readers.hear(readers.asking.cover("t", search))
        assert search.over
        with pytest.raises(UnknownTopic):
            readers.hear(readers.asking.cover("nothere", self.search()[0]))


class TestEachWorker:
    """It is asked by one of its shards; who takes another one over meanwhile answers for that one, too."""

    def heard(self, world: World, talk: Talk[Any]) -> Any:
        links = world.hand.session.links
        links.learn(Route(5, 2, OTHER))
        next(talk)
        links.learn(Route(5, 3, LEADER))
        world.hand.session.pump_all()
        return world.hear(talk)

    def test_its_sessions_are_told_once(self, world: World) -> None:
        row = ClientRow(b"s" * 16, "ada", "0", "n", 0, 1, 5, 5, 0, 0, 0, [])
        world.rules[ListClients] = lambda _: Clients([row, replace(row, worker=1)])
        found = self.heard(world, Operating(world.hand.session).clients())
        assert len(world.heard) == 2
        assert [each.worker for each in found] == [0, 1]

    def test_its_growth_is_told_once(self, world: World) -> None:
        row = GrowthRow("t", SHARD, 60_000, 1, 0, 0, 0, 1, 10, 1, 1, 1)
        world.rules[Growth] = lambda _: Grown([replace(row, time_ms=120_000), row])
        found = self.heard(world, Operating(world.hand.session).growth([], False, 0))
        assert len(world.heard) == 2
        assert [each.time_ms for each in found] == [60_000, 120_000]

    def test_its_growth_comes_in_pages(self, world: World) -> None:
        row = GrowthRow("t", SHARD, 60_000, 1, 0, 0, 0, 1, 10, 1, 1, 1)
        pages = {
            (): Grown([row], [SHARD, 1, 60_000]),
            (SHARD, 1, 60_000): Grown([replace(row, time_ms=120_000)]),
        }
        world.rules[Growth] = lambda asked: pages[tuple(asked.after)]
        found = self.heard(world, Operating(world.hand.session).growth([], False, 0))
        assert len(world.heard) == 4
        assert [each.time_ms for each in found] == [60_000, 120_000]

    def test_its_counters_are_told_once(self, world: World) -> None:
        row = PartitionStats(PARTITION, "t", SHARD, 0, 0, 5, 5, 0, 50)
        group = GroupStats(PARTITION, "t", "g", 5, 0, 0, 5, 0, 1, 0)
        world.rules[Stats] = lambda _: StatsReply([row], [group])
        found = self.heard(world, Operating(world.hand.session).stats(["t"]))
        assert len(world.heard) == 2
        assert found == StatsReply([row], [group])

    def test_by_a_shard_that_has_a_leader(self, world: World) -> None:
        """The worker still leads other shards. For a shard that it led once no leader answers, so
        asking by that one is useless.
        """
        world.rules[Stats] = lambda _: StatsReply([], [])
        world.hand.session.links.home.leaderless = frozenset((5, 6, 7))
        world.hear(Operating(world.hand.session).stats(["t"]))
        world.hand.session.links.home.leaderless = frozenset(range(8))
        world.hear(Operating(world.hand.session).stats(["t"]))
        (first, _), (second, _) = world.heard
        assert first not in (5, 6, 7)
        assert second in range(8), "nobody leads anything: that is for the answer to say"


def test_lists_are_asked_page_by_page(movable: testing.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way: a node with small pages, and a client that hides them."""
    names = [f"t{number:02}" for number in range(30)]
    for name in names:
        movable.create_topic(name)
        movable.publish(name, name.encode())
        assert movable.fetch(name, group="g", n=1, wait=30)
    whole = movable.admin.stats()
    monkeypatch.setattr(limits, "LIST_ROWS_MAX", 4)
    assert [info.name for info in movable.topics()] == names
    assert [info.name for info in movable.topics("t1*")] == names[10:20]
    assert (
        {row.topic for row in movable.admin.stats().groups}
        == {row.topic for row in whole.groups}
        == set(names)
    )
    assert len(movable.admin.stats(names[:7]).partitions) == 7
    assert len(movable.admin.clients()) == 1
    values = [message.value for message in movable.consume("t*", group="all", stop_at_end=True)]
    assert sorted(values) == [name.encode() for name in names]
