"""The Serf agent of a node: configuration, process, end. It ends with
the process that started it.
"""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from gossipq.endpoints import host_port
from gossipq_node.settings import GossipSettings

CONFIG, KEYRING, SNAPSHOT, LOG = "agent.json", "keyring.json", "snapshot", "agent.log"
LOG_BYTES_MAX = 1 << 20
LOG_LINES = 40
NAME_MAX = 60
REASONS = 3  #: the last errors in the agent's chain are the useful ones
#: the agent gets SIGKILL when the thread that started it ends; Ctrl-C does not reach it
SHELL = (
    "import ctypes, os, signal, sys\n"
    "parent = int(sys.argv[1])\n"
    "os.setsid()\n"
    f"ctypes.CDLL(None).prctl(1, {int(signal.SIGKILL)})\n"
    "if os.getppid() != parent: os._exit(1)\n"
    "signal.signal(signal.SIGINT, signal.SIG_DFL), signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)


class Agent:
    """One run after the other; call `start` again after `exit_reason` says that it ended."""

    def __init__(self, settings: GossipSettings, program: str = "serf") -> None:
        self._settings, self._program = settings, program
        self._directory = Path(settings.directory)
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = ""  # why it was killed
        self.rpc_port = 0
        self.rpc_key = ""
        self.name = ""  #: of this run: another address has another name

    @property
    def pid(self) -> int:
        process = self._process
        return process.pid if process else 0

    def start(self, tags: Mapping[str, str], known: Iterable[str] = ()) -> None:
        """Start the agent. `known` are other agents to join, as HOST:PORT. Raises OSError."""
        self.rpc_port = _free_port()
        self.rpc_key = secrets.token_hex(16)
        self._killed = ""
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._configuration(tags, known)
        place = self._directory / CONFIG
        self._write(CONFIG, config)
        (self._directory / KEYRING).unlink(missing_ok=True)
        if len(self._settings.keys) > 1:
            self._write(KEYRING, self._settings.keys)
        (self._directory / LOG).write_bytes(b"")
        # append mode, so that it starts at 0 after a truncation
        with open(self._directory / LOG, "ab") as log:
            command = [self._program, "agent", f"-config-file={place}"]
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", SHELL, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _write(self, name: str, value: object) -> None:
        """Write a file that contains keys, for this user only."""
        place = self._directory / name
        with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)  # an older file may be readable for others
            json.dump(value, file)

    def _configuration(self, tags: Mapping[str, str], known: Iterable[str]) -> dict[str, object]:
        settings = self._settings
        host, port = _split(settings.bind)
        bind = _address(host)
        mine = {host_port(bind, port), host_port(host, port)}
        advertised = _address(settings.advertise) if settings.advertise else bind
        self.name = agent_name(settings, advertised)
        config: dict[str, object] = {
            "node_name": self.name,
            "bind": host_port(bind, port),
            "rpc_addr": f"127.0.0.1:{self.rpc_port}",
            "rpc_auth": self.rpc_key,
            # otherwise a vote on a duplicate name could end this agent
            "disable_name_resolution": True,
            "retry_interval": "1s",
            "rejoin_after_leave": True,
            "snapshot_path": str(self._directory / SNAPSHOT),
            "leave_on_terminate": False,
            "skip_leave_on_interrupt": True,
            "log_level": "warn",
            "tags": dict(tags),
        }
        if settings.advertise:
            mine |= {host_port(settings.advertise, port), host_port(advertised, port)}
            config["advertise"] = host_port(advertised, port)
        if join := [
            place for place in dict.fromkeys((*settings.join, *known)) if not {place, _resolved(place)} & mine
        ]:
            config["retry_join"] = join  # an agent that joins itself would stop searching
        if len(settings.keys) > 1:
            config["keyring_file"] = str(self._directory / KEYRING)  # the first key encrypts
        elif settings.keys:
            config["encrypt_key"] = settings.keys[0]
        return config

    def exit_reason(self) -> str | None:
        """Return why it is not running; None while it runs."""
        process = self._process
        if process is None:
            return self._killed or "it was not started"
        code = process.poll()
        if code is None:
            self._bound_log()
            return None
        return self.last_words() or f"exit code {code}"

    def last_words(self) -> str:
        """Return the last line of its log that reports an error."""
        for line in reversed(self._log_lines()):
            if re.search(r"error|fail|conflict|cannot|denied|in use", line, re.I):
                return ": ".join(line.strip().split(": ")[-REASONS:])[:200]
        return ""

    @property
    def meets_strangers(self) -> bool:
        """True if the agent and others could not decrypt each other's messages."""
        return any(
            re.search(r"could decrypt|not encrypted|state is encrypted", line) for line in self._log_lines()
        )

    def _log_lines(self) -> list[str]:
        """Return the newest lines of its log."""
        try:
            return (self._directory / LOG).read_text("utf-8", "replace").splitlines()[-LOG_LINES:]
        except OSError:
            return []

    def _bound_log(self) -> None:
        with suppress(OSError):
            log = self._directory / LOG
            if log.stat().st_size > LOG_BYTES_MAX:
                os.truncate(log, 0)

    def kill(self, why: str = "") -> None:
        """Kill the agent, from any thread. `why` is its exit reason until the next start."""
        process = self._process
        self._process = None
        self._killed = why
        if process is not None:
            process.kill()
            process.wait()

    def wait(self, seconds: float) -> bool:
        """Return whether the agent ended within this time."""
        process = self._process
        if process is None:
            return True
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.poll() is not None


def agent_name(settings: GossipSettings, address: str) -> str:
    """Return a name that differs for each node, data directory and numeric address.

    A host name can have another address after a restart. Serf refuses a known agent at
    another address ("conflicting address", hashicorp/consul#3902) until it has forgotten
    the old one, a day later.
    """
    place = f"{settings.member.copy} {settings.bind} {address}"
    name = re.sub(r"[^A-Za-z0-9-]", "-", settings.member.name)[:NAME_MAX]
    return f"{name}-{blake2b(place.encode(), digest_size=4).hexdigest()}"


def _split(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port)


def _address(host: str) -> str:
    """Return the numeric address of a host, which the agent needs. Raises
    OSError if it is unknown.
    """
    bare = host.strip("[]")
    if bare == "*":
        return "0.0.0.0"
    return str(socket.getaddrinfo(bare, None, type=socket.SOCK_STREAM)[0][4][0])


def _resolved(place: str) -> str:
    """Return HOST:PORT with the host's address if it has one now."""
    host, port = _split(place)
    try:
        return host_port(_address(host), port)
    except OSError:
        return place


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
