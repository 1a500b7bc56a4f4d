"""Three closed nodes under load, for tests that turn their keys, users and encryption over meanwhile."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gossipq.errors import GossipqError
from gossipq.values import Member
from gossipq_cli.main import main
from gossipq_client import connect
from gossipq_node import machine
from hosts import PATIENCE_S, Host
from ports import settled_port
from waiting import until

TOPIC = "load"
CUT_S = 1.0  #: longest time that a client without permission is still served
LOOK_S = 5.0


class Load(threading.Thread):
    """Publishes one record after the other as a user, until it must stop or is refused for good. A
    `stubborn` one continues after a refusal; an `insecure` one sends its token everywhere.
    """

    def __init__(
        self,
        name: str,
        servers: list[str],
        credentials: Path | bytes | None,
        stubborn: bool = False,
        insecure: bool = False,
    ) -> None:
        super().__init__(name=name)
        self.confirmed = list[bytes]()
        self.last_s = 0.0  #: when the last confirm came
        self.error: GossipqError | None = None
        self._servers, self._credentials, self._ends = servers, credentials, threading.Event()
        self._stubborn, self._insecure = stubborn, insecure

    def run(self) -> None:
        how = connect(
            *self._servers, credentials=self._credentials, timeout=PATIENCE_S, insecure=self._insecure
        )
        with how as mq:
            while not self._ends.is_set() and self.error is None:
                value = f"{self.name} {len(self.confirmed)}".encode()
                try:
                    mq.publish(TOPIC, value, id=value.decode(), timeout=8)
                    self.last_s = time.monotonic()
                    self.confirmed.append(value)
                except GossipqError as error:
                    if not self._ends.is_set() and "within" not in error.message and not self._stubborn:
                        self.error = error
            mq.close(flush=False)

    def goes_on(self) -> None:
        """Something that begins from now on is confirmed."""
        before = len(self.confirmed)
        until(lambda: len(self.confirmed) > before + 20 or self.error is not None)
        assert self.error is None, self.error

    def end(self) -> None:
        self._ends.set()
        self.join(PATIENCE_S)


ENCRYPTED = ("--encrypt", "always")


class Roll:
    """Three nodes of one machine with one file for their secret, at one address of it."""

    def __init__(self, directory: Path, mode: str = "static", address: str = "127.0.0.1") -> None:
        self.secret = directory / "secret"
        self.secret.write_text("what the nodes of this test know")
        self.secret.chmod(0o600)
        self.hosts = [Host(directory, name) for name in ("ada", "bob", "cat")]
        self._mode = mode
        for host in self.hosts:
            host.port = settled_port(doors=True)
            host.endpoint, host.gossip = f"tcp://{address}:{host.port}", f"{address}:{host.port + 90}"

    @property
    def servers(self) -> list[str]:
        return [host.endpoint for host in self.hosts]

    def start(self, host: Host, flags: Sequence[str] = ENCRYPTED) -> None:
        first = self.hosts[0]
        join = ("--join", first.gossip) if self._mode == "serf" else ("--peer", first.endpoint)
        host.log.unlink(missing_ok=True)
        given = ("--secret-file", str(self.secret), "--mode", self._mode, *flags)
        host.start(*given, *(() if host is first else join))

    def again(self, host: Host, flags: Sequence[str] = ENCRYPTED) -> None:
        """As `systemctl restart` does it."""
        assert host.process is not None
        host.process.terminate()
        host.ended()
        self.start(host, flags)
        host.ready()


@contextmanager
def running(roll: Roll, flags: Sequence[str] = ENCRYPTED) -> Iterator[Roll]:
    first = roll.hosts[0]
    try:
        for host in roll.hosts:
            roll.start(host, flags)
            host.ready()
        until(lambda: len(first.names()) == len(roll.hosts), what=lambda: first.said)
        with connect(first.endpoint) as mq:
            mq.create_topic(TOPIC, partitions=1, if_not_exists=True)
        assert main(["-s", first.endpoint, "status", "--wait-healthy", "60"]) == 0
        yield roll
    finally:
        for host in roll.hosts:
            host.kill()


def rows(host: Host, credentials: Path) -> list[Member]:
    with connect(host.endpoint, credentials=credentials) as mq:
        return mq.admin.status().members


def healthy(host: Host, credentials: Path) -> bool:
    """True if each shard has a leader and all its copies, according to that node."""
    shown = ["--credentials", str(credentials)] if credentials.exists() else []
    return main(["-s", host.endpoint, *shown, "status", "--wait-healthy", "60"]) == 0


def stored(host: Host, credentials: Path | None) -> list[bytes]:
    with connect(host.endpoint, credentials=credentials) as mq:
        return [record.value for record in mq.read(TOPIC)]


def of_the_network() -> str:
    """An address of this machine that other machines can reach; "" if it has none."""
    try:
        address = machine.address_towards("192.0.2.1", 1)
    except OSError:
        return ""
    return "" if address.startswith("127.") or ":" in address else address
