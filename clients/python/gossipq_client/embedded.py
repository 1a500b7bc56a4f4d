"""A private node in a directory, and a client of it: the same API with no server to start.

    import gossipq

    with gossipq.embedded.open("./queue") as mq:
        mq.publish("orders", b"one")

The first process that opens a directory starts the node; others that open the same directory meanwhile become
clients of the same node. It ends with the last of them, however they end. POSIX only: it listens on a socket
in that directory.
"""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from importlib.util import find_spec
from typing import Protocol
from zlib import crc32

from gossipq.errors import ConfigError, StoreError, Unreachable, missing_extra
from gossipq_client.api.sync import Client
from gossipq_client.io import REQUEST_SECONDS, Connecting, log
from gossipq_client.values import inputs

try:
    import fcntl
except ImportError:  # for example on Windows: the import succeeds, and opening a directory raises
    pass

SOCKET_PATH_MAX = 100  #: an ipc address must fit into 107 bytes, including the suffix of a worker
STOP_SECONDS = 15.0
WORKERS = 1
IN_USE = "in use"
LOOK_S = 0.02  #: time between two looks whether a node has ended


class Share(Protocol):
    """Something that keeps a node running as long as its descriptors are open."""

    def descriptors(self) -> list[int]:
        """Numbers of the open files; empty after it was given up."""


_shares: "weakref.WeakSet[Share]" = weakref.WeakSet()


class Place:
    """A client's share in the node of a directory: a lock that all its clients hold together. When
    none holds it any more, the guard ends the node.
    """

    def __init__(self, path: str, seconds: float) -> None:
        """Waits up to `seconds` while a node there is ending. Raises Unreachable."""
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._share(path, time.monotonic() + seconds)
        except BaseException:
            os.close(self._file)
            raise
        _shares.add(self)

    def _share(self, path: str, deadline_s: float) -> None:
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    hint = f"fuser {path} shows who holds it"
                    raise Unreachable(f"the node in {path} is about to end, and does not", hint) from None
            time.sleep(LOOK_S)

    def descriptors(self) -> list[int]:
        """Descriptors that a forked child must close."""
        return [self._file] if self._file >= 0 else []

    def leave(self) -> bool:
        """Gives up the share. Returns True if it seems to be the last one."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(self._file)
            self._file = -1


class EmbeddedClient(Client):
    """A client that ends its private node when it is closed, unless others use the node."""

    def __init__(
        self, address: str, timeout: float, node: "subprocess.Popen[bytes] | None", place: Place
    ) -> None:
        self._node, self._place = node, place
        self._left = False
        if node is not None:
            _shares.add(self)
        asked = Connecting.to(address, f"embedded-{os.getpid()}", timeout)
        super().__init__(asked._replace(on_shut=self._end_node))
        self._driver.connect()

    def descriptors(self) -> list[int]:
        """Descriptors that a forked child must close: with copies of them the node
        would outlive its last client.
        """
        pipes = (self._node.stdin, self._node.stdout) if self._node is not None else ()
        return [pipe.fileno() for pipe in pipes if pipe is not None and not pipe.closed]

    def _end_node(self) -> None:
        if not self._left:
            self._left = True
            last = self._place.leave()
            if self._node is not None:
                _stop(self._node, last)


def open(directory: str | os.PathLike[str], *, timeout: inputs.Duration = REQUEST_SECONDS) -> EmbeddedClient:
    """Returns a client of the node in `directory`, as soon as it answers: within `timeout`
    (seconds, or "5s"). Creates the directory if it does not exist. Raises StoreError or
    Unreachable. Raises ValueError for an impossible directory, or if the system is not POSIX.
    """
    if "fcntl" not in globals():
        raise ConfigError(
            "a private node needs a POSIX system", hint="start a node elsewhere, and connect() to it"
        )
    if find_spec("lmdb") is None:
        raise missing_extra("lmdb", "server")
    seconds = inputs.duration_ms(timeout) / 1000
    path = os.path.realpath(directory)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"no node can be in {path!r}: {error.strerror}") from None
    at = _socket_path(path)
    address = f"ipc://{at}"
    if _answers(at):
        with contextlib.suppress(Unreachable):
            return EmbeddedClient(address, seconds, None, Place(path, seconds))
    place = Place(path, seconds)
    node = _start(path, address)
    try:
        complaint = _await_ready(node)
        if complaint is None:
            return EmbeddedClient(address, seconds, node, place)
    except BaseException:
        _stop(node)
        raise
    if IN_USE in complaint:
        return EmbeddedClient(address, seconds, None, place)
    place.leave()
    raise StoreError(
        f"the node in {path} did not start: {complaint}", hint=f"gossipq store verify --data {path}"
    )


def _socket_path(path: str) -> str:
    inside = os.path.join(path, "node.sock")
    if len(os.fsencode(inside)) <= SOCKET_PATH_MAX:
        return inside
    return os.path.join(_own_directory(), f"{crc32(os.fsencode(path)):08x}.sock")


def _own_directory() -> str:
    """A directory for short paths. Raises ConfigError if other users may write there, since they
    could listen in place of a node.
    """
    path = os.path.join(tempfile.gettempdir(), f"gossipq-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    about = os.lstat(path)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise ConfigError(
            f"{path} is no directory of this user alone", hint="remove it, or choose a shorter path"
        )
    return path


def _answers(path: str) -> bool:
    """True if a process listens on that socket; a socket may also be left over."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _start(path: str, address: str) -> "subprocess.Popen[bytes]":
    """Starts the node under a guard that ends it when this process is gone, however it ended."""
    command = [
        "gossipq_node",
        "--data",
        path,
        "--bind",
        address,
        "--mode",
        "standalone",
        "--admin",
        "",
        "--workers",
        str(_workers(path)),
    ]
    python = _python()
    return subprocess.Popen(
        [python, "-m", __name__, path, python, "-m", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(part) for part in sys.path)},
    )


