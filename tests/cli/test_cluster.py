"""gossipq cluster, status of a cluster, node, witness: how options are used,
and how answers are printed.
"""

import json
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest

import gossipq_client
from gossipq import errors
from gossipq.messages import Members, StatusReply
from gossipq.values import CopyStats, GossipEvent, Member
from gossipq_cli import ask, reach
from gossipq_cli.commands import top
from gossipq_cli.dashboard.sources import Asker
from gossipq_cli.options import Choices
from gossipq_client.values import Credentials
from gossipq_ops.questions import Act, Done, Subject, Try

NAMES = ("ada", "bob", "cat")
MEMBERS = [Member(f"{name}.copy", name, f"tcp://{name}:7700", 2, version="0.1.0") for name in NAMES]
WITNESS = Member("will.copy", "will", "tcp://will:7700", 1, witness=True)


def row(
    shard: int, name: str, role: str, term: int = 3, silent_ms: int = 100, synced: bool = True
) -> CopyStats:
    return CopyStats(shard, term, f"{name}.copy", role, 10, 0 if synced else 5, silent_ms, synced)


def shard_rows(shard: int, leader: str, term: int = 3) -> list[CopyStats]:
    return [row(shard, name, "leader" if name == leader else "follower", term) for name in NAMES]


def reply(name: str, copies: list[CopyStats], members: list[Member] = MEMBERS, **more: Any) -> StatusReply:
    fields = {
        "node": name,
        "copy": f"{name}.copy",
        "members": members,
        "copies": copies,
        "cluster_name": "shop",
    }
    fields |= {
        "cluster": b"u" * 16,
        "version": "0.1.0",
        "mode": "static",
        "uptime_ms": 4_000,
        "shards": 3,
        "led": 1,
    }
    return StatusReply(**{"workers": [], "routes": []} | fields | more)


class Town:
    """Nodes by address; other addresses do not answer."""

    def __init__(self) -> None:
        self.nodes = {
            f"tcp://{name}:7700": reply(name, shard_rows(at, name)) for at, name in enumerate(NAMES)
        }
        self.words: list[tuple[str, str]] = []
        self.refusal: Exception | None = None

    def set(self, name: str, copies: list[CopyStats], **more: Any) -> None:
        self.nodes[f"tcp://{name}:7700"] = reply(name, copies, **more)


class Asked:
    def __init__(self, town: Town, servers: list[str]) -> None:
        self._town = town
        address = servers[0] if servers else "tcp://ada:7700"
        if address not in town.nodes:
            raise errors.Unreachable(f"no node answered at {address}")
        self._status = town.nodes[address]

    def __enter__(self) -> "Asked":
        return self

    @property
    def admin(self) -> "Asked":
        return self

    raw = admin

    def __exit__(self, *error: object) -> None: ...

    def status(self) -> StatusReply:
        return self._status

    def members(self) -> Members:
        return Members(9, MEMBERS, options={"cluster.replace_ms": "1800000"})

    def set_cluster_options(self, options: dict[str, str], secret: bytes) -> Members:
        return Members(10, MEMBERS, options=options)

    def set_member(self, name: str, state: str, secret: bytes = b"") -> Members:
        if self._town.refusal:
            raise self._town.refusal
        self._town.words.append((name, state))
        return Members(9, [member for member in MEMBERS if state != "gone" or member.name != name])


@pytest.fixture
def town(monkeypatch: pytest.MonkeyPatch) -> Town:
    town = Town()
    monkeypatch.setattr(ask, "connect", lambda choices: Asked(town, choices.servers))
    return town


# --- ls, show, status ---------------------------------------------------------------------------------------


def test_ls_puts_together_what_each_node_says(town: Town, gossipq) -> None:
    ran = gossipq("cluster", "ls")
    assert ran.code == 0
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines[0] == [
        "node",
        "kind",
        "state",
        "leads",
        "follows",
        "learns",
        "workers",
        "version",
        "endpoint",
    ]
    assert lines[1] == ["ada", "full", "in", "1", "2", "0", "2", "0.1.0", "tcp://ada:7700"]
    assert gossipq("cluster", "ls", "-o", "names").out.split() == list(NAMES)


