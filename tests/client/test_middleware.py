"""Middleware as layers: around publishes and handlers, and before user code gets a message."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from gossipq_client import BadRequest, Message, Middleware, Outgoing, Reject, aio, testing
from gossipq_client.middleware import Compression

pytestmark = pytest.mark.e2e
PATIENCE_S = 60
TEXT = b"the same again and again " * 200


@pytest.fixture
def mq(broker: testing.Broker) -> Iterator[testing.Client]:
    with broker.connect() as client:
        yield client


@pytest.fixture
def plain(broker: testing.Broker) -> Iterator[testing.Client]:
    """A client without middleware: it sees what is stored."""
    with broker.connect() as client:
        yield client


def stored(plain: testing.Client, topic: str) -> list[tuple[bytes, dict[str, Any]]]:
    return [(msg.value, msg.headers) for msg in plain.read(topic)]


class Naming(Middleware):
    """Writes its name around values, and notes what it does."""

    def __init__(self, name: bytes, notes: list[str]) -> None:
        self._name, self._notes = name, notes

    def publish(self, record: Outgoing, call_next: Callable[[Outgoing], Any]) -> Any:
        named = record.replace(value=self._name + record.value, headers={**record.headers, "by": self._name})
        return call_next(named)

    def receive(self, message: Any) -> Any:
        if not message.value.startswith(self._name):
            raise Reject("not named")
        return message.replace(value=message.value.removeprefix(self._name))

    def handle(self, message: Any, call_next: Callable[[Any], Any]) -> Any:
        self._notes.append(f"{self._name.decode()} {message.value.decode()}")
        return call_next(message)


def test_layers_wrap_each_other_at_every_publish(mq: testing.Client, plain: testing.Client) -> None:
    for name in (b"a", b"b"):
        mq.add_middleware(Naming(name, []))
    mq.create_topic("wrapped")
    mq.create_topic("wrapped.too", beside="wrapped")
    assert mq.publish("wrapped", "1", headers={"x": "y"}, timeout=PATIENCE_S).offset == 0
    assert mq.post("wrapped", "2").result(PATIENCE_S).offset == 1
    assert mq.publish_many("wrapped", ["3", "4"], keys=["k", None], timeout=PATIENCE_S).count == 2
    assert mq.post_many("wrapped", [b"5"]).result(PATIENCE_S).count == 1
    assert mq.publish_many("wrapped", [], timeout=PATIENCE_S).count == 0
    (msg, *_) = mq.fetch("wrapped", "g", n=1, wait=PATIENCE_S)
    assert msg.value == b"1"
    msg.ack_with("wrapped.too", b"6", timeout=PATIENCE_S)
    assert stored(plain, "wrapped") == [
        (b"ba1", {"x": "y", "by": b"b"}),
        *((b"ba%d" % at, {"by": b"b"}) for at in range(2, 6)),
    ]
    assert stored(plain, "wrapped.too") == [(b"ba6", {"by": b"b"})]
    keys = [msg.key for msg in plain.read("wrapped")]
    assert keys == [None, None, b"k", None, None]


def test_user_code_gets_messages_as_layers_make_them(mq: testing.Client, plain: testing.Client) -> None:
    notes, values = list[str](), list[bytes]()
    for name in (b"a", b"b"):
        mq.add_middleware(Naming(name, notes))
    mq.publish_many("read", [b"1", b"2", b"3", b"4", b"5"], timeout=PATIENCE_S)
    plain.publish("read", b"foreign", timeout=PATIENCE_S)
    for msg in mq.consume("read", group="loop", stop_at_end=True):
        with msg:
            values.append(msg.value)
    assert values == [b"1", b"2", b"3", b"4", b"5"]
    assert [letter.error for letter in mq.dead("read", "loop").letters()] == ["not named"]
    batch = mq.fetch("read", "fetch", n=5, wait=PATIENCE_S)
    assert batch.values() == [msg.value for msg in batch] == values

    @mq.consumer("read", group="single")
    def single(value: bytes, msg: Message) -> None:
        assert value == msg.value

    @mq.consumer("read", group="many", batch_size=10, batch_wait=0)
    def many(values: list[bytes]) -> None:
        notes.append("many " + b"".join(values).decode())

    mq.run(stop_at_end=True)
    assert sorted(note for note in notes if note[:1] in "ab") == [
        f"{n} {i}" for n in "ab" for i in range(1, 6)
    ]
    assert "many 12345" in notes
    for group in ("single", "many"):
        (row,) = [row for row in mq.topic("read").groups() if row.group == group]
        assert (row.acked, row.dead, row.in_flight) == (5, 1, 0)


def test_a_changed_message_and_the_one_before_are_settled_together(mq: testing.Client) -> None:
    mq.publish("once", b"x", timeout=PATIENCE_S)
    (msg, *_) = mq.fetch("once", "g", n=1, wait=PATIENCE_S)
    changed = msg.replace(value=b"y", headers={"a": "b"})
    assert (changed.value, changed.headers, changed.ref, msg.value) == (b"y", {"a": "b"}, msg.ref, b"x")
    changed.reject("bad")
    msg.ack(timeout=PATIENCE_S)
    assert [letter.error for letter in mq.dead("once", "g").letters()] == ["bad"]


def test_a_layer_that_refuses_or_answers_nothing(mq: testing.Client, plain: testing.Client) -> None:
    class Refusing(Middleware):
        def publish(self, record: Outgoing, call_next: Callable[[Outgoing], Any]) -> Any:
            if record.value == b"bad":
                raise ValueError("not this one")
            return None

    mq.create_topic("refused")
    mq.add_middleware(Refusing())
    for verb in (mq.publish, mq.post):
        with pytest.raises(ValueError, match="not this one"):
            verb("refused", b"bad")
    with pytest.raises(ValueError, match="not this one"):
        mq.publish_many("refused", [b"bad"])
    with pytest.raises(BadRequest, match="publish of Refusing returned None"):
        mq.publish("refused", b"good")
    assert stored(plain, "refused") == []


class Async(Middleware):
    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    async def publish(self, record: Outgoing, call_next: Callable[[Outgoing], Any]) -> Any:
        await asyncio.sleep(0)
        found = await call_next(record.replace(value=record.value + b"!"))
        self._notes.append(f"published {record.value.decode()}")
        return found

    async def handle(self, message: Any, call_next: Callable[[Any], Any]) -> Any:
        result = await call_next(message)
        self._notes.append(f"handled {message.value.decode()} {result}")
        return result


def test_layers_of_an_asyncio_client_may_be_async(broker: testing.Broker, mq: testing.Client) -> None:
    notes = list[str]()

    async def main() -> None:
        async with aio.connect(broker.endpoint) as twin:
            twin.add_middleware(Naming(b"a", []))
            twin.add_middleware(Async(notes))
            await twin.publish("both", b"1")
            posted = twin.post("both", b"2")
            await twin.publish_many("both", [b"3", b"4"])
            assert (await posted).offset == 1

            @twin.consumer("both", group="g", workers=1)
            async def work(msg: aio.Message) -> str:
                return "done"

            @twin.consumer("both", group="thread")
            def also(msg: aio.Message) -> str:
                return "thread"

            await twin.run(stop_at_end=True, signals=False)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert [note for note in notes if note.startswith("published")] == [
        f"published a{at}" for at in range(1, 5)
    ]
    assert {note for note in notes if note.startswith("handled")} == {
        f"handled {at}! {end}" for at in range(1, 5) for end in ("done", "thread")
    }


def test_a_sync_client_refuses_async_layers(mq: testing.Client) -> None:
    mq.add_middleware(Async([]))
    with pytest.raises(BadRequest, match="Async is async"):
        mq.publish("sync", b"1")


def test_compression_is_seen_by_clients_without_it_only(mq: testing.Client, plain: testing.Client) -> None:
    mq.add_middleware(Compression())
    mq.publish("packed", TEXT, headers={"a": b"\xff"}, timeout=PATIENCE_S)
    mq.publish_many("packed", [b"short", TEXT, TEXT, b"short"], timeout=PATIENCE_S)
    found = stored(plain, "packed")
    assert [headers.get("content-encoding") for _, headers in found] == ["gzip", None, "gzip", "gzip", None]
    assert all(len(value) < 100 for value, _ in found)
    got = [(msg.value, msg.headers) for msg in mq.read("packed")]
    assert got == [(TEXT, {"a": b"\xff"}), (b"short", {}), (TEXT, {}), (TEXT, {}), (b"short", {})]


@pytest.mark.parametrize("value", [b"no gzip", None, TEXT])
def test_what_does_not_decompress_is_a_dead_letter(
    mq: testing.Client, plain: testing.Client, value: bytes | None
) -> None:
    topic = f"damaged.{len(value or b'')}"
    sender = Compression()
    sent: list[Outgoing] = []
    sender.publish(Outgoing(topic, TEXT, {}, {}), sent.append)
    raw = sent[0].value if value == TEXT else sent[0].value[:-5] if value is None else value
    plain.publish(topic, raw, headers=sent[0].headers, timeout=PATIENCE_S)
    mq.add_middleware(Compression(max_bytes=100 if value == TEXT else 1 << 20))
    assert list(mq.consume(topic, group="g", stop_at_end=True)) == []
    (letter,) = mq.dead(topic, "g").letters()
    assert letter.reason == "undecodable"


def test_header_bytes_that_no_layer_changes_are_sent_as_they_are(
    mq: testing.Client, plain: testing.Client
) -> None:
    foreign, long_form = b"\xc1", b"\xde\x00\x01\xa1a\xa1b"
    mq.add_middleware(Compression())
    for headers in (foreign, long_form, msgspec.msgpack.encode({"a": "b"}), None):
        mq.publish("headers", b"x", headers=headers, timeout=PATIENCE_S)
    found = [msg.header_bytes for msg in plain.read("headers")]
    assert found == [foreign, long_form, b"\x81\xa1a\xa1b", b""]
