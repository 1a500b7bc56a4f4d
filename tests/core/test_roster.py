"""Membership of the cluster: how nodes enter, leave and fall silent, and
all that must be refused.
"""

from collections.abc import Mapping

import msgspec
import pytest

from core.fleet import ORIGIN, Fleet, entered, member
from gossipq import limits
from gossipq.core.register.roster import LIVING_MS
from gossipq.core.requests.consume import Client
from gossipq.errors import ConfigError
from gossipq.messages import AskMembers, Join, RefusedMessage, SetMember, SetOptions
from gossipq.values import Message

ROOT = Client(b"root".ljust(16, b"."), "root")


def refused(answer: Message, *said: str) -> RefusedMessage:
    assert isinstance(answer, RefusedMessage), answer
    for text in said:
        assert text in f"{answer.message} {answer.hint}", answer
    return answer


@pytest.fixture
def fleet() -> Fleet:
    """A fleet of three nodes."""
    fleet = Fleet()
    for name in "abc":
        entered(fleet.join(name))
    fleet.run(4_000)
    assert sorted(fleet.config[0]) == ["a", "b", "c"]
    return fleet


def test_the_founder_enters_first() -> None:
    fleet = Fleet(cluster_name="west")
    fleet.open("b")
    assert refused(fleet.ask(Join(member("b"))), "own roster").retry_after_ms > 0
    answer = entered(fleet.join("a"))
    assert [row.copy for row in answer.members] == ["a"]
    assert answer.cluster_name == "west"
    assert answer.version == fleet.leader.ledger.cluster.roster_version > 0
    assert entered(fleet.join("a")).version == answer.version, "said again, nothing changes"
    assert [row.copy for row in entered(fleet.join("b")).members] == ["a", "b"]


def test_nodes_that_join_get_copies_and_every_copy_has_the_roster(fleet: Fleet) -> None:
    entered(fleet.join("d"))
    entered(fleet.join("w", witness=True))
    fleet.run(16_000)
    voters, witnesses, learners = fleet.config
    assert len(voters) == 3
    assert sorted(voters + learners) == ["a", "b", "c", "d", "w"]
    assert witnesses == ["w"]
    for name in "abcd":
        assert sorted(fleet.shards[name].ledger.cluster.members) == ["a", "b", "c", "d", "w"], name
        assert fleet.shards[name].ledger.cluster.roster_version == fleet.leader.ledger.cluster.roster_version
    assert fleet.shards["w"].ledger.cluster.members == {}
    fleet.open("b")
    assert sorted(fleet.shards["b"].ledger.cluster.members) == ["a", "b", "c", "d", "w"], "from disk"
    assert fleet.shards["b"].ledger.cluster.roster_version > 0


def test_a_row_is_brought_up_to_date(fleet: Fleet) -> None:
    newer = msgspec.structs.replace(member("b"), version="9.9", state="lost")
    rows = {row.copy: row for row in entered(fleet.ask(Join(newer))).members}
    assert rows["b"] == msgspec.structs.replace(newer, state="in"), "its state is the roster's to say"


def test_a_member_moves_when_it_is_silent_where_it_was(fleet: Fleet) -> None:
    """A cloned volume, started beside the original, once took over its row. Messages for the
    original went to a node that must not answer, and some shards had no leader.
    """
    moved = msgspec.structs.replace(member("b"), endpoint="tcp://elsewhere:7700")
    for _ in range(3):
        said = refused(fleet.ask(Join(moved)), "tcp://b:7700", "tcp://elsewhere:7700", "copy of")
        assert said.code == "wrong_state"
        fleet.run(LIVING_MS)
    fleet.ask(SetMember("node-b", "leaving"))
    # a row that has just changed does not show that the node moved
    refused(fleet.ask(Join(moved)), "copy of")
    fleet.ask(SetMember("node-b", "in"))
    fleet.away = {"b"}
    fleet.run(LIVING_MS + 1_000)
    assert moved in entered(fleet.ask(Join(moved))).members


