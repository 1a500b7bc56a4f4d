"""Unique names: one record of a name waits at a time, until it is done or for a time.

Some cases are those of RQ's tests of unique jobs (`test_queue_unique.py`).
"""

from array import array
from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.harness import FakeWorker, client, single
from gossipq import limits
from gossipq.core.ledger import id_index, ledger
from gossipq.messages import (
    Ack,
    Acked,
    Cancel,
    Done,
    DropTopic,
    Edit,
    Explained,
    Nack,
    Publish,
    RefusedMessage,
    ReplayDead,
    Reschedule,
    Why,
)
from gossipq.types import ATTEMPTS, DELAY, ID_HASH, REPLACE, TTL, UNIQUE_HASH, UNTIL, PartitionKey
from gossipq.values import Ref, Run, TopicOptions
from gossipq.wire import batch as batches

ADA = client("ada")
MINUTE_MS = limits.MINUTE_MS
WIDTHS = {bit: code for bit, (code, _) in batches.FIXED.items()}


class Stored(NamedTuple):
    """How a record was answered."""

    kept: bool  #: another one holds its name
    place: tuple[int, int]  #: log index and record


class Room:
    """A worker with a topic of one partition, in which `billing` reads."""

    def __init__(self, **options: int) -> None:
        self.worker = FakeWorker()
        self.part: PartitionKey = single(self.worker.topic("jobs", TopicOptions(**options)))

    def publish(
        self, *names: str, until_ms: int = 0, replace: bool = False, sequence: int = 0, **more: int
    ) -> list[Stored]:
        """Publish a record for each name; "" = without one. Other columns have one value for all."""
        runs = self.runs(*names, until_ms=until_ms, replace=replace, sequence=sequence, **more)
        return [Stored(run.kept, (run.index, run.record + at)) for run in runs for at in range(run.count)]

    def runs(
        self, *names: str, until_ms: int = 0, replace: bool = False, sequence: int = 0, **more: int
    ) -> list[Run]:
        count, texts = len(names), [name.encode() for name in names]
        given = {"delay_ms": DELAY, "ttl_ms": TTL, "attempts": ATTEMPTS, "id": ID_HASH}
        values = {given[name]: value for name, value in more.items()}
        values |= {UNTIL: until_ms} if until_ms else {}
        values |= {REPLACE: 1} if replace else {}
        fixed = {bit: array(WIDTHS[bit], [value] * count) for bit, value in values.items()}
        fixed[UNIQUE_HASH] = batches.id_column(texts)
        producer = b"p".ljust(16, b".") if sequence else batches.NO_PRODUCER
        confirm = self.worker.publish(
            self.part,
            [b"v"] * count,
            fixed=fixed,
            uniques=texts,
            producer=producer,
            sequence=sequence,
        )
        assert isinstance(confirm, tuple), confirm
        return self.worker.effects[1].runs[b"c", b"p"][0][1]

    def read(self, group: str = "billing") -> list[int]:
        """The offsets that a group gets now."""
        if group not in [each.name for each in self.ledger.groups.values()]:
            self.worker.subscribe(ADA, self.part, group=group)
        return [at for _, first, end, _ in self.worker.taken() for at in range(first, end)]

    def ack(self, *offsets: int) -> None:
        self.worker.ask(1, ADA, Ack(1, [(self.part, at, at + 1) for at in offsets]))
        self.worker.settle()

    def fail(self, offset: int) -> None:
        self.worker.ask(1, ADA, Nack(1, [(self.part, offset, offset + 1)], reason="boom"))

    def why(self, stored: Stored) -> Explained:
        index, record = stored.place
        answer = self.worker.ask(1, ADA, Why(Ref(self.part, index=index, record=record)))
        assert isinstance(answer, Explained), answer
        return answer

    def ref(self, stored: Stored) -> Ref:
        return Ref(self.part, index=stored.place[0], record=stored.place[1])

    def wait(self, ms: int) -> None:
        self.worker.tick(ms)
        self.worker.tick(1)

    @property
    def ledger(self) -> ledger.Ledger:
        return self.worker.shards[1].ledger

    def rows(self) -> list[bytes]:
        return [row for _, row in self.ledger.state.scan(b"u", b"v")]


