"""Three nodes that encrypt, closed, under load: takeovers, other keys of each node, a user and a node that
are revoked. Nothing confirmed is lost, nobody is refused who is allowed, nobody served a second after he was
not."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gossipq.errors import GossipqError
from gossipq_cli.main import main
from gossipq_client import connect
from hosts import PATIENCE_S, Host, until
from ports import settled_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]
TOPIC = "load"
CUT_S, LOOK_S = 1.0, 5.0


class Load(threading.Thread):
    """Publishes one record after the other as a user, until it is told to stop or is refused for good."""

    def __init__(self, name: str, servers: list[str], credentials: Path) -> None:
        super().__init__(name=name)
        self.confirmed = list[bytes]()
        self.last_s = 0.0  #: when the last confirm came
        self.error: GossipqError | None = None
        self._servers, self._credentials, self._ends = servers, credentials, threading.Event()

    def run(self) -> None:
        with connect(*self._servers, credentials=self._credentials, timeout=PATIENCE_S) as mq:
            while not self._ends.is_set() and self.error is None:
                value = f"{self.name} {len(self.confirmed)}".encode()
                try:
                    mq.publish(TOPIC, value, id=value.decode()).result(8)
                    self.last_s = time.monotonic()
                    self.confirmed.append(value)
                except GossipqError as error:
                    if not self._ends.is_set() and "within" not in error.message:
                        self.error = error
            mq.close(flush=False)

    def end(self) -> None:
        self._ends.set()
        self.join(PATIENCE_S)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Host]]:
    secret = tmp_path / "secret"
    secret.write_text("what the nodes of this test know")
    secret.chmod(0o600)
    hosts = [Host(tmp_path, name) for name in ("ada", "bob", "cat")]
    for host in hosts:
        host.port = settled_port(doors=True)
        host.endpoint, host.gossip = f"tcp://127.0.0.1:{host.port}", f"127.0.0.1:{host.port + 90}"
    try:
        for host in hosts:
            start(host, hosts[0])
            host.ready()
        until(lambda: len(hosts[0].names()) == len(hosts), hosts[0])
        yield hosts
    finally:
        for host in hosts:
            host.kill()


def start(host: Host, first: Host) -> None:
    host.log.unlink(missing_ok=True)
    secret, peer = host.directory / "secret", () if host is first else ("--peer", first.endpoint)
    host.start("--secret-file", str(secret), "--encrypt", "always", "--mode", "static", *peer)


def test_takeovers_keys_users_and_nodes_under_load(nodes: list[Host], tmp_path: Path) -> None:
    ada, bob, cat = nodes
    secret, servers = str(tmp_path / "secret"), [host.endpoint for host in nodes]
    files = {name: tmp_path / f"{name}.credentials" for name in ("admin", "writer", "victim")}

    def types(*line: str) -> None:
        assert main(["-s", ada.endpoint, "--credentials", str(files["admin"]), "--yes", *line]) == 0, line

    with connect(ada.endpoint) as mq:
        mq.create_topic(TOPIC, partitions=1)
    assert main(["-s", ada.endpoint, "status", "--wait-healthy", "60"]) == 0
    close = ("cluster", "close", "--save", str(files["admin"]), "--secret-file", secret)
    assert main(["-s", ada.endpoint, *close]) == 0
    types("role", "add", "writes")
    types("role", "grant", "writes", TOPIC, "publish", "read")
    for name in ("writer", "victim"):
        types("user", "add", name, "--role", "writes", "--save", str(files[name]))
        assert "door_" in files[name].read_text()
    loads = [Load(name, servers, files[name]) for name in ("writer", "victim")]
    writer, victim = loads
    try:
        for load in loads:
            load.start()
        until(lambda: all(len(load.confirmed) > 50 for load in loads))

        keys = {row.name: row.key for row in rows(ada, files["admin"])}
        for host in (bob, cat, ada):  # a roll, by SIGKILL: each takes its next key
            host.kill()
            start(host, ada)
            host.ready()
            goes_on(writer)
        until(
            lambda: all(row.key != keys[row.name] for row in rows(ada, files["admin"]) if row.name != "ada")
        )

        types("user", "rm", "victim")
        cut_s = time.monotonic() + CUT_S
        goes_on(writer)
        until(lambda: victim.error is not None or time.monotonic() > cut_s + LOOK_S)
        assert victim.last_s < cut_s, f"it was served {victim.last_s - cut_s:.3f} s too long"

        cat.kill()
        until(lambda: main(["-s", ada.endpoint, "--credentials", str(files["admin"]), "--yes",
                            "cluster", "rm", "cat", "--force", "--secret-file", secret]) == 0)  # fmt: skip
        start(cat, ada)
        assert cat.ended() == 78
        assert "taken off this cluster" in cat.said
        goes_on(writer)
    finally:
        for load in loads:
            load.end()
    assert writer.error is None, "it was allowed all the time"
    with connect(ada.endpoint, credentials=files["writer"]) as mq:
        stored = [record.value for record in mq.consume(TOPIC, start="first", stop_at_end=True)]
    confirmed = [value for load in loads for value in load.confirmed]
    assert set(confirmed) <= set(stored), "0 confirmed lost"
    assert len(stored) == len(set(stored))


def rows(host: Host, credentials: Path):  # type: ignore[no-untyped-def]
    with connect(host.endpoint, credentials=credentials) as mq:
        return mq.admin.status().members


def goes_on(load: Load) -> None:
    before = len(load.confirmed)
    until(lambda: len(load.confirmed) > before + 20 or load.error is not None)
    assert load.error is None, load.error
