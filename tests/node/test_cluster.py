"""Workers of several nodes over fakes of their ports: their messages to each other,
and how a cluster reacts.

Nothing waits: the test moves the clock and carries the mail.
"""

import logging

import pytest

from contracts.memory import MemoryClient, MemoryMailbox, MemoryNetwork, MemoryStore
from gossipq import limits
from gossipq.core.shard import Shard
from gossipq.errors import CorruptLog
from gossipq.messages import (
    Challenge,
    Confirm,
    Credit,
    Deliver,
    Hello,
    Join,
    Members,
    Publish,
    RefusedMessage,
    Resolve,
    Subscribe,
    Subscribed,
    Topics,
)
from gossipq.peer_messages import Append, Bundle, Prove, Report, View
from gossipq.types import META_SHARD, Now, partition_key
from gossipq.values import GroupConfig, Lead, Member, Message, Start, TopicConfig
from gossipq.wire import batch as batches
from gossipq.wire import proofs
from gossipq.wire.frames import decode, encode
from gossipq_node.actors.post import SAID_MAX, Post
from gossipq_node.actors.worker import Worker
from gossipq_node.ports import Incoming
from gossipq_node.settings import WorkerSettings

CLUSTER, SHARDS, STEP_MS = b"c" * 16, 4, 20
NAMES = ("ada", "bob", "cleo", "dora")


def member(name: str, witness: bool = False) -> Member:
    return Member(f"{name}.1", name, f"tcp://{name}:7700", 1, witness)


class Node:
    """One worker, and the peers' door of its frontdoor."""

    def __init__(self, house: "House", me: Member, founds: bool, known: "Node | None") -> None:
        self.house, self.member, self.founds, self.store = house, me, founds, MemoryStore()
        self.roster: tuple[int, tuple[Member, ...]] = (0, ())
        self.start(known)

    def start(self, known: "Node | None" = None) -> None:
        host, network = self.member.endpoint.removesuffix(":7700"), self.house.network
        if known is not None:
            self.roster = known.roster
        self.up = True
        self.clients = f"{host}:7701"
        self.mailbox = MemoryMailbox(network, self.clients, f"{host}:7741")
        self.door = MemoryMailbox(network, peers=f"{host}:7740")
        self.reports: list[Report] = []
        settings = WorkerSettings(
            worker=0,
            node=self.member.name,
            predecessors=(),
            cluster=CLUSTER,
            shards=self.house.shards,
            owned=tuple(range(self.house.shards)),
            siblings=(f"{host}:7741",),
            clients_bind=self.clients,
            peers_bind=f"{host}:7741",
            frontdoor=f"{host}:7740",
            directory="",
            map_bytes=limits.MAP_BYTES,
            disk_reserve_bytes=0,
            disk_reserve_percent=0,
            window_bytes=limits.PUBLISH_WINDOW_BYTES,
            auto_create=True,
            topic=TopicConfig(),
            group=GroupConfig(),
            member=self.member,
            version=self.roster[0],
            members=self.roster[1],
            token=b"t",
            joins=not self.founds,
        )
        self.hears = Post(settings, self.door)
        self.worker = Worker(settings, self.mailbox, self.store, self.house, self.house.dice)

    def crash(self) -> None:
        self.up = False
        self.mailbox.close()
        self.door.close()
        self.store.abort()

    def turn(self) -> None:
        self.worker.turn(self.mailbox.receive(0), self.house.time)
        for mail in self.door.receive(0):
            for _, _, report, _ in self.hears.open(mail, self.house.time.boot_ms):
                assert isinstance(report, Report)
                self.reports.append(report)
                self.roster = max(
                    self.roster, (report.version, tuple(report.members)), key=lambda roster: roster[0]
                )

    def leads(self) -> set[int]:
        return (
            {lead.shard for lead in self.reports[-1].leads if lead.copy == self.member.copy}
            if self.reports
            else set()
        )


