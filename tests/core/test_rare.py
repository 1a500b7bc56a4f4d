"""Branches of the ledger and the replica that random seeds hardly ever reach, each once. `make
sim-coverage` shows that every branch is covered.
"""

import msgspec
import pytest

from gossipq.core.ledger.ledger import Ledger
from gossipq.core.raft import campaign
from gossipq.core.raft.replica import LEADER, HardState, Replica
from gossipq.core.storage import log, payloads
from gossipq.core.storage.log import LogState
from gossipq.core.storage.payloads import CopySet, encode
from gossipq.core.storage.tables import MemoryTables
from gossipq.errors import CorruptLog, ProtocolError, UnknownKind
from gossipq.peer_messages import Append
from gossipq.types import ID_HASH, partition_key
from gossipq.values import GroupConfig, Run, Start, TopicConfig, TopicInfo
from gossipq.wire import batch as batches
from gossipq.wire.opener import Opener

ORDERS = TopicInfo(9, "orders", 1, TopicConfig(), [0])
PARTITION = partition_key(9, 0)


class Book:
    """A ledger whose entries a test writes by hand."""

    def __init__(self) -> None:
        self.tables = MemoryTables()
        self.open()

    def open(self) -> Ledger:
        self.ledger = Ledger(0, self.tables, Opener())
        return self.ledger

    def write(self, kind: int, payload: object, body: bytes = b"") -> object:
        index = self.ledger.applied + 1
        raw = payload if isinstance(payload, bytes) else encode(payload)
        if body:
            self.tables.body.put(log.INDEX_KEY.pack(index), body)
        outcome = self.ledger.apply(log.seal(log.NO_CHAIN, index, 1, 1_000 + index, kind, raw, body, 1))
        self.ledger.flush()
        return outcome

    def publish(self, *values: bytes) -> None:
        body = bytes(batches.seal(values))
        self.write(log.PUBLISH, log.publish_payload(PARTITION, batches.check(body)), body)

    def void(self, offset: int) -> None:
        self.write(log.VOID, payloads.Void(PARTITION, offset, 0, 0, "sold out", "op"))


@pytest.fixture
def book() -> Book:
    book = Book()
    book.write(log.TOPIC, payloads.TopicChange(ORDERS))
    book.publish(b"0", b"1", b"2", b"3")
    return book


def test_a_kind_of_a_later_version_stops_the_shard(book: Book) -> None:
    with pytest.raises(UnknownKind, match="kind 200"):
        book.write(200, b"")


def test_voids_are_there_for_groups_that_come_later_and_go_with_what_is_trimmed(book: Book) -> None:
    book.void(1)
    book.write(log.GROUP, payloads.GroupChange(9, "all", GroupConfig(), [Start(PARTITION)]))
    book.write(log.GROUP, payloads.GroupChange(9, "new", GroupConfig(), [Start(PARTITION, "new")]))
    groups = {
        book.ledger.groups[group].name: cursor for group, cursor in book.ledger.cursors[PARTITION].items()
    }
    assert [groups[name].state.voided for name in ("all", "new")] == [1, 0]
    assert groups["all"].fresh(0, 4) == [(0, 1), (2, 4)]
    assert list(book.open().voids[PARTITION]) == [(1, 2)], "from disk"
    book.write(log.TRIM, payloads.Trim(PARTITION, 2))
    assert list(book.ledger.voids[PARTITION]) == []
    assert book.ledger.partitions[PARTITION].removed == 1, "the void was no record any more"
    book.write(log.TRIM, payloads.Trim(PARTITION, 1))
    assert book.ledger.partitions[PARTITION].first == 2, "it never goes back"


def test_a_topic_that_ends_takes_everything_along_and_may_end_twice(book: Book) -> None:
    book.void(1)
    book.write(log.TOPIC, payloads.TopicChange(ORDERS, deleted=True))
    book.write(log.TOPIC, payloads.TopicChange(ORDERS, deleted=True))
    assert book.open().voids == {}, "its rows are swept later"
    book.write(log.TRIM, payloads.Trim(PARTITION, 2))
    book.write(log.ACK, payloads.AckRanges(77, "c", [(PARTITION, 0, 1)]))
    book.write(log.GROUP, payloads.GroupChange(9, "late", GroupConfig(), [Start(PARTITION)]))
    assert not book.ledger.cursors.get(PARTITION)


