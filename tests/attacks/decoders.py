"""Every decoder of bytes and texts that strangers send to a node, the gateway or a client, as a function of
bytes; with its seeds, which are the vectors of the protocol and of the dialects.

A decoder may refuse an input only by the errors that its callers handle. A coverage-guided fuzzer
(`attacks.guided`) and the tests feed them.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from starlette.requests import Request

from gossipq.errors import GossipqError
from gossipq.messages import PublishPlain
from gossipq.values import Delivered
from gossipq.wire import batch as batches
from gossipq.wire import export, frames, plain, schemas, times
from gossipq_dialects import forms, names
from gossipq_dialects.kapokmq import wire as kapokmq
from gossipq_dialects.moonmq import wire as moonmq
from gossipq_dialects.queue_server import wire as queue_server
from gossipq_dialects.xxl_mq import wire as xxl_mq
from gossipq_gateway import numbers
from gossipq_gateway.manners import host_of
from gossipq_gateway.problems import Refusal
from gossipq_gateway.sqs import actions, messages, queues, signature
from gossipq_gateway.sqs.faults import SqsFault
from gossipq_gateway.v1 import operation, positions, shapes
from gossipq_gateway.v1 import plain as values
from gossipq_node.adapters import serf_membership

TESTS = Path(__file__).resolve().parent.parent
PRODUCER = b"p" * 16
NOW_S = 1_795_000_000


class Decoder(NamedTuple):
    decode: Callable[[bytes], Any]
    refusals: tuple[type[Exception], ...]  #: errors that the callers of the decoder handle
    seeds: Callable[[], Iterator[bytes]]

    def feed(self, raw: bytes) -> bool:
        """True if the input was accepted. Raises whatever no caller would handle."""
        try:
            self.decode(raw)
        except self.refusals:
            return False
        return True


def _vectors(path: str) -> Any:
    return json.loads((TESTS / path).read_text("utf-8"))


def _texts(name: str) -> Callable[[], Iterator[bytes]]:
    return lambda: (text.encode() for text in _vectors("attacks/seeds.json")[name])


# --- nodes and clients


def _frames() -> Iterator[bytes]:
    found = _vectors("vectors/frames.json")
    for row in [*found["frames"], *found["accepted"], *found["refused"]]:
        yield bytes.fromhex(row["frame"])


def _batches() -> Iterator[bytes]:
    found = _vectors("vectors/batches.json")
    for row in [*found["batches"], *found["refused"]]:
        yield bytes.fromhex(row["batch"])


def resealed(raw: bytes) -> bytes:
    """A batch with a right CRC over whatever it says."""
    return raw[:4] + crc32(raw[8:]).to_bytes(4, "little") + raw[8:]


def batch(raw: bytes) -> None:
    """A batch, as it is and with a right checksum. Later readers must be able to open and cut it."""
    for each in (raw, resealed(raw)):
        try:
            info = batches.verify(each)
        except GossipqError:
            continue
        opened = batches.Batch(each, info)
        for bit in (batches.KEYS, batches.HEADERS, batches.IDS):
            opened.column(bit)
        batches.verify(bytes(opened.cut(info.count // 2, info.count - info.count // 2)))
        part = Delivered(partition=1, offset=0, count=info.count, attempt=1, size=len(each), charge=0)
        list(plain.unseal([part], [each]))


def plain_records(raw: bytes) -> None:
    """Records of a simple client, which a frontdoor seals."""
    sealed = plain.seal(PublishPlain("t"), raw, PRODUCER, NOW_S * 1_000)
    batches.verify(sealed)


def schema(raw: bytes) -> None:
    """A schema that a client declares, and a value that is checked with it."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return
    if isinstance(document, Mapping):
        schemas.Schema("t", 1, 1, dict(document)).trouble(raw)


def gossip(raw: bytes) -> None:
    """Tags of another Serf agent: NAME=VALUE lines."""
    tags = dict(line.partition(b"=")[::2] for line in raw.split(b"\n"))
    serf_membership._found(
        {name.decode("latin-1"): value.decode("latin-1") for name, value in tags.items()}, True
    )