def test_a_node_that_does_not_answer_is_away_and_its_shards_are_as_others_see_them(
    town: Town, gossipq
) -> None:
    del town.nodes["tcp://cat:7700"]
    town.set(
        "bob", [*shard_rows(1, "bob"), row(2, "bob", "leader", 4), row(2, "cat", "follower", 4, 9_000, False)]
    )
    rows = {row["name"]: row for row in json.loads(gossipq("cluster", "ls", "-o", "json").out)}
    assert {name: row["state"] for name, row in rows.items()} == {"ada": "in", "bob": "in", "cat": "away"}
    assert (rows["bob"]["leads"], rows["cat"]["leads"], rows["cat"]["follows"]) == (2, 0, 3)


def test_a_leader_of_an_older_term_does_not_count(town: Town, gossipq) -> None:
    town.set("bob", [*shard_rows(1, "bob"), *shard_rows(0, "bob", term=7)])
    rows = {row["name"]: row["leads"] for row in json.loads(gossipq("cluster", "ls", "-o", "json").out)}
    assert rows == {"ada": 0, "bob": 2, "cat": 1}


def test_an_address_that_another_node_has_now_is_away(town: Town, gossipq) -> None:
    town.nodes["tcp://cat:7700"] = reply("dan", [])
    assert "cat   full  away" in gossipq("cluster", "ls").out


@pytest.mark.parametrize(
    ("server", "encrypts", "by"),
    [("", True, "tcp://bob:7800"), ("", False, "tcp://bob:7700"), ("tcp://ada:7700", True, "tcp://bob:7700")],
    ids=["encrypted", "in the clear", "what another host says is no proof"],
)
def test_who_runs_a_node_reaches_the_others_by_the_key_that_it_tells(
    monkeypatch: pytest.MonkeyPatch, server: str, encrypts: bool, by: str
) -> None:
    """`status` called nodes away that the node itself heard, and waited for ever until all was well."""
    knocked, shown = list[str](), list[Credentials]()
    monkeypatch.setattr(reach, "require", lambda places, *_, **__: knocked.extend(places) or 0)
    monkeypatch.setattr(gossipq_client, "connect", lambda *_, credentials, **__: shown.append(credentials))
    members = [msgspec.structs.replace(MEMBERS[1], encrypts=encrypts)]
    asked = reply("ada", [], members, door=b"d" * 32)
    ask.connect(ask.elsewhere(Choices(servers=[server] if server else []), "tcp://bob:7700", asked))
    assert knocked == [by]
    assert [each.door for each in shown] == [asked.door if by.endswith(":7800") else b""]


def test_show_names_the_shards(town: Town, gossipq) -> None:
    shown = json.loads(gossipq("cluster", "show", "bob", "-o", "json").out)
    assert shown["shards"] == {"leader": [1], "follower": [0, 2], "witness": [], "learner": []}
    assert "follower        0, 2" in gossipq("cluster", "show", "bob").out
    ran = gossipq("cluster", "show", "bop")
    assert (
        ran.code,
        "no node is named bop; did you mean `bob`?" in ran.err,
        "gossipq cluster ls" in ran.err,
    ) == (
        4,
        True,
        True,
    )


def test_status_says_when_all_is_well(town: Town, gossipq) -> None:
    ran = gossipq("status")
    assert ran.code == 0
    assert "healthy: 3 shards, each with a leader and all its copies" in ran.out
    assert json.loads(gossipq("status", "-o", "json").out)["healthy"] is True


def test_status_says_how_old_that_is_what_it_shows_of_a_node_that_does_not_answer(
    town: Town, gossipq
) -> None:
    del town.nodes["tcp://cat:7700"]
    town.set("bob", [*shard_rows(1, "bob"), row(2, "bob", "leader", 4), row(2, "cat", "follower", 4, 800)])
    assert "cat does not answer: what stands here of it the others heard 800ms ago" in gossipq("status").out