@pytest.fixture
def room() -> Room:
    return Room()


def test_a_name_is_taken_until_its_record_is_acked(room: Room) -> None:
    (first,) = room.publish("report:7")
    assert room.publish("report:7") == [Stored(True, first.place)]
    assert room.read() == [0], "in flight it still holds the name"
    assert room.publish("report:7") == [Stored(True, first.place)]
    room.ack(0)
    (second,) = room.publish("report:7")
    assert not second.kept
    assert room.publish("report:7") == [Stored(True, second.place)]


def test_other_names_and_records_without_one_are_stored(room: Room) -> None:
    stored = room.publish("a", "b", "", "")
    assert [each.kept for each in stored] == [False] * 4
    assert room.publish("a", "", "c", "b") == [
        Stored(True, stored[0].place),
        Stored(False, (stored[0].place[0] + 1, 1)),
        Stored(False, (stored[0].place[0] + 1, 2)),
        Stored(True, stored[1].place),
    ]


def test_in_one_batch_the_first_of_a_name_is_kept(room: Room) -> None:
    first, *others = room.publish("a", "a", "b", "a")
    assert [first.kept, *[each.kept for each in others]] == [False, True, False, True]
    assert others[0].place == others[2].place == first.place
    assert room.read() == [0, 1]


def test_in_one_batch_the_last_of_a_name_replaces_the_others(room: Room) -> None:
    room.publish("a")
    stored = room.publish("a", "b", "a", replace=True)
    assert [each.kept for each in stored] == [True, False, False]
    assert stored[0].place == stored[2].place
    assert room.read() == [1, 2]


def test_every_group_must_be_done_with_the_record(room: Room) -> None:
    room.worker.subscribe(ADA, room.part, group="other", number=2)
    room.publish("a")
    assert room.read() == [0, 0], "one for each group"
    room.ack(0)
    assert room.publish("a")[0].kept, "the group `other` has not acked it"
    room.worker.ask(1, ADA, Ack(2, [(room.part, 0, 1)]))
    room.worker.settle()
    assert not room.publish("a")[0].kept


def test_a_record_that_fails_holds_its_name_until_it_is_dead(room: Room) -> None:
    room.publish("a", attempts=2)
    assert room.read() == [0]
    room.fail(0)
    room.worker.settle()
    assert room.publish("a")[0].kept, "it is going to be tried again"
    room.wait(MINUTE_MS)
    assert room.read() == [0]
    room.fail(0)
    room.worker.settle()
    assert not room.publish("a")[0].kept


def test_a_dead_letter_that_is_replayed_leaves_the_name_to_the_next_record(room: Room) -> None:
    room.publish("a", attempts=1)
    assert room.read() == [0]
    room.fail(0)
    room.worker.settle()
    (second,) = room.publish("a")
    assert room.worker.ask(1, ADA, ReplayDead(room.part, "billing")) == Done(1)
    assert room.publish("a") == [Stored(True, second.place)]
    assert sorted(room.read()) == [0, 1]
    room.ack(1)
    assert not room.publish("a")[0].kept


def test_a_record_that_expires_frees_its_name(room: Room) -> None:
    room.read()
    room.worker.subscribe(ADA, room.part, records=0)
    room.publish("a", ttl_ms=1_000)
    assert room.publish("a")[0].kept
    room.wait(5_000)
    room.wait(1_000)
    assert not room.publish("a")[0].kept


def test_a_record_that_retention_removes_frees_its_name() -> None:
    room = Room(retention_ms=1_000)
    room.publish("a", until_ms=0)
    room.wait(5_000)
    room.wait(limits.RETENTION_MS)
    assert room.ledger.partitions[room.part].first == 1
    assert not room.publish("a")[0].kept


@pytest.mark.parametrize("delay_ms", [0, 60_000])
@pytest.mark.parametrize("until_ms", [0, 600_000])
def test_a_record_that_is_cancelled_frees_its_name(room: Room, delay_ms: int, until_ms: int) -> None:
    more = {"delay_ms": delay_ms} if delay_ms else {}
    (first,) = room.publish("a", until_ms=until_ms, **more)
    assert room.publish("a")[0].kept
    assert isinstance(room.worker.ask(1, ADA, Cancel(room.ref(first))), Done)
    assert room.rows() == []
    assert not room.publish("a")[0].kept


