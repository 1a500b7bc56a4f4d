"""A cluster with a life: nodes announce themselves, and an operator starts, drains,
replaces and removes them.

No test code chooses voters: each leader follows the roster in its own ledger, as in a node.
"""

from typing import TYPE_CHECKING, Any

from msgspec import structs

from gossipq.messages import AskMembers, Join, Members, Message, RefusedMessage, SetMember
from gossipq.peer_messages import Transfer
from gossipq.values import Member
from sim.clients import Party
from sim.history import RosterSaid

if TYPE_CHECKING:
    from sim.node import Node
    from sim.world import World

HOSTS = "abcde"
CLONED = "tcp://clone-of-"  #: addresses of clones begin with this
WITNESS = "w"


def address_of(name: str) -> str:
    """Address of the host where a node runs."""
    return f"tcp://{name[0]}:7700"


def row_of(node: "Node") -> Member:
    return Member(node.name, f"node-{node.name[0]}", address_of(node.name), 1, node.witness)


class Insider(Party):
    """A party that gets the roster."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.asked_ms: dict[int, int] = {}  #: request -> when it was sent

    def ask(self, message: Message, batch: bytes = b"") -> int:
        request_id = super().ask(message, batch)
        self.asked_ms[request_id] = self.world.now
        return request_id

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if isinstance(answer, Members):
            rows = tuple(
                (member.copy, member.name, member.endpoint, member.state) for member in answer.members
            )
            said = RosterSaid(self.asked_ms[request_id], sent_ms, answer.version, rows)
            self.world.history.rosters.append(said)


class Doorman(Insider):
    """The frontdoor of a host. It keeps telling the cluster who its node is."""

    def __init__(self, world: "World", host: str) -> None:
        super().__init__(world, f"door-{host}")
        self.place = host
        world.at(self.dice.randrange(100), self.look)

    def turn_away(self) -> None:
        """Picks another node to ask; most of the time views know the leader."""
        leader = self.world.leader()
        self.node = (
            leader.name
            if leader is not None and self.dice.random() < 0.7
            else self.dice.choice(self.world.addresses())
        )

    def look(self) -> None:
        if self.stopped:
            return
        node = self.world.host(self.place)
        if node is not None and node.up and node.paused_until <= self.world.now:
            self.ask(Join(row_of(node)))
        self.world.at(self.dice.randrange(300, 1_500), self.look)

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        super().receive(node, request_id, term, answer, sent_ms)
        if isinstance(answer, RefusedMessage):
            self.world.history.count(f"join {answer.code}")
            self.node = ""


class Clone(Insider):
    """A clone of some node's volume. Now and then it claims, from another
    address, to be that node.
    """

    def __init__(self, world: "World") -> None:
        super().__init__(world, "clone")
        world.at(self.dice.randrange(1_000), self.look)

    def look(self) -> None:
        if self.stopped:
            return
        leader = self.world.leader()
        members = (
            leader.shard.ledger.cluster.members if leader is not None and leader.shard is not None else {}
        )
        if leader is not None and members:
            self.node = leader.name
            member = members[self.dice.choice(sorted(members))]
            host = member.copy[0]
            self.ask(Join(structs.replace(member, endpoint=f"{CLONED}{host}:7700")))
        self.world.at(self.dice.randrange(300, 1_500), self.look)

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        super().receive(node, request_id, term, answer, sent_ms)
        self.world.history.count(
            f"clone {answer.code}" if isinstance(answer, RefusedMessage) else "clone let in"
        )


class Chief(Insider):
    """The operator: makes one decision after the other, whatever else happens."""

    def __init__(self, world: "World") -> None:
        super().__init__(world, "operator")
        self.hosts_max = self.dice.choice((2, 3, 4, 5))
        self.witness = self.dice.random() < 0.4
        self.shrunk_ms = -1_000_000  #: when the chief last reduced the number of voters
        world.at(self.dice.randrange(200, 600), self.look)

    def look(self) -> None:
        if self.stopped:
            return
        leader = self.world.leader()
        if leader is not None and leader.shard is not None:
            self.node = leader.name
            self.act(leader)
        self.world.at(self.dice.randrange(150, 1_500), self.look)

    def act(self, leader: "Node") -> None:
        world, dice = self.world, self.dice
        assert leader.shard is not None
        members = leader.shard.ledger.cluster.members
        living = [host for host in HOSTS if world.host(host) is not None]
        choice = dice.random()
        if not members:
            pass  # the founder must enter first
        elif len(living) < self.hosts_max and choice < 0.6:
            world.start_host(dice.choice([host for host in HOSTS if host not in living]))
        elif self.witness and world.host(WITNESS) is None and choice < 0.3:
            world.start_host(WITNESS)
        elif choice < 0.15 and members:
            member = dice.choice(sorted(members.values(), key=lambda member: member.copy))
            self.set(member, "in" if member.state == "leaving" else "leaving")
        elif choice < 0.3:
            self.take_off(leader, members)
        elif choice < 0.4:
            self.world.end_politely(dice.choice(living))
        elif choice < 0.45:
            self.transfer(dice.randrange(world.shards))
        elif choice < 0.55:
            self.ask(AskMembers())
        elif choice < 0.7:
            leaving = [member for member in members.values() if member.state == "leaving"]
            if leaving:
                self.set(leaving[0], "in")

    def transfer(self, shard_id: int) -> None:
        """Hands leadership of a shard to another copy."""
        leader = self.world.leader(shard_id)
        shard = leader.shard_of(shard_id) if leader is not None else None
        if leader is not None and shard is not None and shard.replica.progress:
            meta, self.node, self.shard = self.node, leader.name, shard_id
            self.ask(Transfer(self.dice.choice(sorted(shard.replica.progress))))
            self.node, self.shard = meta, 0

    def drained(self, copy: str) -> bool:
        """True if, according to the shards' leaders, no shard keeps data on
        this copy or is about to.
        """
        for shard_id in range(self.world.shards):
            leader = self.world.leader(shard_id)
            shard = leader.shard_of(shard_id) if leader is not None else None
            if shard is None or not shard.serving:
                return False
            replica, config = shard.replica, shard.replica.config
            if copy in (*config.voters, *config.learners) or replica.config_index > replica.commit:
                return False
        return True

    def set(self, member: Member, state: str) -> None:
        self.shrunk_ms = self.world.now
        self.ask(SetMember(member.name, state))

    def take_off(self, leader: "Node", members: dict[str, Member]) -> None:
        """Ends a drained node and marks it as gone. A node that is dead already is only marked."""
        for member in members.values():
            node = self.world.nodes[member.copy]
            if node.dead or (member.state == "leaving" and self.drained(member.copy)):
                if not node.dead:
                    node.end("taken off")
                self.set(member, "gone")
                return

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        super().receive(node, request_id, term, answer, sent_ms)
        self.world.history.count("refused" if isinstance(answer, RefusedMessage) else "roster changed")
