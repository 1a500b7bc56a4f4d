"""The worker over fakes of its ports: the order of storing and sending, the failed commit, sessions, damage,
space.

Nothing waits: the test moves the clock and gives the worker its turns.
"""

from array import array
from collections.abc import Callable

import pytest
from msgspec import structs

from contracts.memory import MemoryClient, MemoryMailbox, MemoryNetwork, MemoryStore
from gossipq import limits
from gossipq.core.shard import Shard
from gossipq.core.turn import RECOVER_MS
from gossipq.errors import OutOfMemory
from gossipq.messages import (
    Ack,
    Acked,
    Bye,
    Confirm,
    Deliver,
    Done,
    Explained,
    Hello,
    Nack,
    Ping,
    Pong,
    Publish,
    RefusedMessage,
    Resolve,
    Stats,
    StatsReply,
    Subscribe,
    Subscribed,
    Topics,
    Welcome,
    Why,
)
from gossipq.operator_messages import Clients, Grown, Growth, Kick, ListClients
from gossipq.peer_messages import Bundle, InstallTopic, Report
from gossipq.types import ID_HASH, Now, partition_key
from gossipq.values import GroupConfig, GroupOptions, Member, Message, Ref, Start, TopicConfig
from gossipq.wire import batch as batches
from gossipq.wire import ownership
from gossipq.wire.frames import decode, encode
from gossipq_node.actors.post import Post
from gossipq_node.actors.space import FULL_HOLD_MS
from gossipq_node.actors.worker import Worker
from gossipq_node.ports import StoreUsage
from gossipq_node.settings import WorkerSettings

ENDPOINT, PEERS, FRONTDOOR = "tcp://127.0.0.1:7701", "tcp://127.0.0.1:7741", "tcp://127.0.0.1:7740"
KEY = b"k" * 32
PRODUCER = ownership.producer_of(KEY, 1)
OWNER = Hello(ownership.session_of(KEY), "test", "0", key=KEY)
SETTINGS = WorkerSettings(
    worker=0,
    node="ada",
    predecessors=(),
    cluster=bytes(16),
    shards=2,
    owned=(0, 1),
    siblings=(PEERS,),
    member=Member("ada.1", "ada", "tcp://127.0.0.1:7700", 1),
    clients_bind=ENDPOINT,
    peers_bind=PEERS,
    frontdoor=FRONTDOOR,
    directory="",
    map_bytes=limits.MAP_BYTES,
    disk_reserve_bytes=1_000,
    disk_reserve_percent=5,
    window_bytes=limits.PUBLISH_WINDOW_BYTES,
    auto_create=True,
    topic=TopicConfig(),
    group=GroupConfig(),
)


class Hands:
    """A worker whose clock, disk and network lie in the test's hands."""

    def __init__(self, settings: WorkerSettings = SETTINGS, store: MemoryStore | None = None) -> None:
        self.network, self.store = MemoryNetwork(), store or MemoryStore()
        self.frontdoor = MemoryMailbox(self.network, peers=FRONTDOOR)
        self.hears = Post(settings, self.frontdoor)
        self.posts: dict[str, Post] = {}  #: of others, by their address
        self.mailbox = MemoryMailbox(self.network, ENDPOINT, PEERS)
        self.time = Now(1_000_000, 1_700_000_000_000)
        self.worker = Worker(settings, self.mailbox, self.store, self)
        self.turn()

    def ticks_us(self) -> int:
        return 0

    def now(self) -> Now:
        return self.time

    def turn(self, ms: int = 0) -> None:
        self.time = Now(self.time.boot_ms + ms, self.time.wall_ms + ms)
        self.worker.turn(self.mailbox.receive(0), self.time)
        while self.worker.next_deadline_ms() == 0:
            self.worker.turn(self.mailbox.receive(0), self.time)

    def reports(self) -> list[Report]:
        said: list[Message] = []
        for _ in range(3):  # the frontdoor is greeted first
            for mail in self.frontdoor.receive(0):
                said += [message for _, _, message, _ in self.hears.open(mail, self.time.boot_ms)]
            self.turn()
        return [message for message in said if isinstance(message, Report)]

    def trust(self, name: bytes, copy: str = SETTINGS.member.copy) -> None:
        """The connection of that name is that copy's, as if it had proven so."""
        self.worker._cluster._post.proven[b"p", name] = copy

    def client(self, session: bytes = b"", greet: bool = True) -> "Client":
        """Without a session of its own: the owner of PRODUCER."""
        client = Client(self, self.network.client(ENDPOINT), b"" if session else PRODUCER)
        if greet:
            hello = Hello(session, "test", "0") if session else OWNER
            assert isinstance(client.ask(hello), Welcome)
        return client


