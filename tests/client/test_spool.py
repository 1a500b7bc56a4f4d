"""The spool: what is not confirmed is on the disk, and is sent after a restart, in order and once."""

import asyncio
import errno
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import HOME, ROOTS, RunningNode
from gossipq.errors import (
    Backpressure,
    BadRequest,
    ClientClosed,
    ConfigError,
    ForkedClient,
    NotConfirmed,
    Refused,
    StoreError,
    TopicFull,
    Unreachable,
)
from gossipq.types import Now
from gossipq_client import Client, aio, connect, testing
from gossipq_client.api.aio import driver as aio_driver
from gossipq_client.api.aio import publisher as aio_publisher
from gossipq_client.api.sync import driver as sync_driver
from gossipq_client.api.sync import publisher
from gossipq_client.io import spool as spools
from gossipq_client.io.spool import Spool
from gossipq_client.values import Spooled, publish_options, spooled
from ports import settled_port

PATIENCE_S = 60
KILLS = 12


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(HOME / root) for root in ROOTS)}


class Flight:
    def __init__(self) -> None:
        self.done, self.error = False, None


def row(number: int) -> Spooled:
    return Spooled("t", b"%d" % number, b"id-%d" % number)


def fill(spool: Spool) -> list[Flight]:
    """One row of 10 kB after the other until it is full. The flight of each."""
    flights = list[Flight]()
    for at in range(1_000):
        try:
            numbers = spool.put([Spooled("filled", b"%d" % at + bytes(10_000), b"id-%d" % at)])
        except Backpressure:
            break
        flights.append(Flight())
        spool.sent(numbers, [flights[-1]])
    return flights


def test_what_is_put_is_there_until_it_is_certain(tmp_path: Path) -> None:
    spool, flights = Spool(tmp_path), [Flight() for _ in range(4)]
    assert [spool.put([row(0)]), spool.put([row(at) for at in range(1, 4)])] == [range(1, 2), range(2, 5)]
    for (number, found), flight in zip(spool.unsent(), flights, strict=True):
        assert found == row(number - 1)
        spool.sent(range(number, number + 1), [flight])
    assert list(spool.unsent()) == []
    flights[0].done = flights[2].done = flights[3].done = True
    flights[3].error = NotConfirmed("in doubt")
    spool.close()
    spool.close()
    again = Spool(tmp_path)
    assert [found.value for _, found in again.unsent()] == [b"1", b"2", b"3"], "in order, and the doubtful"
    assert again.put([row(4)]) == range(5, 6)
    again.close()


def test_what_was_refused_goes_for_its_publisher_knows(tmp_path: Path) -> None:
    spool, flight = Spool(tmp_path), Flight()
    spool.sent(spool.put([row(0)]), [flight])
    spool.drop(spool.put([row(1), row(2)]))
    flight.done, flight.error = True, Refused("no")
    spool.sweep()
    assert len(spool) == 0
    spool.close()
    assert spools.show(str(tmp_path)) == []


