"""The contract of Membership: one suite over the list and over Serf, then what only Serf can do."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest

from gossipq.values import GossipEvent, Member
from gossipq_node.adapters import serf_agent, serf_membership
from gossipq_node.adapters.serf_agent import CONFIG, SNAPSHOT, Agent, agent_name
from gossipq_node.adapters.serf_membership import SerfMembership, _happened
from gossipq_node.adapters.static_membership import StaticMembership
from gossipq_node.ports import Membership, SeenNode
from gossipq_node.settings import GossipSettings
from waiting import until

PATIENCE_S = 30.0
HOME = Path(__file__).parents[2]
needs_serf = pytest.mark.skipif(
    shutil.which("serf") is None, reason="the serf program is not installed: apt-get install serf"
)


def free_port() -> int:
    """For TCP and UDP."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            with suppress(OSError):
                udp.bind(tcp.getsockname())
                return int(tcp.getsockname()[1])


class Town:
    """Nodes of a kind on this machine; `nodes` have told each other of themselves."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind, self._path = kind, path
        self.nodes: list[Membership] = []
        self.settings: list[GossipSettings] = []

    def build(self, **other: Any) -> Membership:
        number = len(self.nodes)
        member = Member(
            f"{number:032}.{number:032}", f"näme {number}", f"tcp://127.0.0.1:{25_000 + 100 * number}", 1
        )
        seeds = tuple(settings.bind for settings in self.settings)
        known = tuple(f"tcp://127.0.0.1:{25_000 + 100 * number}" for number in range(3))
        given: dict[str, Any] = {
            "member": member,
            "bind": f"127.0.0.1:{free_port()}",
            "join": seeds,
            "peers": known,
        }
        given |= {"mode": self.kind, "cluster": "ab" * 16, "directory": str(self._path / str(number))}
        self.settings.append(GossipSettings(**given | other))
        kinds: dict[str, Callable[[GossipSettings], Membership]] = {
            "static": StaticMembership,
            "serf": SerfMembership,
        }
        self.nodes.append(kinds[self.kind](self.settings[-1]))
        return self.nodes[-1]

    def close(self) -> None:
        for node in self.nodes:
            if isinstance(node, SerfMembership):
                node.close(polite=False)
            node.close()


@pytest.fixture(params=["static", pytest.param("serf", marks=needs_serf)])
def town(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Town]:
    town = Town(request.param, tmp_path)
    yield town
    town.close()


@pytest.fixture
def serfs(tmp_path: Path) -> Iterator[Town]:
    town = Town("serf", tmp_path)
    yield town
    town.close()


# --- the contract -------------------------------------------------------------------------------------------


def test_everybody_finds_the_others_and_not_itself(town: Town) -> None:
    for _ in range(3):
        town.build()
    for number, node in enumerate(town.nodes):
        others = [f"tcp://127.0.0.1:{25_000 + 100 * other}" for other in range(3) if other != number]
        until(lambda node=node, others=others: sorted(found.endpoint for found in node.found()) == others)  # type: ignore[misc]
        assert all(found.alive for found in node.found())
        until(lambda node=node: node.state == "")  # type: ignore[misc]
        until(lambda node=node: node.queued == 0)  # type: ignore[misc]


def test_what_is_found_is_the_caller_s_own(town: Town) -> None:
    for _ in range(2):
        node = town.build()
    until(node.found)
    node.found().clear()
    assert node.found()


def test_no_call_blocks_and_closing_twice_is_fine(town: Town) -> None:
    node = town.build(join=("127.0.0.1:1",))
    assert isinstance(node.found(), list)
    assert isinstance(node.events(), list)
    node.tell({"load": "1"})
    node.close()
    node.close()


# --- Serf ---------------------------------------------------------------------------------------------------


def happened(node: Membership, seen: list[GossipEvent]) -> list[tuple[str, str]]:
    seen += node.events()
    return [(event.what, event.node) for event in seen]


@needs_serf
def test_tags_say_who_a_node_is_and_survive_the_agent(serfs: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serf_membership, "TAGS_AGAIN_S", 1.0)
    first, second = (
        serfs.build(),
        serfs.build(member=Member("c" * 65, "w" * 200, "tcp://127.0.0.1:25100", 1, witness=True)),
    )
    assert isinstance(second, SerfMembership)
    second.tell({"load": "4711"})
    until(lambda: [found.load for found in first.found()] == [4711])
    row = SeenNode("tcp://127.0.0.1:25100", "w" * 80, "c" * 65, "abababab", "witness", 4711, True)
    assert first.found() == [row]
    old = second.pid
    os.kill(old, signal.SIGKILL)
    until(lambda: second.pid not in (0, old) and second.state == "")
    until(lambda: first.found() == [row])
    assert ("degraded", "") in happened(second, [])


@needs_serf
def test_a_polite_end_is_seen_as_leaving_and_a_kill_as_failing(serfs: Town) -> None:
    first, second, third = serfs.build(), serfs.build(), serfs.build()
    seen: list[GossipEvent] = []
    until(lambda: len(first.found()) == 2)
    second.close()
    until(lambda: ("leave", "näme 1") in happened(first, seen))
    assert isinstance(third, SerfMembership)
    third.close(polite=False)
    until(lambda: ("fail", "näme 2") in happened(first, seen))
    assert not any(found.alive for found in first.found())
    assert ("join", "näme 1") in happened(first, seen)
    until(lambda: first.state == "no other Serf agent answers")


@needs_serf
def test_the_agent_dies_with_the_process_that_started_it(serfs: Town, tmp_path: Path) -> None:
    settings = json.dumps({"bind": f"127.0.0.1:{free_port()}", "directory": str(tmp_path / "child")})
    code = (
        "import json, sys, time\n"
        "from gossipq.values import Member\n"
        "from gossipq_node.adapters.serf_membership import SerfMembership\n"
        "from gossipq_node.settings import GossipSettings\n"
        "given = json.loads(sys.argv[1])\n"
        "member = Member('x.y', 'child', 'tcp://127.0.0.1:7700', 1)\n"
        "serf = SerfMembership(GossipSettings(mode='serf', member=member, **given))\n"
        "while serf.state: time.sleep(0.05)\n"
        "print(serf.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(HOME), str(HOME / "nodes")))}
    with subprocess.Popen(
        [sys.executable, "-c", code, settings], stdout=subprocess.PIPE, env=env, text=True
    ) as child:
        assert child.stdout is not None
        agent = int(child.stdout.readline())
        assert Path(f"/proc/{agent}/comm").read_text().strip() == "serf"
        child.kill()
    until(lambda: not Path(f"/proc/{agent}").exists())


@needs_serf
def test_an_agent_that_quits_is_started_again_with_growing_pauses(serfs: Town) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        node = serfs.build(bind=f"127.0.0.1:{taken.getsockname()[1]}")
        until(lambda: "address already in use" in node.state)
        assert isinstance(node, SerfMembership)
        until(lambda: node._pause_s >= 1.0)
    until(lambda: node.state == "")


@needs_serf
def test_an_agent_that_hangs_is_a_trouble_until_it_goes_on(
    serfs: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serf_membership, "CALL_S", 0.5)
    monkeypatch.setattr(serf_membership, "START_S", 0.0)
    first, second = serfs.build(), serfs.build()
    until(lambda: len(first.found()) == len(second.found()) == 1)
    assert isinstance(second, SerfMembership)
    os.kill(pid := second.pid, signal.SIGSTOP)
    try:
        until(lambda: "does not answer" in second.state)
        assert len(second.found()) == 1, "what was known last"
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: second.state == "")
    assert second.pid == pid


@needs_serf
def test_an_agent_that_hangs_for_long_is_replaced_and_it_is_told_why(
    serfs: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serf_membership, "CALL_S", 0.3)
    monkeypatch.setattr(serf_membership, "START_S", 0.0)
    monkeypatch.setattr(serf_membership, "HANGS_S", 2.0)
    first, second = serfs.build(), serfs.build()
    until(lambda: len(first.found()) == len(second.found()) == 1)
    assert isinstance(second, SerfMembership)
    second.events()
    os.kill(pid := second.pid, signal.SIGSTOP)
    until(lambda: second.pid not in (0, pid) and second.state == "")
    assert not Path(f"/proc/{pid}").exists()
    told = [event.detail for event in second.events() if event.what == "degraded"]
    assert "the Serf agent ended: it did not answer for 2 s; it starts again" in told


@needs_serf
@pytest.mark.parametrize("hung_s", [0.0, 1.5, 4.0])
def test_an_agent_that_hangs_holds_up_no_end(
    serfs: Town, hung_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serf_membership, "END_S", 1.0)
    first, second = serfs.build(), serfs.build()
    until(lambda: len(first.found()) == len(second.found()) == 1)
    assert isinstance(second, SerfMembership)
    os.kill(pid := second.pid, signal.SIGSTOP)
    time.sleep(hung_s)
    began = time.monotonic()
    second.close()
    assert time.monotonic() - began < 3.5, "a call and a farewell without an answer take 3 s each"
    assert not Path(f"/proc/{pid}").exists()


def test_the_agent_s_log_is_cut_and_then_goes_on(tmp_path: Path) -> None:
    program = tmp_path / "chatty"
    more = serf_agent.LOG_BYTES_MAX + 1
    program.write_text(
        f"#!/bin/sh\nhead -c {more} /dev/zero | tr '\\0' x\necho\nread wait < {tmp_path}/go\necho error: "
        "tired\n"
    )
    program.chmod(0o755)
    os.mkfifo(tmp_path / "go")
    member = Member("c.1", "n", "tcp://127.0.0.1:1", 1)
    place = f"127.0.0.1:{free_port()}"
    agent = Agent(
        GossipSettings(mode="serf", bind=place, member=member, directory=str(tmp_path / "gossip")),
        str(program),
    )
    agent.start({})
    log = tmp_path / "gossip" / serf_agent.LOG
    try:
        until(lambda: log.stat().st_size > more)
        assert agent.exit_reason() is None
        assert log.stat().st_size == 0
        (tmp_path / "go").write_text("\n")
        until(lambda: agent.exit_reason() is not None)
        assert agent.exit_reason() == "error: tired"
        assert log.read_bytes() == b"error: tired\n"
    finally:
        agent.kill()


@needs_serf
def test_a_snapshot_that_is_garbage_does_no_harm(serfs: Town, tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / SNAPSHOT).write_bytes(os.urandom(500) + b"\nalive: garbage\nxyz\n")
    first, second = serfs.build(), serfs.build()
    until(lambda: len(first.found()) == len(second.found()) == 1)


@needs_serf
def test_a_second_agent_of_the_same_name_does_not_end_the_first(serfs: Town, tmp_path: Path) -> None:
    first, second = serfs.build(), serfs.build()
    until(lambda: len(first.found()) == 1)
    assert isinstance(first, SerfMembership)
    pid = first.pid
    name, place = agent_name(serfs.settings[0], "127.0.0.1"), f"127.0.0.1:{free_port()}"
    with open(tmp_path / "log", "wb") as log:
        command = ["serf", "agent", f"-node={name}", f"-bind={place}", f"-rpc-addr=127.0.0.1:{free_port()}"]
        rival = subprocess.Popen([*command, f"-retry-join={serfs.settings[1].bind}"], stdout=log, stderr=log)
    try:
        rival.wait(PATIENCE_S)
    finally:
        rival.kill()
        rival.wait()
    assert first.pid == pid
    until(lambda: (first.state, second.state) == ("", ""))


@needs_serf
def test_a_node_that_comes_back_under_its_name_at_another_address_is_found_soon(
    serfs: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serf refuses an agent under a known name at another address while it remembers the old one."""
    addresses = {"ada": "127.0.0.2"}
    monkeypatch.setattr(serf_agent, "_address", lambda host: addresses.get(host, host))
    other, first = serfs.build(), serfs.build(bind=f"ada:{free_port()}")
    until(lambda: [found.alive for found in other.found()] == [True])
    assert isinstance(first, SerfMembership)
    first.close(polite=False)
    addresses["ada"] = "127.0.0.3"
    back = SerfMembership(serfs.settings[1])
    serfs.nodes.append(back)
    # its former agent is shown as alive until Serf misses it
    until(
        lambda: [found.endpoint for found in back.found()] == [serfs.settings[0].member.endpoint], PATIENCE_S
    )
    until(lambda: other._places[serfs.settings[1].member.copy].startswith("127.0.0.3:"), PATIENCE_S)  # type: ignore[attr-defined]
    assert [found.alive for found in other.found()] == [True]
    assert not any(event.what == "leave" for event in other.events())