def test_a_scheduled_record_holds_its_name_and_while_it_waits_then(room: Room) -> None:
    (first,) = room.publish("a", delay_ms=MINUTE_MS)
    assert room.publish("a") == [Stored(True, first.place)]
    assert room.publish("a", delay_ms=2 * MINUTE_MS) == [Stored(True, first.place)]
    assert isinstance(room.worker.ask(1, ADA, Reschedule(room.ref(first), 3 * MINUTE_MS)), Done)
    room.wait(2 * MINUTE_MS)
    assert room.publish("a") == [Stored(True, first.place)]
    room.wait(MINUTE_MS)
    assert room.read() == [0]
    assert room.publish("a") == [Stored(True, first.place)]
    room.ack(0)
    assert not room.publish("a")[0].kept


def test_a_name_with_a_time_is_free_after_it_whatever_became_of_the_record(room: Room) -> None:
    (first,) = room.publish("a", until_ms=MINUTE_MS)
    room.read()
    room.ack(0)
    assert room.publish("a", until_ms=MINUTE_MS) == [Stored(True, first.place)], "done, but not a minute ago"
    room.wait(MINUTE_MS - 1_000)
    assert room.publish("a")[0].kept
    room.wait(1_000)
    (second,) = room.publish("a", until_ms=MINUTE_MS)
    assert not second.kept
    room.wait(MINUTE_MS)
    assert not room.publish("a")[0].kept, "the second one waits, but its minute is over"


def test_replace_swaps_the_value_and_the_due_time(room: Room) -> None:
    """Debounce: each publish puts the time off."""
    places = [room.publish("a", delay_ms=5_000, replace=True)[0]]
    for _ in range(5):
        room.wait(4_000)
        places.append(room.publish("a", delay_ms=5_000, replace=True)[0])
    assert [each.kept for each in places] == [False] * 6
    assert room.ledger.partitions[room.part].scheduled == 1
    assert len(room.rows()) == 1, "a record that is replaced leaves no row"
    room.wait(4_000)
    assert room.read() == []
    room.wait(1_000)
    assert room.worker.taken() == [(ADA.session, 0, 1, 1)]
    assert room.why(places[0]).standings[0].because.startswith("a publish of the same unique name put")


def test_replace_takes_a_record_away_from_its_consumer(room: Room) -> None:
    """As Graphile Worker does it: a job that runs goes on, and is not tried again."""
    room.publish("a")
    assert room.read() == [0]
    room.publish("a", replace=True)
    assert room.worker.taken() == [(ADA.session, 1, 2, 1)]
    room.fail(0)
    room.wait(10 * MINUTE_MS)
    room.worker.settle()
    assert 0 not in room.read()
    assert room.ledger.partitions[room.part].voided == 1


def test_an_ack_is_lost_if_the_entry_before_it_replaces_the_record(room: Room) -> None:
    room.publish("a", "b")
    assert room.read() == [0, 1]
    fixed = {UNIQUE_HASH: batches.id_column([b"a"]), REPLACE: array("I", [1])}
    batch = bytes(batches.seal([b"v"], fixed=fixed, uniques=[b"a"]))
    worker, origin = room.worker, (b"c", b"1")
    effects = worker.turn(
        lambda: worker.take(1, origin, 1, None, Publish(room.part), batches.check(batch), batch),
        lambda: worker.step(1, origin, 2, ADA, Ack(1, [(room.part, 0, 2)])),
    )
    answers = [m for each in effects.values() for _, request_id, m in each.replies if request_id == 2]
    assert answers == [Acked([(room.part, 0, 1)])]
    (cursor,) = room.ledger.cursors[room.part].values()
    assert (cursor.state.acked, room.ledger.partitions[room.part].voided) == (1, 1)


def test_replace_after_the_record_is_done_adds_one(room: Room) -> None:
    room.publish("a", until_ms=MINUTE_MS)
    room.read()
    room.ack(0)
    (second,) = room.publish("a", until_ms=MINUTE_MS, replace=True)
    assert room.ledger.partitions[room.part].voided == 0
    room.wait(MINUTE_MS - 1_000)
    assert room.publish("a") == [Stored(True, second.place)], "the minute counts from the second"