@pytest.mark.parametrize(
    ("copies", "says"),
    [
        ([], "no quorum: 1 of 3 shards has no leader"),
        (
            [row(0, "ada", "leader"), row(0, "bob", "follower"), row(0, "cat", "follower", silent_ms=3_000)],
            "degraded: cat is away: its copies of 1 shard are missing",
        ),
        (
            [row(0, "ada", "leader"), row(0, "bob", "follower"), row(0, "cat", "follower", synced=False)],
            "degraded: cat still learns 1 shard",
        ),
        (
            [row(0, "ada", "leader"), row(0, "bob", "learner"), row(0, "cat", "learner")],
            "degraded: 1 of 3 shards wait for another copy",
        ),
    ],
)
def test_status_says_what_is_not_well(town: Town, gossipq, copies: list[CopyStats], says: str) -> None:
    town.set("ada", copies)
    ran = gossipq("status")
    assert ran.code == 1
    assert says in ran.out
    waited = gossipq("status", "--wait-healthy", "300ms")
    assert waited.code == 75
    assert says in waited.err


def test_status_counts_the_nodes_that_it_is_told_to_expect(town: Town, gossipq) -> None:
    assert gossipq("status", "--nodes", "3").code == 0
    assert gossipq("status", "--wait-healthy", "30", "--nodes", "3").code == 0
    ran = gossipq("status", "--nodes", "4")
    assert ran.code == 1
    assert "degraded: 3 of 4 nodes answer" in ran.out
    waited = gossipq("status", "--wait-healthy", "300ms", "--nodes", "4")
    assert waited.code == 75
    assert "3 of 4 nodes answer" in waited.err


