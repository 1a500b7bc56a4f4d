"""How nodes without a cluster find one or found one: every message by hand, every clock by hand."""

import random
from collections import deque
from collections.abc import Callable, Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipq import limits
from gossipq.errors import BadRequest, Busy, ConfigError, NotLeader, StoreError
from gossipq.messages import Hello, Join, Members, RefusedMessage, Welcome
from gossipq.peer_messages import Append, Waiting
from gossipq.types import META_SHARD, NODE_SHARD, Now, Origin
from gossipq.values import Member, Message, Route
from gossipq.wire.frames import decode, encode
from gossipq_node.actors.newcomer import (
    GONE_MS,
    PATIENCE_MS,
    SILENT_MS,
    Founds,
    Joined,
    Newcomer,
    Newcoming,
)
from gossipq_node.ports import Incoming

TURN_MS = 50
OPTIONS = {"cluster.copies": "3", "cluster.auto_create": "true"}


class Box:
    """A mailbox on the wire of `World`."""

    bad_frames = dropped = 0

    def __init__(self, world: "World", address: str) -> None:
        self._world, self._address = world, address

    def send(self, endpoint: str, control: bytes, batch: bytes = b"") -> bool:
        self._world.wire.append((self._address, endpoint, control))
        return True

    def reply(self, origin: Origin, control: bytes, batch: object = b"") -> bool:
        return self.send(origin[1].decode(), control)

    def receive(self, timeout_ms: int | None) -> list[Incoming]:
        raise AssertionError

    def from_client(self, origin: Origin) -> bool:
        return False

    def from_peer(self, origin: Origin) -> bool:
        return False

    def admit(self, members: Iterable[Member]) -> None: ...

    def encrypted(self, origin: Origin) -> bool:
        return True

    @property
    def turned_away(self) -> int:
        return 0

    def address(self, origin: Origin) -> str:
        raise AssertionError("nobody asks")

    def crowded(self, origin: Origin) -> bool:
        return False

    def moving(self, origin: Origin) -> bool:
        return False

    def answerer(self, origin: Origin) -> str:
        return origin[1].decode()

    def gone(self) -> list[Origin]:
        return []

    def close(self) -> None: ...


class Disk:
    """Stored data of a newcomer; survives its process."""

    def __init__(self, number: int) -> None:
        self.copy, self.pledge, self.pledges = f"{number:04}.a", "", list[str]()

    def store(self, pledge: str) -> None:
        self.pledge = pledge
        self.pledges.append(pledge)


class Cluster:
    """A running node, as far as newcomers see it."""

    def __init__(
        self, world: "World", address: str, uuid: bytes, members: list[Member], leader: str = ""
    ) -> None:
        self.world, self.address, self.uuid, self.members = world, address, uuid, members
        self.leader = leader or address  #: of the meta shard
        self.refusal: RefusedMessage | None = None
        self.joins: list[Join] = []
        self.routes = True  #: whether it knows who leads
        world.nodes[address] = self

    def hear(self, sender: str, control: bytes) -> None:
        header, said = decode(control)
        if header.shard == NODE_SHARD:
            if not isinstance(said, Hello):
                self.answer(
                    sender, RefusedMessage(BadRequest.code, "not for the frontdoor"), header.request_id
                )
                return
            route = Route(META_SHARD, 1, self.leader if self.routes else "")
            doors = [member.endpoint for member in self.members]
            self.answer(sender, Welcome("n", self.uuid, "1", 1, 1, 1, [route], 8, doors), header.request_id)
        elif isinstance(said, Join):
            self.joins.append(said)
            if self.leader != self.address:
                away = RefusedMessage(NotLeader.code, "not here", endpoint=self.leader)
                self.answer(sender, away, header.request_id)
            elif self.refusal is not None:
                self.answer(sender, self.refusal, header.request_id)
            else:
                if said.member.copy not in [member.copy for member in self.members]:
                    self.members.append(said.member)
                self.answer(sender, Members(len(self.members), list(self.members), "shop"), header.request_id)

    def answer(self, to: str, message: Message, request_id: int) -> None:
        self.world.wire.append((self.address, to, encode(message, META_SHARD, request_id)))


