"""The example programs run as they are and say what they promise; the documents show them, or marked parts of
them."""

import os
import re
import runpy
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest

from conftest import HOME, ROOTS, RunningNode
from gossipq_client import connect, testing
from waiting import until

FOLDER = HOME / "clients" / "python" / "examples"
#: need more than a node
OWN_TESTS = ("django_connections", "flask_orders", "huey_storage", "mail_alarms", "patched", "web")
EXAMPLES = sorted(
    path for path in FOLDER.glob("*.py") if not path.name.startswith("test_") and path.stem not in OWN_TESTS
)
PATIENCE_S = 30
OTHER_PROGRAMS = ("export.md", "webhooks.md", "wsgi.md")  #: also show other code
SHOWN_IN = [
    HOME / "README.md",
    *(path for path in sorted((HOME / "docs" / "how-to").glob("*.md")) if path.name not in OTHER_PROGRAMS),
    HOME / "docs" / "operate" / "monitoring.md",
]
EXCERPT = re.compile(r"^ *# -- in the guide\n(.*?)^ *# --\n", re.DOTALL | re.MULTILINE)
EXCERPT_LINES_MAX = 5

#: what each prints, as a pattern for all of it
SAYS = {
    "at_most_once": r"17.3\n17.4\nacked 2\n",
    "atomic_step": r"apple 5\nfig 3\n",
    "consume": r"(\d+ None [\w ]+ \{\}\n){4}",
    "dead_letters": r"1 rejected no such customer b'3 for nobody'\nagain: 3 for nobody\n",
    "delay": r"scheduled as reminders/0/@\d+\.0\ntea is ready\ncall ada\n",
    "results": r"\{'width': 320, 'height': 240\}\nfailed ValueError: a width of 0\n",
    "schedules": r"next at 07:00\nnext at 07:00\nreport \{\"kind\":\"daily\"\}\npulse beat\n",
    "unique": r"True True\nversion 3\n",
    "exclusive": r"first: lift\nsecond: \[\]\nsecond: \[b'turn'\]\n",
    "batches": r"99 of 100 clicks loaded\nrejected time before the page was shown\n",
    "modules": r"opened\n17 apples packed\nmail to ada\nclosed\n",
    "fair": r"urgent\nbig 1\nada 1\nbig 2\nada 2\nbig 3\nbig 4\n",
    "fetch": r"4 records, \d+ bytes\n",
    "files": r"\d+ records in \d files?, .*\n[1-9]\d* records of [1-9]\d* keys\n",
    "handlers": r"17 apples packed\nundecodable .*count.*\n",
    "hello_asyncio": r"on disk at offset 0\n0 one\n",
    "ids": r"(incoming/0/\d+) new\n\1 known already\n",
    "inbox": r"\{'ada': 400, 'bob': -20\}\n",
    "in_time": r"(trip \d+ in time\n){20}",
    "key_order": r"\['bob \+2', 'bob -2', 'ada \+5', 'ada -1'\]\n",
    "mend": r"0 Dear Ada\n2 Dear Bob\nagain: \[b'Dear Bob'\]\n",
    "no_server": r"0 resize cat.png 640\n",
    "outbox": r"1 published\n",
    "pause": (
        r"resize cat.png\npaused - the group is paused - gossipq group resume jobs workers\nresize "
        r"dog.png\n"
    ),
    "cancel": "cancelled\n",
    "join": "Storm: 2 of 3 pages, 12 letters\n",
    "progress": r"(running|waiting|succeeded) [\s\S]*printed 3\n",
    "publish": r"on disk at offset \d+\n3 more from offset \d+\n",
    "replay": r"from first: \d+ records, the first at 0\nfrom 2: \d+ records.*2\nfrom -10m: \d+ records.*0\n",
    "request_reply": r"b'\{\"item\":\"apple\",\"cents\":120\}'\n",
    "retry": r"(?s)(?=.*nonsense attempt 1\n)(?=.*10 EUR attempt 3\n).*20 EUR attempt 3\n.*",
    "routes": r"eu.fr 17 apples\nnobody takes 1\n",
    "schema": r"the value does not fit schema version 1 of sales: Expected `float`, .* at `\$.amount`\n",
    "sealed": r"1 ada: 37.2\n2 bob: 38.9\n",
    "several_topics": r"sensors.rain 3 mm\nsensors.wind 7 m/s\n",
    "table": r"\d+ records \['topic', 'topic_id', 'partition', 'offset', .*\]\n",
    "virtual_topic": r"billing-in 17 apples\naudit-in 17 apples\n",
    "why": r"scheduled - .+ - gossipq msg .+\npublished \nvoided lost\n",
}

#: what some need beside gossipq
NEEDS = {"table": "pyarrow", "files": "polars", "sealed": "cryptography"}

#: what their handlers log
LOGS = {
    "join": r"print_page: .* failed for the last time\n(?s:.*)\nValueError: an empty page\n",
    "results": r"resize: .* failed for the last time\n(?s:.*)\nValueError: a width of 0\n",
    "handlers": r"pack: .* is a dead letter: .*\n",
}


@pytest.fixture(scope="module")
def orders(shared_node: RunningNode) -> RunningNode:
    """A node with the records of publish.py."""
    with connect(shared_node.endpoint) as mq:
        mq.publish_many("orders", [b"17 apples", b"3 pears", b"9 plums", b"1 quince"], timeout=PATIENCE_S)
    return shared_node


def environment(server: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(HOME / root) for root in ROOTS),
        "GOSSIPQ_SERVER": server,
    }


