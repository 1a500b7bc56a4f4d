"""How options and a manifest become what each process is told."""

import errno
import logging
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest import HOME
from gossipq import limits
from gossipq.config import load
from gossipq.endpoints import Invitation
from gossipq.errors import ConfigError
from gossipq.values import Member
from gossipq.wire import proofs
from gossipq_node import composition, enrolment, machine, main, trust
from gossipq_node.actors.discovery import pair_without_witness
from gossipq_node.adapters.curve import public_of
from gossipq_node.composition import Composition, insisted, mode_of
from gossipq_node.directory import DataDirectory
from gossipq_node.files import keep_roster


def house(path: Path, **flags: object) -> Composition:
    given = {f"node.{name}": value for name, value in flags.items()} | {
        "node.data": str(path),
        "cluster.shards": 8,
    }
    config = load("", {}, given).config
    with closing(DataDirectory(path)) as directory:
        return Composition(
            config, directory, directory.found(config.cluster.name, 2, config.cluster.shards), True
        )


def test_every_shard_has_one_worker(tmp_path: Path) -> None:
    composition = house(tmp_path)
    workers = [composition.worker(number, 0) for number in range(2)]
    assert sorted(shard for worker in workers for shard in worker.owned) == list(range(8))
    for worker in workers:
        assert worker.clients_bind == worker.endpoint
        assert worker.siblings[worker.worker] == worker.peers_bind
    assert len({worker.directory for worker in workers}) == 2
    assert composition.frontdoor().forwards == tuple(worker.clients_bind for worker in workers)


def test_the_ports_are_those_of_the_protocol(tmp_path: Path) -> None:
    composition = house(tmp_path)
    worker, door = composition.worker(1, 3), composition.frontdoor()
    assert (worker.clients_bind, worker.peers_bind) == ("tcp://127.0.0.1:7702", "tcp://127.0.0.1:7742")
    assert (door.clients_bind, door.peers_bind, worker.frontdoor) == (
        "tcp://127.0.0.1:7700",
        "tcp://127.0.0.1:7740",
        door.peers_bind,
    )
    assert worker.restarts == 3


def test_others_are_told_the_advertised_host_and_processes_use_loopback(tmp_path: Path) -> None:
    composition = house(tmp_path, bind="tcp://0.0.0.0:7700", advertise="broker.example", insecure=True)
    worker, door = composition.worker(1, 0), composition.frontdoor()
    assert (worker.clients_bind, worker.endpoint) == ("tcp://0.0.0.0:7702", "tcp://broker.example:7702")
    assert (worker.frontdoor, door.forwards[1], worker.siblings[1], worker.member.endpoint) == (
        "tcp://127.0.0.1:7740",
        "tcp://127.0.0.1:7702",
        "tcp://127.0.0.1:7742",
        "tcp://broker.example:7700",
    )
    assert [warning for warning in door.warnings if "--insecure" in warning]


def test_a_process_that_starts_again_knows_the_newest_roster(tmp_path: Path) -> None:
    composition = house(tmp_path)
    assert (composition.worker(0, 0).version, composition.worker(0, 0).members) == (0, ())
    members = [composition.member, Member("b", "bob", "tcp://10.0.0.2:7700", 2)]
    keep_roster(composition.directory.roster_file, 7, members)
    assert (composition.worker(0, 1).version, composition.frontdoor().members) == (7, tuple(members))
    keep_roster(composition.directory.roster_file, 8, [*members, Member("c", "cat", "nonsense", 1)])
    again = composition.frontdoor()
    assert (again.version, again.members) == (0, tuple(members)), (
        "a row that cannot be is left out, and the others are asked"
    )
    composition.directory.roster_file.write_text("{")
    assert composition.worker(0, 2).members == (), "a hint that cannot be read is none"


def test_a_node_that_starts_again_does_not_wait_for_its_own_gossip(tmp_path: Path) -> None:
    composition = house(tmp_path)
    composition.mode = "serf"
    keep_roster(composition.directory.roster_file, 1, [composition.member])
    alone = composition.frontdoor().gossip
    assert alone is not None
    assert alone.join == (), "one that has nobody to find raises no alarm that it finds nobody"
    bob = Member("b", "bob", "tcp://10.0.0.2:7700", 2)
    keep_roster(composition.directory.roster_file, 2, [composition.member, bob])
    paired = composition.frontdoor().gossip
    assert paired is not None
    assert (paired.join, paired.peers) == (("10.0.0.2:7790",), ("tcp://10.0.0.2:7700",))