class World:
    def __init__(self) -> None:
        self.now_ms = 1_000
        self.wire: deque[tuple[str, str, bytes]] = deque()
        self.newcomers: dict[str, Newcomer] = {}
        self.nodes: dict[str, Cluster] = {}
        #: messages to addresses outside the test, by sender
        self.heard: dict[str, list[Message]] = {}
        self.lost: Callable[[str, str], bool] = lambda sender, to: False
        self.delay_turns = 0
        self._under_way: deque[list[tuple[str, str, bytes]]] = deque()

    def start(self, number: int, disk: Disk, peers: list[str], expect: int = 0, **other: object) -> Newcomer:
        address = address_of(number)
        given: dict[str, object] = {
            "member": Member(disk.copy, f"node-{number}", address, 2),
            "session": bytes([number] * 16),
            "workers": 2,
            "shards": 0,
            "expect": expect,
            "peers": tuple(peers),
            "insisted": {"cluster.copies": "3"},
            "options": OPTIONS,
            "founding": b"f" * 32,
            "pledge": disk.pledge,
        }
        newcomer = Newcomer(
            Newcoming(**given | other), Box(self, address), lambda uuid: b"t" + uuid, disk.store
        )  # type: ignore[arg-type]
        self.newcomers[address] = newcomer
        return newcomer

    def kill(self, number: int) -> None:
        del self.newcomers[address_of(number)]

    def turns(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_ms += TURN_MS
            self._under_way.append(list(self.wire))
            self.wire.clear()
            flying = self._under_way.popleft() if len(self._under_way) > self.delay_turns else []
            mail: dict[str, list[Incoming]] = {}
            for sender, to, control in flying:
                if self.lost(sender, to):
                    continue
                if to in self.nodes:
                    self.nodes[to].hear(sender, control)
                elif to in self.newcomers:
                    mail.setdefault(to, []).append(Incoming((b"c", sender.encode()), control, b""))
                else:
                    self.heard.setdefault(to, []).append(decode(control)[1])
            for address, newcomer in self.newcomers.items():
                if not newcomer.done:
                    deadline_ms = newcomer.next_deadline_ms()
                    assert deadline_ms is not None
                    if address in mail or deadline_ms <= self.now_ms:
                        newcomer.turn(mail.get(address, []), Now(self.now_ms, 0))

    def founded(self) -> list[str]:
        return [
            address for address, newcomer in self.newcomers.items() if isinstance(newcomer.outcome, Founds)
        ]

    def open(self, address: str) -> Cluster:
        """The founder serves from now on."""
        newcomer = self.newcomers.pop(address)
        return Cluster(self, address, address.encode()[-16:].rjust(16), [newcomer._me])


def address_of(number: int) -> str:
    return f"tcp://10.0.0.{number}:7700"


ALL = [address_of(number) for number in (1, 2, 3)]


# --- joining ------------------------------------------------------------------------------------------------


def test_it_joins_the_cluster_that_answers() -> None:
    world, disk = World(), Disk(2)
    node = Cluster(world, address_of(1), b"u" * 16, [Member("0001.a", "ada", address_of(1), 1)])
    newcomer = world.start(2, disk, [address_of(1)])
    world.turns(10)
    assert isinstance(joined := newcomer.outcome, Joined)
    assert (joined.cluster, joined.name, joined.shards, joined.version) == (b"u" * 16, "shop", 8, 2)
    assert [member.name for member in joined.members] == ["ada", "node-2"]
    join = node.joins[0]
    assert (join.cluster, join.proof, join.options) == (b"u" * 16, b"", {"cluster.copies": "3"}), (
        "it was not challenged"
    )
    assert disk.pledges == [(b"u" * 16).hex()], "on disk before it is asked for"


def test_it_follows_to_the_leader() -> None:
    world = World()
    members = [Member("0001.a", "ada", address_of(1), 1), Member("0003.a", "cat", address_of(3), 1)]
    first = Cluster(world, address_of(1), b"u" * 16, members, leader=address_of(3))
    first.routes = False
    Cluster(world, address_of(3), b"u" * 16, members)
    newcomer = world.start(2, Disk(2), [address_of(1)])
    world.turns(12)
    assert isinstance(newcomer.outcome, Joined)


def test_a_leader_that_does_not_answer_is_asked_through_others() -> None:
    world = World()
    members = [Member("0001.a", "ada", address_of(1), 1), Member("0003.a", "cat", address_of(3), 1)]
    Cluster(world, address_of(1), b"u" * 16, members, leader=address_of(9))
    Cluster(world, address_of(3), b"u" * 16, members)
    newcomer = world.start(2, Disk(2), [address_of(1)])
    world.turns(120)
    assert isinstance(newcomer.outcome, Joined)


def test_who_comes_back_in_the_middle_goes_on_and_asks_no_other_cluster() -> None:
    world, disk = World(), Disk(2)
    node = Cluster(world, address_of(1), b"u" * 16, [])
    node.refusal = RefusedMessage(Busy.code, "elections")
    world.start(2, disk, [address_of(1)])
    world.turns(30)
    assert disk.pledge == (b"u" * 16).hex()
    del world.nodes[address_of(1)]
    Cluster(world, address_of(4), b"v" * 16, [])
    newcomer = world.start(2, disk, [address_of(1), address_of(4)])
    world.turns(60)
    assert not newcomer.done
    assert "another one answers" in newcomer.waiting_for()
    Cluster(world, address_of(1), b"u" * 16, [])
    world.turns(60)
    assert isinstance(newcomer.outcome, Joined)
    assert newcomer.outcome.cluster == b"u" * 16


def test_slow_answers_are_answers() -> None:
    world = World()
    members = [Member("0001.a", "ada", address_of(1), 1), Member("0003.a", "cat", address_of(3), 1)]
    Cluster(world, address_of(1), b"u" * 16, members, leader=address_of(3))
    Cluster(world, address_of(3), b"u" * 16, members)
    world.delay_turns = 2_500 // TURN_MS
    newcomer = world.start(2, Disk(2), [address_of(1)])
    world.turns(700)
    assert isinstance(newcomer.outcome, Joined)


def test_a_cluster_that_went_away_is_in_nobody_s_way_and_no_reason_to_found() -> None:
    world, disk = World(), Disk(2)
    for number in (1, 3):
        Cluster(world, address_of(number), bytes([number] * 16), [])
    newcomer = world.start(2, disk, [address_of(1), address_of(3)], expect=2)
    world.turns(40)
    del world.nodes[address_of(3)]
    world.start(3, Disk(3), [address_of(2)], expect=2)
    world.lost = lambda sender, to: address_of(1) in (sender, to)
    world.turns(GONE_MS // TURN_MS + 40)
    assert not newcomer.done
    assert (
        newcomer.waiting_for() == "waiting for the cluster that answered before; none of its nodes does now"
    )
    assert not world.founded()
    world.lost = lambda sender, to: False
    world.turns(60)
    assert isinstance(newcomer.outcome, Joined)


def test_two_clusters_are_one_too_many() -> None:
    world, disk = World(), Disk(2)
    nodes = [Cluster(world, address_of(number), bytes([number] * 16), []) for number in (1, 3)]
    newcomer = world.start(2, disk, [address_of(1), address_of(3)])
    world.lost = lambda sender, to: world.now_ms < 1_100
    world.turns(100)
    assert not newcomer.done
    assert "different clusters answer" in newcomer.waiting_for()
    assert not any(node.joins for node in nodes)
    assert not disk.pledges


def test_a_refusal_that_stays_ends_the_start() -> None:
    refusal = RefusedMessage(BadRequest.code, "cluster.copies is 5 there", "say 5 here")
    world, disk = World(), Disk(2)
    Cluster(world, address_of(1), b"u" * 16, []).refusal = refusal
    newcomer = world.start(2, disk, [address_of(1)])
    world.turns(PATIENCE_MS // TURN_MS)
    assert not newcomer.done
    world.turns(3_000 // TURN_MS)
    assert isinstance(newcomer.failure, ConfigError)
    assert refusal.message in newcomer.failure.message
    assert newcomer.failure.hint == refusal.hint
    assert disk.pledge == "", "it may be sent to another cluster now"


def test_a_refusal_that_passes_does_no_harm() -> None:
    world = World()
    node = Cluster(world, address_of(1), b"u" * 16, [])
    node.refusal = RefusedMessage(BadRequest.code, "the name is taken")
    newcomer = world.start(2, Disk(2), [address_of(1)])
    world.turns(100)
    node.refusal = None
    world.turns(60)
    assert isinstance(newcomer.outcome, Joined)


def test_another_number_of_shards_is_refused_before_anything_is_said() -> None:
    world, disk = World(), Disk(2)
    node = Cluster(world, address_of(1), b"u" * 16, [])
    newcomer = world.start(2, disk, [address_of(1)], shards=32)
    world.turns(30)
    assert newcomer.failure is not None
    assert newcomer.failure.message == "cluster.shards = 32, and the cluster has 8"
    assert not node.joins
    assert not disk.pledges


def test_more_workers_than_shards_become_as_many() -> None:
    world = World()
    Cluster(world, address_of(1), b"u" * 16, [])
    newcomer = world.start(2, Disk(2), [address_of(1)], workers=12)
    world.turns(30)
    assert isinstance(newcomer.outcome, Joined)
    assert newcomer.outcome.member.workers == 8


def test_clients_hear_that_it_is_no_node_yet() -> None:
    world = World()
    newcomer = world.start(2, Disk(2), [address_of(1)])
    world.wire.append(("tcp://client:1", address_of(2), encode(Hello(b"c" * 16, "", ""), NODE_SHARD, 7)))
    world.turns(2)
    (refused,) = world.heard["tcp://client:1"]
    assert isinstance(refused, RefusedMessage)
    assert (refused.code, newcomer.done) == ("joining", False)
    assert f"waiting for a node of the cluster; none answers at {address_of(1)}" in refused.message


def test_strange_words_change_nothing() -> None:
    world = World()
    newcomer = world.start(2, Disk(2), ALL, expect=3)
    member = Member("0009.a", "x", "no address", 1)
    for control in (
        b"",
        b"GQ",
        encode(Append("x", 1, 1, 1, [])),
        encode(Welcome("n", b"short", "1", 1, 1, 1), NODE_SHARD, 1),
        encode(Members(9, [newcomer._me]), META_SHARD, 1),
        encode(Waiting(member, 3)),
        encode(Waiting(newcomer._me, 3, known=["tcp://", "ipc:///x", "\x00"])),
    ):
        world.wire.append(("tcp://client:1", address_of(2), control))
    world.turns(20)
    assert not newcomer.done
    assert newcomer.waiting_for().startswith(
        "waiting for 3 nodes to found the cluster, 1 of them are here: node-2"
    )


def test_who_does_not_know_the_secret_fills_neither_memory_nor_log() -> None:
    world = World()
    newcomer = world.start(2, Disk(2), ALL, expect=3)
    for number in range(500):
        member = Member(
            f"x{number}",
            "N" * 90_000 + "\nERROR forged",
            f"tcp://10.1.{number % 250}.{number // 250}:7700",
            1,
        )
        world.wire.append(("tcp://client:1", address_of(2), encode(Waiting(member, 3))))
        world.turns()
    assert len(newcomer.waiting_for()) < 1_000
    assert "\n" not in newcomer.waiting_for()
    assert sum(map(len, newcomer._strange.values())) < 20_000
    assert newcomer._learned == [], "nor does it make this node ask where it says"


# --- founding -----------------------------------------------------------------------------------------------


def test_three_found_one_cluster_and_two_join_it() -> None:
    world, disks = World(), [Disk(number) for number in (1, 2, 3)]
    for number in (3, 1, 2):
        world.start(number, disks[number - 1], ALL, expect=3)
    world.turns(40)
    assert world.founded() == [address_of(1)]
    assert [disk.pledge for disk in disks] == ["0001.a"] * 3
    world.open(address_of(1))
    world.turns(60)
    assert all(isinstance(newcomer.outcome, Joined) for newcomer in world.newcomers.values())


def names(*numbers: int) -> dict[str, object]:
    """The settings of a node that gets these addresses and no number."""
    return {"named": True, "options": OPTIONS | {"node.peer": ", ".join(map(address_of, numbers))}}


def test_three_that_all_name_each_other_found_one_cluster() -> None:
    world, disks = World(), [Disk(number) for number in (1, 2, 3)]
    for number in (2, 3):
        others = [address_of(each) for each in (1, 2, 3) if each != number]
        world.start(number, disks[number - 1], others, expect=3, **names(1, 2, 3))
    world.turns(400)
    assert world.founded() == [], "not before all are there"
    world.start(1, disks[0], [address_of(2), address_of(3)], expect=3, **names(1, 2, 3))
    world.turns(40)
    assert world.founded() == [address_of(1)]
    world.open(address_of(1))
    world.turns(60)
    assert all(isinstance(newcomer.outcome, Joined) for newcomer in world.newcomers.values())


def test_who_names_only_one_that_is_away_waits_for_it() -> None:
    """Two that want to join a cluster whose node is down found none of their own."""
    world = World()
    second = world.start(2, Disk(2), [address_of(1)], expect=2, **names(1, 2))
    third = world.start(3, Disk(3), [address_of(2)], expect=2, **names(2, 3))
    world.turns(400)
    assert not second.done
    assert not third.done
    assert second.waiting_for().startswith("waiting for a node of the cluster; none answers at ")
    assert "node-3 has node.peer = " in second.waiting_for()
    Cluster(world, address_of(1), b"u" * 16, [Member("0001.a", "node-1", address_of(1), 1)])
    world.turns(60)
    assert isinstance(second.outcome, Joined)


def test_two_of_three_wait_and_say_for_whom() -> None:
    world, disks = World(), [Disk(1), Disk(2)]
    two = [world.start(number, disks[number - 1], ALL, expect=3) for number in (1, 2)]
    world.turns(400)
    assert not any(newcomer.done for newcomer in two)
    assert not any(disk.pledges for disk in disks)
    assert (
        two[0].waiting_for() == "waiting for 3 nodes to found the cluster, 2 of them are here: node-1, node-2"
    )
    world.start(3, Disk(3), [address_of(1)], expect=3)
    world.turns(40)
    assert world.founded() == [address_of(1)], "one address is enough to find all"


def test_a_wiped_first_host_joins_those_that_go_on() -> None:
    world = World()
    Cluster(world, address_of(2), b"u" * 16, [Member("0002.a", "node-2", address_of(2), 1)])
    newcomer = world.start(1, Disk(0), ALL, expect=3)
    world.turns(60)
    assert isinstance(newcomer.outcome, Joined)


def test_who_has_pledged_to_one_never_founds_with_another() -> None:
    """The first founder was wiped after all had agreed: it may have founded already."""
    world, disks = World(), [Disk(1), Disk(2), Disk(3)]
    for disk in disks[1:]:
        disk.pledge = "0001.a"
    for number in (2, 3):
        world.start(number, disks[number - 1], ALL, expect=3)
    world.start(1, Disk(0), ALL, expect=3)
    world.turns(200)
    assert not world.founded()
    assert "empty the data directories" in world.newcomers[address_of(2)].waiting_for()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"options": OPTIONS | {"cluster.copies": "5"}}, "node-2 has cluster.copies = 5, and here it is 3"),
        ({"founding": b"g" * 32}, "'node-2' has another secret"),
        ({"expect": 2}, "node-2 has cluster.expect = 2, and here it is 3"),
    ],
)
def test_who_differs_does_not_count_and_it_is_said(other: dict[str, object], says: str) -> None:
    world = World()
    for number in (1, 3):
        world.start(number, Disk(number), ALL, expect=3)
    world.start(2, Disk(2), ALL, **{"expect": 3} | other)  # type: ignore[arg-type]
    world.turns(60)
    assert not world.founded()
    assert says in world.newcomers[address_of(1)].waiting_for()