@needs_serf
def test_who_has_another_secret_is_not_found(serfs: Town) -> None:
    key, other = (
        "YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=",
        "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJiYmI=",
    )
    first, second = serfs.build(keys=(key,)), serfs.build(keys=(key,))
    strange, plain = serfs.build(keys=(other,)), serfs.build()
    until(lambda: len(first.found()) == 1)
    until(lambda: "another secret, or none" in strange.state and "another secret, or none" in plain.state)
    until(lambda: [len(node.found()) for node in (first, second)] == [1, 1])
    assert strange.found() == plain.found() == []


@needs_serf
def test_the_keys_are_for_the_owner_s_eyes_and_the_agent_is_its_own(serfs: Town, tmp_path: Path) -> None:
    place = tmp_path / "0" / CONFIG
    place.parent.mkdir()
    place.touch(0o644)
    node = serfs.build()
    until(lambda: node.state == "")
    assert place.stat().st_mode & 0o777 == 0o600
    config = json.loads(place.read_text())
    assert config["disable_name_resolution"] is True
    assert config["retry_interval"] == "1s"
    assert config["rpc_addr"].startswith("127.0.0.1:")
    assert len(config["rpc_auth"]) == 32
    with pytest.raises(serf_membership.AgentError, match="auth"):
        serf_membership.Calls(int(config["rpc_addr"].rpartition(":")[2]), "guessed")


