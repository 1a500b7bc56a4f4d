"""The worker, whose shards have other copies: a failed write or a shard that
stops leaves nothing behind.
"""

from array import array

import msgspec
import pytest
from msgspec import structs

from contracts.memory import MemoryMailbox, MemoryStore
from gossipq import limits
from gossipq.core.ledger import records
from gossipq.core.shard import Shard
from gossipq.core.storage import log
from gossipq.core.storage.log import NO_CHAIN
from gossipq.core.turn import RECOVER_MS
from gossipq.errors import CorruptLog
from gossipq.messages import Confirm, Publish, Resolve, Topics
from gossipq.peer_messages import Append, Bundle, Installed, Snapshot
from gossipq.types import ID_HASH, Now
from gossipq.values import Member, Message
from gossipq.wire import batch as batches
from gossipq.wire.frames import encode
from gossipq_node.actors.post import Post
from node.test_worker import PEERS, PRODUCER, SETTINGS, Hands

LEADER, ME = SETTINGS.member.copy, "bob.1"
TERM = 3
ADA, BOB = Member(LEADER, "ada", "tcp://127.0.0.1:9000", 1), Member(ME, "bob", "tcp://127.0.0.1:7700", 1)
FOLLOWS = structs.replace(SETTINGS, node="bob", member=BOB, joins=True, version=5, members=(ADA, BOB))
#: writes of a snapshot's first part before its first row: the mark, and the old own rows
ROWS = 1 + len(records.OWN_ROWS) + 1


def say(hands: Hands, *said: tuple[int, Message, bytes]) -> None:
    """Sends messages of the leader in one bundle: (shard, message, second frame)."""
    messages = [encode(message, shard, 0, TERM) for shard, message, _ in said]
    frame = b"".join(rows for _, _, rows in said)
    bundle = Bundle(SETTINGS.cluster, LEADER, ME, messages, [len(rows) for _, _, rows in said])
    peer = hands.network.client(PEERS)
    hands.trust(peer._name, LEADER)
    peer.send(encode(bundle), frame)


def part(shard: int, number: int, *keys: bytes) -> tuple[int, Message, bytes]:
    """Of a snapshot that is not over."""
    message = Snapshot(LEADER, 50, TERM, b"c" * 32, 1_000, [LEADER], [], [ME], number, "state", spooled_ms=7)
    return shard, message, msgspec.msgpack.encode([(key, b"1") for key in keys])


def installed(hands: Hands, ada: MemoryMailbox) -> list[tuple[int, int]]:
    """(shard, next part) that the copy says it waits for."""
    post, said = hands.posts.setdefault(ada.peers, Post(SETTINGS, ada)), []
    for _ in range(3):  # it is greeted first
        said += [opened for mail in ada.receive(0) for opened in post.open(mail, 0)]
        arrived = hands.mailbox.receive(0)
        if arrived:
            hands.worker.turn(arrived, hands.time)
    return [
        (header.shard, message.number) for _, header, message, _ in said if isinstance(message, Installed)
    ]


def test_a_write_that_fails_inside_a_message_of_a_peer_starts_all_shards_over() -> None:
    hands = Hands(FOLLOWS)
    ada = MemoryMailbox(hands.network, peers="tcp://127.0.0.1:9041")
    say(hands, part(0, 0, b"q0"), part(1, 0, b"q0"))
    hands.turn()
    assert installed(hands, ada) == [(0, 1), (1, 1)]
    say(hands, part(0, 1, b"q1"), part(1, 1, b"q1"))
    hands.store.fail_in = 2
    hands.turn()
    assert installed(hands, ada) == [], "the first part went with the transaction that the second one lost"
    hands.turn(RECOVER_MS)
    assert b"q1" not in hands.store.disk[0].state.rows


@pytest.mark.parametrize("fail_in", range(1, ROWS + 3))
def test_half_a_snapshot_never_lasts_without_its_mark(fail_in: int) -> None:
    hands = Hands(FOLLOWS)
    for wait_ms in (0, RECOVER_MS, RECOVER_MS):
        say(hands, part(0, 0, b"q0", b"q1"))
        if wait_ms == 0:
            hands.store.fail_in = fail_in
        hands.turn(wait_ms)
        rows = hands.store.disk[0].state.rows
        assert b"q0" not in rows or records.INSTALLING in rows
    assert b"q1" in rows


