"""kill -9 of each program of a site of Django: one that sells, the relay of its outbox, and its worker."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from conftest import HOME, ROOTS
from gossipq_client import testing
from waiting import until

pytest.importorskip("django")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SELL = """
import sys

import django

django.setup()
from django.db import connection, transaction

from integrations.shop_site import tasks

for number in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("insert into sales values (%s)", [number])
        tasks.ship.enqueue(number)
        print(number, flush=True)
"""
ROUNDS = 2
SALES = 20  #: of each round
PATIENCE_S = 120.0


class Site:
    """The programs of a site, each as a process."""

    def __init__(self, place: Path, server: str) -> None:
        self.database, self._notes, self._log = place / "shop.db", place / "notes", place / "log"
        self._notes.touch()
        paths = [*(str(HOME / root) for root in ROOTS), str(HOME / "tests")]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "DJANGO_SETTINGS_MODULE": "integrations.shop_site.settings",
            "GOSSIPQ_SERVER": server,
            "SHOP_DATABASE": str(self.database),
            "SHOP_NOTES": str(self._notes),
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start `python` with these words."""
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, *words], env=self._environment, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def manage(self, *words: str) -> subprocess.Popen[str]:
        return self.start("-m", "django", *words)

    def sell(self, first: int) -> subprocess.Popen[str]:
        """Start the program that sells `SALES` things from number `first` on."""
        return self.start("-c", SELL, str(first), str(SALES))

    def finish(self, process: subprocess.Popen[str]) -> None:
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, self._log.read_text()[-3_000:]

    def shipped(self) -> Counter[int]:
        """Return how often each task has run."""
        return Counter(int(line) for line in self._notes.read_text().split())

    def ask(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.database)) as connection:
            return [value for (value,) in connection.execute(statement)]


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)


def await_more(site: Site, before: int) -> None:
    until(lambda: site.shipped().total() > before, PATIENCE_S, "no task runs")


def test_each_committed_sale_is_shipped_whatever_is_killed(broker: testing.Broker, tmp_path: Path) -> None:
    site = Site(tmp_path, broker.endpoint)
    site.finish(site.manage("migrate", "--verbosity", "0"))
    with closing(sqlite3.connect(site.database)) as connection:
        connection.execute("create table sales (number integer primary key)")
    worker_kills = 0
    for number in range(ROUNDS):
        with ExitStack() as ending:

            def running(process: subprocess.Popen[str], ending: ExitStack = ending) -> subprocess.Popen[str]:
                ending.callback(kill, process)
                return process

            seller = running(site.sell(number * SALES))
            running(site.manage("gossipq_relay"))
            running(site.manage("gossipq_worker", "--backend", "outbox"))
            assert seller.stdout is not None
            sold = [seller.stdout.readline() for _ in range(SALES // 2)]
            assert all(sold), "it ended by itself"
            kill(seller)
            await_more(site, site.shipped().total())
            worker_kills += 1
        broker.advance("10m")  # leases of the killed worker end
    site.finish(site.manage("gossipq_relay", "--until-empty"))
    site.finish(site.manage("gossipq_worker", "--backend", "outbox", "--until-empty"))
    sales = site.ask("select number from sales")
    assert len(sales) >= ROUNDS * (SALES // 2 - 1)
    assert site.ask("select count(*) from gossipq_outbox") == [0]
    assert sorted(site.shipped()) == sorted(sales)
    # a killed worker had some tasks in hand, or done and not acked
    assert max(site.shipped().values()) <= 1 + worker_kills
    with broker.connect() as mq:
        assert len(list(mq.read("tasks.orders"))) == len(sales)