@needs_serf
def test_tags_change_seldom(serfs: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, str]] = []
    real = serf_membership.Calls.tags
    monkeypatch.setattr(
        serf_membership.Calls, "tags", lambda calls, tags: (said.append(tags), real(calls, tags))[1]
    )
    monkeypatch.setattr(serf_membership, "POLL_S", 0.01)
    node = serfs.build()
    until(lambda: node.state == "")
    start = time.monotonic()
    number = 0
    while time.monotonic() < start + 2.0:
        node.tell({"load": str(number)})
        number += 1
        time.sleep(0.01)
    assert len(said) <= 1


def test_a_host_name_becomes_an_address_and_the_own_one_is_not_joined(tmp_path: Path) -> None:
    settings = GossipSettings(
        mode="serf",
        join=("localhost:7790", "127.0.0.1:7790", "127.0.0.1:7791"),
        bind="localhost:7790",
        advertise="127.0.0.1",
        member=Member("x.y", "ada", "tcp://127.0.0.1:7700", 1),
        directory=str(tmp_path),
    )
    config = Agent(settings)._configuration({}, ["127.0.0.1:7792", "127.0.0.1:7790"])
    assert config["bind"] in ("127.0.0.1:7790", "[::1]:7790")
    assert config["retry_join"] == ["127.0.0.1:7791", "127.0.0.1:7792"]