def test_the_options_of_the_cluster_are_said_and_those_of_the_node_are_not(tmp_path: Path) -> None:
    said = house(tmp_path).worker(0, 0).options
    assert (said["cluster.copies"], said["cluster.shards"], said["cluster.name"]) == ("3", "8", '"gossipq"')
    assert "cluster.topic.retention_ms" in said
    assert not {"cluster.join", "cluster.expect", "node.bind"} & said.keys()


def test_a_newcomer_insists_on_what_it_was_told_and_takes_over_the_name() -> None:
    plain = load("", {}, {"node.bind": "tcp://127.0.0.1:7800"})
    assert insisted(plain.config, plain.origins, {}) == {}
    told = load("", {}, {"cluster.name": "shop", "cluster.copies": 5})
    assert insisted(told.config, told.origins, {}) == {"cluster.name": '"shop"', "cluster.copies": "5"}


def test_a_file_with_all_defaults_insists_on_what_cannot_be_changed_alone() -> None:
    """The file in a clone of the repository: a node that starts there contradicts no option."""
    told = load(str(HOME / "cluster.toml"), {}, {})
    assert insisted(told.config, told.origins, {}).keys() == {"cluster.name", "cluster.shards"}


def test_what_an_operator_changed_since_the_file_was_agreed_to_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options changed in the file are required of the cluster; a cluster of one node
    takes them from the file.
    """
    directory, log = DataDirectory(tmp_path / "data"), logging.getLogger("node")
    directory.found("gossipq", 1, 8)
    others, known = [Member("b", "bob", "tcp://10.0.0.2:7700", 2)], dict[str, str]()
    monkeypatch.setattr(main, "known_options", lambda directory, manifest: known)
    monkeypatch.setattr(main, "known_members", lambda directory, manifest: others)

    def start(ms: int) -> tuple[int, dict[str, str]]:
        manifest = directory.read()
        assert manifest is not None
        loaded, asked = main.agreed(load("", {}, {"cluster.replace_ms": ms}), directory, manifest, log)
        return loaded.config.cluster.replace_ms, asked

    key = "cluster.replace_ms"
    assert start(600_000) == (600_000, {key: "600000"}), "the founder's"
    assert start(600_000) == (600_000, {}), "the cluster has agreed"
    known[key] = "700000"
    assert start(600_000) == (700_000, {})
    assert "replace_ms = 600000, and 700000 in this cluster" in caplog.text
    assert start(800_000) == (800_000, {key: "800000"}), "the cluster will refuse it"
    assert start(600_000) == (700_000, {})
    assert start(700_000) == (700_000, {key: "700000"})
    known[key] = "900000"
    assert start(700_000) == (900_000, {}), "it had agreed to that, too"
    others.clear()
    assert start(600_000) == (600_000, {key: "600000"})
    assert start(600_000) == (900_000, {}), "changed at the node by `cluster config set`"
    directory.close()


def test_what_an_earlier_version_let_a_cluster_say_ends_no_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bounds were others. Only a running node takes `cluster config set`."""
    said = {
        "cluster.topic.dedup_ms": "1209600000",
        "cluster.replace_ms": "9",
        "cluster.group.backoff_ms": f"[7, {limits.DELAY_MS_MAX + 1}]",
    }
    monkeypatch.setattr(main, "known_options", lambda directory, manifest: said)
    with closing(DataDirectory(tmp_path / "data")) as directory:
        manifest = directory.found("gossipq", 1, 8)
        cluster = main.agreed(load("", {}, {}), directory, manifest, logging.getLogger("node"))[
            0
        ].config.cluster
        assert (cluster.topic.dedup_ms, cluster.replace_ms) == (limits.DEDUP_HARD_MS, 10_000)
        assert cluster.group.backoff_ms == (7, limits.DELAY_MS_MAX)
        assert "dedup_ms = 1209600000 in this cluster is beyond what this version allows" in caplog.text
        assert "gossipq cluster config set cluster.topic.dedup_ms=604800000" in caplog.text
        said["cluster.replace_ms"] = "{"
        with pytest.raises(ConfigError, match=r"cluster\.replace_ms = \{: "):
            main.agreed(load("", {}, {}), directory, manifest, logging.getLogger("node"))