def test_an_edit_keeps_the_name(room: Room) -> None:
    (first,) = room.publish("a", delay_ms=MINUTE_MS)
    batch = bytes(batches.seal([b"new"], fixed={UNIQUE_HASH: batches.id_column([b"a"])}, uniques=[b"a"]))
    effects = room.worker.turn(
        lambda: room.worker.step(1, (b"c", b"1"), 1, ADA, Edit(room.ref(first)), batch=batch)
    )
    assert not [m for each in effects.values() for _, _, m in each.replies if isinstance(m, RefusedMessage)]
    (kept,) = room.publish("a")
    assert kept.kept
    assert kept.place != first.place
    assert len(room.rows()) == 1


def test_a_repeated_batch_is_answered_as_the_first_time(room: Room) -> None:
    (holder,) = room.publish("a")
    answer = room.publish("b", "a", "c", sequence=1)
    assert [each.kept for each in answer] == [False, True, False]
    assert room.publish("b", "a", "c", sequence=1) == answer
    room.worker.restart()
    assert room.publish("b", "a", "c", sequence=1) == answer
    assert answer[1].place == holder.place
    assert room.ledger.partitions[room.part].next == 3


def test_a_repeated_batch_never_names_a_record_that_is_done(room: Room) -> None:
    """The row of the first record is still there, since rows are deleted a few at a time."""
    room.publish("a")
    room.publish("other")
    room.read()
    room.ack(0)
    answer = room.publish("a", "a", "other", sequence=1, delay_ms=MINUTE_MS)
    assert isinstance(room.worker.ask(1, ADA, Cancel(room.ref(answer[0]))), Done)
    room.ack(1)
    again = room.publish("a", "a", "other", sequence=1, delay_ms=MINUTE_MS)
    assert again[:2] == answer[:2], "the second one was kept out by the first one"
    assert again[2] == Stored(True, (0, 0)), "nobody has that name now"


def test_a_record_that_is_stored_is_no_repeat_of_itself(room: Room) -> None:
    (first,) = room.publish("a", sequence=1)
    assert room.publish("a", sequence=1) == [first]
    assert room.publish("a", sequence=2) == [Stored(True, first.place)]


def test_a_known_id_leaves_the_name_alone(room: Room) -> None:
    room.publish("a", id=7)
    room.read()
    room.ack(0)
    assert not room.publish("a", id=7)[0].kept, "a duplicate by its id is not kept out by its name"
    assert room.ledger.partitions[room.part].next == 1
    assert not room.publish("a", id=8)[0].kept
    assert room.publish("a", id=9)[0].kept
    room.ack(1)
    assert not room.publish("b", id=9)[0].kept, "the id of a record that was kept out is free"
    assert room.ledger.partitions[room.part].next == 3


def test_a_restart_forgets_no_name(room: Room) -> None:
    stored = room.publish("a", "b", "a", "c")
    room.publish("d", until_ms=MINUTE_MS)
    room.worker.restart()
    assert [each.kept for each in room.publish("a", "b", "c", "d")] == [True] * 4
    assert room.publish("c") == [Stored(True, stored[3].place)]


def test_two_topics_have_names_of_their_own(room: Room) -> None:
    room.publish("a")
    other = single(room.worker.topic("other"))
    room.part, jobs = other, room.part
    assert not room.publish("a")[0].kept
    room.part = jobs
    assert room.publish("a")[0].kept
    room.worker.ask(0, ADA, DropTopic("jobs"))
    for _ in range(10):
        room.wait(1_000)
    assert len(room.rows()) == 1, "the names of a removed topic are swept"


def test_why_tells_the_name_and_who_has_it(room: Room) -> None:
    (first,) = room.publish("report:7")
    assert "has the unique name report:7 until it is done" in room.why(first).lines
    (timed,) = room.publish("report:8", until_ms=10 * MINUTE_MS, delay_ms=MINUTE_MS)
    assert "has the unique name report:8 for 10 min from its publish" in room.why(timed).lines
    room.wait(10 * MINUTE_MS)
    assert "its unique name report:8 is free, or another record has it" in room.why(timed).lines


