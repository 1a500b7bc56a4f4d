"""A whole node for tests that need one: started on free ports in a directory of its own, ended by its process
id."""

import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import settings

from gossipq.wire import proofs
from gossipq_client import testing
from ports import settled_port
from processes import group_lives
from waiting import until

HOME = Path(__file__).resolve().parent.parent
ROOTS = ("", "nodes", "clients/python", "clients/terminal", "clients/gateway", "clients/integrations")
STOP_SECONDS = 20
HANG_SECONDS = 90  #: behind the timeout of a test
#: files and folders that take longest, the longest first
LONG = (
    "spark",
    "sim",
    "bindings/test_bindings.py",
    "e2e/test_limits.py",
    "e2e/test_disk.py",
    "e2e/test_shard_gone.py",
    "contracts/test_membership.py",
    "gateway/test_sqs_handles.py",
    "node/test_node.py",
    "cli/test_with_node.py",
    "client/test_true_consuming.py",
    "core/test_busy_lives.py",
    "client/test_unbroken.py",
    "cli/test_run.py",
    "power",
)
#: tests of minutes, one for each language, that share nothing; two processes divide them
KITS = "tests/bindings/test_bindings.py::test_nodes_that_are_killed"
STDERR = pytest.StashKey[int]()
# How long an example takes says nothing on a busy machine. Each run has the same examples, so that no change
# fails by the fault of another one; `make sim` looks for new ones.
settings.register_profile("any machine", deadline=None, derandomize="GOSSIPQ_RANDOM" not in os.environ)
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Nothing is captured yet. And a shell starts what runs in its background with Ctrl-C ignored, and every
    process below would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """pytest-timeout raises in the main thread, once. Code that swallows the exception, or
    cleans up without a limit after it, would hang the whole run. Then this process prints where
    each thread is, and ends.
    """
    if limit_s := limit_of(item):
        _end_in(limit_s + HANG_SECONDS, item.config)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def limit_of(item: pytest.Item) -> float:
    """The timeout of a test, as pytest-timeout finds it; 0 without one."""
    marker, config = item.get_closest_marker("timeout"), item.config
    told = config.getoption("timeout"), os.environ.get("PYTEST_TIMEOUT"), config.getini("timeout")
    return float(marker.args[0] if marker else next((each for each in told if each is not None), 0))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A thread that a test has left behind would keep this process from ending. One of several waits until
    all are done, and is ended then."""
    if not hasattr(session.config, "workerinput"):
        _end_in(HANG_SECONDS, session.config)


def _end_in(seconds: float, config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(seconds, exit=True, file=config.stash[STDERR])


@pytest.fixture(scope="session", autouse=True)
def _state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nodes under test have their own secret, not the one of the user who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector away from thousands of tests that all stay in memory: each of its passes
    would look at all of them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """If several files run at a time, the longest begin first, so that none is left alone
    at the end. Files that wait for nodes and files that compute take turns, so that the
    cores are busy all the time.
    """
    if not hasattr(config, "workerinput"):
        return
    long = {HOME / "tests" / name: at for at, name in enumerate(LONG)}
    waiting = {item.path for item in items if item.get_closest_marker("e2e")}
    files = dict.fromkeys(item.path for item in items)
    kinds = [[path for path in files if (path in waiting) == waits] for waits in (True, False)]
    place = {path: at / len(kind) for kind in kinds for at, path in enumerate(kind)}

    def rank(item: pytest.Item) -> tuple[float, float, str]:
        first = min(long.get(each, len(long)) for each in (item.path, *item.path.parents))
        return first, place[item.path], str(item.path)

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file stays in one process, because its tests share a node; so does Spark, whose session takes a
    gigabyte."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(KITS):
                return f"{KITS} {nodeid.endswith(('[c]', '[java]'))}"
            return "tests/spark" if nodeid.startswith("tests/spark/") else super()._split_scope(nodeid)

        def remove_node(self, node: Any) -> str | None:
            """Drops the test that crashed the process; xdist would give it to the next
            process, again and again.
            """
            left = (
                (name, unit) for unit in self.assigned_work[node].values() for name in unit if not unit[name]
            )
            crashed, unit = next(left, (None, {}))
            if crashed is not None:
                unit[crashed] = True
            super().remove_node(node)
            return crashed

    config.option.loadscopereorder = False  # the order is ours
    return ByFile(config, log) if config.option.dist == "loadfile" else None


class RunningNode:
    """`python -m gossipq_node` over one directory and port; it can be stopped, killed and started again."""

    def __init__(self, data: Path, *flags: str) -> None:
        self.data, self.flags = data, flags
        self.port = settled_port()
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[str] | None = None
        self.environment: dict[str, str] = {}  #: what else it is told

    def token(self) -> bytes:
        """The token by which its nodes prove themselves."""
        manifest = json.loads((self.data / "manifest.json").read_text())
        secret = (self.data / "secret").read_bytes().strip()
        return proofs.token(secret, bytes.fromhex(manifest["cluster_uuid"]))

    def start(self) -> Self:
        """Returns when the node says that it is ready."""
        paths = os.pathsep.join(str(HOME / root) for root in ROOTS)
        plain = {name: value for name, value in os.environ.items() if not name.startswith("GOSSIPQ")}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gossipq_node",
                "--data",
                str(self.data),
                "--bind",
                self.endpoint,
                "--admin",
                "",
                *self.flags,
            ],
            env={"GOSSIPQ_NODE__ALARMS": "false", **plain, "PYTHONPATH": paths, **self.environment},
            cwd=self.data.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._await_ready()
        return self

    def _await_ready(self) -> None:
        """One that does not become ready is ended."""
        process = self.process
        assert process is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready"):
            with suppress(subprocess.TimeoutExpired):  # it is about to end: its own exit code says why
                process.wait(STOP_SECONDS if not line else 0)
            self.__exit__()
            code = process.returncode
            raise AssertionError(f"the node said {line!r}, exit code {code}: {self.log()[-2000:]}")

    def log(self) -> str:
        """Its stderr, if that is kept."""
        return ""

    def __enter__(self) -> Self:
        """Started; at the end of the block it runs no more, whatever happened there."""
        return self if self.process is not None else self.start()

    def __exit__(self, *error: object) -> None:
        if self.process is not None:
            self.kill()

    def stop(self) -> int:
        """SIGTERM and wait; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self._wait()

    def kill(self) -> None:
        """SIGKILL to the node and its processes, all at once, as when a machine dies."""
        assert self.process is not None
        group = self.process.pid
        self.signal_all(signal.SIGKILL)
        self._wait()
        until(lambda: not group_lives(group), what="processes of a killed node still run")

    def signal_all(self, number: int) -> None:
        """Signal the node and its processes. The number of a node that was waited for may be that of a
        stranger by now; while one of its processes lives, no other process gets it."""
        assert self.process is not None
        if self.process.returncode is None or not Path(f"/proc/{self.process.pid}").exists():
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def _wait(self) -> int:
        process, self.process = self.process, None
        assert process is not None
        assert process.stdout is not None
        try:
            return process.wait(STOP_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdout.close()


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., RunningNode]]:
    """make_node(*flags) is a node that is not started yet; all are ended with the test."""
    made: list[RunningNode] = []

    def make(*flags: str) -> RunningNode:
        made.append(RunningNode(tmp_path / f"node-{len(made)}", "--workers", "2", *flags))
        return made[-1]

    with ExitStack() as ends:
        yield make
        for node in made:
            ends.push(node)
        for node in made:
            if node.process is not None:
                node.stop()


@pytest.fixture
def node(make_node: Callable[..., RunningNode]) -> RunningNode:
    """A running node of two workers."""
    return make_node().start()


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One running node for all tests of a module, which use topics of their own."""
    with RunningNode(tmp_path_factory.mktemp("shared") / "node", "--workers", "2") as running:
        yield running
        if running.process is not None:
            running.stop()


@pytest.fixture
def movable() -> Iterator[testing.Client]:
    """A client of a node whose clock the test moves."""
    with testing.Broker() as broker, broker.connect() as client:
        yield client