@pytest.mark.e2e
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, orders: RunningNode, tmp_path: Path) -> None:
    if example.stem in NEEDS:
        pytest.importorskip(NEEDS[example.stem])
    ran = subprocess.run(
        [sys.executable, str(example)],
        env=environment(orders.endpoint),
        cwd=tmp_path,
        capture_output=True,
        timeout=PATIENCE_S,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(LOGS.get(example.stem, ""), ran.stderr), ran.stderr
    assert re.fullmatch(SAYS[example.stem], ran.stdout), ran.stdout


def test_example_with_the_fixture(tmp_path: Path) -> None:
    for name in ("handlers.py", "test_shop.py"):
        shutil.copy(FOLDER / name, tmp_path)
    installed = any(point.name == "gossipq" for point in entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", "gossipq_client.pytest_plugin"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "test_shop.py"],
        env=environment(""),
        cwd=tmp_path,
        capture_output=True,
        timeout=PATIENCE_S,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_django_closes_old_connections_around_each_message(
    broker: testing.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = list[str]()
    stand_in = ModuleType("django.db")
    monkeypatch.setattr(stand_in, "close_old_connections", lambda: done.append("close"), raising=False)
    monkeypatch.setitem(sys.modules, "django", ModuleType("django"))
    monkeypatch.setitem(sys.modules, "django.db", stand_in)
    monkeypatch.setenv("GOSSIPQ_SERVER", broker.endpoint)
    with runpy.run_path(str(FOLDER / "django_connections.py"))["mq"] as mq:

        @mq.consumer("orders", group="g", attempts_max=1)
        def store(value: bytes) -> None:
            done.append(value.decode())
            if value == b"bad":
                raise ValueError

        mq.publish_many("orders", ["good", "bad"], timeout=PATIENCE_S)
        mq.run(stop_at_end=True)
    assert done == ["close", "good", "close", "close", "bad", "close"]


# --- inbox.py under kill -9 ---------------------------------------------------------------------------------

TRANSFERS, KILLS, APPLIED_BEFORE_KILL = 1_500, 2, 100


def applied(database: Path) -> int:
    """Transfers that have had their effect."""
    if not database.exists():
        return 0
    with closing(sqlite3.connect(database, timeout=PATIENCE_S)) as db:
        try:
            return int(db.execute("select count(*) from inbox").fetchone()[0])
        except sqlite3.OperationalError:
            return 0  # not made yet


@pytest.mark.e2e
def test_one_effect_for_each_record_over_kill_9(node: RunningNode, tmp_path: Path) -> None:
    database, line = tmp_path / "accounts.db", [sys.executable, str(FOLDER / "inbox.py")]
    with connect(node.endpoint) as mq:
        mq.publish_many("transfers", [b"1"] * TRANSFERS, key="eve", timeout=PATIENCE_S)
        for number in range(1, KILLS + 1):
            running = subprocess.Popen(
                line, env=environment(node.endpoint), cwd=tmp_path, stdout=subprocess.DEVNULL
            )
            try:
                goal = APPLIED_BEFORE_KILL * number
                until(lambda goal=goal: applied(database) >= goal, what=f"{goal} transfers")
                assert running.poll() is None, f"it ended by itself after {applied(database)} transfers"
                running.send_signal(signal.SIGSTOP)
                assert sum(row.in_flight for row in mq.topic("transfers").groups()) > 0, "it holds nothing"
            finally:
                running.send_signal(signal.SIGKILL)
                running.wait()

        def acked() -> bool:
            subprocess.run(
                line, env=environment(node.endpoint), cwd=tmp_path, stdout=subprocess.DEVNULL, check=True
            )
            return sum(row.acked for row in mq.topic("transfers").groups()) == TRANSFERS + 3

        until(acked, what="what the killed ones held has come again")
    with closing(sqlite3.connect(database)) as db:
        assert dict(db.execute("select name, balance from account")) == {
            "eve": TRANSFERS,
            "ada": 400,
            "bob": -20,
        }
    assert applied(database) == TRANSFERS + 3


# --- README.md and docs/how-to -----------------------------------------------------------------------------


def excerpts(source: str) -> list[str]:
    return [textwrap.dedent(lines).rstrip() + "\n" for lines in EXCERPT.findall(source)]


def test_marks_are_read() -> None:
    source = "a\nif b:\n    # -- in the guide\n    c\n      d\n    # --\n# -- in the guide\ne\n# --\n"
    assert excerpts(source) == ["c\n  d\n", "e\n"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_marks_come_in_pairs_and_what_they_mark_is_short(example: Path) -> None:
    source = example.read_text("utf-8")
    assert source.count("# --") == 2 * len(excerpts(source))
    for excerpt in excerpts(source):
        assert len(excerpt.splitlines()) <= EXCERPT_LINES_MAX


def test_documents_show_examples_that_are_run() -> None:
    text = "".join(document.read_text("utf-8") for document in SHOWN_IN)
    shown = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    known = {example.read_text("utf-8"): example.name for example in sorted(FOLDER.glob("*.py"))}
    parts = {part: name for source, name in known.items() for part in excerpts(source)}
    assert [block for block in shown if block not in known | parts] == []
    assert {known[block] for block in shown if block in known} >= {
        "publish.py",
        "consume.py",
        "fetch.py",
        "no_server.py",
    }
    assert [name for part, name in parts.items() if part not in shown] == [], "marked and not shown"
    text += "".join(document.read_text("utf-8") for document in (HOME / "docs" / "migrate").glob("*.md"))
    assert [name for name in known.values() if f"`{name}`" not in text] == [], (
        "README.md or a page of docs/how-to or docs/migrate names every example"
    )
