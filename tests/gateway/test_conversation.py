"""A consumer at a WebSocket, with a fake client."""

import asyncio
import json
from typing import Any, cast

from gossipq.times import time_of
from gossipq_client.values import Outcome
from gossipq_gateway.counters import Metrics
from gossipq_gateway.v1.streams import Conversation, Opening


class Record:
    """A record that the caller holds."""

    def __init__(self, offset: int) -> None:
        self.topic, self.partition, self.offset, self.ref = "orders", 0, offset, f"orders/0/{offset}"
        self.topic_id, self.attempt, self.publish_time = 3, 1, time_of(0)
        self.route, self.id_bytes, self.key = "", b"", None
        self.value, self.headers_shown, self.lost = b"x", dict[str, str](), False

    async def ack(self) -> None:
        pass

    def settle(self, outcome: Outcome) -> None:
        pass


class Records:
    """A subscription with `count` records."""

    def __init__(self, count: int) -> None:
        self.left = [Record(offset) for offset in range(count)]
        self.told = list[Record]()

    def subscribe(self, *asked: object, **options: object) -> "Records":
        return self

    async def __anext__(self) -> Record:
        if not self.left:
            await asyncio.sleep(60)
        self.told.append(self.left.pop(0))
        return self.told[-1]

    async def aclose(self) -> None:
        pass


class Socket:
    """As the other end sees it."""

    def __init__(self) -> None:
        self.path_params = {"topic": "orders"}
        self.heard, self.said = asyncio.Queue[dict[str, Any]](), asyncio.Queue[dict[str, Any]]()

    async def send_text(self, text: str) -> None:
        self.heard.put_nowait(json.loads(text))

    async def receive(self) -> dict[str, Any]:
        return await self.said.get()

    def say(self, do: str, *leases: str) -> None:
        text = json.dumps({"do": do, "leases": leases})
        self.said.put_nowait({"type": "websocket.receive", "text": text})


def test_what_others_have_meanwhile_takes_no_credit() -> None:
    """A gateway that was away for long had fewer and fewer records for its consumers, and in the end none."""
    asyncio.run(_away())


async def _away() -> None:
    records, socket = Records(4), Socket()
    caller = cast(Any, type("Caller", (), {"mq": records}))
    opening = Opening(group="g", credit=2)
    talk = Conversation(cast(Any, socket), caller, opening, Metrics().of("http"))
    running = asyncio.create_task(talk.run())
    first, second = [(await asyncio.wait_for(socket.heard.get(), 5))["lease"] for _ in range(2)]
    records.told[0].lost = True
    socket.say("ack", first, first, second)
    heard = [await asyncio.wait_for(socket.heard.get(), 5) for _ in range(3)]
    assert {"lost": [first, first]} in heard, "the second time it is not counted again"
    assert sorted(each["offset"] for each in heard if "offset" in each) == [2, 3]
    socket.say("ack", first)
    assert await asyncio.wait_for(socket.heard.get(), 5) == {"lost": [first]}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_consumer_is_told_which_leases_it_has_lost() -> None:
    """A consumer worked on for minutes, and heard only at its ack that others had the record."""
    asyncio.run(_lost())


async def _lost() -> None:
    records, socket = Records(3), Socket()
    caller = cast(Any, type("Caller", (), {"mq": records}))
    talk = Conversation(cast(Any, socket), caller, Opening(group="g", credit=2), Metrics().of("http"))
    running = asyncio.create_task(talk.run())
    first, second = [(await asyncio.wait_for(socket.heard.get(), 30))["lease"] for _ in range(2)]
    records.told[0].lost = True
    heard = [await asyncio.wait_for(socket.heard.get(), 30) for _ in range(2)]
    assert {"lost": [first]} in heard
    assert [each["offset"] for each in heard if "offset" in each] == [2], "its credit is lent again"
    socket.say("ack", first, second)
    assert await asyncio.wait_for(socket.heard.get(), 30) == {"lost": [first]}
    assert socket.heard.empty()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