class Book:
    """The log of a shard that another cluster of one has written."""

    def __init__(self, shard: int, store: MemoryStore) -> None:
        self.shard, self.rows, self.bodies = shard, store.disk[shard].log.rows, store.disk[shard].body.rows
        self.keys = sorted(self.rows)
        self.last = len(self.keys)

    def append(self, first: int, commit: int, chain: bytes | None = None) -> tuple[int, Message, bytes]:
        """The entries from `first` on."""
        before = log.decode_row(first - 1, self.rows[self.keys[first - 2]]) if first > 1 else None
        pieces = [
            piece for key in self.keys[first - 1 :] for piece in (self.rows[key], self.bodies.get(key, b""))
        ]
        own = before.chain if before else NO_CHAIN
        term = before.term if before else 0
        message = Append(LEADER, first - 1, term, commit, [len(piece) for piece in pieces], 0, chain or own)
        return self.shard, message, b"".join(pieces)


def book() -> tuple[Book, Book, int]:
    """Of the shard with one record, of the other one, and the partition of the record. What was applied half
    knows its id."""
    hands = Hands()
    client = hands.client()
    partition, shard = client.topic()
    batch = batches.seal(
        [b"x"], ids=[b"order-1"], fixed={ID_HASH: array("Q", [7])}, producer=PRODUCER, sequence=1
    )
    assert isinstance(client.ask(Publish(partition), shard, bytes(batch)), Confirm)
    return Book(shard, hands.store), Book(1 - shard, hands.store), partition


def test_what_a_stopped_shard_has_applied_does_not_last() -> None:
    """Applied rows wait in the transaction for their counters; the sync of another shard must not make them
    last alone."""
    mine, other, partition = book()
    hands = Hands(FOLLOWS)
    say(hands, mine.append(1, 0))
    hands.turn()
    say(hands, mine.append(mine.last + 1, mine.last))
    hands.worker.turn(hands.mailbox.receive(0), hands.time)  # applied, and not synced
    assert hands.worker._turn.shards[mine.shard].ledger.applied == mine.last
    say(hands, mine.append(mine.last + 1, mine.last, chain=b"z" * 32), other.append(1, 0))
    hands.turn()
    assert list(hands.worker._turn.stopped) == [mine.shard]
    say(hands, other.append(1, 0))
    hands.turn()
    assert len(hands.store.disk[other.shard].log.rows) == other.last, "the other shard goes on"
    again = Hands(FOLLOWS, MemoryStore(hands.store.disk))
    say(again, mine.append(mine.last + 1, mine.last))
    again.turn()
    assert again.worker._turn.shards[mine.shard].ledger.partitions[partition].next == 1


def test_what_was_applied_while_the_disk_refuses_does_not_last() -> None:
    mine, other, partition = book()
    hands = Hands(FOLLOWS)
    say(hands, mine.append(1, 0))
    hands.turn()
    say(hands, other.append(1, 0))
    hands.store.fail_in = 1
    hands.turn()
    assert not hands.worker.ready
    say(hands, mine.append(mine.last + 1, mine.last))
    hands.turn()
    hands.turn(RECOVER_MS)
    say(hands, mine.append(mine.last + 1, mine.last))
    hands.turn()
    assert hands.worker._turn.shards[mine.shard].ledger.partitions[partition].next == 1


def test_many_damaged_shards_stop_and_the_others_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    lead = Shard.lead

    def damaged(shard: Shard, now: Now) -> set[bytes]:
        if shard.id:
            raise CorruptLog("damaged")
        return lead(shard, now)

    monkeypatch.setattr(Shard, "lead", damaged)
    hands = Hands(structs.replace(SETTINGS, shards=limits.SHARDS, owned=tuple(range(limits.SHARDS))))
    assert sorted(hands.worker._turn.stopped) == list(range(1, limits.SHARDS))
    assert isinstance(hands.client().ask(Resolve([])), Topics)


def test_no_shard_counts_as_catching_up_after_starting_over() -> None:
    hands = Hands(FOLLOWS)
    hands.worker._catching_up |= {0, 1}  # as if both brought new copies up
    say(hands, part(0, 0, b"q0"))
    hands.store.fail_in = 1
    hands.turn()
    assert hands.worker._catching_up == set(), "or no other shard may bring one up any more"
