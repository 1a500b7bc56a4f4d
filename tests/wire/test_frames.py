"""The control frame: every message there and back, neighbours of other versions, and everything that is not a
frame."""

from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossipq import limits
from gossipq.errors import ProtocolError, UnknownVerb, WrongVersion
from gossipq.messages import MESSAGES, Bye, Hello, Ping, Publish, RefusedMessage, Topics, Welcome
from gossipq.values import Message
from gossipq.wire import frames

U16, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**64 - 1)
KINDS = sorted(MESSAGES.values(), key=lambda kind: kind.verb)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False),
    str: TEXT,
    bytes: st.binary(max_size=20),
    bool: st.booleans(),
    NoneType: st.none(),
}
LIST_MAX = 3
MSGPACK = st.recursive(
    st.none() | st.booleans() | SCALARS[int] | SCALARS[float] | TEXT | SCALARS[bytes],
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values of an annotated field: scalars, structs, lists and fixed tuples of them."""
    if kind in SCALARS:
        return SCALARS[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        if arguments[0] is int:
            return st.integers(arguments[1].ge, arguments[1].le)
        if get_origin(arguments[0]) is list:
            size = min(LIST_MAX, arguments[1].max_length)
            return st.lists(of_type(*get_args(arguments[0])), max_size=size)
        return of_type(arguments[0])
    if origin is list:
        return st.lists(of_type(arguments[0]), max_size=LIST_MAX)
    if origin is dict:
        return st.dictionaries(*map(of_type, arguments), max_size=3)
    if origin is tuple:
        return st.tuples(*map(of_type, arguments))
    if origin in (Union, UnionType):
        return st.one_of(*map(of_type, arguments))
    return st.builds(kind, *(of_type(field.type) for field in msgspec.structs.fields(kind)))


MESSAGE = st.one_of([of_type(kind) for kind in KINDS])


def raw(verb: int, control: bytes, magic: bytes = b"GQ", version: int = frames.VERSION) -> bytes:
    return frames.HEADER.pack(magic, version, verb, 0, 0, 0, 0) + control


def array_of(message: Message) -> list[Any]:
    """The control part as another implementation sees it: a plain msgpack array."""
    return msgspec.msgpack.decode(frames.encode(message)[frames.HEADER.size :])


def required(kind: type[Message]) -> int:
    return sum(field.required for field in msgspec.structs.fields(kind))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_comes_back_equal(kind: type[Message]) -> None:
    @settings(max_examples=25)
    @given(of_type(kind), U16, U64, st.integers(0, limits.NUMBER_MAX))
    def there_and_back(message: Message, shard: int, request_id: int, term: int) -> None:
        frame = frames.encode(message, shard, request_id, term)
        header, twin = frames.decode(frame)
        assert (type(twin), twin) == (kind, message)
        assert header == frames.peek(frame)
        assert header == frames.Header(b"GQ", frames.VERSION, kind.verb, shard, 0, request_id, term)

    there_and_back()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_optional_fields_may_be_missing_and_required_ones_not(kind: type[Message]) -> None:
    @settings(max_examples=10)
    @given(of_type(kind))
    def shortened(message: Message) -> None:
        fields, values = msgspec.structs.fields(kind), array_of(message)
        for kept in range(required(kind), len(fields)):
            _, twin = frames.decode(raw(kind.verb, msgspec.msgpack.encode(values[:kept])))
            for field in fields[:kept]:
                assert getattr(twin, field.name) == getattr(message, field.name)
            for field in fields[kept:]:
                default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
                assert getattr(twin, field.name) == default
        for kept in range(required(kind)):
            with pytest.raises(ProtocolError):
                frames.decode(raw(kind.verb, msgspec.msgpack.encode(values[:kept])))

    shortened()


@settings(max_examples=40)
@given(MESSAGE, st.lists(MSGPACK, min_size=1, max_size=3))
def test_fields_of_a_later_version_are_ignored(message: Message, later: list[Any]) -> None:
    frame = raw(message.verb, msgspec.msgpack.encode([*array_of(message), *later]))
    assert frames.decode(frame)[1] == message


@given(MESSAGE, st.integers(1, 2**16 - 1))
def test_flags_of_a_later_version_are_ignored(message: Message, flags: int) -> None:
    frame = bytearray(frames.encode(message))
    frame[6:8] = flags.to_bytes(2, "little")
    assert frames.decode(bytes(frame))[1] == message


def test_verbs_are_bytes() -> None:
    assert all(0 < verb < 256 for verb in MESSAGES)


def test_unknown_verb_is_told_apart_and_can_still_be_forwarded() -> None:
    for verb in set(range(256)) - set(MESSAGES):
        with pytest.raises(UnknownVerb, match=str(verb)):
            frames.decode(raw(verb, b"\x90"))
        assert frames.peek(raw(verb, b"\x90")).verb == verb


@pytest.mark.parametrize("version", [0, 1, 255])
@pytest.mark.parametrize("read", [frames.peek, frames.decode])
def test_wrong_version_names_both(version: int, read: Any) -> None:
    with pytest.raises(WrongVersion, match=f"version {version}.*speaks {frames.VERSION}"):
        read(raw(Ping.verb, b"\x90", version=version))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"G",
        b"GQ",
        frames.encode(Ping())[: frames.HEADER.size - 1],
        raw(Ping.verb, b"\x90", magic=b"QG"),
        bytes(24),
    ],
    ids=["empty", "one byte", "magic only", "23 bytes", "wrong magic", "zeros"],
)
@pytest.mark.parametrize("read", [frames.peek, frames.decode])
def test_what_is_no_header(frame: bytes, read: Any) -> None:
    with pytest.raises(ProtocolError):
        read(frame)


@pytest.mark.parametrize(
    ("verb", "control"),
    [
        pytest.param(Ping.verb, b"", id="no control part"),
        pytest.param(Ping.verb, b"\x90\x90", id="bytes after the array"),
        pytest.param(Ping.verb, b"\x80", id="map instead of array"),
        pytest.param(Ping.verb, b"\xc0", id="nil instead of array"),
        pytest.param(Ping.verb, b"\xc1", id="a byte that msgpack does not use"),
        pytest.param(Ping.verb, b"\xdd\xff\xff\xff\xff", id="array of 4 G fields"),
        pytest.param(Ping.verb, b"\x91\xdf\xff\xff\xff\xff", id="ignored map of 4 G entries"),
        pytest.param(Topics.verb, b"\x91\xdd\xff\xff\xff\xff", id="list of 4 G items"),
        pytest.param(Topics.verb, b"\x91\xdd\x07\xff\xff\xff" + b"\x90", id="list of 134 M items"),
        pytest.param(Hello.verb, b"\x93\xc6\xff\xff\xff\xff", id="binary of 4 GB"),
        pytest.param(Hello.verb, b"\x93\xc4\x01s\xa2\xff\xfe\xa1v", id="text that is not UTF-8"),
        pytest.param(Publish.verb, b"\x91\xca\x3f\x80\x00\x00", id="float for an integer"),
        pytest.param(Publish.verb, b"\x91\xd6\xff\x00\x00\x00\x00", id="timestamp for an integer"),
        pytest.param(Publish.verb, b"\x92\x01\xc0", id="nil for a text"),
        pytest.param(Ping.verb, b"\x91" * 1000_000, id="nested a million deep"),
        pytest.param(Ping.verb, b"\x91" * 500_000 + b"\x90", id="ignored field nested half a million deep"),
        pytest.param(Ping.verb, b"\x81\xa0" * 300_000 + b"\x90", id="maps nested deep"),
        pytest.param(Bye.verb, b"\x91" + b"\x81\xa0" * 300_000 + b"\x90", id="ignored maps nested deep"),
        pytest.param(Topics.verb, b"\x91" * 500_000, id="known lists nested deep"),
    ],
)
def test_what_is_no_control_part(verb: int, control: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.decode(raw(verb, control))


def test_control_frame_has_a_bound() -> None:
    def refused(size: int) -> bytes:
        empty = len(frames.encode(RefusedMessage("busy", "x" * 70_000)))
        return frames.encode(RefusedMessage("busy", "x" * (70_000 + size - empty)))

    assert len(refused(limits.CONTROL_BYTES_MAX)) == limits.CONTROL_BYTES_MAX
    assert frames.decode(refused(limits.CONTROL_BYTES_MAX))[1].code == "busy"
    with pytest.raises(ProtocolError, match=str(limits.CONTROL_BYTES_MAX)):
        frames.decode(refused(limits.CONTROL_BYTES_MAX + 1))


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.decode(frame)


def read_or_refuse(frame: bytes) -> None:
    """Any other exception than ProtocolError and its children fails the test."""
    try:
        header, message = frames.decode(frame)
    except ProtocolError:
        return
    assert type(message) is MESSAGES[header.verb]


@settings(max_examples=100)
@given(st.sampled_from(sorted(MESSAGES)), st.binary(max_size=100))
def test_random_control_parts_never_raise_anything_else(verb: int, control: bytes) -> None:
    read_or_refuse(raw(verb, control))


@settings(max_examples=100)
@given(st.sampled_from(sorted(MESSAGES)), MSGPACK)
def test_other_msgpack_never_raises_anything_else(verb: int, control: Any) -> None:
    read_or_refuse(raw(verb, msgspec.msgpack.encode(control)))


@settings(max_examples=80)
@given(MESSAGE, st.data())
def test_damaged_frames_never_raise_anything_else(message: Message, data: st.DataObject) -> None:
    frame = bytearray(frames.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(bytes(frame))


@settings(max_examples=50)
@given(MESSAGE)
def test_truncated_frames_are_refused_at_every_byte(message: Message) -> None:
    frame = frames.encode(message)
    for size in range(len(frame)):
        with pytest.raises(ProtocolError):
            frames.decode(frame[:size])


def test_fields_are_in_the_documented_order() -> None:
    """One message by hand, so that the layout does not hang on our own encoder alone."""
    welcome = Welcome("n1", b"c" * 16, "0.1.0", 1, 2, 3)
    assert frames.encode(welcome, shard=0x0102, request_id=0x0A, term=0x0B) == (
        b"GQ\x02\x02" b"\x02\x01" b"\x00\x00" b"\x0a" + bytes(7) + b"\x0b" + bytes(7)
        + b"\x9c\xa2n1\xc4\x10" + b"c" * 16 + b"\xa50.1.0\x01\x02\x03\x90\x20\x90\x90\x90\x90"
    )  # fmt: skip
