"""How a frontdoor uses the membership."""

from collections.abc import Mapping

from gossipq.types import Now
from gossipq.values import GossipEvent, Member
from gossipq_node.actors.discovery import EVENTS_MAX, LOOK_MS, Discovery
from gossipq_node.ports import SeenNode

MINE, OTHER = b"\xab" * 16, "cdcdcdcd"
ADA = Member("a.a", "ada", "tcp://a:1", 1)


class Members:
    def __init__(self) -> None:
        self.state, self.queued = "", 0
        self.rows: list[SeenNode] = []
        self.news: list[GossipEvent] = []
        self.told: list[Mapping[str, str]] = []

    def found(self) -> list[SeenNode]:
        return self.rows

    def events(self) -> list[GossipEvent]:
        news, self.news = self.news, []
        return news

    def tell(self, tags: Mapping[str, str]) -> None:
        self.told.append(tags)

    def close(self) -> None: ...


def test_a_node_that_looks_for_nobody_says_so() -> None:
    discovery = Discovery(None, MINE, ADA, Now(0, 0))
    discovery.turn(5, Now(10_000, 0))
    assert (discovery.state, discovery.next_deadline_ms(), discovery.found(), discovery.warnings([])) == (
        "off",
        None,
        [],
        [],
    )


def test_it_tells_the_load_in_two_digits() -> None:
    members = Members()
    discovery = Discovery(members, MINE, ADA, Now(0, 0))
    for turn, records in enumerate((1_000, 1_000 + 2 * 12_345, 1_000 + 2 * 12_345, 7)):
        discovery.turn(records, Now(turn * LOOK_MS, 0))
        discovery.turn(records, Now(turn * LOOK_MS + 1, 0))
    assert members.told == [{"load": "12000"}, {"load": "0"}, {"load": "0"}]


def test_it_keeps_the_newest_events() -> None:
    members = Members()
    discovery = Discovery(members, MINE, ADA, Now(0, 0))
    members.news = [GossipEvent(time, "join", "bob") for time in range(EVENTS_MAX + 10)]
    discovery.turn(0, Now(0, 0))
    assert [event.time_ms for event in discovery.events] == list(range(10, EVENTS_MAX + 10))


def test_nodes_of_another_cluster_are_told_apart() -> None:
    members = Members()
    discovery = Discovery(members, MINE, ADA, Now(0, 0))
    members.rows = [
        SeenNode("tcp://b:1", "bob", "", "abababab"),
        SeenNode("tcp://c:1", "cat", "", OTHER),
        SeenNode("tcp://d:1", "dan"),
        SeenNode("tcp://b:1", "bob", "", OTHER, alive=False),  # before its directory was given up
    ]
    members.state = "no other Serf agent answers"
    assert [found.name for found in discovery.found()] == ["bob", "dan"]
    assert discovery.warnings([]) == [
        "gossip is degraded: no other Serf agent answers",
        "gossip shows node cat of another cluster at tcp://c:1: check its --join",
    ]


def test_a_name_or_address_that_another_member_has_is_said() -> None:
    discovery = Discovery(None, MINE, ADA, Now(0, 0))
    twin, tenant = Member("b.b", "ada", "tcp://b:1", 1), Member("c.c", "cat", "tcp://a:1", 1)
    assert discovery.warnings([ADA, Member("d.d", "dan", "tcp://d:1", 1, witness=True)]) == []
    assert discovery.warnings([ADA, twin, tenant]) == [
        "the node at tcp://b:1 is named ada, too, and was first: choose another --name",
        "tcp://a:1 is the address of cat, too, which was first: choose another --bind or --advertise",
    ]
