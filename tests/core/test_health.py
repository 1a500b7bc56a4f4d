"""The vocabulary of health: the meaning of each word, the worst first, and the
same words in the document.
"""

from pathlib import Path

import msgspec
import pytest

from gossipq.health import (
    ALONE,
    MEANINGS,
    Health,
    State,
    aged,
    copies_wanted,
    of_cluster,
    of_node,
    table,
    voters_wanted,
)
from gossipq.messages import StatusReply
from gossipq.values import CopyStats, Lead, Member, WorkerStats

HOME = Path(__file__).parents[2]
ADA, BOB, CAT = (Member(f"{name}.1", name, f"tcp://{name}:7700", 1) for name in ("ada", "bob", "cat"))
WITNESS = Member("will.1", "will", "tcp://will:7700", 1, witness=True)


def worker(state: str = "ready", **more: object) -> WorkerStats:
    row = WorkerStats(0, 7, "tcp://ada:7701", state, *[0] * 12)
    return msgspec.structs.replace(row, **more)


def copies(shard: int, *roles: tuple[Member, str, int, bool]) -> list[CopyStats]:
    return [
        CopyStats(shard, 1, member.copy, role, 9, 0, silent_ms, synced)
        for member, role, silent_ms, synced in roles
    ]


def whole(shard: int) -> list[CopyStats]:
    return copies(shard, (ADA, "leader", 0, True), (BOB, "follower", 100, True), (CAT, "follower", 100, True))


def status(
    *workers: WorkerStats, rows: list[CopyStats] | None = None, members: tuple[Member, ...] = (ADA, BOB, CAT)
) -> StatusReply:
    here = ("ada", "shop", bytes(16), "0.2.0", "static", 5_000, 2, 2, list(workers or [worker()]), [])
    found = [*whole(0), *whole(1)] if rows is None else rows
    leads = [Lead(0, 1, ADA.copy), Lead(1, 1, ADA.copy)]
    return StatusReply(*here, copy=ADA.copy, members=list(members), leads=leads, copies=found)


def words(health: Health) -> list[str]:
    return [finding.state for finding in health.findings]


def test_all_is_well() -> None:
    health = of_node(status())
    assert (health.state, health.text, health.serves) == (State.HEALTHY, "", True)


@pytest.mark.parametrize(
    ("stats", "state", "says", "serves"),
    [
        (worker("starting"), State.STARTING, "worker-0 of ada is starting", False),
        (worker("recovering", detail="no space"), State.STARTING, "opens its store again: no space", False),
        (worker("down", detail="exit code 9"), State.STARTING, "is not running: exit code 9", False),
        (worker(silent_ms=3_001), State.PAUSED, "has not responded for 3 s", False),
        (worker("full", detail="9 bytes"), State.FULL, "refuses publishes: 9 bytes", False),
        (worker(stopped=[1], detail="CRC"), State.STOPPED, "shard 1 stopped on worker-0 of ada: CRC", False),
        (
            worker(leaderless=[0, 1], away=[BOB.copy, CAT.copy]),
            State.NO_QUORUM,
            "2 of 3 nodes are away: bob, cat",
            False,
        ),
        (worker(leaderless=[1]), State.NO_QUORUM, "1 of 2 shards has no leader (being elected)", False),
        (worker(silent_ms=2_999), State.HEALTHY, "", True),
    ],
)
def test_a_node_says_what_is_wrong_with_it(stats: WorkerStats, state: State, says: str, serves: bool) -> None:
    health = of_node(status(stats))
    assert (health.state, health.serves) == (state, serves)
    assert says in health.text


def test_a_stopped_copy_whose_shard_is_led_elsewhere_stops_nobody() -> None:
    said = msgspec.structs.replace(
        status(worker(stopped=[1], detail="CRC")), leads=[Lead(0, 1, ADA.copy), Lead(1, 2, BOB.copy)]
    )
    health = of_node(said)
    assert (health.state, health.serves) == (State.DEGRADED, True)
    assert "shard 1 stopped on worker-0 of ada: CRC" in health.text


def test_a_stopped_copy_whose_leader_is_gone_stops_the_shard() -> None:
    said = msgspec.structs.replace(
        status(worker(stopped=[1], detail="CRC", away=[BOB.copy])),
        leads=[Lead(0, 1, ADA.copy), Lead(1, 2, BOB.copy)],
    )
    assert (of_node(said).state, of_node(said).serves) == (State.STOPPED, False)