def instant(raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    for read in (times.micros, times.seconds):
        try:
            read("at", text)
        except GossipqError:
            pass


# --- gateway: HTTP and SQS

BODIES = (
    *(shapes.Publish, shapes.Records, shapes.Fetch, shapes.Settle, shapes.Nack, shapes.Reject),
    *(shapes.Extend, shapes.NewTopic, shapes.GroupPolicy, shapes.Edit, shapes.Later, shapes.Replay),
)
QUERIES = (shapes.Record, shapes.Read, shapes.Stream, shapes.Find, shapes.Seek, shapes.Purge)


def http_body(raw: bytes) -> None:
    for shape in BODIES:
        try:
            found = operation.read(shape, raw)
        except GossipqError:
            continue
        for record in getattr(found, "records", None) or ():
            try:
                values.published(record)
            except GossipqError:
                pass


def http_query(raw: bytes) -> None:
    request = Request({"type": "http", "method": "GET", "path": "/", "query_string": raw, "headers": []})
    for shape in QUERIES:
        try:
            found = operation.asked(shape, request)
            values.headers_of(getattr(found, "header", None) or ())
        except GossipqError:
            pass


def http_text(raw: bytes) -> None:
    """Headers and parts of addresses."""
    text = raw.decode("latin-1")
    host_of(text)
    for read in (positions.parse, values.start_of, operation.token_in):
        try:
            read(text)
        except (GossipqError, Refusal):
            pass


def sqs_body(raw: bytes) -> None:
    try:
        data = msgspec.json.decode(raw or b"{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    for read in (
        lambda: [_message(each) for each in actions._entries(data)],
        lambda: _message(data),
        lambda: actions._shape(data, actions.Receive),
        lambda: queues.check_attributes("q", actions._texts(data, "Attributes")),
        lambda: queues.check_attributes("q.fifo", actions._texts(data, "Attributes")),
    ):
        try:
            read()
        except SqsFault:
            pass


def _message(data: dict[str, Any]) -> None:
    said = actions._shape(data, actions.Said)
    messages.check(said.message_body, said.message_attributes)
    messages.check_system(said.message_system_attributes)
    messages.digest_of(said.message_attributes)
    messages.check_names(MessageGroupId=said.message_group_id)


def sqs_signature(raw: bytes) -> None:
    """The header Authorization, then the headers and the query that it signs: one a line."""
    authorization, _, rest = raw.decode("latin-1").partition("\n")
    query, _, stamp = rest.partition("\n")
    headers = {"host": "h", "x-amz-date": stamp}
    asked = signature.Asked("POST", "/", query, headers, raw)
    signature.check(asked, signature.read(authorization), "secret", NOW_S * 1_000)


# --- dialects


def form(raw: bytes) -> None:
    """Its content type in the first line, then the body."""
    kind, _, body = raw.partition(b"\n")
    kapokmq.form(forms.parse(body, kind.decode("latin-1")))


def kapokmq_text(raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    kapokmq.named(text)
    kapokmq.seat(text)
    numbers.whole(text)
    names.topic_of(text)


def moonmq_stream(raw: bytes) -> None:
    splitter, half = moonmq.Splitter(), len(raw) // 2
    for frame in [*splitter.feed(raw[:half]), *splitter.feed(raw[half:])]:
        moonmq.request(frame, {"q": None})


def queue_server_stream(raw: bytes) -> None:
    """In two segments; requests must not depend on where a segment ends."""
    half = len(raw) // 2
    splitter = queue_server.Splitter()
    for each in [*splitter.feed(raw[:half]), *splitter.feed(raw[half:])]:
        queue_server.parse(each, NOW_S)


def xxl_mq_request(raw: bytes) -> None:
    for method in sorted(xxl_mq.METHODS):
        try:
            xxl_mq.request(method, raw)
        except xxl_mq.Refused:
            pass


def _dialect(name: str, *keys: str) -> Callable[[], Iterator[bytes]]:
    """All texts in these parts of a dialect's vectors."""

    def texts(found: Any) -> Iterator[bytes]:
        if isinstance(found, str):
            yield found.encode()
            try:
                yield bytes.fromhex(found)
            except ValueError:
                pass
        elif isinstance(found, list | dict):
            for each in found.values() if isinstance(found, dict) else found:
                yield from texts(each)

    def seeds() -> Iterator[bytes]:
        found = _vectors(f"dialects/vectors/{name}.json")
        for key in keys or found:
            yield from texts(found[key])

    return seeds


PLAIN = (b"\x91\x91\xc4\x01v", b"\x91\x94\xc4\x01v\xc4\x01k\x81\xa1h\xc4\x01v\xc4\x01i")
GOSSIPQ, NONE = (GossipqError,), ()
DECODERS: dict[str, Decoder] = {
    "frame": Decoder(frames.decode, GOSSIPQ, _frames),
    "batch": Decoder(batch, NONE, _batches),
    "plain": Decoder(plain_records, GOSSIPQ, lambda: iter(PLAIN)),
    "schema": Decoder(schema, GOSSIPQ, _texts("schema")),
    "manifest": Decoder(export.decode, GOSSIPQ, _texts("manifest")),
    "gossip": Decoder(gossip, NONE, _texts("gossip")),
    "instant": Decoder(instant, NONE, _texts("instant")),
    "http-body": Decoder(http_body, NONE, _texts("http-body")),
    "http-query": Decoder(http_query, NONE, _texts("http-query")),
    "http-text": Decoder(http_text, NONE, _texts("http-text")),
    "sqs-body": Decoder(sqs_body, NONE, _texts("sqs-body")),
    "sqs-signature": Decoder(sqs_signature, (SqsFault,), _texts("sqs-signature")),
    "form": Decoder(form, (forms.BadForm,), _texts("form")),
    "kapokmq-frame": Decoder(kapokmq.sent, (kapokmq.Malformed,), _dialect("kapokmq", "sent")),
    "kapokmq-text": Decoder(kapokmq_text, GOSSIPQ, _texts("kapokmq-text")),
    "moonmq": Decoder(moonmq_stream, (moonmq.Malformed,), _dialect("moonmq", "frames")),
    "queue-server": Decoder(queue_server_stream, (queue_server.Malformed,), _dialect("queue_server")),
    "xxl-mq": Decoder(xxl_mq_request, NONE, _dialect("xxl_mq")),
}