def test_a_full_spool_says_so_and_takes_more_once_some_are_confirmed(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    flights = fill(spool)
    before = len(spool)
    with pytest.raises(Backpressure, match="is full"):
        spool.put([Spooled("t", b"", b"i"), Spooled("t", bytes(900_000), b"i")])
    assert len(spool) == before, "all of a list or none"
    for flight in flights:
        flight.done = True
    spool.close()
    spool = Spool(tmp_path, 1 << 20)
    assert len(spool) == 0
    assert spool.put([row(0)])
    spool.close()


def test_what_is_confirmed_makes_room_while_its_client_lives(tmp_path: Path) -> None:
    """LMDB reuses deleted pages only in a later commit, so one commit that deletes and puts
    was refused again and again.
    """
    spool = Spool(tmp_path, 1 << 20)
    for flight in fill(spool):
        flight.done = True
    for _ in range(3):
        spool.put([Spooled("t", bytes(10_000), b"i")])
    assert len(spool) == 3
    spool.close()


def test_what_is_dropped_leaves_those_before_it_to_be_sent(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put([row(0)])
    spool.drop(spool.put([row(1)]))
    assert [found.value for _, found in spool.unsent()] == [b"0"]
    spool.put([row(2)])
    assert [found.value for _, found in spool.unsent()] == [b"0", b"2"]
    spool.close()


class InterruptedCommits:
    """A store whose next commit ends in the exception of a signal handler, once all is on the disk."""

    def __init__(self, rows: Any, handler: Callable[[], None]) -> None:
        self._rows, self._handler = rows, handler

    @contextmanager
    def begin(self, write: bool = False) -> Iterator[Any]:
        with self._rows.begin(write=write) as writing:
            yield writing
        self._handler()

    def close(self) -> None:
        self._rows.close()


def test_an_interrupt_behind_a_commit_takes_no_number_twice(tmp_path: Path) -> None:
    """The next record was not on the disk, for its number was taken."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    spool = Spool(tmp_path)
    rows, spool._rows = spool._rows, InterruptedCommits(spool._rows, interrupt)
    with pytest.raises(KeyboardInterrupt):
        spool.put([row(0)])
    spool._rows = rows
    spool.put([row(1)])
    assert [found.value for _, found in spool.unsent()] == [b"0", b"1"]
    spool.close()


def test_a_signal_handler_that_closes_it_lets_what_it_is_at_end_first(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool._rows = InterruptedCommits(spool._rows, spool.close)
    spool.put([row(0)])
    with pytest.raises(ClientClosed):
        spool.put([row(1)])
    with pytest.raises(ClientClosed):
        list(spool.unsent())
    assert [found.value for _, found in spools.show(str(tmp_path))] == [b"0"]
    Spool(tmp_path).close()


def test_a_thread_that_publishes_while_another_closes_is_told(broker: testing.Broker, tmp_path: Path) -> None:
    """It was an error of LMDB; what was on the disk by then stays there, and the error says so."""
    mq = connect(broker.endpoint, spool=tmp_path)
    mq.publish("ending", b"first")
    closing = threading.Timer(0.05, mq.close)
    closing.start()

    def publish() -> None:
        while True:
            mq.post("ending", b"more")

    with pytest.raises(ClientClosed):
        publish()
    closing.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_no_part_in_it(tmp_path: Path) -> None:
    """The child's rows took the numbers of its parent's next rows, and the child kept the spool
    after its parent closed it.
    """
    spool, (reading, writing) = Spool(tmp_path), os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        try:
            spool.put([row(7)])
        except ForkedClient:
            os.read(reading, 1)  # until the parent is done
            os._exit(0)
        os._exit(1)
    spool.put([row(0)])
    assert [found.value for _, found in spool.unsent()] == [b"0"]
    spool.close()
    Spool(tmp_path).close()
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    os.close(reading)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_was_forked_amid_a_publish_does_not_wait_for_it(tmp_path: Path) -> None:
    """Another thread of the parent was at it, which the child does not have: it waited for ever."""
    mq, held, over = connect("tcp://127.0.0.1:9", spool=tmp_path), threading.Event(), threading.Event()

    def publish() -> None:
        with mq._driver.spooling:
            held.set()
            over.wait(PATIENCE_S)

    thread = threading.Thread(target=publish)
    thread.start()
    held.wait(PATIENCE_S)
    child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            mq.post("t", b"x")
        except ForkedClient:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    over.set()
    thread.join()
    mq.close()


@pytest.mark.parametrize("size", ["1GB", 1.5, True, 0, 2**60])
def test_what_is_no_size_of_a_spool_is_told_by_name(tmp_path: Path, size: Any) -> None:
    with pytest.raises(BadRequest, match="spool_bytes_max="):
        connect("tcp://127.0.0.1:1", spool=tmp_path, spool_bytes_max=size)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_a_spool_is_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="no spool can be in"):
        Spool(tmp_path / "file")
    (tmp_path / "data.mdb").write_bytes(b"x" * 20_000)
    with pytest.raises(ConfigError, match="not an LMDB file"):
        Spool(tmp_path)
    with pytest.raises(ConfigError, match="not an LMDB file"):
        spools.show(str(tmp_path))
    wrong: Any = 5
    with pytest.raises(TypeError, match="not int"):
        Spool(wrong)
    gc.collect()  # what was half made ends without a word


def test_a_disk_that_is_full_is_told_and_the_client_can_be_closed(tmp_path: Path) -> None:
    """Not by an error of LMDB, behind which `close` did not close."""
    import lmdb

    def full() -> None:
        raise lmdb.DiskError("No space left on device")

    spool = Spool(tmp_path)
    spool._rows = InterruptedCommits(spool._rows, full)
    with pytest.raises(StoreError, match="No space left"):
        spool.put([row(0)])
    spool.close()
    Spool(tmp_path).close()


def test_a_disk_that_is_full_takes_more_once_some_are_confirmed(tmp_path: Path) -> None:
    """As a full spool does: what is confirmed leaves by itself, and makes room."""
    import lmdb

    class FullOnce(InterruptedCommits):
        @contextmanager
        def begin(self, write: bool = False) -> Iterator[Any]:
            with self._rows.begin(write=write) as writing:
                yield writing
                self._handler()

    def full() -> None:
        if tries.pop():
            raise lmdb.DiskError("No space left on device")

    spool, flight, tries = Spool(tmp_path), Flight(), [False] * 4 + [True]
    spool.sent(spool.put([row(0)]), [flight])
    flight.done = True
    disk, spool._rows = spool._rows, FullOnce(spool._rows, full)
    assert spool.put([row(1)]) == range(2, 3)
    spool._rows = disk
    assert len(spool) == 1
    spool.close()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="not here")
def test_a_disk_without_place_for_a_new_spool_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel ended the program (SIGBUS), as LMDB wrote into its mapped lock file."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(ConfigError, match="No space left"):
            Spool(tmp_path)
    Spool(tmp_path).close()
    assert (tmp_path / "lock.mdb").stat().st_size == spools.LOCK_BYTES, "LMDB needs no more"


def test_rows_that_went_together_are_certain_together(tmp_path: Path) -> None:
    spool, flights = Spool(tmp_path), [Flight(), Flight()]
    spool.sent(spool.put([row(0), row(1), row(2)]), flights)
    flights[0].done = True
    spool.sweep()
    assert len(spool) == 3
    flights[1].done = True
    spool.sweep()
    assert len(spool) == 0
    spool.close()


def test_a_spool_is_of_one_client_at_a_time_and_can_be_looked_at_meanwhile(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put([row(0)])
    with pytest.raises(ConfigError, match="another client"):
        connect("tcp://127.0.0.1:9", spool=tmp_path)
    command = [sys.executable, "-m", "gossipq_cli", "client", "spool", str(tmp_path), "-o", "jsonl"]
    shown = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    assert '"topic":"t"' in shown.stdout.replace(" ", "")
    spool.close()
    with pytest.raises(ConfigError, match="no spool"):
        spools.show(str(tmp_path / "none"))


def test_a_row_asks_for_what_its_publish_asked_for_also_after_a_restart() -> None:
    before, after = Now(1_000, 1_700_000_000_000), Now(5, 1_700_000_060_000)
    given = publish_options(
        lambda: before,
        key="k",
        headers={"a": "b"},
        route="r",
        delay="5m",
        ttl="1h",
        attempts_max=2,
        id="i",
        flow="f",
        priority=8,
    )
    kept = spooled("t", b"v", given, before)
    again = kept.options(after)
    assert (again.key, again.headers, again.route, again.level) == (b"k", given.headers, b"r", "")
    assert again.terms is not None
    assert (again.terms.id, again.terms.ttl_ms, again.terms.attempts_max) == (b"i", 3_600_000, 2)
    assert (again.terms.flow, again.terms.priority) == (b"f", 8)
    assert again.terms.due_ms - after.boot_ms == pytest.approx(240_000, abs=1)
    late = kept.options(Now(5, before.wall_ms + 900_000))
    assert late.terms is not None
    assert late.terms.due_ms == 0, "due meanwhile"
    assert late.terms.ttl_ms == pytest.approx(3_000_000, abs=1), "from when it was due"
    useless = kept.options(Now(5, before.wall_ms + 86_400_000))
    assert useless.terms is not None
    assert useless.terms.ttl_ms == 1


def everything(mq: testing.Client, topic: str) -> list[bytes]:
    return [msg.value for msg in mq.read(topic)]


def test_what_could_not_be_sent_goes_at_the_next_start(broker: testing.Broker, tmp_path: Path) -> None:
    away = connect(f"tcp://127.0.0.1:{settled_port()}", spool=tmp_path, timeout="20ms")
    for number in range(3):
        with pytest.raises(Unreachable, match=r".*") as told:
            away.post("spooled", b"%d" % number)
    assert "spool" in told.value.hint
    away.close()
    with connect(broker.endpoint, spool=tmp_path) as mq:
        mq.publish("spooled", b"3", timeout=PATIENCE_S)
        mq.flush(PATIENCE_S)
    with broker.connect() as reader:
        assert everything(reader, "spooled") == [b"0", b"1", b"2", b"3"]
    assert spools.show(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("topic", "partition"), [(b"orders", None), (None, None), ("orders", "0"), ("orders", 0.5)]
)
def test_what_no_row_can_say_is_refused_and_leaves_the_rest(
    broker: testing.Broker, tmp_path: Path, topic: Any, partition: Any
) -> None:
    """An unreadable row on the disk once blocked every later publish and start."""
    with connect(broker.endpoint, spool=tmp_path) as mq:
        for publish in (mq.post, mq.post_many):
            with pytest.raises(BadRequest, match="must be"):
                publish(topic, [b"x"] if publish == mq.post_many else b"x", partition=partition)
        assert mq.publish("orders", b"1", partition=False, timeout=PATIENCE_S).partition == 0
    assert spools.show(str(tmp_path)) == []


def test_a_client_that_could_not_connect_leaves_the_spool_to_others(tmp_path: Path) -> None:
    """A second try was told that another client has the spool, until the process ended."""
    away = f"tcp://127.0.0.1:{settled_port()}"

    async def awaited() -> None:
        async with aio.connect(away, spool=tmp_path, timeout="20ms"):
            pass

    mq = connect(away, spool=tmp_path, timeout="20ms")
    kept = list[Exception]()  # like a program that logs them with all their context
    for number in range(2):
        for attempt in (
            mq.__enter__,
            lambda number=number: mq.post("t", b"%d" % number),
            lambda: connect(away, spool=tmp_path, wait="20ms"),
            lambda: asyncio.run(awaited()),
        ):
            with pytest.raises(Unreachable) as told:
                attempt()
            kept.append(told.value)
    connect(away, spool=tmp_path)  # never used, never closed
    spool = Spool(tmp_path)
    assert [found.value for _, found in spool.unsent()] == [b"0", b"1"]
    with pytest.raises(ConfigError, match="another client"):
        mq.post("t", b"2")
    spool.rest()
    mq.close()
    spool.put([row(2)])
    assert len(spool) == 3, "again, once it is used again"
    spool.close()


def test_a_start_that_cannot_send_what_was_left_leaves_it_to_the_next(
    broker: testing.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise Unreachable("no leader")

    async def later() -> None:
        away()

    left = Spool(tmp_path)
    left.put([Spooled("left", b"0", b"id")])
    left.close()
    with monkeypatch.context() as patched:
        patched.setattr(publisher.Publisher, "send_spooled", away)
        patched.setattr(aio_publisher.Publisher, "send_spooled", lambda _: later())
        with pytest.raises(Unreachable):
            connect(broker.endpoint, spool=tmp_path).__enter__()

        async def awaited() -> None:
            await aio.connect(broker.endpoint, spool=tmp_path)

        with pytest.raises(Unreachable):
            asyncio.run(awaited())
    with connect(broker.endpoint, spool=tmp_path):
        pass
    assert spools.show(str(tmp_path)) == []


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
def test_a_start_that_ends_half_way_leaves_the_spool_to_the_next(
    broker: testing.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """With a part of it under way: whoever tried again was told that another client has it."""
    left = Spool(tmp_path)
    left.put([Spooled("begun", b"%d" % at, b"id%d" % at) for at in range(3)])
    left.close()
    driver = (sync_driver if kind == "sync" else aio_driver).Driver
    goes, adds, begun = driver.in_window, driver.append_now, list[Any]()

    def half(mq: Any, *asked: Any) -> Any:
        if begun:
            raise Unreachable("no leader")
        begun.append(mq)
        mq.engine.transport.receive = list  # no confirm comes
        return goes(mq, *asked)

    def none(mq: Any, *asked: Any) -> Any:
        if begun:
            raise Unreachable("no leader")
        return adds(mq, *asked)

    async def awaited() -> None:
        await aio.connect(broker.endpoint, spool=tmp_path)

    begin = {
        "sync": lambda: connect(broker.endpoint, spool=tmp_path).__enter__(),
        "asyncio": lambda: asyncio.run(awaited()),
    }[kind]
    with monkeypatch.context() as patched:
        patched.setattr(driver, "in_window", half)
        patched.setattr(driver, "append_now", none)
        with pytest.raises(Unreachable):
            begin()
    with connect(broker.endpoint, spool=tmp_path) as mq, broker.connect() as reader:
        mq.flush(PATIENCE_S)
        assert everything(reader, "begun")[-3:] == [b"0", b"1", b"2"]


def test_who_begins_while_another_publishes_sends_nothing_of_that(
    broker: testing.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sent it: the receipt could call a new record a duplicate."""
    mq = connect(broker.endpoint, spool=tmp_path)
    mq.publish("shared", b"0")
    assert mq._driver.spool is not None
    put, sent, numbers = mq._driver.spool.put, mq._driver.spool.sent, list[int]()
    begins = threading.Thread(target=mq.__enter__)

    def put_and_begin(rows: Any) -> range:
        found = put(rows)
        begins.start()
        begins.join(0.2)  # it waits, as nothing of this is sent yet
        return found

    def noted(rows: Any, *more: Any, **options: Any) -> None:
        numbers.extend(rows)
        sent(rows, *more, **options)

    monkeypatch.setattr(mq._driver.spool, "put", put_and_begin)
    monkeypatch.setattr(mq._driver.spool, "sent", noted)
    assert not mq.publish("shared", b"1", timeout=PATIENCE_S).duplicate
    begins.join()
    assert len(numbers) == len(set(numbers)) == 1
    mq.close()


def test_who_breaks_off_a_close_leaves_the_spool_to_others(
    broker: testing.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client once kept the spool until the program ended: after `with` no
    one could close it again.
    """

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    mq = connect(broker.endpoint, spool=tmp_path)
    pending = mq.post("broken", b"x")
    with monkeypatch.context() as patched:
        patched.setattr(mq._driver, "until", interrupt)
        with pytest.raises(KeyboardInterrupt):
            mq.__exit__(None, None, None)
    with connect(broker.endpoint, spool=tmp_path) as mq, broker.connect() as reader:
        mq.flush(PATIENCE_S)
        assert everything(reader, "broken") == [b"x"]
    with pytest.raises(ClientClosed):
        pending.result(PATIENCE_S)


def test_a_signal_handler_that_interrupts_a_publish_hears_that_its_own_is_not_kept(
    broker: testing.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any point of one: it heard of an error of LMDB, or that nothing can be done, and it was kept."""
    mq = connect(broker.endpoint, spool=tmp_path)
    mq.publish("handled", b"first")
    kept = list[bytes]()

    def handler(value: bytes) -> None:
        with pytest.raises(RuntimeError, match="nothing was done"):
            mq.post("handled", value)

    def interrupted(name: str, of: Any) -> None:
        real = getattr(of, name)

        def work(*asked: Any, **options: Any) -> Any:
            patched.undo()
            handler(name.encode())
            return real(*asked, **options)

        with monkeypatch.context() as patched:
            patched.setattr(of, name, work)
            mq.post("handled", name.upper().encode())
            kept.append(name.upper().encode())

    assert mq._driver.spool is not None
    interrupted("_write", mq._driver.spool)
    interrupted("advance", mq._driver.engine.session)
    interrupted("find_topic", mq._driver.engine)
    mq.close()
    assert spools.show(str(tmp_path)) == []
    with broker.connect() as reader:
        assert everything(reader, "handled")[1:] == kept


def test_what_is_refused_at_a_later_start_stays(broker: testing.Broker, tmp_path: Path) -> None:
    """Its publisher was told that it is in the spool, and could not learn of its removal."""
    with broker.connect() as mq:
        mq.create_topic("narrow", bytes_max=1_000_000)
        mq.publish("narrow", bytes(900_000), timeout=PATIENCE_S)
        left = Spool(tmp_path)
        left.put([Spooled("narrow", b"kept" + bytes(200_000), b"id")])
        left.close()
        early = connect(broker.endpoint, spool=tmp_path)
        with pytest.raises(TopicFull), early:
            pass
        assert [kept.id for _, kept in spools.show(str(tmp_path))] == [b"id"]
        mq.topic("narrow").configure(bytes_max=2_000_000)
        with connect(broker.endpoint, spool=tmp_path):
            pass
        assert [value[:4] for value in everything(mq, "narrow")] == [bytes(4), b"kept"]
    assert spools.show(str(tmp_path)) == []


def test_a_full_spool_empties_by_publishing(broker: testing.Broker, tmp_path: Path) -> None:
    """A client that continues when its nodes are back was refused for ever, and sent
    none of the waiting records.
    """
    spool = Spool(tmp_path, 1 << 20)
    waits = len(fill(spool))
    spool.close()
    mq = connect(broker.endpoint, spool=tmp_path, spool_bytes_max=1 << 20)
    deadline = time.monotonic() + PATIENCE_S
    with pytest.raises(Backpressure, match="is full"):
        mq.post("filled", bytes(10_000))
    while time.monotonic() < deadline:
        try:
            mq.publish("filled", b"last" + bytes(10_000), timeout=PATIENCE_S)
            break
        except Backpressure:
            time.sleep(0.01)
    mq.close()
    with broker.connect() as reader:
        found = [value.rstrip(b"\0") for value in everything(reader, "filled")]
    assert found == [*(b"%d" % at for at in range(waits)), b"last"]


def test_lists_go_through_it_too(broker: testing.Broker, tmp_path: Path) -> None:
    """In order with single records, once, all of a list or none, and with the options of each record."""
    away = connect(f"tcp://127.0.0.1:{settled_port()}", spool=tmp_path, timeout="20ms")
    with pytest.raises(Unreachable):
        away.post_many("lists", [b"0", b"1"], ids=["zero", None], keys=["k", None], headers={"a": "b"})
    with pytest.raises(BadRequest):
        away.post_many("lists", [b"never"], keys=[])
    away.close()
    assert [(row.value, row.key) for _, row in spools.show(str(tmp_path))] == [(b"0", b"k"), (b"1", None)]
    with connect(broker.endpoint, spool=tmp_path) as mq:
        assert mq.publish_many("lists", [], timeout=PATIENCE_S).count == 0
        receipt = mq.publish_many("lists", [b"2", b"3"], timeout=PATIENCE_S)
        assert (receipt.count, receipt.offset) == (2, 2)
        assert mq.publish("lists", b"again", id="zero", timeout=PATIENCE_S).duplicate
        with pytest.raises(BadRequest):
            mq.post_many("lists", [b"4"], partition=99)
    with broker.connect() as reader:
        found = list(reader.read("lists"))
    assert [(msg.value, msg.key, msg.headers) for msg in found] == [
        (b"0", b"k", {"a": "b"}),
        (b"1", None, {"a": "b"}),
        (b"2", None, {}),
        (b"3", None, {}),
    ]
    assert spools.show(str(tmp_path)) == []


@pytest.fixture
def half_way(broker: testing.Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client with a spool that finds its window full for the second batch of what it publishes."""
    mq = connect(broker.endpoint, spool=tmp_path)
    goes, times = mq._driver.in_window, iter(range(10))

    def in_window(*asked: Any) -> Any:
        if next(times) == 1:
            raise Backpressure("the window is full")
        return goes(*asked)

    monkeypatch.setattr(mq._driver, "in_window", in_window)
    return mq


def test_a_list_that_ends_half_way_keeps_what_is_under_way(
    broker: testing.Broker, tmp_path: Path, half_way: Client
) -> None:
    """It leaves when it is confirmed, and is sent again if the program dies before. The rest leaves at once,
    since the error says so."""
    with broker.connect() as admin:
        admin.create_topic("halves", 2)
    keys = [f"{at}" for at in range(20)]
    with pytest.raises(Backpressure, match="of the list are on their way"):
        half_way.post_many("halves", [key.encode() for key in keys], keys=keys)
    spool = half_way._driver.spool
    assert spool is not None
    kept = [row.value for number, row in spools.read(spool._rows, 0, 20) if number not in spool._gone]
    assert 0 < len(kept) < 20
    half_way.close()
    assert spools.show(str(tmp_path)) == []
    with broker.connect() as reader:
        assert everything(reader, "halves") == kept


def test_a_copy_that_only_one_topic_gets_is_kept_too(
    broker: testing.Broker, tmp_path: Path, half_way: Client
) -> None:
    with broker.connect() as admin:
        admin.create_topic("here")
        admin.create_topic("there")
        admin.topic("both").bind(["here", "there"])
    with pytest.raises(Backpressure):
        half_way.post("both", b"x")
    assert half_way._driver.spool is not None
    assert len(half_way._driver.spool) == 1
    half_way.close()
    assert spools.show(str(tmp_path)) == []


def test_an_atomic_step_needs_none(broker: testing.Broker, tmp_path: Path) -> None:
    """The record itself keeps the result, since it is not acked before. Records that wait in
    the spool are sent first.
    """
    with broker.connect() as mq:
        mq.create_topic("source")
        mq.create_topic("outcome", beside="source")
        mq.publish("source", b"x")
    spool = Spool(tmp_path)
    spool.put([Spooled("outcome", b"before", b"id-before")])
    spool.close()
    mq = connect(broker.endpoint, spool=tmp_path)
    (msg,) = mq.fetch("source", "g", n=1, wait=PATIENCE_S)
    msg.ack_with("outcome", b"after", timeout=PATIENCE_S)
    mq.close()
    assert spools.show(str(tmp_path)) == []
    with broker.connect() as reader:
        assert everything(reader, "outcome") == [b"before", b"after"]
        assert list(reader.fetch("source", "g", n=1, wait=0.0)) == []


def test_the_asyncio_client_has_it_too(broker: testing.Broker, tmp_path: Path) -> None:
    async def main() -> None:
        async with aio.connect(broker.endpoint, spool=tmp_path) as mq:
            pending = [mq.post("aspooled", b"%d" % at) for at in range(5)]
            pending.append(mq.post_many("aspooled", [b"5", b"6"]))
            for each in pending:
                await each.result(PATIENCE_S)

    asyncio.run(main())
    with broker.connect() as reader:
        assert everything(reader, "aspooled") == [b"%d" % at for at in range(7)]
    assert spools.show(str(tmp_path)) == []


PUBLISHER = """
import sys
from gossipq_client import connect
server, directory, first = sys.argv[1:]
with connect(server, spool=directory) as mq:
    at = int(first)
    while True:
        mq.publish("killed", b"%d" % at)
        print(at, flush=True)
        if at % 5 == 0:
            mq.publish_many("killed", [b"%d" % (at + 1), b"%d" % (at + 2)])
            print(at + 1, flush=True)
            print(at + 2, flush=True)
            at += 2
        at += 1
"""


@pytest.mark.e2e
@pytest.mark.slow
def test_a_publisher_that_is_killed_loses_nothing_and_doubles_nothing(
    shared_node: RunningNode, tmp_path: Path
) -> None:
    """Killed at random moments: every publish that returned is stored once, in the order of the publishes."""
    with connect(shared_node.endpoint) as mq:
        mq.create_topic("killed", 1)
    chance, first, published = random.Random(7), 0, set[int]()
    for _ in range(KILLS):
        program = subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, shared_node.endpoint, str(tmp_path / "spool"), str(first)],
            stdout=subprocess.PIPE,
            env=environment(),
        )
        assert program.stdout is not None
        for _ in range(chance.randrange(1, 400)):
            published.add(int(program.stdout.readline()))
        program.send_signal(signal.SIGKILL)
        published.update(int(line) for line in program.stdout if line.endswith(b"\n"))
        program.wait()
        program.stdout.close()
        first = max(published) + 3  # one publish more may be on the disk, and it may be a list of two
    with connect(shared_node.endpoint, spool=tmp_path / "spool") as mq:
        mq.flush(PATIENCE_S)
        stored = [int(msg.value) for msg in mq.read("killed")]
    assert [value for value, count in Counter(stored).items() if count > 1] == []
    assert published <= set(stored)
    assert stored == sorted(stored)
    assert spools.show(str(tmp_path / "spool")) == []
