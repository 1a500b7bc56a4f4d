"""`gossipq run`: an application in one process or several, ended in order, started again when it dies or its
files change."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import HOME, ROOTS
from gossipq_client import testing
from gossipq_client.app import fleet

pytestmark = pytest.mark.e2e
PATIENCE_S = 30

APPLICATION = """
import os, sys, time
from gossipq_client import {kind}connect

mq = connect()


@mq.consumer("orders", group="g", create=True, workers=2, backoff="50ms")
{define} work(value: str, msg) -> None:
    say = lambda what: os.write(1, f"{{os.getpid()}} {{what}} {{value}} {{msg.attempt}}\\n".encode())
    say("begin")
    if value == "die" and msg.attempt == 1:
        {sleep}(0.3)  # so that its leader knows that the attempt has begun
        os._exit(9)
    {sleep}(float(os.environ.get("WORK_S", "0")))
    say("end")
"""
SYNC = APPLICATION.format(kind="", define="def", sleep="time.sleep")
ASYNC = "import asyncio\n" + APPLICATION.replace("import {kind}connect", "aio import connect").replace(
    "from gossipq_client aio", "from gossipq_client.aio"
).format(define="async def", sleep="await asyncio.sleep")


class Running:
    """One `gossipq run` in a directory of its own."""

    def __init__(self, directory: Path, endpoint: str, *line: str, work_s: float = 0) -> None:
        paths = os.pathsep.join(str(HOME / root) for root in ROOTS)
        self.output = directory / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gossipq_cli", "-s", endpoint, "run", *line],
                env={**os.environ, "PYTHONPATH": paths, "WORK_S": str(work_s), "PYTHONDONTWRITEBYTECODE": ""},
                cwd=directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self.output.read_text()

    def words(self, what: str) -> list[list[str]]:
        """(process, value, attempt) of the lines that say so."""
        lines = [line.split() for line in self.said.splitlines()]
        return [[line[0], *line[2:]] for line in lines if len(line) == 4 and line[1] == what]

    def until(self, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not ready():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.02)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def mq() -> Iterator[testing.Client]:
    with testing.Broker() as broker, broker.connect() as client:
        yield client


@pytest.fixture
def start(tmp_path: Path, mq: testing.Client) -> Iterator[Callable[..., Running]]:
    made: list[Running] = []

    def run(*line: str, source: str | None = SYNC, work_s: float = 0) -> Running:
        if source is not None:
            (tmp_path / "app.py").write_text(source)
        made.append(Running(tmp_path, mq.broker.endpoint, *(line or ("app:mq",)), work_s=work_s))
        return made[-1]

    yield run
    for running in made:
        if running.process.poll() is None:
            os.killpg(running.process.pid, signal.SIGKILL)
            running.process.wait()


@pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_what_runs_and_gives_the_rest_back(
    start: Callable[..., Running], mq: testing.Client, source: str, number: int
) -> None:
    mq.publish_many("orders", [b"%d" % at for at in range(10)], timeout=PATIENCE_S)
    running = start(source=source, work_s=0.3)
    running.until(lambda: len(running.words("begin")) == 2)
    assert running.end(number) == 0
    assert len(running.words("begin")) == len(running.words("end")) == 2
    (row,) = mq.topic("orders").groups()
    assert (row.acked, row.in_flight, row.ready, row.consumers) == (2, 0, 8, 0)


def test_a_second_signal_does_not_wait(start: Callable[..., Running], mq: testing.Client) -> None:
    mq.publish("orders", b"x", timeout=PATIENCE_S)
    running = start(work_s=60)
    running.until(lambda: len(running.words("begin")) == 1)
    running.process.terminate()
    time.sleep(0.3)
    assert running.process.poll() is None
    assert running.end() == -signal.SIGTERM


HANGING = """
import threading
from gossipq_client import connect

mq = connect()


@mq.consumer("orders", group="g", create=True, time_limit="20ms", attempts_max=1)
def work(value: str) -> None:
    threading.Event().wait()