class House:
    """Nodes on one network; every 20 ms each has a turn."""

    def __init__(self, *names: str, shards: int = SHARDS) -> None:
        self.shards = shards
        self.network, self.time = MemoryNetwork(), Now(1_000_000, 1_700_000_000_000)
        self._throws = 0
        self.nodes: dict[str, Node] = {}
        for name in names:
            self.join(member(name))

    def ticks_us(self) -> int:
        return 0

    def now(self) -> Now:
        return self.time

    def dice(self, sides: int) -> int:
        self._throws += 1
        return self._throws * 7919 % sides

    def join(self, me: Member) -> Node:
        first = next(iter(self.nodes.values()), None)
        node = self.nodes[me.name] = Node(self, me, first is None, None)
        self.run(200)
        leader = self.leader(META_SHARD)
        client = self.client(leader)
        answer = client.ask(Join(me, CLUSTER), META_SHARD)
        assert isinstance(answer, Challenge)
        answer = client.ask(proofs.proven(b"t", answer.nonce, Join(me, CLUSTER)), META_SHARD)
        assert isinstance(answer, Members), answer
        assert me in answer.members
        node.roster = answer.version, tuple(answer.members)
        if first is not None:
            node.crash()
            node.start()
        return node

    def run(self, ms: int) -> None:
        for _ in range(ms // STEP_MS):
            self.time = Now(self.time.boot_ms + STEP_MS, self.time.wall_ms + STEP_MS)
            for _ in range(2):
                for node in self.nodes.values():
                    if node.up:
                        node.turn()
            self.share()

    def share(self) -> None:
        """Acts as the frontdoors: all nodes get the newest roster and leaders."""
        for node in self.nodes.values():
            if node.up and node.reports:
                report = node.reports[-1]
                view = View(report.version, report.members, report.leads)
                for other in self.nodes.values():
                    if other.up:
                        self.send(other, other, encode(view))
                del node.reports[:-1]

    def send(
        self,
        node: Node,
        other: Node,
        *messages: bytes,
        cluster: bytes = CLUSTER,
        to: str = "",
        proven: bool = True,
    ) -> None:
        """Over a connection that is that node's, as if it had proven so."""
        bundle, origin = (
            Bundle(cluster, node.member.copy, to or other.member.copy, list(messages)),
            (b"p", b"test"),
        )
        if proven:
            other.worker._cluster._post.proven[origin] = node.member.copy
        self.network.mailboxes[other.mailbox.peers].take(origin, [encode(bundle)])
        if proven:
            other.turn()
            del other.worker._cluster._post.proven[origin]

    def until(self, done, ms: int = 60_000) -> None:
        end_ms = self.time.boot_ms + ms
        while not done():
            assert self.time.boot_ms < end_ms, {
                name: sorted(node.leads()) for name, node in self.nodes.items()
            }
            self.run(100)

    def leader(self, shard: int) -> Node:
        leads = [
            (lead.term, lead.copy)
            for node in self.nodes.values()
            if node.up and node.reports
            for lead in node.reports[-1].leads
            if lead.shard == shard
        ]
        name = max(leads)[1]
        return next(node for node in self.nodes.values() if node.member.copy == name)

    def healthy(self) -> bool:
        """Every shard is led, and all its voters keep up."""
        rows = [
            row for node in self.nodes.values() if node.up and node.reports for row in node.reports[-1].copies
        ]
        full = [node for node in self.nodes.values() if node.up]
        led = {row.shard for row in rows if row.role == "leader"}
        votes = {
            shard: [row for row in rows if row.shard == shard and row.role != "learner"] for shard in led
        }
        wanted = min(limits.COPIES, len(full) - 1 + len(full) % 2) if len(full) > 2 else None
        return (
            len(led) == self.shards
            and all(row.synced for row in rows)
            and (wanted is None or all(len(voters) == wanted for voters in votes.values()))
        )

    def client(self, node: Node) -> "Client":
        client = Client(self, self.network.client(node.clients))
        client.send(Hello(b"s" * 16, "test", "0"))
        self.run(STEP_MS)
        client.inbox()
        return client


class Client:
    def __init__(self, house: House, dealer: MemoryClient) -> None:
        self.house, self.dealer = house, dealer
        self.more: list[Message] = []  #: what came together with the last answer

    def send(self, message: Message, shard: int = 0, batch: bytes = b"") -> None:
        self.dealer.send(*([encode(message, shard, 9), batch] if batch else [encode(message, shard, 9)]))

    def inbox(self) -> list[Message]:
        return [decode(self.dealer.receive()[0])[1] for _ in range(len(self.dealer.inbox))]

    def ask(self, message: Message, shard: int = 0, batch: bytes = b"", ms: int = 2_000) -> Message | None:
        self.send(message, shard, batch)
        end_ms = self.house.time.boot_ms + ms
        while self.house.time.boot_ms < end_ms:
            self.house.run(STEP_MS)
            if answers := self.inbox():
                self.more = answers[1:]
                return answers[0]
        return None


def topic(house: House, name: str = "orders") -> tuple[int, int]:
    """(partition, shard) of a topic with one partition."""
    answer = house.client(house.leader(META_SHARD)).ask(Resolve([name], create=True))
    assert isinstance(answer, Topics), answer
    return partition_key(answer.topics[0].id, 0), answer.topics[0].shards[0]


def publish(house: House, node: Node, partition: int, shard: int, value: bytes) -> Message | None:
    return house.client(node).ask(Publish(partition), shard, bytes(batches.seal([value])))


def test_three_nodes_grow_from_one_and_lead_alike() -> None:
    house = House("ada")
    partition, shard = topic(house)
    confirm = publish(house, house.nodes["ada"], partition, shard, b"before")
    assert isinstance(confirm, Confirm)
    assert confirm.rows[0][2] == 1
    house.join(member("bob"))
    house.join(member("cleo"))
    house.until(house.healthy)
    house.until(lambda: all(node.leads() for node in house.nodes.values()))
    confirm = publish(house, house.leader(shard), partition, shard, b"after")
    assert isinstance(confirm, Confirm)
    assert confirm.rows[0][1] == 1
    assert confirm.rows[0][2] >= 2, "copies"


@pytest.fixture
def trio() -> House:
    house = House("ada", "bob", "cleo")
    house.until(house.healthy)
    house.run(limits.HAND_BACK_MS + 2_000)
    return house


def test_when_a_leader_dies_another_leads_with_all_that_was_confirmed(trio: House) -> None:
    partition, shard = topic(trio)
    leader = trio.leader(shard)
    assert isinstance(publish(trio, leader, partition, shard, b"kept"), Confirm)
    leader.crash()
    trio.until(lambda: trio.leader(shard) is not leader, 4_000)
    other = trio.leader(shard)
    trio.until(lambda: isinstance(publish(trio, other, partition, shard, b"new"), Confirm), 4_000)
    client = trio.client(other)
    reply = client.ask(Subscribe(1, "g", [Start(partition)], 10, limits.MIB), shard)
    assert isinstance(reply, Subscribed)
    trio.run(200)
    delivered = [message for message in client.more + client.inbox() if isinstance(message, Deliver)]
    assert sum(part.count for message in delivered for part in message.slices) == 2
    leader.start()
    trio.until(trio.healthy)
    trio.until(lambda: trio.leader(shard) is leader, 30_000)  # it leads again when it has kept up for a while


def test_of_a_shard_that_has_stopped_here_the_leader_is_known_while_it_is_there(
    trio: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, shard = topic(trio)
    leader = trio.leader(shard)
    follower, other = (node for node in trio.nodes.values() if node is not leader)
    real = Worker._open_shard

    def damaged(worker: Worker, shard_id: int) -> Shard:
        if worker is follower.worker and shard_id == shard:
            raise CorruptLog("damaged")
        return real(worker, shard_id)

    monkeypatch.setattr(Worker, "_open_shard", damaged)
    follower.crash()
    follower.start(leader)

    def said() -> tuple[set[str], list[str]]:
        """The shard's leaders and the absent nodes, according to the follower."""
        report = follower.reports[-1]
        assert report.stats.stopped == [shard]
        return {lead.copy for lead in report.leads if lead.shard == shard}, report.stats.away

    trio.run(3 * limits.FRESH_MS)
    assert said() == ({leader.member.copy}, [])
    leader.worker._turn.shards[shard].leave()
    leader.worker._turn.wake(shard)
    trio.until(lambda: trio.leader(shard) is other, 30_000)
    trio.run(3 * limits.FRESH_MS)
    assert said() == ({other.member.copy}, []), "who leads now goes on speaking to it"
    other.crash()
    trio.run(3 * limits.FRESH_MS)
    assert said() == ({other.member.copy}, [other.member.copy])


def test_who_stored_for_longer_than_its_lease_hands_nothing_out(trio: House) -> None:
    """Somebody else may lead by then."""
    partition, shard = topic(trio)
    leader = trio.leader(shard)
    assert isinstance(publish(trio, leader, partition, shard, b"a"), Confirm)
    client, commit = trio.client(leader), leader.store.commit
    assert isinstance(client.ask(Subscribe(1, "g", [Start(partition)], 0, 0), shard), Subscribed)
    trio.run(200)
    client.inbox()

    def slow() -> None:
        commit()
        trio.time = Now(trio.time.boot_ms + 5_000, trio.time.wall_ms + 5_000)

    leader.store.commit = slow  # type: ignore[method-assign]
    client.send(Credit(1, 10, limits.MIB), shard)
    client.send(Publish(partition), shard, bytes(batches.seal([b"b"])))
    leader.turn()
    assert [message for message in client.inbox() if isinstance(message, Deliver)] == []


def test_who_asks_the_wrong_node_is_told_the_right_one(trio: House) -> None:
    partition, shard = topic(trio)
    leader = trio.leader(shard)
    other = next(node for node in trio.nodes.values() if node is not leader)
    refused = publish(trio, other, partition, shard, b"x")
    assert isinstance(refused, RefusedMessage)
    assert (refused.code, refused.endpoint) == ("not_leader", leader.clients)


def test_a_node_that_ends_hands_its_shards_over_first(trio: House) -> None:
    leader = trio.leader(1)
    leader.worker.leave(trio.time)
    assert leader.worker.leaving()
    while leader.worker.leaving():
        trio.run(STEP_MS)
    trio.run(400)
    assert not leader.leads()
    assert trio.leader(1) is not leader


def test_a_leader_without_space_is_busy_while_another_may_lead_and_says_full_when_all_are(
    trio: House,
) -> None:
    partition, shard = topic(trio)
    leader = trio.leader(shard)
    leader.worker._turn.shards[shard].desk.full = "no space"  # it has not handed over yet
    refused = publish(trio, leader, partition, shard, b"x")
    assert isinstance(refused, RefusedMessage)
    assert refused.code == "busy"
    for node in trio.nodes.values():
        nothing = node.store.usage()._replace(disk_free_bytes=-1)
        node.store.usage = lambda nothing=nothing: nothing
    trio.until(
        lambda: getattr(publish(trio, trio.leader(shard), partition, shard, b"y"), "code", "") == "store_full"
    )


def test_an_idle_cluster_says_little(trio: House) -> None:
    trio.run(5_000)
    counts = {"bundles": 0}
    for node in trio.nodes.values():
        send = node.mailbox.send

        def counted(endpoint: str, control: bytes, batch: bytes = b"", send=send, node=node) -> bool:
            counts["bundles"] += not endpoint.startswith(node.member.endpoint.removesuffix(":7700"))
            return send(endpoint, control, batch)

        node.mailbox.send = counted
    trio.run(10_000)
    assert counts["bundles"] < 10 * 50


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"cluster": b"x" * 16}, "is of cluster"),
        ({"to": "ada.0"}, "was replaced"),
    ],
)
def test_what_is_not_for_this_copy_of_this_cluster_is_dropped_and_said_once(
    trio, wrong, text, caplog
) -> None:
    ada, bob = trio.nodes["ada"], trio.nodes["bob"]
    term = max(lead.term for lead in ada.reports[-1].leads)
    append = encode(Append("bob.1", 0, 0, 0, []), 1, 0, term + 5)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            trio.send(bob, ada, append, **wrong)
            trio.run(100)
    assert sum(text in record.getMessage() for record in caplog.records) == 1
    assert max(lead.term for lead in ada.reports[-1].leads) == term


