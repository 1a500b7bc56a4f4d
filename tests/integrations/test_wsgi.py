"""An application of Flask under each kind of worker of gunicorn that the documents name."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import HOME, ROOTS
from gossipq_client import testing
from ports import settled_port
from waiting import until

EXAMPLES = HOME / "clients" / "python" / "examples"
KINDS = {
    "processes": ("-w", "2", "--preload"),
    "threads": ("-w", "2", "-k", "gthread", "--threads", "4", "--preload"),
    "gevent": ("-w", "2", "-k", "gevent"),
    "gevent-preload": ("-w", "2", "-k", "gevent", "--preload", "-c", "patched.py"),
}
REQUESTS = 40


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


@contextmanager
def served(broker: testing.Broker, log: Path, *words: str) -> Iterator[str]:
    """Run gunicorn, and yield its URL."""
    port = settled_port()
    roots = os.pathsep.join(str(HOME / root) for root in ROOTS)
    environment = {**os.environ, "GOSSIPQ_SERVER": broker.endpoint, "PYTHONPATH": roots}
    line = [sys.executable, "-m", "gunicorn", "-b", f"127.0.0.1:{port}", *words, "flask_orders:app"]
    with log.open("wb") as out:
        process = subprocess.Popen(line, cwd=EXAMPLES, env=environment, stdout=out, stderr=out)
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(url), what=log.read_text)
        yield url
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/livez", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def ordered(url: str, item: str) -> str:
    request = urllib.request.Request(f"{url}/orders/{item}", method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["ref"])


@pytest.mark.parametrize("kind", ["processes", "gevent-preload"])
def test_workers_publish_at_the_same_time(broker: testing.Broker, tmp_path: Path, kind: str) -> None:
    publishes_at_the_same_time(broker, tmp_path, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "gevent"])
def test_other_workers_publish_at_the_same_time(broker: testing.Broker, tmp_path: Path, kind: str) -> None:
    publishes_at_the_same_time(broker, tmp_path, kind)


def publishes_at_the_same_time(broker: testing.Broker, tmp_path: Path, kind: str) -> None:
    if "gevent" in kind:
        pytest.importorskip("gevent")
    with served(broker, tmp_path / "log", *KINDS[kind]) as url, ThreadPoolExecutor(8) as pool:
        refs = set(pool.map(lambda number: ordered(url, f"{kind}-{number}"), range(REQUESTS)))
    assert len(refs) == REQUESTS
    with broker.connect() as mq:
        values = [json.loads(msg.value) for msg in mq.read("orders")]
    mine = [value["item"] for value in values if value["item"].rpartition("-")[0] == kind]
    assert sorted(mine) == sorted(f"{kind}-{number}" for number in range(REQUESTS))


def test_the_document_names_these_lines() -> None:
    text = (HOME / "docs" / "how-to" / "wsgi.md").read_text("utf-8")
    told = [set(line.split()) for line in re.findall(r"`gunicorn ([^`]+:app)`", text)]
    numbers = {"2", "4", "8"}
    assert [line - numbers - {"flask_orders:app"} for line in told] == [
        set(words) - numbers for words in KINDS.values()
    ]