def test_names_that_are_free_are_forgotten_by_later_ones(room: Room) -> None:
    """The rows stay few: each entry looks at two others."""
    room.read()
    for number in range(50):
        room.publish(*[f"{number}.{each}" for each in range(4)])
        room.ack(*room.read())
    assert len(room.rows()) < 5
    room.publish("stays")
    for number in range(50):
        room.publish(f"late {number}")
        room.ack(*[at for at in room.read() if at > 200])
    assert len(room.rows()) < 8
    assert room.publish("stays")[0].kept


def test_a_batch_of_which_half_is_done_keeps_the_names_of_the_others(room: Room) -> None:
    room.publish(*map(str, range(8)))
    room.read()
    room.ack(0, 1, 2, 4, 5, 7)
    for number in range(3):
        room.publish(f"late {number}")
    assert min(map(len, room.rows())) < len(max(room.rows(), key=len))
    room.worker.restart()
    assert [each.kept for each in room.publish(*map(str, range(8)))] == [
        number in (3, 6) for number in range(8)
    ]


def test_a_shard_with_too_many_names_asks_to_wait_and_frees_them(room: Room) -> None:
    with patch.object(id_index, "IDS_MAX", 4 * id_index.ENTRY_IDS_MIN):
        for number in range(4):
            room.publish(f"{number}")
        text = [b"5"]
        fixed = {UNIQUE_HASH: batches.id_column(text)}
        answer = room.worker.publish(room.part, [b"v"], fixed=fixed, uniques=text)
        assert isinstance(answer, RefusedMessage)
        assert (answer.code, answer.retry_after_ms) == ("busy", limits.LEASE_LOG_MS)
        room.ack(*room.read())
        room.worker.publish(room.part, [b"v"], fixed=fixed, uniques=text)
        room.wait(1_000)
        assert not room.publish("5")[0].kept


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "publish", "publish", "ack", "cancel", "restart", "wait"]),
        st.lists(st.integers(0, 5), min_size=1, max_size=4),
        st.booleans(),
        st.sampled_from([0, 0, 2_000]),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(ACTS)
def test_names_are_those_of_a_model(acts: list[tuple[str, list[int], bool, int]]) -> None:
    """A dict from name to the record that holds it is the model."""
    room, holders = Room(), dict[str, tuple[Stored, int]]()  # with the end of its time
    ready = dict[tuple[int, int], int]()  # place -> offset
    room.read()
    now_ms = 0
    for what, numbers, replace, until_ms in acts:
        if what == "publish":
            names = [f"n{number}" for number in numbers]
            answer = room.publish(*names, replace=replace, until_ms=until_ms)
            last = {name: at for at, name in enumerate(names)}
            for at, (name, stored) in enumerate(zip(names, answer, strict=True)):
                holder, end_ms = holders.get(name, (None, 0))
                holds = holder is not None and (now_ms < end_ms if end_ms else holder.place in ready)
                in_batch = holder is not None and holder.place[0] == answer[0].place[0] and holds
                if replace:
                    assert stored.kept == (last[name] != at)
                else:
                    assert stored.kept == bool(holds), (name, in_batch)
                    if stored.kept and holder is not None:
                        assert stored.place == holder.place
                if not stored.kept:
                    if holds and holder is not None:
                        ready.pop(holder.place, None)
                    holders[name] = stored, now_ms + until_ms if until_ms else 0
                    offset = room.ledger.offset_of(room.part, *stored.place)
                    assert offset is not None
                    ready[stored.place] = offset
        elif what == "ack" and ready:
            place = sorted(ready)[numbers[0] % len(ready)]
            room.read()
            room.ack(ready.pop(place))
            now_ms += limits.LEASE_LOG_MS
        elif what == "cancel" and ready:
            place = sorted(ready)[numbers[0] % len(ready)]
            if isinstance(room.worker.ask(1, ADA, Cancel(Ref(room.part, *[-1, *place]))), Done):
                ready.pop(place)
                holders = {name: of for name, of in holders.items() if of[0].place != place}
        elif what == "restart":
            room.worker.restart()
            room.worker.subscribe(ADA, room.part)
        elif what == "wait":
            room.wait(1_000)
            now_ms += 1_001