@pytest.mark.parametrize("field", ["cluster", "to", "sender"])
def test_what_strangers_make_up_fills_neither_memory_nor_log(
    trio: House, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    post = trio.nodes["ada"].worker._cluster._post
    fine = {"cluster": post._cluster, "sender": "bob", "to": post._me}
    with caplog.at_level(logging.WARNING):
        for number in range(500):
            made_up = b"%d" % number + b"\n" * 100_000
            wrong = {field: made_up if field == "cluster" else made_up.decode()}
            if field == "sender":  # it guesses
                said: Message = Prove(made_up.decode(), bytes(16), bytes(32))
            else:
                said = Bundle(**fine | wrong, messages=[])
            assert list(post.open(Incoming((b"p", b"x"), encode(said), b""), 1_000)) == []
    assert post.dropped == 500
    assert len(caplog.records) <= SAID_MAX
    assert max(len(record.getMessage()) for record in caplog.records) < 500
    assert not any("\n" in record.getMessage() for record in caplog.records)
    assert sum(len(sender) for sender, _ in post._said_ms) <= SAID_MAX * 80


@pytest.mark.parametrize(
    "inner",
    [
        [b"", b"GQ"],
        [encode(Append("bob.1", 0, 0, 0, [4, 4]), 1, 0, 1)],
        [encode(Append("bob.1", 0, 0, 0, []), 60_000, 0, 1)],
        [encode(View(2**60, [], [Lead(1, 2**60, "nobody")]), 0)],
    ],
)
def test_nonsense_from_a_node_changes_nothing(trio: House, inner: list[bytes]) -> None:
    ada, bob = trio.nodes["ada"], trio.nodes["bob"]
    trio.send(bob, ada, *inner)
    trio.run(200)
    partition, shard = topic(trio)
    trio.until(lambda: isinstance(publish(trio, trio.leader(shard), partition, shard, b"x"), Confirm), 4_000)


@pytest.mark.parametrize("victim", ["ada", "bob"])
def test_a_pair_with_a_witness_takes_over(victim: str) -> None:
    house = House("ada", "bob")
    house.join(member("wit", witness=True))
    shards = range(SHARDS)

    def three_vote() -> bool:
        rows = [row for node in house.nodes.values() if node.reports for row in node.reports[-1].copies]
        votes = {
            shard: sum(row.shard == shard and row.role != "learner" and row.synced for row in rows)
            for shard in shards
        }
        return set(votes.values()) == {3}

    house.until(three_vote)
    house.run(limits.HAND_BACK_MS + 5_000)
    partition, shard = topic(house)
    assert isinstance(publish(house, house.leader(shard), partition, shard, b"kept"), Confirm)
    house.nodes[victim].crash()
    other = house.nodes["bob" if victim == "ada" else "ada"]
    house.until(lambda: other.leads() == set(shards), 6_000)
    house.until(lambda: isinstance(publish(house, other, partition, shard, b"new"), Confirm), 4_000)
    house.nodes[victim].start()
    house.until(three_vote)
    house.until(lambda: len(house.nodes[victim].leads()) == SHARDS // 2, 60_000)
