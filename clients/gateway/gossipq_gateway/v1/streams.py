"""Live records: Server-Sent Events for readers, WebSockets for consumers of a group.

Consumers settle records over their WebSocket.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from gossipq.errors import BadRequest, Busy, GossipqError, LeaseLost
from gossipq_client import Job, Record
from gossipq_client.aio import Message, Records
from gossipq_client.values import GIVEN_BACK
from gossipq_gateway import problems
from gossipq_gateway.callers import Caller, Callers
from gossipq_gateway.counters import Counters
from gossipq_gateway.leases import Leases
from gossipq_gateway.manners import STREAMED
from gossipq_gateway.v1 import plain, positions, shapes
from gossipq_gateway.v1.operation import Call, read, token_in

LOST_S = 1.0  #: interval at which a consumer is told which leases it has lost
BEAT_S = 15.0  #: interval of comments that keep a stream alive
LAST_EVENT = "last-event-id"
STREAMS_MAX = 1_000  #: of one caller
_json = msgspec.json.encode


# --- Server-Sent Events


async def events(call: Call) -> StreamingResponse:
    """Send records as Server-Sent Events, without a group: nothing is leased or acked. The id of
    each event, also of a first one without data, has the position in each partition. A client that
    reconnects with it as Last-Event-ID continues exactly there, and `start` is ignored. Partitions
    that it does not name, and topics that match a pattern later, begin at their first record.
    """
    asked: shapes.Stream = call.query
    last = call.request.headers.get(LAST_EVENT, "")
    start = plain.start_of(asked.start)
    options: dict[str, Any] = {}
    if asked.route:
        options["route"] = asked.route
    if asked.order is not None:
        options["order"] = asked.order
    topics = call.path["topic"].split(",")
    if call.caller.users >= STREAMS_MAX:
        raise Busy("too many streams", hint="end one", retry_after_ms=1_000)
    mq = call.caller.mq
    where = await (positions.go_on(mq, topics, last) if last else positions.begin(mq, topics, start))
    reader = await call.caller.reader()
    try:
        records = reader.mq.read(topics, start=where.offsets, follow=True, **options)
    except BaseException:
        await call.caller.leave(reader)
        raise
    told = _told(call.caller, records, where, call.counters)
    return Streamed(told, partial(call.caller.leave, reader))


async def follow(call: Call) -> StreamingResponse:
    """Send the states of a job as Server-Sent Events: the present one, one for each report of progress, and
    its end. Then the stream ends.
    """
    caller, ref = call.caller, "/".join(call.path[name] for name in ("topic", "partition", "place"))
    if caller.users >= STREAMS_MAX:
        raise Busy("too many streams", hint="end one", retry_after_ms=1_000)
    jobs = caller.mq.follow(ref, group=call.query.group)
    first = await anext(jobs)  # raises what is wrong with the request

    async def ended() -> None:
        return None

    return Streamed(_followed(caller, first, jobs), ended)


async def _followed(caller: Caller, job: Job, jobs: AsyncIterator[Job]) -> AsyncIterator[bytes]:
    waiting: asyncio.Future[Job] | None = None
    caller.users += 1
    try:
        yield b"data: %s\n\n" % _json(plain.job(job))
        while True:
            waiting = waiting or asyncio.ensure_future(anext(jobs))
            done, _ = await asyncio.wait((waiting,), timeout=BEAT_S)
            if not done:
                yield b": alive\n\n"
                continue
            job, waiting = waiting.result(), None
            yield b"data: %s\n\n" % _json(plain.job(job))
    except StopAsyncIteration:
        return
    except GossipqError as error:
        yield b"event: error\ndata: %s\n\n" % _json(problems.problem(error))
    finally:
        caller.users -= 1
        if waiting is not None:
            waiting.cancel()


class Streamed(StreamingResponse):
    """Server-Sent Events. `end` is always called, even if the client
    disconnects before the first.
    """

    def __init__(self, events: AsyncIterator[bytes], end: Callable[[], Awaitable[None]]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=STREAMED)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._end()


async def _told(
    caller: Caller, records: Records, where: positions.Positions, counters: Counters
) -> AsyncIterator[bytes]:
    waiting: asyncio.Future[Record] | None = None
    caller.users += 1
    try:
        # an id without data is not an event, but lets a browser continue there if nothing follows
        yield b": gossipq\nid: %s\n\n" % where.text.encode()
        async with records:
            while True:
                waiting = waiting or asyncio.ensure_future(anext(records))
                done, _ = await asyncio.wait((waiting,), timeout=BEAT_S)
                if not done:
                    yield b": alive\n\n"
                    continue
                msg, waiting = waiting.result(), None
                counters.delivered()
                where.told(msg.topic, msg.topic_id, msg.partition, msg.offset)
                is_crowded = caller.turn.locked()
                async with caller.turn:
                    said = b"id: %s\ndata: %s\n\n" % (where.text.encode(), _json(plain.delivery(msg)))
                    if is_crowded:
                        await asyncio.sleep(0)
                yield said
    except StopAsyncIteration:
        return
    except GossipqError as error:
        yield b"event: error\ndata: %s\n\n" % _json(problems.problem(error))
    finally:
        if waiting is not None:
            waiting.cancel()
        caller.users -= 1


# --- WebSocket


class Opening(shapes.Shape, kw_only=True):
    """Options of a consumer, in the query."""

    group: shapes.Text
    credit: Annotated[int, Meta(ge=1, le=10_000)] = 100
    start: shapes.Start | None = None
    mode: shapes.Mode | None = None
    route: str = ""
    create: bool = True  #: a missing topic


class Saying(shapes.Shape, kw_only=True):
    """A command of a consumer for records, given by the `lease` of each."""

    do: Literal["ack", "nack", "reject", "extend"]
    leases: Annotated[list[str], Meta(min_length=1, max_length=10_000)]
    delay: shapes.Duration | None = None
    lease: shapes.Duration = 30.0
    reason: str = ""


class Conversation:
    """A consumer at the other end of a WebSocket.

    It receives a text for each record and answers with commands. `{"lost": [...]}` names leases
    that are lost: once within LOST_S, and in answer to each command for them. Leases are extended
    while it is connected. When the connection ends, its records are given back without counting an
    attempt.
    """

    def __init__(self, socket: WebSocket, caller: Caller, opening: Opening, counters: Counters) -> None:
        self._socket, self._caller, self._counters = socket, caller, counters
        self._group = opening.group
        self._leases = Leases[Message]("ws")
        options = plain.options_of(opening, "group", "start", "create")
        if opening.start is not None:
            options["start"] = plain.start_of(opening.start)
        topics = socket.path_params["topic"].split(",")
        self._subscription = caller.mq.subscribe(topics, opening.group, create=opening.create, **options)
        self._free = asyncio.Semaphore(opening.credit)

    async def run(self) -> None:
        """Run until either side ends it. Raises refusals of the cluster."""
        work = (self._push(), self._listen(), self._report_lost())
        tasks = [asyncio.ensure_future(each) for each in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # first, so that records given back do not return here
            await self._subscription.aclose()
            for lease in self._leases.all():
                lease.record.settle(GIVEN_BACK)

    async def _push(self) -> None:
        while True:
            await self._free.acquire()
            msg = await anext(self._subscription)
            lease = self._leases.add(self._group, msg, 2**62, None)
            self._counters.delivered()
            await self._socket.send_text(_json(plain.delivery(msg, lease.token)).decode())

    async def _listen(self) -> None:
        while True:
            heard = await self._heard()
            self._counters.request()
            said, lost = read(Saying, heard), list[str]()
            for token in said.leases:
                try:
                    await self._settle(self._leases.find(token).record, said)
                except LeaseLost:
                    lost.append(token)
                    over = True
                else:
                    over = said.do != "extend"
                if over and self._leases.forget(token):
                    self._free.release()
            if lost:
                await self._socket.send_text(_json({"lost": lost}).decode())

    async def _report_lost(self) -> None:
        """Tell the consumer which records it has lost since it got them."""
        while True:
            await asyncio.sleep(LOST_S)
            lost = [lease.token for lease in self._leases.all() if lease.record.lost]
            for token in lost:
                self._leases.forget(token)
                self._free.release()
            if lost:
                await self._socket.send_text(_json({"lost": lost}).decode())

    async def _heard(self) -> bytes:
        """Return the next message, text or bytes. Raises WebSocketDisconnect."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"])
        return message.get("bytes") or (message.get("text") or "").encode()

    async def _settle(self, record: Message, said: Saying) -> None:
        if said.do == "ack":
            await record.ack()
            self._counters.acked()
        elif said.do == "nack":
            await record.nack(said.delay, said.reason)
        elif said.do == "reject":
            await record.reject(said.reason)
        else:
            await record.extend(said.lease)


async def converse(socket: WebSocket, callers: Callers, counters: Counters) -> None:
    """Serve a WebSocket at `/v1/topics/{topic}/consume?group=...`.

    An error is sent as a text with the problem, and closes the connection with code 1008.
    """
    await socket.accept()
    counters.connected()
    try:
        token = token_in(socket.headers.get("authorization"))
        try:
            opening = msgspec.convert(dict(socket.query_params), Opening, strict=False)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the query is not valid for this path: {error}", hint="?group=NAME") from None
        async with callers.of(token) as caller:
            await Conversation(socket, caller, opening, counters).run()
    except (WebSocketDisconnect, StopAsyncIteration):
        pass
    except GossipqError as error:
        counters.error()
        try:
            await socket.send_text(_json(problems.problem(error)).decode())
            await socket.close(1008)
        except (WebSocketDisconnect, RuntimeError):
            pass
    finally:
        counters.disconnected()
