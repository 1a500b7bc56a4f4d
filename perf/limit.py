#!/usr/bin/env python3
"""The raw loop this machine could run without a product: sockets, a B-tree with fsync, and as little Python
as the job needs.

A producer sends sealed batches of records. One loop checks their CRC, writes everything that arrived into one
fsynced LMDB transaction, and confirms. It pushes records to one consumer against a credit, and stores the
acks. With three copies two followers write too, and a confirm waits for two of three disks. The loop has no
topics, groups, leases, retries, terms or restarts. gossipq is measured as a share of its rate, in the same
minute, on the same cores.

    python perf/limit.py [--batch 500] [--size 100] [--records 1000000] [--window 32] [--copies 1|3]
    [--sync-rtt] [--journal-rtt] [--journal-load RATE]

It prints one JSON object: records per second published and end to end, and with --sync-rtt confirmed
publishes per second when only one is in flight. --journal-rtt measures the same with appends to a file
instead of the B-tree: with one copy in an echo that does nothing else, with three in the loop. --journal-load
publishes at a rate in records per second, and does not wait for confirms. It prints percentiles of the
confirm in ms, each counted from the time at which the batch was due.
"""

import argparse
import json
import multiprocessing
import os
import select
import shutil
import statistics
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from zlib import crc32

import lmdb
import msgspec
import zmq

RUN, COPY, HAVE, CONFIRM, LEND, PUSH, ACK = (bytes([kind]) for kind in b"rchfLpa")
TURN_MESSAGES, TURN_BYTES = 256, 4 << 20
MAP_BYTES = 16 << 30
JOURNAL_BYTES, BLOCK_BYTES = 4 << 20, 4_096
RTT_ROUNDS = 2_000
LOAD_S = 10

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder().decode


def arrivals(socket: Any) -> list[list[bytes]]:
    """Read the frames that the socket has now, at most those for one turn."""
    found: list[list[bytes]] = []
    room = TURN_BYTES
    try:
        while room > 0 and len(found) < TURN_MESSAGES:
            found.append(socket.recv_multipart(zmq.DONTWAIT))
            room -= len(found[-1][-1])
    except zmq.Again:
        pass
    return found


def bound_router() -> tuple[Any, str]:
    socket = zmq.Context.instance().socket(zmq.ROUTER)
    socket.rcvhwm = socket.sndhwm = 0
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    return socket, f"tcp://127.0.0.1:{port}"


def dealer_to(endpoint: str) -> Any:
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.rcvhwm = socket.sndhwm = 0
    socket.connect(endpoint)
    return socket


def checked(head: bytes, data: bytes) -> tuple[int, int, int]:
    """(number or first record, records, CRC) of a run whose bytes are whole."""
    number, count, crc = decode(head)
    if crc32(data) != crc:
        raise ValueError("CRC of a run does not match")
    return number, count, crc


class Copy:
    """One disk: a log keyed by first record, and a place for the acked position."""

    def __init__(self, directory: str) -> None:
        self.env = lmdb.open(directory, map_size=MAP_BYTES, max_dbs=2)
        self.log, self.marks = self.env.open_db(b"runs"), self.env.open_db(b"marks")

    def write(self, runs: list[tuple[int, bytes]], acked: int | None = None) -> None:
        """One transaction, on disk when it returns."""
        with self.env.begin(write=True) as txn:
            put, log = txn.put, self.log
            for first, value in runs:
                put(first.to_bytes(8, "big"), value, db=log, append=True)
            if acked is not None:
                put(b"acked", encode(acked), db=self.marks)