@pytest.mark.parametrize("encrypts", [True, False])
def test_who_encrypts_and_is_not_known_to_is_named(encrypts: bool) -> None:
    """Nodes know from the roster who encrypts. When two of three change that at once, no majority
    exists that could record it.
    """
    before = [msgspec.structs.replace(each, encrypts=not encrypts) for each in (ADA, BOB, CAT)]

    def said(me: Member, changed: bool) -> StatusReply:
        mine = msgspec.structs.replace(me, encrypts=encrypts if changed else not encrypts)
        rows = tuple(mine if row.copy == me.copy else row for row in before)
        answer = status(members=rows, rows=[])
        door = b"k" * 32 if mine.encrypts else b""
        return msgspec.structs.replace(answer, node=me.name, copy=me.copy, door=door, leads=[])

    answers = {me.copy: said(me, me is not ADA) for me in (ADA, BOB, CAT)}
    for asked in answers.values():
        health = of_cluster(asked, answers, [])
        does = "bob encrypts, and" if encrypts else "bob does not encrypt, and"
        assert does in health.text
        assert "cat " in health.text
        assert "ada " not in health.text
        assert health.state is State.NO_QUORUM
        assert "being elected" not in health.text
    as_before = {me.copy: said(me, False) for me in (ADA, BOB, CAT)}
    assert "encrypt" not in of_cluster(as_before[ADA.copy], as_before, []).text


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ((BOB, "follower", 2_000, True), "bob is away: its copies of 1 shard are missing"),
        ((BOB, "learner", 0, False), "bob still learns 1 shard"),
        (None, "shards wait for another copy"),
    ],
)
def test_copies_that_are_not_there_degrade(row: tuple[Member, str, int, bool] | None, says: str) -> None:
    rows = [
        *whole(0),
        *copies(1, (ADA, "leader", 0, True), *([row] if row else []), (CAT, "follower", 0, True)),
    ]
    for health in (
        of_node(status(rows=rows)),
        of_cluster(status(), dict.fromkeys((ADA.copy, BOB.copy, CAT.copy), status()), rows),
    ):
        assert (health.state, health.serves) == (State.DEGRADED, True)
        assert says in health.text


def test_a_standby_that_learns_is_waited_for() -> None:
    """In a pair, all records are on one disk until the second node has them."""
    rows = [
        row for shard in (0, 1) for row in copies(shard, (ADA, "leader", 0, True), (BOB, "learner", 0, False))
    ]
    assert of_node(status(rows=rows, members=(ADA, BOB))).text == (
        "degraded: bob still learns 2 shards; degraded: 2 shards are on one disk alone (copies=1): a confirm "
        "means one disk until others are in sync"
    )
    synced = [msgspec.structs.replace(row, synced=True) for row in rows]
    assert of_node(status(rows=synced, members=(ADA, BOB))).state is State.HEALTHY
    assert (
        of_node(status(rows=[row for row in synced if row.copy == ADA.copy], members=(ADA, BOB))).state
        is State.DEGRADED
    )


def test_that_a_confirm_is_on_one_disk_is_said_while_it_is_so() -> None:
    """Every surface says it, because all use this result."""

    def told(*rows: CopyStats, members: tuple[Member, ...] = (ADA, BOB, CAT)) -> str:
        said = status(rows=[*rows, *whole(1)], members=members)
        answers = {member.copy: said for member in members}
        assert of_cluster(said, answers, said.copies).text.count(ALONE) == of_node(said).text.count(ALONE)
        return of_node(said).text

    leads, learns = (ADA, "leader", 0, True), (CAT, "learner", 0, False)
    late, there = (BOB, "follower", 2_000, False), (BOB, "follower", 0, True)
    assert "1 shard is on one disk alone (copies=1)" in told(*copies(0, leads, late, learns))
    assert "1 shard is on one disk alone (copies=1)" in told(*copies(0, leads))
    assert ALONE not in told(*copies(0, leads, there, learns)), "two disks"
    assert ALONE in told(*copies(0, leads, (WITNESS, "witness", 0, True)), members=(ADA, BOB, WITNESS))
    alone = status(rows=[*copies(0, leads), *copies(1, leads)], members=(ADA,))
    assert of_node(alone).state is State.HEALTHY, "one node has one disk"