def test_the_name_of_an_interface_is_no_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ZeroMQ binds it, and no process of the node reaches another one there."""
    flags = {"node.bind": "tcp://lo:7700", "node.insecure": True, "node.data": str(tmp_path / "data")}
    assert main.run(load("", {}, flags)) == main.EXIT_FAILED, "the name may be known later"
    assert "tcp://lo:7700: no host of the name lo is known" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_what_nobody_takes_on_stdout_ends_no_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        main.say(["ready"], logging.getLogger("node"))
        full.flush()
    assert "what is said on stdout is lost: No space left on device" in caplog.text


def test_a_frontdoor_starts_again_without_the_file_of_its_token(tmp_path: Path) -> None:
    """The file of the secret may be gone, too; the client port is more important than metrics."""
    token = tmp_path / "token"
    token.write_text("correct horse battery staple\n")
    composition = house(tmp_path / "a", admin_token_file=str(token))
    token.unlink()
    assert composition.frontdoor(1).admin_token == b"correct horse battery staple"


def test_a_secret_that_others_may_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("correct horse battery staple\n")
    secret.chmod(0o644)
    mine = house(tmp_path / "a", secret_file=str(secret))
    assert mine.warnings == (f"other users of this machine may read the secret: chmod 600 {secret}",)
    secret.chmod(0o440)
    assert trust.exposed(str(secret))
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)  # it is root's, and the group is the node's
        assert not trust.exposed(str(secret))
    secret.chmod(0o600)
    again = house(tmp_path / "b", secret_file=str(secret))
    assert again.warnings == ()
    secret.unlink()
    assert again.frontdoor(1).warnings == (), "the secret may be gone when the frontdoor starts again"


def test_the_token_is_of_the_secret_and_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("correct horse battery staple\n")
    mine = house(tmp_path / "a", secret_file=str(tmp_path / "secret"))
    assert len(mine.token) == 32
    assert (
        mine.token == proofs.token(b"correct horse battery staple", mine.cluster) == mine.worker(0, 0).token
    )
    assert mine.token != proofs.token(b"correct horse battery staple", b"another cluster")
    assert mine.token != proofs.token(b"correct horse battery stapler", mine.cluster)
    network: dict[str, Any] = {"bind": "tcp://0.0.0.0:7700", "advertise": "b", "insecure": True}
    assert house(tmp_path / "b", **network).token == b""


def test_nodes_of_a_user_on_one_host_share_a_secret_that_nobody_else_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    first, second = house(tmp_path / "a").secret, house(tmp_path / "b").secret
    assert first == second == trust.known("")
    for path in (tmp_path / "a" / "secret", tmp_path / "state" / "gossipq" / "secret"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    trust.file_of_this_user().chmod(0o644)  # others may know it
    third = house(tmp_path / "c").secret
    assert third not in (b"", first)
    assert house(tmp_path / "c").secret == third, "its directory has it"


def test_a_node_whose_disk_is_full_starts_with_the_keys_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, raw: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    first = using, following = trust.node_keys(tmp_path, None)
    row = Member("c", "ada", "tcp://h:1", 1, key=public_of(using), next_key=public_of(following))
    with monkeypatch.context() as patch:
        patch.setattr(trust, "replace_private", full)
        assert trust.node_keys(tmp_path, row) == first
        assert "keeps its keys until its next start" in caplog.text
        with pytest.raises(ConfigError, match="cannot be written"):
            trust.node_keys(tmp_path / "new", None)
    assert trust.node_keys(tmp_path, row)[0] == following


def test_who_is_invited_on_this_machine_waits_for_the_secret_and_encrypts_towards_who_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "a").mkdir()
    node = load("", {}, {"node.bind": "tcp://127.0.0.1:7800"}).config.node
    assert trust.secret_of(node, tmp_path / "a", invited=True) == b""
    assert trust.secret_of(node, tmp_path / "a"), "made by a start without an invitation"
    assert trust.secret_of(node, tmp_path / "a", invited=True) == b"", "and of no use for one with it"
    assert house(tmp_path / "b").member.key == b""
    with closing(DataDirectory(tmp_path / "b")) as directory:
        keep_roster(directory.roster_file, 1, [Member("c.c", "c", "tcp://127.0.0.1:7900", 1, encrypts=True)])
    member = house(tmp_path / "b").member
    assert (member.encrypts, len(member.key)) == (False, 32)
    command = Invitation("127.0.0.1:7700", b"d" * 32, b"t" * 32).command
    assert command.endswith(" --encrypt always")
    assert "encrypt" not in Invitation("ada:7700", b"d" * 32, b"t" * 32).command


@pytest.mark.parametrize(
    ("text", "says"), [(None, "cannot be read: No such file"), (b" short \n", "a secret of 5 bytes")]
)
def test_a_secret_that_is_none_is_refused(tmp_path: Path, text: bytes | None, says: str) -> None:
    if text is not None:
        (tmp_path / "secret").write_bytes(text)
    with pytest.raises(ConfigError) as refused:
        house(tmp_path / "a", secret_file=str(tmp_path / "secret"))
    assert says in refused.value.message
    assert "head -c 32 /dev/urandom" in refused.value.hint


def test_a_secret_without_end_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/dev/zero.* holds a secret of \d+ bytes"):
        house(tmp_path / "a", secret_file="/dev/zero")


@pytest.mark.parametrize(
    ("flags", "serf", "mode"),
    [
        ({}, False, "standalone"),
        ({}, True, "serf"),
        ({"node.peer": ["tcp://127.0.0.1:7800"]}, False, "static"),
        ({"node.peer": ["tcp://127.0.0.1:7800"]}, True, "static"),
        ({"node.peer": ["tcp://127.0.0.1:7800"], "cluster.join": ["ada"]}, True, "serf"),
        ({"cluster.join": ["ada"]}, True, "serf"),
        ({"node.mode": "standalone"}, True, "standalone"),
        ({"node.mode": "static"}, True, "static"),
        ({"node.bind": "ipc://x"}, True, "standalone"),
    ],
)
def test_how_a_node_finds_others(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, object], serf: bool, mode: str
) -> None:
    monkeypatch.setattr(composition, "serf_installed", lambda: serf)
    assert mode_of(load("", {}, flags).config, False, logging.getLogger("node")) == mode


@pytest.mark.parametrize(
    ("flags", "says", "hint"),
    [
        (
            {"cluster.join": ["ada"]},
            "--join was given, and the `serf` program is not installed",
            "apt-get install serf",
        ),
        ({"node.mode": "serf"}, "node.mode is 'serf', and the `serf` program", "apt-get install serf"),
        ({"cluster.expect": 3}, "nothing says where the others are", "apt-get install serf"),
        ({"cluster.join": ["ada"], "node.mode": "static"}, "--join needs Serf", "--peer"),
        (
            {"cluster.expect": 3, "node.mode": "standalone"},
            "a standalone node finds no others",
            "--mode standalone",
        ),
        (
            {"node.peer": ["tcp://a:7700"], "node.bind": "ipc://x"},
            "is for this machine alone",
            "tcp://HOST:PORT",
        ),
    ],
)
def test_what_a_node_cannot_do_it_says(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, object], says: str, hint: str
) -> None:
    monkeypatch.setattr(composition, "serf_installed", lambda: False)
    with pytest.raises(ConfigError) as refused:
        mode_of(load("", {}, flags).config, False, logging.getLogger("node"))
    assert says in refused.value.message
    assert hint in refused.value.hint


def test_a_member_starts_without_serf_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(composition, "serf_installed", lambda: False)
    assert (
        mode_of(load("", {}, {"cluster.join": ["ada"]}).config, True, logging.getLogger("node")) == "static"
    )
    assert "apt-get install serf" in caplog.text


def test_a_directory_that_has_begun_to_join_does_not_found(tmp_path: Path) -> None:
    loaded, log = load("", {}, {"node.data": str(tmp_path)}), logging.getLogger("node")
    with closing(DataDirectory(tmp_path)) as directory:
        begun = msgspec.structs.replace(directory.prepare("shop", 1, 0), pledge="ab" * 16)
        directory.write(begun)
        with pytest.raises(ConfigError, match="has begun to join a cluster"):
            main.belong(loaded, directory, "static", False, log)
        directory.write(msgspec.structs.replace(begun, pledge=""))
        founded = main.belong(loaded, directory, "static", False, log)
        assert founded is not None
        assert (founded.voter, founded.shards, len(founded.cluster_uuid)) == (begun.voter, 32, 32)


def test_an_invitation_is_not_for_a_node_that_founded_a_cluster(tmp_path: Path) -> None:
    """It would run alone, and its user would take it for a member of the other cluster."""
    invited, log = Invitation("127.0.0.1:7700", b"d" * 32, b"t" * 32).text, logging.getLogger("node")
    loaded = load("", {}, {"node.data": str(tmp_path), "cluster.join": [invited]})
    with closing(DataDirectory(tmp_path)) as directory:
        founded = directory.found("shop", 1, 32)
        with pytest.raises(ConfigError, match="an invitation is for a node that has none") as refused:
            main.belong(loaded, directory, "static", False, log)
        assert "give another --data" in refused.value.hint
        directory.write(msgspec.structs.replace(founded, former=["ab" * 16]))
        assert main.belong(loaded, directory, "static", False, log), "and who has recovered, too"
        directory.write(msgspec.structs.replace(founded, joined=True))
        again = main.belong(loaded, directory, "static", False, log)
        assert again is not None
        assert again.joined, "who was let in by it starts again by what was typed"


def test_a_witness_needs_a_cluster_and_a_directory_of_its_own(tmp_path: Path) -> None:
    log, alone = logging.getLogger("node"), load("", {}, {"node.data": str(tmp_path)})
    with closing(DataDirectory(tmp_path)) as directory:
        with pytest.raises(ConfigError, match="a witness belongs to a cluster") as refused:
            main.belong(alone, directory, "static", True, log)
        assert "gossipq node --witness --join HOST" in refused.value.hint
        assert main.belong(alone, directory, "static", False, log) is not None
        with pytest.raises(ConfigError, match="is that of a full node"):
            main.belong(alone, directory, "static", True, log)


def test_a_witness_does_not_count_among_those_that_found(tmp_path: Path) -> None:
    loaded = load("", {}, {"cluster.expect": 3, "node.peer": ["tcp://a:7700"]})
    with closing(DataDirectory(tmp_path / "a")) as full, closing(DataDirectory(tmp_path / "b")) as witness:
        assert enrolment.newcoming(loaded, full.prepare("shop", 1, 0), b"", "static").expect == 3
        asks = enrolment.newcoming(loaded, witness.prepare("shop", 1, 0, witness=True), b"", "static")
        assert (asks.expect, asks.member.witness) == (0, True)


def test_a_pair_is_told_that_it_will_not_take_over() -> None:
    full = [Member(name, name, f"tcp://{name}:7700", 1) for name in "abc"]
    witness = Member("w", "w", "tcp://w:7700", 1, witness=True)
    assert pair_without_witness(full[:2])
    assert not any(map(pair_without_witness, (full[:1], full, [*full[:2], witness], [full[0], witness])))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"node.workers": 3}, "flag --workers: node.workers = 3, but"),
        ({"cluster.shards": 16}, "cluster.shards = 16, but"),
        ({"cluster.name": "other"}, "flag --cluster: cluster.name = 'other', but"),
    ],
)
def test_what_was_founded_otherwise_is_refused(tmp_path: Path, flags: dict[str, object], says: str) -> None:
    manifest = house(tmp_path).manifest
    with pytest.raises(ConfigError) as refused:
        main.check_options(
            load("", {}, {"node.data": str(tmp_path), **flags}), manifest, logging.getLogger("node")
        )
    assert says in refused.value.message


def test_a_larger_machine_is_told_of_and_used_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = house(tmp_path).manifest
    monkeypatch.setattr(machine, "worker_count", lambda: 16)
    with caplog.at_level(logging.INFO):
        main.check_options(load("", {}, {}), manifest, logging.getLogger("node"))
    assert "this machine has 16 cores: gossipq store reshard" in caplog.text
    assert "--workers 8" in caplog.text