"""


def test_a_process_whose_handlers_hang_ends_with_a_code_of_its_own(
    start: Callable[..., Running], mq: testing.Client
) -> None:
    mq.publish_many("orders", [b"x"] * 20, timeout=PATIENCE_S)
    running = start(source=HANGING)
    assert running.process.wait(PATIENCE_S) == 70
    assert "11 handlers of work do not end: too many to replace them" in running.said


@pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["sync", "async"])
def test_a_process_that_has_done_its_records_makes_room_for_another(
    start: Callable[..., Running], mq: testing.Client, source: str
) -> None:
    mq.publish_many("orders", [b"%d" % at for at in range(10)], timeout=PATIENCE_S)
    running = start("app:mq", "--max-records", "4", source=source)
    running.until(lambda: len(running.words("end")) == 10)
    assert running.end() == 0
    processes = {process for process, *_ in running.words("end")}
    assert len(processes) == 3
    assert "max_records=4" in running.said
    assert "ended with code" not in running.said


def test_several_processes_end_together(start: Callable[..., Running], mq: testing.Client) -> None:
    running = start("app:mq", "--processes", "3", work_s=0.2)
    running.until(
        lambda: sum(row.consumers for row in mq.topic("orders").groups() if mq.topics("orders")) == 3
    )
    mq.publish_many("orders", [b"%d" % at for at in range(30)], timeout=PATIENCE_S)
    running.until(lambda: len({process for process, *_ in running.words("begin")}) == 3)
    assert running.end() == 0
    assert sorted(running.words("begin")) == sorted(running.words("end"))


def test_a_process_that_dies_is_started_again(start: Callable[..., Running], mq: testing.Client) -> None:
    mq.publish("orders", b"die", timeout=PATIENCE_S)
    running = start("app:mq", "--processes", "2")
    running.until(lambda: "ended with code 9" in running.said)

    def three_have_worked() -> bool:
        mq.publish("orders", b"live", timeout=PATIENCE_S)
        return len({process for process, *_ in running.words("begin")}) == 3

    running.until(three_have_worked)
    assert running.end() == 0


@pytest.mark.parametrize("option", ["--processes=2", "--reload"])
def test_a_signal_while_they_start_is_no_failure(start: Callable[..., Running], option: str) -> None:
    running = start("app:mq", option, source="import time\nprint('starts', flush=True)\ntime.sleep(60)\n")
    running.until(lambda: "starts" in running.said)
    assert running.end() == 0


def test_processes_end_with_their_parent(start: Callable[..., Running], mq: testing.Client) -> None:
    mq.publish_many("orders", [b"1", b"2"], timeout=PATIENCE_S)
    running = start("app:mq", "--processes", "2")
    running.until(lambda: len(running.words("end")) == 2)
    running.process.kill()
    running.process.wait()
    end = time.monotonic() + PATIENCE_S
    while mq.topic("orders").groups()[0].consumers:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_changed_file_is_a_new_start(
    start: Callable[..., Running], mq: testing.Client, tmp_path: Path
) -> None:
    def write(source: str, at_ns: int) -> None:
        """Every version has the same size, and was changed in the same second."""
        draft = tmp_path / "draft"
        draft.write_text(source.ljust(len(SYNC), "\n"))
        os.utime(draft, ns=(at_ns, at_ns))
        draft.replace(tmp_path / "app.py")

    second_ns = 1_700_000_000_000_000_000
    write(SYNC, second_ns)
    mq.publish("orders", b"old", timeout=PATIENCE_S)
    running = start("app:mq", "--reload", source=None)
    running.until(lambda: len(running.words("end")) == 1)
    write("this is no Python\n", second_ns + 1_000_000)
    running.until(lambda: "SyntaxError" in running.said)
    write(SYNC.replace('say("end")', 'say("new")'), second_ns + 2_000_000)
    mq.publish("orders", b"fresh", timeout=PATIENCE_S)
    running.until(lambda: len(running.words("new")) == 1)
    assert running.end() == 0


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("app", "names no application"),
        ("app:", "names no application"),
        ("app:mq:mq", "names no application"),
        ("../app:mq", "names no application"),
        ("nothing:mq", "there is no module nothing"),
        ("app:nothing", "app has no nothing"),
        ("app:number", "is a int, no client"),
        ("app:make", "is a str, no client"),
        ("app:handler", "takes arguments, so it makes no client"),
        ("broken:mq", "broken cannot be imported: ZeroDivisionError"),
        ("app:idle", "nothing to run"),
    ],
)
def test_what_is_no_application(
    gossipq, monkeypatch, tmp_path: Path, mq: testing.Client, target: str, says: str
) -> None:
    (tmp_path / "app.py").write_text(
        "import gossipq_client\nnumber, make, handler = 17, lambda: '', lambda order: None\n"
        "idle = lambda: gossipq_client.connect()\n"
    )
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("GOSSIPQ_SERVER", mq.broker.endpoint)
    for name in ("app", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    ran = gossipq("run", target)
    assert ran.code == (2 if says == "nothing to run" else 78)
    assert says in ran.err
    assert "hint:" in ran.err


def test_files_that_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (
        "shop/app.py",
        "shop/deep/more.py",
        "shop/notes.txt",
        "shop/.hidden/x.py",
        "shop/__pycache__/x.py",
        "other.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    (tmp_path / "shop/env/lib").mkdir(parents=True)
    (tmp_path / "shop/env/pyvenv.cfg").write_text("")
    (tmp_path / "shop/env/lib/x.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert fleet.source_directory("other:mq") == tmp_path
    directory = fleet.source_directory("shop.app:mq")
    assert set(fleet.snapshot(directory)) == {str(directory / "app.py"), str(directory / "deep/more.py")}