class Client:
    def __init__(self, hands: Hands, dealer: MemoryClient, producer: bytes = b"") -> None:
        self.hands, self.dealer, self._producer = hands, dealer, producer or batches.NO_PRODUCER

    def send(self, message: Message, shard: int = 0, batch: bytes = b"") -> None:
        frames = [encode(message, shard, 9), batch] if batch else [encode(message, shard, 9)]
        self.dealer.send(*frames)

    def inbox(self) -> list[Message]:
        return [decode(self.dealer.receive()[0])[1] for _ in range(len(self.dealer.inbox))]

    def ask(self, message: Message, shard: int = 0, batch: bytes = b"") -> Message | None:
        self.send(message, shard, batch)
        self.hands.turn()
        answers = self.inbox()
        return answers[0] if answers else None

    def topic(self, name: str = "orders") -> tuple[int, int]:
        """(partition, shard) of a topic with one partition."""
        answer = self.ask(Resolve([name], create=True))
        assert isinstance(answer, Topics)
        return partition_key(answer.topics[0].id, 0), answer.topics[0].shards[0]

    def publish(self, partition: int, shard: int, sequence: int, value: bytes = b"x") -> Message | None:
        batch = bytes(batches.seal([value], producer=self._producer, sequence=sequence))
        return self.ask(Publish(partition), shard, batch)


@pytest.fixture
def hands() -> Hands:
    return Hands()


def test_one_turn_is_one_commit_and_an_idle_turn_none(hands: Hands) -> None:
    client = hands.client()
    partition, shard = client.topic()
    hands.turn(limits.LEASE_LOG_MS)
    before = hands.store.commits
    for sequence in range(1, 6):
        client.send(
            Publish(partition), shard, bytes(batches.seal([b"x"], producer=PRODUCER, sequence=sequence))
        )
    hands.turn()
    assert hands.store.commits == before + 1
    (confirm,) = client.inbox()
    assert isinstance(confirm, Confirm)
    assert [row[1] for row in confirm.rows] == [0, 1, 2, 3, 4]
    client.ask(Ping())
    assert hands.store.commits == before + 1


@pytest.mark.parametrize("fail_in", range(1, 8))
def test_nothing_of_a_failed_turn_is_sent_and_the_same_worker_goes_on(hands: Hands, fail_in: int) -> None:
    client = hands.client()
    partition, shard = client.topic()
    assert client.publish(partition, shard, 1) == Confirm([(9, 0, 1, False)], SETTINGS.window_bytes)
    hands.store.fail_in = fail_in
    answer = client.publish(partition, shard, 2)
    if hands.store.fail_in:  # the turn had fewer writes than that
        assert isinstance(answer, Confirm)
        return
    assert answer is None
    refused = client.publish(partition, shard, 2)
    assert isinstance(refused, RefusedMessage)
    assert refused.hint == "say HELLO first"
    hands.turn(RECOVER_MS)
    again = hands.client()
    full = again.publish(partition, shard, 2)
    assert isinstance(full, RefusedMessage)
    assert full.code == "store_full"
    assert again.publish(partition, shard, 1) == Confirm([(9, 0, 1, True)], SETTINGS.window_bytes), (
        "what is known is answered"
    )
    hands.turn(FULL_HOLD_MS + limits.PING_MS)
    assert again.publish(partition, shard, 2) == Confirm([(9, 1, 1, False)], SETTINGS.window_bytes)