def test_a_missing_program_is_a_degraded_membership(tmp_path: Path) -> None:
    member = Member("x.y", "ada", "tcp://127.0.0.1:7700", 1)
    settings = GossipSettings(
        mode="serf", bind=f"127.0.0.1:{free_port()}", member=member, directory=str(tmp_path)
    )
    node = SerfMembership(settings, program="no-such-program")
    try:
        until(lambda: "ended" in node.state)
    finally:
        node.close()


# --- the library --------------------------------------------------------------------------------------------


class Oracle:
    """An agent that answers what it is told to."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._answers = answers
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection:
            for answer in self._answers:
                if connection.recv(4_096):
                    connection.sendall(b"".join(msgpack.packb(part) for part in answer["parts"]))
            connection.recv(4_096)

    def close(self) -> None:
        self._socket.close()
        self._thread.join(5)


WELL = {"parts": [{"Seq": 0, "Error": ""}]}, {"parts": [{"Seq": 1, "Error": ""}]}


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (({"parts": [{"Seq": 0, "Error": "no"}]},), "handshake: no"),
        (
            (WELL[0], {"parts": [{"Seq": 1, "Error": "Invalid authentication token"}]}),
            "auth: Invalid authentication token",
        ),
        (
            (*WELL, {"parts": [{"Seq": 1, "Error": ""}, {"Members": []}]}),
            "the answer to members belongs to another question",
        ),
        ((*WELL, {"parts": [[], {"Members": []}]}), "the answer to members belongs to another question"),
    ],
)
def test_what_the_library_hides_is_seen(answers: tuple[dict[str, Any], ...], says: str) -> None:
    oracle = Oracle(*answers)
    try:
        with (
            pytest.raises(serf_membership.AgentError, match=says),
            closing(serf_membership.Calls(oracle.port, "key")) as calls,
        ):
            calls.members()
    finally:
        oracle.close()


def test_the_library_is_imported_without_pkg_resources() -> None:
    code = (
        "import sys\n"
        "sys.modules['pkg_resources'] = None\n"
        "from gossipq_node.adapters.serf_membership import _SerfConnection\n"
        "print(_SerfConnection.__name__, sys.modules['pkg_resources'])\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(HOME), str(HOME / "nodes")))}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert said.stdout == "SerfConnection None\n"


def test_a_connection_does_not_import_the_library_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that imported it at the same time left the stand-in for pkg_resources in sys.modules."""
    monkeypatch.setitem(sys.modules, "serfclient.connection", None)  # to import it is an ImportError
    with pytest.raises(Exception, match="refused"):
        serf_membership.Calls(free_port(), "key")


def test_news_of_itself_say_what_differs() -> None:
    was = SeenNode("tcp://b:7700", "bob", "", "", load=3)
    now = was._replace(endpoint="tcp://b:7800", copy="c0ffee", load=9)
    (event,) = _happened({"b": ("alive", was)}, {"b": ("alive", now)})
    assert (event.what, event.node) == ("update", "bob")
    assert event.detail == "endpoint tcp://b:7700 -> tcp://b:7800, copy - -> c0ffee"
    assert _happened({"b": ("alive", was)}, {"b": ("alive", was._replace(load=9))}) == []
