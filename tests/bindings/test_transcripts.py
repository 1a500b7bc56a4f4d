"""The recorded conversations: who says what the client said hears what it heard."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from bindings.transcripts import FILE, FLAGS, prepare
from conftest import RunningNode
from gossipq.messages import Confirm, DeliverPlain, Pong, Subscribed, Topics, Welcome
from gossipq.values import Message, PlainDelivered
from gossipq.wire import batch, frames

pytestmark = pytest.mark.e2e
TRANSCRIPTS = json.loads(FILE.read_text("utf-8"))["transcripts"]
NODES = 5  #: tried until one has the topic id of the recording
SOON_MS = 20_000
_plain = msgspec.msgpack.Decoder(list[PlainDelivered])


@contextmanager
def fresh_node(place: Path) -> Iterator["zmq.Socket[bytes]"]:
    """A socket to it."""
    node = RunningNode(place, *FLAGS).start()
    try:
        prepare(node.endpoint)
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.connect(node.endpoint)
            yield dealer
    finally:
        node.stop()


def seen(said: list[bytes]) -> list[Any]:
    """The parts of a message that are the same in each run: without names, endpoints, terms, times,
    and places in the log of a shard, where time has entries of its own.
    """
    header, message = frames.decode(said[0])
    told = [header.verb, header.shard, header.request_id, _lasting(message)]
    if isinstance(message, DeliverPlain):
        return [*told, [msgspec.structs.replace(row, time_ms=0) for row in _plain.decode(said[1])]]
    if len(said) > 1:
        return [*told, [_opened(raw) for raw in _batches(said[1])]]
    return told


def _lasting(message: Message) -> Any:
    match message:
        case Welcome():
            return message.window_bytes, message.silence_ms, message.ping_ms, message.shards
        case Confirm(runs=runs):
            placed = [
                (number, [msgspec.structs.replace(run, index=0) for run in each]) for number, each in runs
            ]
            return msgspec.structs.replace(message, direct="", runs=placed)
        case Subscribed():
            return msgspec.structs.replace(message, direct="")
        case Topics():
            return [(topic.id, topic.name, topic.shards) for topic in message.topics]
        case _:
            return message


def _batches(frame: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(frame):
        size = int.from_bytes(frame[at + 8 : at + 12], "little")
        yield frame[at : at + size]
        at += size


def _opened(raw: bytes) -> Any:
    opened = batch.Batch(raw)
    return opened.values(), opened.column(batch.KEYS), opened.column(batch.HEADERS), opened.column(batch.IDS)


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=[each["level"] for each in TRANSCRIPTS])
def test_a_fresh_node_says_the_same(transcript: dict[str, Any], tmp_path: Path) -> None:
    """This needs a next topic with the id of the recording: a node's own
    entries may come between.
    """
    for number in range(NODES):
        with fresh_node(tmp_path / str(number)) as socket:
            if says_the_same(transcript, socket):
                return
    raise AssertionError(f"none of {NODES} nodes gave the topic the id of the recording: record it anew")


def says_the_same(transcript: dict[str, Any], socket: "zmq.Socket[bytes]") -> bool:
    """False when the topic has another id."""
    for who, *row in transcript["rows"]:
        said = [bytes.fromhex(frame) for frame in row]
        if who == "client":
            socket.send_multipart(said)
            continue
        heard = next_of(socket)
        if topic_ids(heard) != topic_ids(said):
            return False
        assert seen(heard) == seen(said)
    return True


def topic_ids(said: list[bytes]) -> list[int]:
    _, message = frames.decode(said[0])
    return [topic.id for topic in message.topics] if isinstance(message, Topics) else []


def next_of(socket: "zmq.Socket[bytes]") -> list[bytes]:
    while True:
        assert socket.poll(SOON_MS), "no answer"
        heard = socket.recv_multipart()
        if frames.peek(heard[0]).verb != Pong.verb:
            return heard
