"""A dialect understands a stranger's input or refuses it; no other error leaves it."""

import json
import struct
from contextlib import suppress
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gossipq.errors import BadName
from gossipq_dialects import forms
from gossipq_dialects.kapokmq import wire as kapokmq
from gossipq_dialects.moonmq import wire as moonmq
from gossipq_dialects.names import name_of, topic_of
from gossipq_dialects.queue_server import wire as queue_server
from gossipq_dialects.xxl_mq import wire as xxl_mq

few = settings(max_examples=50)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    [
        *("action", "queue", "data", "delay", "ttl", "retry", "msg_id", "pattern", "seq", "method", "fields"),
        *(
            "MessageData",
            "delayTime",
            "messageList",
            "appname",
            "instanceUuid",
            "topicList",
            "batchsize",
            "id",
        ),
    ]
)


def json_of(value: object) -> bytes:
    return json.dumps(value).encode()


OBJECTS = st.dictionaries(NAMES | st.text(max_size=5), VALUES, max_size=6).map(json_of)
RAW = st.binary(max_size=60) | OBJECTS | VALUES.map(json_of)


@few
@given(st.lists(RAW, max_size=4))
def test_queue_server(segments: list[bytes]) -> None:
    splitter = queue_server.Splitter()
    with suppress(queue_server.Malformed):
        for segment in segments:
            for raw in splitter.feed(segment):
                queue_server.parse(raw, 1_000)


@few
@given(OBJECTS, st.lists(st.integers(1, 2_000), max_size=5))
def test_queue_server_takes_objects_wherever_they_are_cut(raw: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(raw) * 2, *(cut for cut in cuts if cut < len(raw) * 2)})
    stream, splitter = raw * 2, queue_server.Splitter()
    found = [each for at, end in pairwise(places) for each in splitter.feed(stream[at:end])]
    assert found == [raw, raw]


@few
@given(RAW, st.text(max_size=40))
def test_kapokmq(raw: bytes, text: str) -> None:
    with suppress(kapokmq.Malformed):
        kapokmq.sent(raw)
    kapokmq.seat(text)
    kapokmq.named(text)
    kapokmq.form({"messageData": text, "topic": text, "delayTime": text})
    kapokmq.quoted(text)
    with suppress(forms.BadForm):
        forms.parse(raw, "multipart/form-data; boundary=B")
        forms.parse(raw, text)


@few
@given(st.lists(RAW, max_size=4), st.booleans())
def test_moonmq(parts: list[bytes], framed: bool) -> None:
    splitter = moonmq.Splitter()
    with suppress(moonmq.Malformed):
        for part in parts:
            data = struct.pack(">II", 4 + len(part), len(part)) + part if framed else part
            for frame in splitter.feed(data):
                moonmq.request(frame, {"q": 1})


@few
@given(RAW, st.sampled_from([*xxl_mq.METHODS, "x"]))
def test_xxl_mq(raw: bytes, method: str) -> None:
    with suppress(xxl_mq.Refused):
        xxl_mq.request(method, raw)


@few
@given(st.text(max_size=50))
def test_names_come_back(name: str) -> None:
    with suppress(BadName):
        assert name_of(topic_of(name)) == name


def test_numbers_of_more_digits_than_python_reads() -> None:
    digits = "9" * 5_000
    said = kapokmq.form({"messageData": "x", "topic": "t", "delayTime": digits})
    assert isinstance(said, bytes)
    assert b"ParseInt" in said
    body = b""
    frame = moonmq.Frame(moonmq.ACK, {"queue": "q", "msg_id": digits}, body)
    assert isinstance(moonmq.request(frame, {"q": 1}), moonmq.Refusal)
