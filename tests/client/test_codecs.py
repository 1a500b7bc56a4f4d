"""Values as bytes and back: typed messages, and codecs of applications."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import msgspec
import pytest

from gossipq.errors import TooLarge
from gossipq.limits import VALUE_BYTES_MAX
from gossipq_client import BadRequest, Codec, Handlers, Message, aio, testing
from gossipq_client.values import CheckedCodec, Undecodable

PATIENCE_S = 60
TOPICS = ["orders"]


class Packed(Codec):
    """MessagePack."""

    def encode(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(value)

    def decoder(self, kind: Any) -> Callable[[bytes], Any]:
        return msgspec.msgpack.Decoder(kind).decode


class Texts(Codec):
    def encode(self, value: Any) -> bytes:
        text: Any = repr(value)
        return text  # type: ignore[no-any-return]


@dataclass
class Order:
    id: int


class Room:
    """No codec knows it."""


class TestErrors:
    """Each names the type and the topic, and says what to do."""

    @pytest.mark.parametrize(
        ("codec", "value", "says"),
        [
            (None, Room(), "a value of type Room for topic 'orders': JSON cannot express"),
            (None, {"x": [1.0, nan]}, r"a value of type dict for topic 'orders': the value has nan at \$.x"),
            (None, [inf], "a value of type list for topic 'orders': the value has inf"),
            (Packed(), Room(), "Packed cannot encode a value of type Room for topic 'orders': "),
            (Texts(), 17, "Texts encoded a value of type int for topic 'orders' as str"),
        ],
    )
    def test_of_a_publish(self, codec: Codec | None, value: Any, says: str) -> None:
        for encode in (
            lambda checked: checked.encoded(value, "orders"),
            lambda checked: checked.encoded_list([b"", value], "orders"),
        ):
            with pytest.raises(BadRequest, match=says) as refused:
                encode(CheckedCodec(codec))
            assert refused.value.hint

    @pytest.mark.parametrize(
        ("codec", "kind", "says"),
        [
            (None, Room, "records of orders: no value can be decoded to Room"),
            (None, list[Room], "records of orders: no value can be decoded to list.*Room in it"),
            (Packed(), 17, "Packed cannot decode records of orders to 17: "),
        ],
    )
    def test_of_a_registration(self, codec: Codec | None, kind: Any, says: str) -> None:
        with pytest.raises(BadRequest, match=says) as refused:
            CheckedCodec(codec).decoder(kind, TOPICS)
        assert refused.value.hint

    @pytest.mark.parametrize("codec", [17, Packed, object()])
    def test_of_what_is_no_codec(self, codec: Any) -> None:
        with pytest.raises(BadRequest, match=r"not an object with encode\(\) and decoder\(\)"):
            CheckedCodec(codec)

    def test_of_values_that_are_too_large(self) -> None:
        with pytest.raises(TooLarge):
            CheckedCodec(Packed()).encoded(["x" * VALUE_BYTES_MAX], "orders")

    def test_of_records_that_do_not_fit(self) -> None:
        decode = CheckedCodec(Packed()).decoder(Order, TOPICS)
        assert decode(msgspec.msgpack.encode(Order(7))) == Order(7)
        with pytest.raises(Undecodable, match="ValidationError: "):
            decode(b"\x01")


def test_bytes_and_text_are_sent_as_they_are_with_any_codec() -> None:
    for checked in (CheckedCodec(), CheckedCodec(Packed())):
        assert checked.encoded_list([b"a", "é", bytearray(b"b")], "t") == [b"a", "é".encode(), b"b"]
        assert checked.decoder(bytes, TOPICS)(b"\xff") == b"\xff"
        assert checked.decoder(str | None, TOPICS)(b"a") == "a"
        with pytest.raises(BadRequest, match="the value is None"):
            checked.encoded(None, "t")


@pytest.mark.e2e
def test_messages_have_data_of_the_type_that_a_consumer_names(broker: testing.Broker, topic: str) -> None:
    with broker.connect() as mq:
        mq.publish_many(topic, [Order(1), b"no JSON", Order(2)], timeout=PATIENCE_S)
        found = []
        for msg in mq.consume(topic, Order, group="loop", stop_at_end=True, attempts_max=1):
            with msg:
                found.append(msg.data)
                assert msg.data is found[-1]
        assert found == [Order(1), Order(2)]
        (letter,) = mq.dead(topic, "loop").letters()
        assert letter.ref == f"{topic}/0/1"
        for group in ("positional", "named"):
            batch = mq.fetch(topic, Order, group, n=1, wait=PATIENCE_S)
            assert [msg.data for msg in batch] == [Order(1)]
        batch = mq.fetch(topic, "named", n=1, wait=PATIENCE_S)
        assert [msg.data for msg in batch] == [b"no JSON"], "the record before is in hand, as an Order"
        records = mq.read(topic, Order)
        assert [record.data for record in records.where(contains="id")] == [Order(1), Order(2)]
        for refused in (
            lambda: mq.consume(topic, Room, group="g"),
            lambda: mq.subscribe(topic, Room, "g"),
            lambda: mq.fetch(topic, Room, "g"),
            lambda: mq.read(topic, Room),
        ):
            with pytest.raises(BadRequest, match=f"records of {topic}: no value can be decoded to Room"):
                refused()
        with pytest.raises(BadRequest, match="no group named"):
            mq.consume(topic, Order)  # type: ignore[call-overload]


@pytest.mark.e2e
def test_a_codec_of_an_application_serves_all_verbs(broker: testing.Broker, topic: str) -> None:
    part, handled, told = Handlers(), list[Order](), list[Order]()

    @part.consumer(topic, group="values")
    def handle(order: Order) -> Order:
        handled.append(order)
        return Order(-order.id)

    with broker.connect(codec=Packed()) as mq:
        mq.include(part)

        @mq.consumer(topic, group="messages")
        def tell(msg: Message[Order]) -> None:
            told.append(msg.data)

        mq.publish(topic, Order(1), timeout=PATIENCE_S)
        mq.post(topic, Order(2)).result(timeout=PATIENCE_S)
        mq.publish_many(topic, [Order(3)], timeout=PATIENCE_S)
        mq.run(stop_at_end=True, signals=False)
        orders = [Order(1), Order(2), Order(3)]
        assert handled == told == orders
        raws = [msgspec.msgpack.encode(order) for order in orders]
        assert [record.value for record in mq.read(topic)] == raws
        with pytest.raises(
            BadRequest, match=f"Packed cannot encode a value of type Room for topic '{topic}'"
        ):
            mq.publish(topic, Room())


@pytest.mark.e2e
def test_the_asyncio_client_has_types_and_codecs_as_well(broker: testing.Broker, topic: str) -> None:
    async def main() -> list[Order]:
        async with aio.connect(broker.endpoint, codec=Packed()) as mq:
            await mq.publish(topic, Order(1), timeout=PATIENCE_S)
            found = []
            async for msg in mq.consume(topic, Order, group="loop", stop_at_end=True):
                async with msg:
                    found.append(msg.data)
            batch = await mq.fetch(topic, Order, group="batch", wait=PATIENCE_S)
            found += [msg.data for msg in batch]
            async for record in mq.read(topic, Order):
                found.append(record.data)
            with pytest.raises(BadRequest, match="Packed cannot decode records of"):
                mq.consume(topic, 17, group="g")  # type: ignore[call-overload]
            return found

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == [Order(1)] * 3


def test_a_module_may_name_its_own_codec() -> None:
    own, plain = Handlers(codec=Packed()), Handlers()
    for part in (own, plain):
        part.consumer("orders", group="g")(take_order)
    everything = Handlers()
    everything.include(own, plain)
    by_json = [each.decode for each in everything.some()]
    by_texts = [each.decode for each in everything.some(CheckedCodec(Texts()))]
    assert by_json[0] is by_texts[0]
    assert by_json[1] is not by_texts[1]
    with pytest.raises(BadRequest, match="Packed cannot decode records of orders to 17"):
        own.consumer("orders", group="g")(take_number)


def take_order(order: Order) -> None: ...
def take_number(number: 17) -> None: ...  # type: ignore[valid-type]