def test_two_nodes_of_one_name_do_not_found_together() -> None:
    world = World()
    for number in (1, 2, 3):
        world.start(
            number,
            Disk(number),
            ALL,
            expect=3,
            member=Member(f"{number:04}.a", "same", address_of(number), 1),
        )
    world.turns(60)
    assert not world.founded()
    assert (
        "has the same name, same: give one of them another with --name"
        in world.newcomers[ALL[0]].waiting_for()
    )


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32), expect=st.sampled_from([2, 3, 5]), more=st.sampled_from([-1, 0, 0, 1, 2, 4])
)
def test_never_two_clusters(seed: int, expect: int, more: int) -> None:
    """Hosts start in any order, lose mail, are killed and come back. At most one founds, even if
    more wait than expected. If the expected number waits, all end in one cluster. At most one
    founds even if disks are lost, except its own.
    """
    hosts = expect + more
    dice = random.Random(seed)
    world, addresses = World(), [address_of(number) for number in range(1, hosts + 1)]
    disks = {number: Disk(number * 10) for number in range(1, hosts + 1)}
    loss = dice.choice((0.0, 0.1, 0.5))
    world.lost = lambda sender, to: dice.random() < loss
    founders: set[str] = set()
    wiped = 0

    def settle() -> None:
        for address in world.founded():
            founders.add(address)
            world.open(address)

    for _ in range(120):
        number = dice.randrange(1, hosts + 1)
        address, roll = address_of(number), dice.random()
        if address in world.nodes:
            pass
        elif address not in world.newcomers:
            world.start(number, disks[number], addresses, expect)
        elif roll < 0.2 and not world.newcomers[address].done:
            world.kill(number)
            if roll < 0.02 and hosts <= expect:
                wiped += 1
                disks[number] = Disk(number * 10 + wiped)
        world.turns(dice.randrange(1, 12))
        settle()
        assert len(founders) <= 1
        assert all(len(disk.pledges) <= 1 for disk in disks.values())
    loss = 0.0
    for number in disks:
        if address_of(number) not in world.nodes and address_of(number) not in world.newcomers:
            world.start(number, disks[number], addresses, expect)
    for _ in range(40):
        world.turns(5)
        settle()
    assert len(founders) <= 1
    if hosts < expect:
        assert not founders
    elif hosts == expect and not wiped:
        assert len(founders) == 1
        assert all(isinstance(newcomer.outcome, Joined) for newcomer in world.newcomers.values())


