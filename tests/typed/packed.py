"""A codec of one's own: MessagePack."""

from collections.abc import Callable
from typing import Any

import msgspec

from gossipq import BadRequest, Client, Codec, Handlers, Message, connect


class Packed(Codec):
    def encode(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(value)

    def decoder(self, kind: Any) -> Callable[[bytes], Any]:
        return msgspec.msgpack.Decoder(kind).decode


class Reading(msgspec.Struct, array_like=True):
    sensor: int
    celsius: float


rooms = Handlers(codec=Packed())


@rooms.consumer("readings", group="rooms")
def show(reading: Reading) -> None:
    print(reading.sensor, reading.celsius)


def hottest(mq: Client) -> float:
    found: list[Message[Reading]] = list(
        mq.consume("readings", Reading, group="hot", start="-1h", stop_at_end=True, create=False)
    )
    return max((msg.data.celsius for msg in found), default=0.0)


def main() -> None:
    with connect(codec=Packed()) as mq:
        mq.include(rooms)
        try:
            print(mq.post("readings", Reading(1, 21.5), key="1").result(timeout=5).ref)
        except BadRequest as wrong:
            print(wrong.message, wrong.hint)
        mq.run(stop_at_end=True)
        print(hottest(mq))


if __name__ == "__main__":
    main()