def test_the_leader_is_where_it_says_and_nowhere_else() -> None:
    fleet = Fleet(endpoint="tcp://a:7700")
    entered(fleet.join("a"))
    clone = msgspec.structs.replace(member("a"), endpoint="tcp://elsewhere:7700")
    refused(fleet.ask(Join(clone)), "tcp://elsewhere:7700", "copy of")
    there = Fleet(endpoint="tcp://moved:7700")
    entered(there.ask(Join(member("a"))))
    here = msgspec.structs.replace(member("a"), endpoint="tcp://moved:7700")
    assert here in entered(there.ask(Join(here))).members


def test_a_name_or_address_of_a_living_member_is_refused_and_that_of_a_silent_one_taken_over(
    fleet: Fleet,
) -> None:
    same_name = msgspec.structs.replace(member("z"), name="node-b")
    same_address = msgspec.structs.replace(member("z"), endpoint="tcp://b:7700")
    refused(fleet.ask(Join(same_name)), "node-b", "--name")
    refused(fleet.ask(Join(same_address)), "tcp://b:7700", "--bind")
    assert sorted(fleet.roster()) == ["a", "b", "c"]
    fleet.away = {"b"}
    fleet.run(LIVING_MS - 1_000)
    refused(fleet.ask(Join(same_name)), "node-b")
    fleet.run(2_000)
    entered(fleet.ask(Join(same_name)))
    assert sorted(fleet.roster()) == ["a", "c", "z"], "a wiped disk is a new member"
    entered(fleet.ask(Join(same_address)))
    assert sorted(fleet.roster()) == ["a", "c", "z"]
    fleet.away = set()
    refused(fleet.join("b"), "taken off")


@pytest.mark.parametrize(
    ("join", "said"),
    [
        (Join(member("d"), b"other", b"secret"), ["cluster", b"other".hex()]),
        (
            Join(member("d"), b"mine", b"secret", {"copies": "5"}),
            ["copies = 5", "write 3 there", "gossipq cluster config set copies=5"],
        ),
        (Join(member("d", features=0)), ["too old"]),
        (Join(member("a", witness=True)), ["was a full node"]),
        (Join(msgspec.structs.replace(member("d"), name="")), ["name of a node"]),
        (Join(msgspec.structs.replace(member("d"), name="x\ny")), ["name of a node"]),
        (Join(msgspec.structs.replace(member("d"), copy="")), ["name of a copy"]),
        (Join(msgspec.structs.replace(member("d"), endpoint="nowhere")), ["address"]),
        (Join(msgspec.structs.replace(member("d"), workers=0)), ["workers"]),
        (SetMember("node-x", "gone"), ["no node is named"]),
        (SetMember("node-a", "elsewhere"), ["elsewhere"]),
        (SetMember("node-a", "leaving"), ["last node"]),
        (SetMember("node-a", "gone"), ["last node"]),
    ],
)
def test_what_does_not_belong_is_refused_and_changes_nothing(join: Message, said: list[str]) -> None:
    fleet = Fleet(cluster=b"mine", options={"copies": "3"})
    entered(fleet.join("a"))
    before = fleet.leader.last
    refused(fleet.ask(join), *said)
    assert fleet.leader.last == before
    assert fleet.roster() == {"a": "in"}


def test_options_with_which_no_node_would_start_are_not_those_of_the_cluster() -> None:
    """With such options each node stopped at its next start, and none was
    left to accept another value.
    """

    def check(said: Mapping[str, str]) -> None:
        if "4" in said.values():
            raise ConfigError("copies = 4", "3 or 5")

    fleet = Fleet(options={"copies": "3"}, check_options=check)
    entered(fleet.join("a"))
    refused(fleet.ask(SetOptions({"copies": "4"})), "copies = 4", "3 or 5")
    assert fleet.leader.ledger.cluster.options.get("copies") != "4"
    fleet.ask(SetOptions({"copies": "5"}))
    assert fleet.leader.ledger.cluster.options["copies"] == "5"