def test_a_silent_one_counts_no_more() -> None:
    world = World()
    for number in (1, 2):
        world.start(number, Disk(number), ALL, expect=3)
    world.turns(20)
    world.kill(2)
    world.turns(SILENT_MS // TURN_MS + 10)
    assert "1 of them are here: node-1" in world.newcomers[ALL[0]].waiting_for()


def test_a_pledge_that_cannot_be_stored_is_not_said() -> None:
    def full(pledge: str) -> None:
        raise StoreError("no space left on device")

    world = World()
    Cluster(world, address_of(1), b"u" * 16, [])
    newcomer = world.start(2, Disk(2), [address_of(1)])
    newcomer._store = full
    with pytest.raises(StoreError):
        world.turns(20)
    assert not world.nodes[address_of(1)].joins


def test_gossip_names_further_addresses() -> None:
    world = World()
    Cluster(world, address_of(1), b"u" * 16, [])
    found: list[str] = []
    settings_of = world.start(2, Disk(2), [])._settings
    newcomer = Newcomer(
        msgspec.structs.replace(settings_of), Box(world, address_of(2)), bytes, Disk(2).store, lambda: found
    )
    world.newcomers[address_of(2)] = newcomer
    world.turns(40)
    assert (
        newcomer.waiting_for()
        == "waiting for a node of the cluster; none answers at any address: nobody was found yet"
    )
    found.append(address_of(1))
    world.turns(40)
    assert isinstance(newcomer.outcome, Joined)
    assert limits.SHARDS
