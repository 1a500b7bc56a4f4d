"""The HTTP routes of KapokMQ: for producers, its console, and its registry."""

from collections import deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gossipq.errors import GossipqError
from gossipq_dialects import forms
from gossipq_dialects.kapokmq import wire
from gossipq_dialects.kapokmq.broker import Broker
from gossipq_dialects.kapokmq.sockets import Hall, Socket
from gossipq_dialects.names import name_of, topic_of
from gossipq_ops.sums import lag_of

LISTED_MAX = 1_000  #: messages in one list, the newest
TOPICS_MAX = 100  #: topics that a list without a topic searches
HOME = "This is gossipq, which speaks KapokMQ here. Its console: gossipq gateway --http\n"

Fields = dict[str, str]
Page = Callable[[Fields], Awaitable[bytes]]


class Pages:
    def __init__(self, broker: Broker, hall: Hall) -> None:
        self._broker, self._hall = broker, hall
        self._mq = broker.desk.mq

    def app(self) -> Starlette:
        """Return the application beside the WebSockets."""
        console = {
            "Ping": self._ping,
            "GetClients": self._clients,
            "GetConfig": self._config,
            "GetMessageList": self._messages,
            "GetMessage": self._message,
            "DelMessage": self._delete,
            "CountMessage": self._count,
            "GetNodes": self._nodes,
        }
        pages: dict[str, Page] = {f"/Console/{name}": page for name, page in console.items()}
        pages |= {"/Producer/Send": self._send, "/Registry/GetNodes": self._nodes}
        routes = [
            Route(path, self._guarded(page), methods=["POST", "OPTIONS"]) for path, page in pages.items()
        ]
        routes += [Route("/", _home, methods=["GET"])]
        for path in ("/Producers/Conn/{topic}/{id}", "/Consumers/Conn/{topic}/{id}", "/Sync/Conn"):
            routes.append(Route(path, _no_socket, methods=["GET"]))
        lost = {404: self._not_found, 405: self._not_found}
        return Starlette(routes=routes, exception_handlers=lost)

    async def _not_found(self, request: Request, error: Exception) -> Response:
        self._broker.desk.counters.error()
        return PlainTextResponse("404 page not found", 404)

    def _guarded(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """Check the key. All answers have status 200."""

        async def answer(request: Request) -> Response:
            allowed = {}
            if (origin := request.headers.get("origin")) in self._broker.options.origins and origin:
                allowed = {
                    "access-control-allow-origin": origin,
                    "access-control-allow-headers": "content-type, secretkey",
                }
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=allowed)
            if forms.is_of_page(request) and not allowed:
                self._broker.desk.counters.error()
                return PlainTextResponse("web pages are not served", 403)
            said = await self._answer(request, page)
            if said.startswith(b'{"code":-1'):
                self._broker.desk.counters.error()
            kind = "text/plain" if page == self._nodes else "application/json"
            return Response(said, 200, allowed, f"{kind}; charset=utf-8")

        return answer

    async def _answer(self, request: Request, page: Page) -> bytes:
        self._broker.desk.counters.request()
        key = wire.Login(self._broker.options.secret_key)
        key.enter(request.headers.get("secretkey", "").encode("latin-1", "replace"))
        if not key.is_done:
            return wire.told(-1, msg=wire.WRONG.decode())
        try:
            return await page(await forms.fields(request))
        except (GossipqError, forms.BadForm) as error:
            self._broker.desk.log.warning("%s: %s", request.url.path, error)
            return wire.told(-1, msg=str(error))

    # --- producers

    async def _send(self, fields: Fields) -> bytes:
        found = wire.form(fields)
        if isinstance(found, bytes):
            return found
        code = await self._broker.sent(topic_of(found.topic), found.text, found.delay_s)
        return wire.told(0, msg=code)

    # --- the console

    async def _ping(self, fields: Fields) -> bytes:
        return wire.told(0)

    async def _clients(self, fields: Fields) -> bytes:
        found: dict[str, list[dict[str, Any]]] = {"Consumers": [], "Producers": []}
        for each in self._hall.open:
            if each.joined_s and each.seat is not None:
                found[each.seat.role].append(_client(each, each.seat.role.removesuffix("s")))
        return wire.told(0, consumers=found["Consumers"] or None, producers=found["Producers"] or None)

    async def _config(self, fields: Fields) -> bytes:
        """Return the original's options. Where gossipq differs, the value
        is the nearest equivalent.
        """
        options = self._broker.options
        values = {
            "pushType": options.push_type,
            "messageChanBuffer": 0,
            "pushMessagesSpeed": 0,
            "pushCount": 0,
            "pushRetryTime": options.push_retry_time,
            "persistentFile": "",
            "isPersistent": 2,
            "recoveryStrategy": 1,
            "persistentTime": 0,
            "isCleanConsumed": 0,
            "isRePush": 1,
            "isClean": 1,
            "checkSpeed": 1,
            "cleanTime": 0,
            "isCluster": int(bool(options.nodes)),
            "gossipPort": "",
            "registryAddr": "",
            "registryGossipPort": "",
            "isSync": 0,
            "isSlave": 0,
            "masterProtocol": "",
            "masterAddr": "",
            "masterPort": "",
        }
        return wire.told(0, data=dict(sorted(values.items())))

    async def _count(self, fields: Fields) -> bytes:
        stats = await self._mq.admin.stats()
        stored = sum(row.next - row.first for row in stats.partitions if not row.topic.startswith("_"))
        delayed = sum(row.scheduled for row in stats.partitions if not row.topic.startswith("_"))
        waiting = 0
        for partition in stats.partitions:
            if partition.topic.startswith("_"):
                continue
            rows = [
                lag_of(row)
                for row in stats.groups
                if (row.topic, row.partition) == (partition.topic, partition.partition)
                and self._is_ours(row.group)
            ]
            waiting += max(rows, default=partition.next - partition.first)
        consumed = max(0, stored - waiting)
        counts = {
            "all": consumed + delayed + waiting,
            "consumed": consumed,
            "delay": delayed,
            "unconsumed": waiting,
        }
        return wire.told(0, data=counts)

    def _is_ours(self, group: str) -> bool:
        name = self._broker.options.group
        return group == name or group.startswith(f"{name}.")

    async def _messages(self, fields: Fields) -> bytes:
        """Return messages without their text, newest first."""
        start, end = _time(fields.get("startTime", "")), _time(fields.get("endTime", ""))
        status = fields.get("status", "")
        wanted = int(status) if status in ("-1", "0", "1", "3") else 0
        topic = fields.get("topic", "")
        topics = [info.name for info in await self._mq.topics(topic_of(topic) if topic else "*")]
        found: deque[wire.Message] = deque(maxlen=LISTED_MAX)
        for name in [name for name in topics if not name.startswith("_")][:TOPICS_MAX]:
            done = await self._done(name)
            async for record in self._mq.read(name, start=start or "first", end=end).where():
                state = wire.CONSUMED if record.offset < done.get(record.partition, 0) else wire.WAITING
                if wanted in (state, wire.ALL):
                    code, created_s = (
                        wire.code_of(name, record.partition, record.offset),
                        int(record.publish_time.timestamp()),
                    )
                    found.append(wire.Message(code, "", name_of(name), created_s, 0, 0, state))
        newest = sorted(found, key=lambda message: -message.created_s)
        rows = b",".join(message.json() for message in newest)
        return b'{"code":0,"data":%s}' % (b"[%s]" % rows if rows else b"null")

    async def _done(self, topic: str) -> dict[int, int]:
        """Return for each partition the offset below which all is consumed."""
        found: dict[int, int] = {}
        for row in await self._mq.topic(topic).groups():
            if self._is_ours(row.group):
                found[row.partition] = min(row.cursor, found.get(row.partition, row.cursor))
        return found

    async def _message(self, fields: Fields) -> bytes:
        named = wire.named(fields.get("messageCode", ""))
        for topic in await self._broker.topics_of(named.topic_crc) if named is not None else ():
            assert named is not None, "looked at above"
            try:
                if named.id:
                    record = await self._mq.record(topic, id=named.id).show()
                else:
                    record = await self._mq.record(topic, named.partition, named.offset).show()
            except GossipqError:
                continue
            done = (await self._done(topic)).get(record.partition, 0)
            state = wire.CONSUMED if 0 <= record.offset < done else wire.WAITING
            if record.offset < 0:
                state = wire.DELAYED
            message = wire.Message(
                fields["messageCode"],
                record.value.decode(errors="replace"),
                name_of(topic),
                int(record.publish_time.timestamp()),
                0,
                0,
                state,
            )
            return b'{"code":0,"data":%s}' % message.json()
        return wire.told(-1, data="error")

    async def _delete(self, fields: Fields) -> bytes:
        """Delete a message. Returns code 0 in any case, like the original.

        Messages in flight, and acked ones, stay.
        """
        named = wire.named(fields.get("messageCode", ""))
        for topic in await self._broker.topics_of(named.topic_crc) if named is not None else ():
            assert named is not None, "looked at above"
            try:
                if named.id:
                    await self._mq.record(topic, id=named.id).cancel(reason="deleted")
                else:
                    await self._mq.record(topic, named.partition, named.offset).cancel(reason="deleted")
            except GossipqError as error:
                self._broker.desk.log.info("%s is not deleted: %s", fields["messageCode"], error)
        return wire.told(0)

    async def _nodes(self, fields: Fields) -> bytes:
        return wire.nodes(self._broker.options.nodes)


def _client(each: Socket, kind: str) -> dict[str, Any]:
    assert each.seat is not None, "it has said where it wants to be"
    return {
        f"{kind}Id": each.seat.id,
        "Topic": each.seat.topic,
        f"{kind}Ip": each.ip,
        "JoinTime": each.joined_s,
    }


def _time(text: str) -> datetime | None:
    """Parse a local time, as the console sends it."""
    try:
        return datetime.strptime(text, "%Y-%m-%d %H:%M:%S").astimezone()
    except ValueError:
        return None


async def _home(request: Request) -> Response:
    return PlainTextResponse(HOME)


async def _no_socket(request: Request) -> Response:
    return PlainTextResponse("Bad Request\n", 400, {"sec-websocket-version": "13"})