def _python() -> str:
    """The interpreter that runs the node. In a program that embeds Python, such as uWSGI or a
    frozen application, `sys.executable` is that program or empty. Raises ConfigError.
    """
    names = (f"python{sys.version_info.major}.{sys.version_info.minor}", "python3", "python")
    folders = [os.path.join(prefix, "bin") for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix)]
    for path in (sys.executable or "", *(os.path.join(each, name) for each in folders for name in names)):
        if os.path.basename(path).startswith(("python", "pypy")) and os.access(path, os.X_OK):
            return path
    raise ConfigError(
        f"no Python interpreter is in {sys.prefix}, and {sys.executable or 'the program'} is none",
        hint="start the node by itself, and connect() to it: gossipq node --data DIR",
    )


def _workers(path: str) -> int:
    """Number of workers: 1 for a new directory; an existing one keeps its number."""
    return WORKERS if not os.listdir(path) else 0


def _await_ready(node: "subprocess.Popen[bytes]") -> str | None:
    """None when the node is ready, else its last words."""
    assert node.stdout is not None, "started with a pipe"
    said: list[str] = []
    for line in node.stdout:
        text = line.decode(errors="replace").strip()
        if text.startswith("ready"):
            threading.Thread(target=_pass_on, args=(node,), name="gossipq-embedded-log", daemon=True).start()
            return None
        said.append(text)
    node.wait()
    return "; ".join(said) or f"exit code {node.returncode}"


def _pass_on(node: "subprocess.Popen[bytes]") -> None:
    """Copies the node's log to this process's log, so that its pipe never fills."""
    assert node.stdout is not None, "started with a pipe"
    with node.stdout:
        for line in node.stdout:
            log.info("%s", line.decode(errors="replace").rstrip())
    node.wait()


def _stop(node: "subprocess.Popen[bytes]", last: bool = True) -> None:
    """Gives up the node, which then ends. The `last` client waits for that."""
    assert node.stdin is not None, "started with a pipe"
    node.stdin.close()
    if not last:
        return
    try:
        node.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(node.pid, signal.SIGKILL)  # the guard and its node
        node.wait()


def guard(path: str, command: list[str]) -> int:
    """Runs a node until it ends or all its clients are gone. The first client holds the other end
    of standard input; the others hold a place at `path`. Returns the exit code.
    """
    node = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    threading.Thread(target=_end_with_clients, args=(path, node), daemon=True).start()
    assert node.stdout is not None, "started with a pipe"
    for line in node.stdout:
        with contextlib.suppress(OSError):  # the reader is gone
            os.write(1, line)
    return node.wait()


def _end_with_clients(path: str, node: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 1):
        pass
    held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    # locked until this process ends: a new client waits and then starts a node of its own
    fcntl.flock(held, fcntl.LOCK_EX)
    node.terminate()


def _in_child() -> None:
    """A forked child must not keep its parent's node running. Its descriptors are redirected
    to /dev/null and not closed: the numbers would be reused by other files, and the old
    objects would close those.
    """
    taken = [number for share in list(_shares) for number in share.descriptors()]
    if taken:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for number in taken:
            os.dup2(nothing, number, inheritable=False)
        os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1], sys.argv[2:]))