def test_options_that_agree_and_unknown_ones_pass() -> None:
    fleet = Fleet(cluster=b"mine", options={"copies": "3"})
    entered(fleet.join("a"))
    entered(fleet.ask(Join(member("b"), b"mine", b"", {"copies": "3", "later": "x"})))


def test_no_more_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEMBERS_MAX", 2)
    fleet = Fleet()
    entered(fleet.join("a"))
    entered(fleet.join("b"))
    refused(fleet.ask(Join(member("c"))), "2 nodes")
    entered(fleet.ask(Join(msgspec.structs.replace(member("b"), version="2"))))


def test_a_drained_node_keeps_nothing_and_can_be_taken_off(fleet: Fleet) -> None:
    drained = fleet.leader.replica.me
    refused(fleet.ask(SetMember(f"node-{drained}", "gone")), "still leads")
    other = next(name for name in "abc" if name != drained)
    refused(fleet.ask(SetMember(f"node-{other}", "gone")), "is running")
    entered(fleet.join("d"))
    fleet.run(16_000)
    drained = fleet.leader.replica.me
    entered(fleet.ask(SetMember(f"node-{drained}", "leaving")))
    assert entered(fleet.ask(AskMembers())).members[ord(drained) - ord("a")].state == "leaving"
    entered(fleet.join(drained))
    assert fleet.roster()[drained] == "leaving", "a restart does not bring it back"
    fleet.run(6_000)
    voters, _, learners = fleet.config
    assert drained not in voters + learners
    assert fleet.leader.replica.me != drained
    entered(fleet.ask(SetMember(f"node-{drained}", "gone")))
    assert drained not in fleet.roster()
    refused(fleet.join(drained), "taken off", "empty data directory")


def test_a_node_that_still_votes_is_not_taken_off_while_it_answers(fleet: Fleet) -> None:
    """The node would end at once, even if its shards still need it."""
    name = next(name for name in "abc" if name != fleet.leader.replica.me)
    entered(fleet.ask(SetMember(f"node-{name}", "leaving")))
    refused(fleet.ask(SetMember(f"node-{name}", "gone")), "still a voter", "--wait")
    fleet.away = {name}
    fleet.run(LIVING_MS + 1_000)
    entered(fleet.ask(SetMember(f"node-{name}", "gone")))


def one_away() -> tuple[Fleet, str, str]:
    """Five nodes, one of which has been silent for long. Its name sorts after the leader's."""
    fleet = Fleet(voters="abcde")
    leader = fleet.leader.replica.me
    for each in leader + "abcde".replace(leader, ""):
        entered(fleet.join(each))
    name = next(each for each in "abcde" if each != leader)
    fleet.away = {name}
    fleet.run(LIVING_MS + 1_000)
    return fleet, leader, name


def test_a_new_leader_does_not_say_of_a_node_that_is_away_that_it_runs() -> None:
    fleet, leader, name = one_away()
    fleet.away = {name, leader}
    while not fleet.serving:
        fleet.run(50)
    answer = refused(fleet.ask(SetMember(f"node-{name}", "gone")), "is known in a few seconds")
    assert (answer.code, answer.retry_after_ms > 0) == ("busy", True)
    fleet.run(1_000)
    other = next(each for each in "abcde" if each not in (name, leader, fleet.leader.replica.me))
    refused(fleet.ask(SetMember(f"node-{other}", "gone")), "is running")
    fleet.run(LIVING_MS)
    entered(fleet.ask(SetMember(f"node-{name}", "gone")))


def test_a_removal_that_is_asked_again_has_the_same_answer() -> None:
    """The leader falls silent before it answers, and the client asks the next one."""
    fleet, leader, name = one_away()
    entered(fleet.ask(SetMember(f"node-{name}", "gone")))
    fleet.away = {name, leader}
    fleet.run(LIVING_MS + 1_000)
    assert fleet.leader.replica.me != leader
    version = fleet.leader.ledger.cluster.roster_version
    assert entered(fleet.ask(SetMember(f"node-{name}", "gone"))).version == version
    refused(fleet.ask(SetMember(f"node-{name}", "leaving")), "no node is named")