def test_names_in_the_register(book: Book) -> None:
    real = payloads.TopicChange(TopicInfo(0, "bills", 1, TopicConfig(), [1]))
    made = book.write(log.META_TOPIC, real)
    assert book.write(log.META_TOPIC, real) == made, "asked for twice at once"
    virtual = TopicInfo(0, "all", 1, TopicConfig(virtual=["bills"]), [])
    book.write(log.META_TOPIC, payloads.TopicChange(virtual))
    book.write(log.META_TOPIC, payloads.TopicChange(TopicInfo(0, "orders", 1, TopicConfig(), [1])))
    first = book.ledger.cluster.names["all"]
    book.write(
        log.META_TOPIC,
        payloads.TopicChange(msgspec.structs.replace(virtual, config=TopicConfig(virtual=["orders"]))),
    )
    again = book.ledger.cluster.names["all"]
    assert (again.id, again.version, again.config.virtual) == (first.id, 2, ["orders"])
    book.write(log.META_TOPIC, payloads.TopicChange(again, deleted=True))
    book.write(log.META_TOPIC, payloads.TopicChange(again, deleted=True))
    assert "all" not in book.open().cluster.names


def test_a_batch_that_is_gone_is_missed_and_one_that_is_forgotten_has_no_place(book: Book) -> None:
    book.tables.body.rows.clear()
    with pytest.raises(CorruptLog, match="missing"):
        book.ledger.opened.column(2, ID_HASH)
    unknown = Run(1, -1)
    assert book.ledger.located(PARTITION, unknown) == [unknown]


class Rows:
    """A log on a disk that returns any entries a test chooses."""

    def __init__(self) -> None:
        self.entries: list[log.Entry] = []

    def point(self, index: int) -> log.Entry:
        return self.entries[index - 1]

    def read(self, first: int, end: int, bytes_max: int) -> list[log.Entry]:
        return self.entries[first - 1 : end - 1]


def leader(*voters: str) -> tuple[Replica, Rows]:
    rows = Rows()
    replica = Replica("a", CopySet(list(voters)), HardState(), LogState(), rows)  # type: ignore[arg-type]
    replica.hard = HardState(1, "a")
    replica.stand("candidate")
    replica.lead()
    for number in range(3):
        rows.entries.append(replica.propose(log.NOOP, b"%d" % number, b"", 0, 1))
    replica.take_unsaved()
    replica.stored()
    return replica, rows


def test_a_leader_that_reads_a_damaged_row_stops_and_sends_nothing_of_it() -> None:
    replica, rows = leader("a", "b")
    rows.entries[1] = msgspec.structs.replace(rows.entries[1], payload=b"damaged")
    replica._recent.clear()
    replica.progress["b"].accepted(1, 0)
    with pytest.raises(CorruptLog, match="does not continue"):
        replica.outgoing()


def test_two_leaders_of_one_term_are_a_fault_of_the_other() -> None:
    replica, _ = leader("a", "b")
    with pytest.raises(ProtocolError, match="b leads a term of a"):
        replica.on_append(1, Append("b", 0, 0, 0, []), [])
    assert replica.role == LEADER


def test_who_was_just_opened_waits_as_if_it_had_heard_a_leader() -> None:
    replica = Replica("a", CopySet(["a", "b"]), HardState(), LogState(), Rows())  # type: ignore[arg-type]
    replica.now_ms = 5_000
    assert campaign.deadline_ms(replica) == 5_000
    campaign.tick(replica)
    assert replica.election.due_ms is not None
    assert replica.election.due_ms > 5_000


def test_time_passes_for_a_leader_without_others() -> None:
    replica, _ = leader("a")
    replica.now_ms += 60_000
    campaign.tick(replica)
    assert replica.role == LEADER