class Journal:
    """A disk that only appends: a file that is full of zeros beforehand, written over from the front when its
    end is reached."""

    def __init__(self, directory: str) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        self.file = os.open(f"{directory}/journal", os.O_RDWR | os.O_CREAT)
        os.write(self.file, bytes(JOURNAL_BYTES))
        os.fsync(self.file)
        self.position = 0

    def write(self, runs: list[tuple[int, bytes]], acked: int | None = None) -> None:
        """One append, on disk when it returns."""
        whole = b"".join(value for _, value in runs) or encode(acked)
        size = -(-len(whole) // BLOCK_BYTES) * BLOCK_BYTES
        if self.position + size > JOURNAL_BYTES:
            self.position = 0
        os.pwrite(self.file, whole.ljust(size, b"\0"), self.position)
        os.fdatasync(self.file)
        self.position += size


def echo(directory: str, pipe: Connection) -> None:
    """Writes what comes and answers: as few steps as one in flight can have."""
    journal = Journal(directory)
    socket, endpoint = bound_router()
    pipe.send(endpoint)
    while True:
        peer, _, head, offsets, data = socket.recv_multipart()
        journal.write([(0, head + offsets + data)])
        socket.send_multipart((peer, CONFIRM, head))


def follow(directory: str, disk: type[Copy | Journal], pipe: Connection) -> None:
    """A follower: check, write, say how far."""
    copy = disk(directory)
    socket, endpoint = bound_router()
    pipe.send(endpoint)
    while socket.poll():
        runs, end, leader = [], 0, b""
        for frames in arrivals(socket):
            leader, _, head, offsets, data = frames
            first, count, _ = checked(head, data)
            runs.append((first, head + offsets + data))
            end = first + count
        copy.write(runs)
        socket.send_multipart((leader, HAVE, encode(end)))


class Lead:
    """The loop in the middle."""

    def __init__(self, directory: str, disk: type[Copy | Journal], followers: list[str]) -> None:
        self.copy = disk(directory)
        self.socket, self.endpoint = bound_router()
        self.followers = [dealer_to(endpoint) for endpoint in followers]
        self.poller = zmq.Poller()
        for socket in (self.socket, *self.followers):
            self.poller.register(socket, zmq.POLLIN)
        self.on_disk = [0] * (1 + len(followers))
        self.end = self.acked = self.credit = 0
        self.consumer = b""
        self.unconfirmed: deque[tuple[Any, ...]] = deque()
        self.deliverable: deque[tuple[Any, ...]] = deque()

    def serve(self, records: int) -> None:
        """Turns until the consumer has acked `records`."""
        while self.acked < records:
            self.poller.poll()
            for number, socket in enumerate(self.followers, 1):
                for _, end in arrivals(socket):
                    self.on_disk[number] = decode(end)
            acked_before = self.acked
            fresh = self.take()
            if fresh or self.acked != acked_before:
                self.copy.write(fresh, self.acked if self.acked != acked_before else None)
                self.on_disk[0] = self.end
            self.confirm()
            self.push()

    def take(self) -> list[tuple[int, bytes]]:
        """Reads the socket; returns what must be on disk before anything is said."""
        fresh = []
        for frames in arrivals(self.socket):
            kind = frames[1]
            if kind == RUN:
                peer, _, head, offsets, data = frames
                number, count, crc = checked(head, data)
                head = encode((self.end, count, crc))
                for follower in self.followers:
                    follower.send_multipart((COPY, head, offsets, data))
                fresh.append((self.end, head + offsets + data))
                self.unconfirmed.append((self.end, count, peer, encode((number, self.end)), offsets, data))
                self.end += count
            elif kind == ACK:
                first, end = decode(frames[2])
                self.credit += end - first
                self.acked = end
            elif kind == LEND:
                self.consumer, self.credit = frames[0], decode(frames[2])
        return fresh

    def confirm(self) -> None:
        majority = sorted(self.on_disk)[(len(self.on_disk) - 1) // 2]
        waiting = self.unconfirmed
        while waiting and waiting[0][0] + waiting[0][1] <= majority:
            first, count, peer, answer, offsets, data = waiting.popleft()
            self.socket.send_multipart((peer, CONFIRM, answer))
            self.deliverable.append((first, count, offsets, data))

    def push(self) -> None:
        waiting = self.deliverable
        while self.consumer and waiting and waiting[0][1] <= self.credit:
            first, count, offsets, data = waiting.popleft()
            self.credit -= count
            self.socket.send_multipart((self.consumer, PUSH, encode((first, count)), offsets, data))


def lead(
    directory: str, disk: type[Copy | Journal], followers: list[str], records: int, pipe: Connection
) -> None:
    leader = Lead(directory, disk, followers)
    pipe.send(leader.endpoint)
    leader.serve(records)
    zmq.Context.instance().destroy(linger=200)


def consume(endpoint: str, records: int, credit: int, pipe: Connection) -> None:
    """Takes every record out of its run, acks run by run, then says when it was done."""
    socket = dealer_to(endpoint)
    socket.send_multipart((LEND, encode(credit)))
    pipe.send("ready")
    seen = 0
    while seen < records:
        _, head, packed, data = socket.recv_multipart()
        first, count = decode(head)
        offsets = array("i", packed)
        values = [data[start:end] for start, end in pairwise(offsets)]
        seen += len(values)
        socket.send_multipart((ACK, encode((first, first + count))))
    pipe.send(time.perf_counter())
    zmq.Context.instance().destroy(linger=300)


def produce(endpoint: str, records: int, batch: int, size: int, window: int) -> None:
    """Sends `records` in runs of `batch`, never more than `window` runs unconfirmed; returns when all are
    confirmed."""
    socket, record = dealer_to(endpoint), os.urandom(size)
    sent = confirmed = number = 0
    while confirmed < records:
        while sent < records and sent - confirmed < window * batch:
            values = [record for _ in range(batch)]
            data = b"".join(values)
            offsets = array("i", accumulate(map(len, values), initial=0)).tobytes()
            socket.send_multipart((RUN, encode((number, batch, crc32(data))), offsets, data))
            number, sent = number + 1, sent + batch
        socket.recv_multipart()
        confirmed += batch
    socket.close(linger=0)


@contextmanager
def started(copies: int, records: int, disk: type[Copy | Journal] = Copy) -> Iterator[str]:
    """Leader and followers as processes, or the echo; yields the leader's endpoint, ends all of them."""
    spawn = multiprocessing.get_context("spawn")
    directory, processes = Path(tempfile.mkdtemp(prefix="limit-")), []

    def child(target: Any, *args: Any) -> str:
        mine, its = spawn.Pipe()
        process = spawn.Process(target=target, args=(*args, its), daemon=True)
        process.start()
        processes.append(process)
        return str(mine.recv())

    try:
        leader = str(directory / "leader")
        if disk is Journal and copies == 1:
            yield child(echo, leader)
            return
        others = range(1, copies)
        followers = [child(follow, str(directory / f"follower-{number}"), disk) for number in others]
        yield child(lead, leader, disk, followers, records)
    finally:
        for process in processes:
            process.terminate()
            process.join()
        shutil.rmtree(directory, ignore_errors=True)


def end_to_end(records: int, batch: int, size: int, window: int, copies: int) -> tuple[int, int]:
    """(published, consumed and acked) records per second; the clock of both starts with the first publish."""
    records -= records % batch
    spawn = multiprocessing.get_context("spawn")
    with started(copies, records) as endpoint:
        mine, its = spawn.Pipe()
        consumer = spawn.Process(
            target=consume, args=(endpoint, records, max(200_000, 4 * batch), its), daemon=True
        )
        consumer.start()
        mine.recv()
        start = time.perf_counter()
        produce(endpoint, records, batch, size, window)
        published = time.perf_counter()
        consumed = mine.recv()
        consumer.join()
    return round(records / (published - start)), round(records / (consumed - start))


def one_at_a_time(rounds: int, size: int, copies: int, disk: type[Copy | Journal] = Copy) -> int:
    """Confirmed publishes per second with one in flight."""
    with started(copies, rounds, disk) as endpoint:
        start = time.perf_counter()
        produce(endpoint, rounds, 1, size, 1)
        return round(rounds / (time.perf_counter() - start))


def at_rate(rate: float, batch: int, size: int, copies: int) -> dict[str, float]:
    """Latencies in ms until the confirm of runs of `batch` at `rate` records a second."""
    runs, apart_s = round(rate * LOAD_S / batch), batch / rate
    data, laps = os.urandom(size) * batch, []
    offsets = array("i", accumulate([size] * batch, initial=0)).tobytes()
    with started(copies, runs * batch, Journal) as endpoint:
        socket = dealer_to(endpoint)
        descriptor, start_s, sent = socket.get(zmq.FD), time.monotonic() + 0.1, 0
        while len(laps) < runs:
            while sent < runs and start_s + sent * apart_s <= time.monotonic():
                socket.send_multipart((RUN, encode((sent, batch, crc32(data))), offsets, data))
                sent += 1
            for _ in arrivals(socket):
                laps.append(time.monotonic() - (start_s + len(laps) * apart_s))
            left_s = start_s + sent * apart_s - time.monotonic() if sent < runs else LOAD_S
            if len(laps) < runs and left_s > 0 and not socket.get(zmq.EVENTS) & zmq.POLLIN:
                select.select([descriptor], (), (), left_s)
        socket.close(linger=0)
    cuts = statistics.quantiles(laps, n=1_000)
    return {
        f"load_{name}_ms": round(1_000 * cuts[at], 3)
        for name, at in (("p50", 499), ("p90", 899), ("p99", 989), ("p999", 998))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The raw loop gossipq is measured against.")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--copies", type=int, default=1, choices=(1, 3))
    parser.add_argument("--sync-rtt", action="store_true")
    parser.add_argument("--journal-rtt", action="store_true")
    parser.add_argument("--journal-load", type=float, metavar="RATE")
    given = parser.parse_args()
    if given.journal_load:
        print(json.dumps(at_rate(given.journal_load, given.batch, given.size, given.copies)))
        return
    published, consumed = end_to_end(given.records, given.batch, given.size, given.window, given.copies)
    answer = {"copies": given.copies, "batch": given.batch, "size": given.size}
    answer |= {"published_per_s": published, "end_to_end_per_s": consumed}
    if given.sync_rtt:
        answer["confirmed_one_at_a_time_per_s"] = one_at_a_time(RTT_ROUNDS, given.size, given.copies)
    if given.journal_rtt:
        answer["journal_one_at_a_time_per_s"] = one_at_a_time(RTT_ROUNDS, given.size, given.copies, Journal)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