def test_a_disk_that_stays_full_is_tried_again_and_said(hands: Hands) -> None:
    client = hands.client()
    partition, shard = client.topic()
    hands.store.fail_in = 1
    client.publish(partition, shard, 1)
    for _ in range(3):
        hands.store.fail_in = 1
        hands.turn(RECOVER_MS)
    hands.turn(RECOVER_MS // 2)
    assert hands.reports()[-1].stats.state == "recovering"
    refused = hands.client().publish(partition, shard, 1)
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "store_full"
    hands.turn(RECOVER_MS)
    hands.turn(FULL_HOLD_MS + limits.PING_MS)
    assert hands.reports()[-1].stats.state == "ready"


def test_space_is_looked_at_each_second(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    client = hands.client()
    partition, shard = client.topic()
    monkeypatch.setattr(hands.store, "usage", lambda: StoreUsage(1 << 40, 1_000, 1_000, 900, 10_000))
    hands.turn(1_000)
    refused = client.publish(partition, shard, 1)
    assert isinstance(refused, RefusedMessage)
    assert (refused.code, refused.message) == (
        "store_full",
        "the disk has 900 B free, 1000 B are kept in reserve",
    )
    monkeypatch.setattr(hands.store, "usage", lambda: StoreUsage(1_000, 860, 860, 1 << 30, 1 << 30))
    hands.turn(1_000)
    refused = client.publish(partition, shard, 1)
    assert isinstance(refused, RefusedMessage)
    assert "of its map" in refused.message
    monkeypatch.undo()
    hands.turn(1_000)
    assert isinstance(client.publish(partition, shard, 1), Confirm)


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_what_a_broken_connection_held_comes_to_others_after_a_moment(hands: Hands, mode: str) -> None:
    ada, bob = hands.client(b"a" * 16), hands.client(b"b" * 16)
    partition, shard = ada.topic()
    ada.publish(partition, shard, 1)
    options = GroupOptions(mode=mode)
    ada.send(Subscribe(1, "g", [Start(partition)], 1, limits.MIB, options), shard)
    hands.turn()
    bob.send(Subscribe(1, "g", [Start(partition)], 10, limits.MIB, options), shard)
    hands.turn()
    bob.inbox()
    ada.dealer.close()
    hands.turn()
    left_ms = (hands.worker.next_deadline_ms() or 0) - hands.time.boot_ms
    assert 0 < left_ms <= limits.SESSION_ABSENCE_MS
    hands.turn(limits.SESSION_ABSENCE_MS - 1)
    assert not [m for m in bob.inbox() if isinstance(m, Deliver)]
    hands.turn(1)
    hands.turn()  # an exclusive group delivers after the lease is stored
    again = [m.slices[0] for m in bob.inbox() if isinstance(m, Deliver)]
    assert [(each.offset, each.attempt) for each in again] == [(0, 1)], "user code never began with it"


def test_a_frontdoor_tells_that_a_client_of_its_is_gone(hands: Hands) -> None:
    door, bob = hands.network.client(ENDPOINT), hands.client(b"b" * 16)
    partition, shard = bob.topic()
    bob.publish(partition, shard, 1)
    for message in (Hello(b"a" * 16, "", ""), Subscribe(1, "g", [Start(partition)], 1, limits.MIB)):
        door.send(b"a client", b"", encode(message, shard))
    hands.turn()
    bob.send(Subscribe(1, "g", [Start(partition)], 10, limits.MIB), shard)
    hands.turn()
    bob.inbox()
    door.send(b"a client", b"", encode(Bye(lost=True)))
    door.send(b"a stranger", b"", encode(Bye(lost=True)))
    hands.turn()
    hands.turn(limits.SESSION_ABSENCE_MS)
    assert [m.slices[0].offset for m in bob.inbox() if isinstance(m, Deliver)] == [0]


def raising(error: Exception) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise error

    return fail


def test_a_lack_of_memory_is_no_full_disk(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hit the store, or a shard in its turn."""
    client = hands.client()
    partition, shard = client.topic()

    for place, error in (
        (MemoryStore, OutOfMemory("no memory")),
        (MemoryStore, MemoryError()),
        (Shard, MemoryError()),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, "commit" if place is MemoryStore else "write", raising(error))
            client.publish(partition, shard, 1)
            hands.turn(100)
            report = hands.reports()[-1]
            assert [alarm.name for alarm in report.alarms] == ["out_of_memory"]
            assert report.stats.state == "recovering"
            assert "memory" in report.stats.detail
            assert report.stats.stopped == []
        hands.turn(RECOVER_MS)
        hands.turn(1_000)
        report = hands.reports()[-1]
        assert (report.stats.state, report.alarms) == ("ready", []), "at once: there is space"
        client = hands.client()
        assert isinstance(client.publish(partition, shard, 1), Confirm)


def test_a_store_gives_back_what_others_of_a_low_disk_could_use(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare, disk_bytes = 8 * limits.MIB, 1 << 30
    hands.turn(1_000)
    assert hands.store.shrinks == 0
    monkeypatch.setattr(
        hands.store, "usage", lambda: StoreUsage(1 << 40, 1_000, 1_000 + spare, 1 << 20, disk_bytes)
    )
    commits = hands.store.commits
    hands.turn(1_000)
    hands.turn(1)
    assert hands.store.shrinks == 1
    assert hands.store.commits > commits, "it happens with a commit, and nobody else has asked for one"


def test_who_sends_a_large_message_for_long_keeps_its_session_and_what_it_holds(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = hands.client()
    partition, shard = client.topic()
    client.publish(partition, shard, 1)
    client.send(Subscribe(1, "g", [Start(partition)], 1, limits.MIB, auto=True), shard)
    hands.turn()
    assert any(isinstance(message, Deliver) for message in client.inbox())
    monkeypatch.setattr(hands.mailbox, "moving", lambda origin: True)
    for _ in range(2 * limits.LEASE_MS // limits.PING_MS):
        hands.turn(limits.PING_MS)
    assert client.ask(Ack(1, [(partition, 0, 1)]), shard) == Acked()


def test_a_session_ends_by_silence_and_by_its_word(hands: Hands) -> None:
    ada, bob = hands.client(), hands.client(b"b" * 16)
    partition, shard = ada.topic()
    for sequence in (1, 2):
        ada.publish(partition, shard, sequence)
    ada.send(Subscribe(1, "g", [Start(partition)], 1, limits.MIB), shard)
    bob.send(Subscribe(1, "g", [Start(partition)], 10, limits.MIB), shard)
    hands.turn()
    assert [m.slices[0].offset for m in ada.inbox() if isinstance(m, Deliver)] == [0]
    assert [m.slices[0].offset for m in bob.inbox() if isinstance(m, Deliver)] == [1]
    ada.send(Bye())
    hands.turn()
    assert [m.slices[0].offset for m in bob.inbox() if isinstance(m, Deliver)] == [0]
    for _ in range(4):
        hands.turn(limits.PING_MS)
        assert bob.ask(Ping()) == Pong()
    eve = hands.client(b"e" * 16)
    eve.send(Subscribe(1, "g", [Start(partition)], 10, limits.MIB), shard)
    for _ in range(6):
        hands.turn(limits.PING_MS)
        eve.ask(Ping()) if not eve.dealer.inbox else None
    assert sum(part.count for m in eve.inbox() if isinstance(m, Deliver) for part in m.slices) == 2
    assert isinstance(bob.ask(Ping()), RefusedMessage)


@pytest.mark.parametrize("holds", [True, False], ids=["it holds a record", "it has a subscription"])
def test_a_member_whose_session_the_worker_does_not_know_ends_as_a_silent_one(
    hands: Hands, holds: bool
) -> None:
    ada, bob = hands.client(), hands.client(b"b" * 16)
    partition, shard = ada.topic()
    ada.publish(partition, shard, 1)
    group = Subscribe(1, "g", [Start(partition)], int(holds), limits.MIB, GroupOptions(mode="exclusive"))
    ada.ask(group, shard)
    sessions = hands.worker._sessions
    sessions.end(next(each for each in sessions if each.client.session == OWNER.session))
    bob.send(structs.replace(group, credit_records=10), shard)
    for _ in range(2 * limits.SESSION_SILENCE_MS // limits.PING_MS):
        hands.turn(limits.PING_MS)
        bob.send(Ping())
    assert [m.slices[0].count for m in bob.inbox() if isinstance(m, Deliver)] == [1]
    hands.turn()
    bob.inbox()
    stats = bob.ask(Stats())
    assert isinstance(stats, StatsReply)
    assert [row.consumers for row in stats.groups] == [1]


def test_a_pause_of_the_worker_is_not_held_against_its_clients(hands: Hands) -> None:
    client = hands.client()
    for _ in range(3):
        hands.turn(limits.PING_MS)
        client.ask(Ping())
    hands.turn(60_000)
    assert client.ask(Ping()) == Pong()


def test_acks_are_answered_when_stored_and_counted(hands: Hands) -> None:
    client = hands.client()
    partition, shard = client.topic()
    client.publish(partition, shard, 1)
    client.ask(Subscribe(1, "g", [Start(partition)], 10, limits.MIB), shard)
    hands.store.fail_in = 1
    assert client.ask(Ack(1, [(partition, 0, 1)]), shard) is None
    hands.turn(RECOVER_MS)
    again = hands.client()
    again.send(Subscribe(1, "g", [Start(partition)], 0, 0), shard)
    again.send(Ack(1, [(partition, 0, 1)]), shard)
    hands.turn()
    assert Acked() in again.inbox()
    stats = again.ask(Stats())
    assert isinstance(stats, StatsReply)
    assert (stats.groups[0].acked, stats.groups[0].ready, stats.groups[0].in_flight) == (1, 0, 0)


def pages(client, make, first) -> list:
    """The answers to a list, asked for page by page."""
    found = [client.ask(make(first))]
    while found[-1].more:
        found.append(client.ask(make(found[-1].more)))
    return found


def test_counters_come_in_pages_each_row_once(hands: Hands, monkeypatch) -> None:
    client = hands.client()
    for number in range(12):
        partition, shard = client.topic(f"t{number}")
        for group in ("a", "b"):
            client.ask(Subscribe(number * 2 + (group == "b"), group, [Start(partition)], 0, 0), shard)
    everything = client.ask(Stats())
    assert isinstance(everything, StatsReply)
    assert (len(everything.partitions), len(everything.groups), everything.more) == (12, 24, [])
    monkeypatch.setattr(limits, "LIST_ROWS_MAX", 5)
    replies = pages(client, lambda after: Stats([], after), [])
    assert all(len(reply.partitions) + len(reply.groups) <= 5 for reply in replies)
    assert [row for reply in replies for row in reply.partitions] == everything.partitions
    assert [row for reply in replies for row in reply.groups] == everything.groups
    assert sum(row.consumers for row in everything.groups) == 24
    some = pages(client, lambda after: Stats(["t3", "t9"], after), [])
    assert {row.topic for reply in some for row in reply.groups} == {"t3", "t9"}
    assert sum(len(reply.groups) for reply in some) == 4


@pytest.mark.parametrize("after", [[1], [1, 2], [1, 2, 3, 4]])
def test_a_place_in_the_counters_that_nobody_named_is_refused(hands: Hands, after: list[int]) -> None:
    for question in (Stats([], after), Growth([], after=after)):
        refused = hands.client().ask(question)
        assert isinstance(refused, RefusedMessage)
        assert refused.code == "bad_request"


def test_growth_comes_in_pages_each_row_once(hands: Hands, monkeypatch) -> None:
    """Over all shards of the worker, also with more rows than one answer has."""
    names = [f"t{number}" for number in range(12)]
    places = [hands.client().topic(name) for name in names]
    for _ in range(3):
        client = hands.client()
        for partition, shard in places:
            assert isinstance(client.ask(Publish(partition), shard, batch=batches.seal([b"x"])), Confirm)
        hands.turn(limits.MINUTE_MS)
        hands.turn(limits.SECOND_MS)
    client = hands.client()
    everything = client.ask(Growth(names))
    assert isinstance(everything, Grown)
    assert (len({row.topic for row in everything.rows}), everything.more) == (12, [])
    monkeypatch.setattr(limits, "LIST_ROWS_MAX", 5)
    replies = pages(client, lambda after: Growth(names, after=after), [])
    assert all(len(reply.rows) <= 5 for reply in replies)
    assert [row for reply in replies for row in reply.rows] == everything.rows


def test_clients_come_in_pages_and_say_what_is_not_listed(hands: Hands, monkeypatch) -> None:
    client = hands.client()
    others = [hands.client(bytes([number]) * 16) for number in range(20)]
    partition, shard = client.topic()
    for number in range(4):
        client.ask(Subscribe(number, "g", [Start(partition)], 10, limits.MIB), shard)
    monkeypatch.setattr(limits, "LIST_ROWS_MAX", 8)
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_LISTED_MAX", 3)
    replies = pages(client, ListClients, b"")
    rows = [row for reply in replies for row in reply.rows]
    assert max(len(reply.rows) for reply in replies) == 8
    assert len({row.session for row in rows}) == len(rows) == len(others) + 1
    (mine,) = [row for row in rows if row.subscriptions]
    assert (len(mine.subscriptions), mine.unlisted) == (3, 1)


def test_clients_with_long_names_of_groups_come_in_pages_that_fit_a_frame(hands: Hands) -> None:
    others = [hands.client(bytes([number]) * 16) for number in range(25)]
    partition, shard = others[0].topic()
    for client in others:
        for number in range(limits.SUBSCRIPTIONS_LISTED_MAX):
            group = f"{number:03}".ljust(limits.NAME_BYTES_MAX, "g")
            client.send(Subscribe(number, group, [Start(partition)], 0, 0), shard)
        hands.turn()
        client.inbox()
    for _ in range(10):
        hands.turn()
    others[0].inbox()
    rows = [row for reply in pages(others[0], ListClients, b"") for row in reply.rows]
    assert sum(len(row.subscriptions) for row in rows) == len(others) * limits.SUBSCRIPTIONS_LISTED_MAX


def test_a_damaged_shard_stops_and_the_others_go_on(hands: Hands) -> None:
    client = hands.client()
    partition, shard = client.topic()
    client.publish(partition, shard, 1, b"precious")
    hands.worker = Worker(SETTINGS, hands.mailbox, hands.store, hands)  # a fresh process: nothing cached
    hands.turn()
    body = hands.store.working[shard].body
    key = body.keys[-1]
    body.rows[key] = body.rows[key].replace(b"precious", b"precioux")
    again = hands.client()
    again.send(Subscribe(1, "", [Start(partition)], 10, limits.MIB), shard)
    hands.turn()
    assert not any(isinstance(message, Deliver) for message in again.inbox())
    assert isinstance(again.publish(partition, shard, 2), RefusedMessage), (
        "it has to greet again, and then hears why"
    )
    again = hands.client()
    refused = again.publish(partition, shard, 2)
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "refused"
    assert "damaged" in refused.message
    assert isinstance(again.ask(Resolve(["orders"])), Topics)
    hands.turn(1_000)
    assert "damaged" in hands.reports()[-1].stats.detail


def test_who_comes_through_a_frontdoor_hears_the_better_address(hands: Hands) -> None:
    client = hands.client()
    partition, shard = client.topic()
    through = hands.network.client(ENDPOINT)
    for message in (Hello(b"f" * 16, "", ""), Subscribe(1, "g", [Start(partition)], 0, 0)):
        through.send(b"somebody", b"", encode(message, shard, 9))
        hands.turn()
    batch = bytes(batches.seal([b"x"]))
    through.send(b"somebody", b"", encode(Publish(partition), shard, 9), batch)
    hands.turn()
    answers = [decode(frames[2])[1] for frames in through.inbox]
    told = [answer.direct for answer in answers if isinstance(answer, Subscribed | Confirm)]
    assert told == [ENDPOINT, ENDPOINT]
    assert client.publish(partition, shard, 1) == Confirm([(9, 1, 1, False)], SETTINGS.window_bytes)


def test_peers_are_heard_at_their_own_door_only(hands: Hands) -> None:
    client = hands.client()
    answer = client.ask(Resolve(["orders"], create=True))
    assert isinstance(answer, Topics)
    message = InstallTopic(answer.topics[0], deleted=True)
    refused = client.ask(message, 1)
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "unknown_verb"
    peer = hands.network.client(PEERS)
    bundle = Bundle(bytes(16), "ada.1", "ada.1", [encode(message, answer.topics[0].shards[0])])
    hands.trust(peer._name)
    peer.send(encode(bundle))
    hands.turn()
    assert isinstance(
        client.publish(partition_key(answer.topics[0].id, 0), answer.topics[0].shards[0], 1), RefusedMessage
    )


@pytest.mark.parametrize(
    "control", [b"", b"GQ", b"\0" * 64, encode(Ping())[:-1] + b"\xc1", b"HTTP/1.1 GET /index.html"]
)
def test_garbage_is_answered_and_counted(hands: Hands, control: bytes) -> None:
    client = hands.client()
    client.dealer.send(control)
    hands.turn(1_000)
    (refused,) = client.inbox()
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "protocol"
    assert hands.reports()[-1].stats.bad_frames == 1
    assert client.ask(Ping()) == Pong()


def test_nobody_is_served_before_hello(hands: Hands) -> None:
    refused = hands.client(greet=False).ask(Resolve(["orders"], create=True))
    assert isinstance(refused, RefusedMessage)
    assert refused.hint == "say HELLO first"
    assert isinstance(hands.client(greet=False).ask(Hello(b"short", "", "")), RefusedMessage)


def test_who_has_to_greet_first_is_no_refused_request_and_a_farewell_has_no_answer(hands: Hands) -> None:
    stranger = hands.client(greet=False)
    assert stranger.ask(Bye()) is None
    assert isinstance(stranger.ask(Ping()), RefusedMessage)
    hands.turn(1_000)
    assert hands.reports()[-1].stats.refused == 0


def test_a_session_that_is_ended_gives_back_and_stays_out_for_a_while(hands: Hands) -> None:
    ada, bob = hands.client(), hands.client(b"b" * 16)
    partition, shard = ada.topic()
    ada.publish(partition, shard, 1)
    ada.ask(Subscribe(1, "g", [Start(partition)], 10, limits.MIB), shard)
    clients = bob.ask(ListClients())
    assert isinstance(clients, Clients)
    (row,) = [row for row in clients.rows if row.session == OWNER.session[: limits.SESSION_SHOWN_BYTES]]
    assert (row.client, row.batches, row.published, row.connections) == ("test", 1, 1, 1)
    assert [(each.topic, each.group, each.in_flight) for each in row.subscriptions] == [("orders", "g", 1)]
    assert bob.ask(Kick(row.session, 10_000)) == Done(1)
    assert bob.ask(Kick(OWNER.session, 10_000)) == Done(0)
    stats = bob.ask(Stats())
    assert isinstance(stats, StatsReply)
    assert (stats.groups[0].in_flight, stats.groups[0].ready, stats.groups[0].consumers) == (0, 1, 0)
    refused = ada.ask(OWNER)
    assert isinstance(refused, RefusedMessage)
    assert (refused.code, refused.retry_after_ms) == ("refused", 10_000)
    hands.turn(10_000)
    assert isinstance(ada.ask(OWNER), Welcome)


def test_timings_and_alarms_are_reported(hands: Hands) -> None:
    client = hands.client()
    partition, shard = client.topic()
    client.publish(partition, shard, 1)
    client.publish(partition + 1, shard, 1)  # refused: the topic has one partition
    hands.turn(1_000)
    report = hands.reports()[-1]
    counted = {timing.name: sum(timing.counts) for timing in report.timings}
    assert counted["publish"] == 1
    assert counted["commit"] >= 1
    assert report.alarms == []
    hands.store.fail_in = 1
    client.publish(partition, shard, 2)
    hands.turn(100)
    assert [alarm.name for alarm in hands.reports()[-1].alarms] == ["write_failed"]


def test_a_frame_has_what_it_has_and_not_what_the_loan_counted(hands: Hands) -> None:
    """In a batch with one large record and many small ones, each counts the same for the credit.
    The large records of several batches, redelivered together, made a frame too large for memory.
    """
    client = hands.client()
    partition, shard = client.topic()
    batch = bytes(batches.seal([b"x" * limits.MIB] + [b""] * 999, producer=batches.NO_PRODUCER))
    for _ in range(8):
        assert isinstance(client.ask(Publish(partition), shard, batch), Confirm)
    lent = 100_000, limits.CREDIT_BYTES_MAX
    client.send(Subscribe(1, "g", [Start(partition, "first")], *lent, fetches=True), shard)
    hands.turn(), hands.turn()
    client.dealer.inbox.clear()
    large = [(partition, 1_000 * number, 1_000 * number + 1) for number in range(8)]
    client.send(Nack(1, large, 0), shard)
    hands.turn(), hands.turn(10)
    frames = [frames for frames in client.dealer.inbox if isinstance(decode(frames[0])[1], Deliver)]
    slices = [each for control, *_ in frames for each in decode(control)[1].slices]  # type: ignore[attr-defined]
    assert [(each.offset, each.count, each.attempt) for each in slices] == [
        (first, 1, 2) for _, first, _ in large
    ]
    assert all(len(raw) < 2 * limits.MIB for _, raw in frames)


def with_ids(first: int, step: int, sequence: int = 0) -> bytes:
    count = limits.BATCH_RECORDS_MAX
    fixed = {ID_HASH: array("Q", range(first, first + count * step, step))}
    producer = PRODUCER if sequence else batches.NO_PRODUCER
    return bytes(batches.seal([b""] * count, producer=producer, sequence=sequence, fixed=fixed))


@pytest.mark.parametrize("again", ["by their sequences", "every other one by its id"])
def test_confirms_of_many_ids_can_be_read(hands: Hands, again: str) -> None:
    """Or a client that sends again what it heard nothing of would never hear of it."""
    client = hands.client()
    partition, shard = client.topic()
    apart = 2 * limits.BATCH_RECORDS_MAX
    sequences = range(1, 31)
    if again == "by their sequences":
        first = second = [with_ids(number * apart, 1, number) for number in sequences]
    else:
        first, second = ([with_ids(number * apart, step) for number in sequences] for step in (2, 1))
    for batch in first:
        assert isinstance(client.ask(Publish(partition), shard, batch), Confirm)
    for batch in second:
        client.send(Publish(partition), shard, batch)
    hands.turn(), hands.turn()
    said = [each for each in client.inbox() if isinstance(each, Confirm)]
    assert sum(len(each.rows) for each in said) == len(second)
    assert [sum(run.count for run in runs) for each in said for _, runs in each.runs] == [
        limits.BATCH_RECORDS_MAX
    ] * len(second)
    assert all(len(each.rows) == len(each.runs) for each in said)


def test_an_answer_that_nobody_could_read_is_refused(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or who asks would wait for it."""
    client = hands.client()
    partition, shard = client.topic()
    client.ask(Publish(partition), shard, bytes(batches.seal([b"x"], producer=batches.NO_PRODUCER)))
    for number in range(1, 9):
        group = f"group-{number}"
        client.ask(Subscribe(number, group, [Start(partition, "first")], 0, 0), shard)
    monkeypatch.setattr(limits, "CONTROL_BYTES_MAX", 1_000)
    refused = client.ask(Why(Ref(partition, 0)), shard)
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "too_large"
    assert isinstance(client.ask(Why(Ref(partition, 0), "group-3"), shard), Explained)