def test_a_drain_can_be_taken_back(fleet: Fleet) -> None:
    name = next(name for name in "abc" if name != fleet.leader.replica.me)
    entered(fleet.ask(SetMember(f"node-{name}", "leaving")))
    fleet.run(1_000)
    entered(fleet.ask(SetMember(f"node-{name}", "in")))
    version = fleet.leader.ledger.cluster.roster_version
    assert entered(fleet.ask(SetMember(f"node-{name}", "in"))).version == version
    fleet.run(14_000)
    assert sorted(fleet.config[0]) == ["a", "b", "c"]


def test_who_is_silent_for_too_long_is_lost_and_comes_back_by_joining() -> None:
    fleet = Fleet(replace_ms=20_000)
    for name in "abcd":
        entered(fleet.join(name))
    fleet.run(16_000)
    lost = next(name for name in fleet.config[0] if name != fleet.leader.replica.me)
    fleet.away = {lost}
    fleet.run(18_000)
    assert fleet.roster()[lost] == "in"
    assert lost in fleet.config[0]
    fleet.run(6_000)
    assert fleet.roster()[lost] == "lost"
    assert sorted(fleet.config[0]) == sorted(set("abcd") - {lost}), "its copy is rebuilt elsewhere"
    assert (
        any(
            "rebuilt elsewhere" in text
            for effects in fleet.seen["a"] + fleet.seen["b"]
            for text in effects.warnings
        )
        or lost
    )
    fleet.away = set()
    entered(fleet.join(lost))
    assert fleet.roster()[lost] == "in"
    fleet.run(16_000)
    assert lost in [*fleet.config[0], *fleet.config[2]]


def test_who_enters_late_or_comes_back_is_not_lost_for_what_was_before() -> None:
    fleet = Fleet(replace_ms=5_000)
    entered(fleet.join("a"))
    fleet.run(8_000)
    entered(fleet.join("b"))
    fleet.run(8_000)
    assert fleet.roster() == {"a": "in", "b": "in"}
    entered(fleet.ask(SetMember("node-b", "leaving")))
    fleet.run(8_000)
    entered(fleet.ask(SetMember("node-b", "in")))
    fleet.run(100)
    assert fleet.roster()["b"] == "in"


def test_the_leader_hears_a_lost_copy_that_is_still_one_of_its_own() -> None:
    fleet = Fleet(replace_ms=6_000)
    fleet.follow = False
    for name in "ab":
        entered(fleet.join(name))
    fleet.aim(member("a"), member("b"))
    fleet.run(2_000)
    other = next(name for name in "ab" if name != fleet.leader.replica.me)
    fleet.away = {other}
    fleet.run(11_000)
    assert fleet.roster()[other] == "lost", "and stays it"
    fleet.away = set()
    fleet.run(3_000)
    assert fleet.roster()[other] == "in"


def test_one_change_after_the_other_and_who_waits_when_the_leader_falls_is_named(fleet: Fleet) -> None:
    leader = fleet.leader
    fleet.away = set("abc") - {leader.replica.me}
    fleet.led.step(ORIGIN, 1, ROOT, Join(member("d")))
    fleet.led.step(ORIGIN, 2, ROOT, Join(member("e")))
    fleet.run(3_000)
    seen = fleet.seen[leader.replica.me][-70:]
    assert [(request, answer.code) for effects in seen for _, request, answer in effects.replies] == [
        (2, "busy")
    ]
    assert [row for effects in seen for row in effects.abandoned] == [(ORIGIN, 1)]


def test_another_shard_does_not_answer() -> None:
    fleet = Fleet(shard=1)
    assert refused(fleet.ask(AskMembers())).code == "not_leader"