def test_the_worst_word_comes_first() -> None:
    said = status(worker("full", detail="9 bytes", leaderless=[0], silent_ms=4_000), rows=whole(0)[:2])
    assert words(of_node(said)) == ["paused", "no quorum", "full", "degraded"]


def test_a_cluster_without_most_of_its_nodes_names_them() -> None:
    health = of_cluster(status(rows=[]), {ADA.copy: status(rows=[]), BOB.copy: None, CAT.copy: None}, [])
    assert health.text == "no quorum: 2 of 2 shards have no leader (2 of 3 nodes are away: bob, cat)"
    assert health.command == "gossipq cluster ls"


def test_a_leader_that_does_not_answer_leads_as_long_as_its_followers_hear_it() -> None:
    bob, cat = (msgspec.structs.replace(status(rows=[]), copy=row.copy, node=row.name) for row in (BOB, CAT))
    answers = {ADA.copy: None, BOB.copy: bob, CAT.copy: cat}
    health = of_cluster(bob, answers, [])
    assert health.text == "degraded: ada does not answer here, and leads 2 shards, as the others say"
    misses = msgspec.structs.replace(cat, workers=[worker(leaderless=[1])])
    assert of_cluster(bob, answers | {CAT.copy: misses}, []).text == health.text, "cut off from it alone"
    both = {BOB.copy: msgspec.structs.replace(misses, copy=BOB.copy, node="bob"), CAT.copy: misses}
    assert "no quorum: 1 of 2 shards has no leader" in of_cluster(bob, answers | both, []).text
    assert "no quorum: 2 of 2" in of_cluster(bob, answers | {CAT.copy: None}, []).text


def test_nodes_that_a_leader_hears_are_not_away_because_they_are_not_reached_from_here() -> None:
    bob = msgspec.structs.replace(status(rows=[]), copy=BOB.copy, node="bob")
    alone = {ADA.copy: None, BOB.copy: bob, CAT.copy: None}

    def told(silent_ms: int, asked: StatusReply = bob) -> str:
        follow = [(row, "follower", silent_ms, True) for row in (ADA, CAT)]
        return of_cluster(asked, alone | {BOB.copy: asked}, copies(1, (BOB, "leader", 0, True), *follow)).text

    assert told(400) == "degraded: ada does not answer here, and leads 1 shard, as the others say"
    misses = msgspec.structs.replace(bob, workers=[worker(leaderless=[0])])
    assert told(400, misses) == "no quorum: 1 of 2 shards has no leader (being elected)"
    assert "no quorum: 1 of 2 shards has no leader (2 of 3 nodes are away: ada, cat)" in told(2_000)


def test_what_stops_another_node_is_said_and_its_start_shows_in_the_copies() -> None:
    bob = msgspec.structs.replace(status(worker("full", detail="9 bytes")), copy=BOB.copy, node="bob")
    rows = [*whole(0), *whole(1)]
    assert (
        of_cluster(status(), {ADA.copy: status(), BOB.copy: bob, CAT.copy: status()}, rows).state
        is State.FULL
    )
    starts = msgspec.structs.replace(bob, workers=[worker("starting")])
    assert (
        of_cluster(status(), {ADA.copy: status(), BOB.copy: starts, CAT.copy: status()}, rows).state
        is State.HEALTHY
    )


def test_how_many_copies_there_should_be() -> None:
    for members, full, voting in (
        ([ADA], 1, 1),
        ([ADA, BOB], 2, 1),
        ([ADA, BOB, WITNESS], 2, 3),
        ([ADA, BOB, CAT], 3, 3),
        ([ADA, BOB, msgspec.structs.replace(CAT, state="leaving")], 2, 1),
    ):
        assert (copies_wanted(members), voters_wanted(members)) == (full, voting)


def test_old_figures_say_how_old_they_are() -> None:
    assert aged(3_000) is None
    stale = aged(56_400)
    assert stale is not None
    assert (stale.state, stale.text) == (State.STALE, "figures of 56 s ago")


def test_the_document_has_every_word_in_order() -> None:
    lines = (HOME / "docs" / "operate" / "monitoring.md").read_text("utf-8").splitlines()
    at = lines.index("| word | scope | /readyz is 200 | meaning | look there |") + 2
    rows = [
        tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines[at : at + len(State)]
    ]
    assert rows == [(*row, f"`{MEANINGS[State(row[0])].command}`") for row in table()]
    assert {word for word, *_ in table()} == {*State} == set(MEANINGS)