def test_status_waits_until_all_is_well(town: Town, gossipq, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = town.nodes["tcp://ada:7700"].copies
    town.set("ada", [])
    monkeypatch.setattr("gossipq_cli.ask.time.sleep", lambda seconds: town.set("ada", copies))
    assert gossipq("status", "--wait-healthy", "30").code == 0


def test_status_does_not_wait_for_a_token_to_be_taken(
    town: Town, gossipq, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = errors.TurnedAway("no user has the token that was shown")
    refused.why = errors.Forbidden.code

    def turned_away(choices: Choices) -> None:
        raise refused

    monkeypatch.setattr(ask, "connect", turned_away)
    assert gossipq("status", "--wait-healthy", "30").code == 6


@pytest.mark.parametrize(
    ("members", "voters"),
    [
        (MEMBERS[:1], 1),
        (MEMBERS[:2], 1),
        ([*MEMBERS[:2], WITNESS], 3),
        ([MEMBERS[0], WITNESS], 1),
        (MEMBERS, 3),
    ],
)
def test_how_many_voters_a_cluster_should_have(
    town: Town, gossipq, members: list[Member], voters: int
) -> None:
    names = [member.name for member in members]
    for wanted, code in ((voters, 0), (voters - 1, 1)):
        town.nodes = {}
        for name in names:
            roles = {each: "follower" if at < wanted else "learner" for at, each in enumerate(names)}
            rows = [
                row(0, each, roles[each]) for each in names[1:] if roles[each] != "learner" or len(names) == 2
            ]
            town.set(
                name,
                [row(0, "ada", "leader"), *rows] if name == "ada" and wanted else [],
                members=members,
                shards=1,
            )
        assert gossipq("status").code == code


def test_config_set_says_what_files_may_say_from_now_on(town: Town, gossipq, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of many words")
    secret.chmod(0o600)
    ran = gossipq("cluster", "config", "set", "replace_ms=600000", "--secret-file", str(secret))
    assert (ran.code, ran.out.split()[-5:]) == (0, ["cluster.replace_ms", "1800000", "600000", "at", "once"])
    assert "whose file has the former value or the default takes it over" in ran.err


# --- drain, rm, rebalance -----------------------------------------------------------------------------------


def test_drain_and_undo(town: Town, gossipq) -> None:
    ran = gossipq("cluster", "drain", "bob")
    assert (ran.code, ran.out) == (0, "bob is being drained; undo: gossipq cluster drain bob --undo\n")
    assert "gossipq cluster rm bob" in ran.err
    assert gossipq("cluster", "drain", "bob", "--undo", "-o", "json").code == 0
    assert town.words == [("bob", "leaving"), ("bob", "in")]
    assert gossipq("cluster", "drain", "bop").code == 4


def test_drain_waits_until_nothing_is_left(town: Town, gossipq, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = gossipq("cluster", "drain", "bob", "--wait", "100ms")
    assert ran.code == 75
    assert "bob is still a voter of 3 shards" in ran.err

    def moved(seconds: float) -> None:
        for at, name in enumerate(("ada", "cat", "ada")):
            mine = [row(at, each, "leader" if each == name else "follower") for each in ("ada", "cat")]
            before = town.nodes[f"tcp://{name}:7700"].copies
            town.set(name, [*[r for r in before if r.shard != at], *mine, row(at, "dan", "follower")])
        town.set("ada", [r for r in town.nodes["tcp://ada:7700"].copies if r.copy != "bob.copy"])
        town.set(
            "cat", [r for r in town.nodes["tcp://cat:7700"].copies if r.copy != "bob.copy" and r.shard == 1]
        )
        town.set("bob", [])

    monkeypatch.setattr("gossipq_cli.commands.cluster.time.sleep", moved)
    ran = gossipq("cluster", "drain", "bob", "--wait", "30")
    assert (ran.code, ran.out) == (0, "bob has no copies left; undo: gossipq cluster drain bob --undo\n")


def test_rm_asks_first(town: Town, gossipq) -> None:
    assert gossipq("cluster", "rm", "bob", "--force").code == 2
    assert not town.words
    ran = gossipq("cluster", "rm", "bob", "--yes", "--force", "-o", "json")
    assert json.loads(ran.out) == {"node": "bob", "left": ["ada", "cat"]}
    town.refusal = errors.WrongState("bob is running", "gossipq cluster drain bob first")
    ran = gossipq("cluster", "rm", "bob", "--yes", "--force")
    assert (ran.code, "drain bob first" in ran.err) == (5, True)


def test_rm_waits_until_the_cluster_knows_that_a_node_is_silent(
    town: Town, gossipq, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = iter([errors.WrongState("bob is running"), errors.Busy("known in a few seconds"), None])
    town.refusal = next(refusals)
    monkeypatch.setattr(
        "gossipq_cli.commands.cluster.time.sleep", lambda seconds: setattr(town, "refusal", next(refusals))
    )
    del town.nodes["tcp://bob:7700"]
    ran = gossipq("cluster", "rm", "bob", "--yes", "--force")
    assert (ran.code, ran.out) == (0, "bob is removed\n")


def test_rm_of_a_node_that_votes_says_what_to_do_first(town: Town, gossipq) -> None:
    ran = gossipq("cluster", "rm", "bob", "--yes")
    assert (ran.code, town.words) == (5, [])
    assert "bob is still a voter of 3 shards" in ran.err
    assert "gossipq cluster drain bob --wait 10m" in ran.err
    for name, copies in ((name, town.nodes[f"tcp://{name}:7700"].copies) for name in NAMES):
        rows = [
            row(each.shard, "bob", each.role, each.term, 60_000) if each.copy == "bob.copy" else each
            for each in copies
        ]
        town.set(name, [each for each in rows if each.role != "leader" or each.copy != "bob.copy"])
    assert gossipq("cluster", "rm", "bob", "--yes").code == 0, "who is silent may go"


def test_rebalance_shows_a_plan_and_starts_nothing(town: Town, gossipq) -> None:
    assert gossipq("cluster", "rebalance").code == 2
    town.set("ada", [*shard_rows(0, "ada"), *shard_rows(1, "ada", 9), *shard_rows(2, "ada", 9)])
    rows = json.loads(gossipq("cluster", "rebalance", "--plan", "-o", "json").out)
    assert len(rows) == 2
    assert {row["leader"] for row in rows} == {"ada"}
    assert {row["leads_then"] for row in rows} == {"bob", "cat"}
    assert len(json.loads(gossipq("cluster", "rebalance", "--plan", "--all", "-o", "json").out)) == 3


def test_top_plans_by_what_every_node_says_also_where_they_encrypt(
    monkeypatch: pytest.MonkeyPatch, gossipq
) -> None:
    """Other nodes are reached as the command line reaches them: by the key of their doors."""
    town, key, told = Town(), b"d" * 40, SimpleQueue[Any]()
    members = [msgspec.structs.replace(member, encrypts=True) for member in MEMBERS]
    town.set("ada", shard_rows(0, "ada"), members=members, door=key)
    town.set("bob", [*shard_rows(1, "bob", 9), *shard_rows(2, "bob", 9)], members=members, door=key)

    def connect(choices: Choices) -> Asked:
        if choices.servers and choices.door != key:
            raise errors.Unreachable(f"no node answers at {choices.servers[0]}")
        return Asked(town, choices.servers)

    monkeypatch.setattr(ask, "connect", connect)
    asker = Asker(top._connector(Choices()), told.put)
    asker.ask(Try(Act("rebalance", Subject("node", ("ada",)))))
    answer = told.get(timeout=10.0).answer
    asker.stop()
    rows = json.loads(gossipq("cluster", "rebalance", "--plan", "-o", "json").out)
    moves = ", ".join(f"{row['shard']} to {row['leads_then']}" for row in rows)
    assert (answer, len(rows)) == (Done(f"1 of 3 shards will move: {moves}"), 1)


# --- events -------------------------------------------------------------------------------------------------


def test_events_are_shown_once_each(town: Town, gossipq, monkeypatch: pytest.MonkeyPatch) -> None:
    first = [
        GossipEvent(1_000, "join", "bob", "tcp://bob:7700"),
        GossipEvent(2_000, "degraded", "", "no other"),
        GossipEvent(3_000, "leave", "bob"),
        GossipEvent(4_000, "update", "bob", "endpoint tcp://bob:7700 -> tcp://bob:7800"),
        GossipEvent(32_503_680_000_000, "join", "cat", "tcp://cat:7700"),
    ]
    town.set("ada", [], events=first, gossip="no other")
    ran = gossipq("cluster", "events")
    assert ran.out.splitlines() == [
        "1970-01-01 00:00:01.000Z  bob  is there  tcp://bob:7700",
        "1970-01-01 00:00:02.000Z  gossip of the asked node is degraded  no other",
        "1970-01-01 00:00:03.000Z  bob  is gone",
        "1970-01-01 00:00:04.000Z  bob  changed its address or tags  endpoint tcp://bob:7700 -> "
        "tcp://bob:7800",
        "3000-01-01 00:00:00.000Z  cat  joined  tcp://cat:7700",
    ]
    town.set("ada", [], events=first[:2], gossip="no other")
    steps = iter(
        [lambda: town.nodes["tcp://ada:7700"].events.append(GossipEvent(3_000, "fail", "bob")), _interrupt]
    )
    monkeypatch.setattr("gossipq_cli.commands.cluster.time.sleep", lambda seconds: next(steps)())
    ran = gossipq("cluster", "events", "--follow", "-o", "jsonl")
    assert ran.code == 130
    assert [json.loads(line)["what"] for line in ran.out.splitlines()] == ["join", "degraded", "fail"]


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_a_standalone_node_has_no_gossip_and_says_so(town: Town, gossipq) -> None:
    town.set("ada", [], gossip="off")
    ran = gossipq("cluster", "events")
    assert (ran.code, ran.out) == (0, "")
    assert "ada runs with --mode standalone" in ran.err


# --- recover ------------------------------------------------------------------------------------------------


def test_recover_says_first_and_does_with_force(gossipq, tmp_path: Path) -> None:
    from gossipq_node.directory import DataDirectory

    directory = DataDirectory(tmp_path / "data")
    before = directory.found("shop", 1, 2)
    directory.close()
    said = gossipq("cluster", "recover", "--data", str(tmp_path / "data"))
    assert said.code == 1
    assert "Nothing was changed" in said.err
    assert "none: this copy had no copy: the shard begins empty. Shards 0, 1" in said.err
    assert (
        msgspec.json.decode((tmp_path / "data" / "manifest.json").read_bytes())["cluster_uuid"]
        == before.cluster_uuid
    )
    done = gossipq("cluster", "recover", "--data", str(tmp_path / "data"), "--force", "-o", "json")
    assert done.code == 0
    assert json.loads(done.out)["cluster"] != before.cluster_uuid
    assert gossipq("cluster", "recover", "--data", str(tmp_path / "nothing")).code == 1


# --- node, witness ------------------------------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, bool]]:
    noted: list[tuple[Any, bool]] = []

    def run(loaded: Any, witness: bool = False) -> int:
        noted.append((loaded, witness))
        return 0

    monkeypatch.setattr("gossipq_node.main.run", run)
    return noted


def test_flags_of_node_become_options(runs: list[tuple[Any, bool]], gossipq, tmp_path: Path) -> None:
    line = (
        "--join",
        "ada",
        "--join",
        "bob:7790",
        "--peer",
        "tcp://c:7700",
        "--gossip",
        "127.0.0.1:9",
        "--mode",
        "serf",
    )
    assert (
        gossipq(
            "node", *line, "--secret-file", "s", "--cluster", "shop", "--name", "n", "--workers", "2"
        ).code
        == 0
    )
    ((loaded, witness),) = runs
    cluster, node = loaded.config.cluster, loaded.config.node
    assert (cluster.join, cluster.name, node.peer, node.gossip) == (
        ("ada", "bob:7790"),
        "shop",
        ("tcp://c:7700",),
        "127.0.0.1:9",
    )
    assert (node.mode, node.secret_file, node.name, node.workers, witness) == ("serf", "s", "n", 2, False)
    assert loaded.origins["cluster.join"] == "flag --join"
    assert loaded.origins["node.secret_file"] == "flag --secret-file"
    assert not loaded.origins["node.insecure"].startswith("flag")


def test_witness_is_a_node_that_keeps_nothing(runs: list[tuple[Any, bool]], gossipq) -> None:
    assert gossipq("node", "--witness", "--join", "ada").code == 0
    ((loaded, witness),) = runs
    assert (loaded.config.cluster.join, witness) == (("ada",), True)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            ("--join", "tcp://ada:7700"),
            "--join: cluster.join = 'tcp://ada:7700' is not where an agent gossips",
        ),
        (("--peer", "ada"), "--peer: node.peer = 'ada' is not an address"),
        (("--gossip", "0.0.0.0:7790"), "--gossip: node.gossip = '0.0.0.0:7790' is open to other machines"),
        (
            ("--bind", "tcp://10.0.0.1:7700"),
            "--bind: node.bind = 'tcp://10.0.0.1:7700' is open to other machines",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_78(gossipq, line: tuple[str, ...], says: str) -> None:
    ran = gossipq("node", *line)
    assert ran.code == 78
    assert says in ran.err


def test_a_secret_opens_an_address_to_others(runs: list[tuple[Any, bool]], gossipq) -> None:
    assert gossipq("node", "--bind", "tcp://10.0.0.1:7700", "--secret-file", "s").code == 0
    assert Choices().servers == []


def test_other_nodes_have_as_long_to_answer_as_who_asks_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far ones that encrypt need several round trips: with two seconds they were called away."""
    given = dict[str, float]()

    def status(choices: Choices) -> StatusReply:
        name = "ada" if not choices.servers else choices.servers[0].removeprefix("tcp://").partition(":")[0]
        given[name] = choices.timeout_s
        return reply(name, [])

    monkeypatch.setattr(ask, "status", status)
    ask.look(Choices(timeout_s=7.0))
    assert given == dict.fromkeys(NAMES, 7.0)
