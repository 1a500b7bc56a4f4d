"""Requests and answers of xxl-mq's OpenAPI, as JSON. Pure."""

import hmac
from typing import Any, NamedTuple

import msgspec

METHODS = ("registry", "registryRemove", "produce", "consume", "pullPreCheck", "pullAndLock")
NEW, RUNNING, SUCCESS, FAIL, TIMEOUT = range(5)  #: status of a message
BATCH_MAX = 500  #: messages of one pull; xxl-mq's client does not ask for more


class Refused(Exception):
    """A request that is answered with a code of its own."""

    def __init__(self, text: str, code: int = 500) -> None:
        super().__init__(text)
        self.text, self.code = text, code


class Produced(msgspec.Struct, frozen=True):
    """A message to store. `effectTime`: milliseconds since 1970, 0 = now.

    Messages with one `bizId` keep their order.
    """

    topic: str | None = None
    data: str | None = None
    bizId: int | str | None = None
    effectTime: int | None = None


class Consumed(msgspec.Struct, frozen=True):
    """The result of a message."""

    id: int | None = None
    status: int | None = None
    consumeLog: str | None = None


class Registry(msgspec.Struct, frozen=True):
    appname: str | None = None
    instanceUuid: str | None = None
    topicList: list[str] | None = None


class Produce(msgspec.Struct, frozen=True):
    messageList: list[Produced] | None = None


class Consume(msgspec.Struct, frozen=True):
    messageList: list[Consumed] | None = None


class Pull(msgspec.Struct, frozen=True):
    appname: str | None = None
    instanceUuid: str | None = None
    topicList: list[str] | None = None
    batchsize: int | None = None


Request = Registry | Produce | Consume | Pull
_KINDS: dict[str, type[Any]] = {
    "registry": Registry,
    "registryRemove": Registry,
    "produce": Produce,
    "consume": Consume,
    "pullPreCheck": Pull,
    "pullAndLock": Pull,
}


class Shown(NamedTuple):
    """A message for a consumer. `effect_ms` is its due time, or when it was stored."""

    id: int
    topic: str
    data: str
    effect_ms: int


def check(http_method: str, body: bytes, token: str, access_token: str) -> None:
    """Check method and token in the order of the original. Raises Refused."""
    if http_method != "POST":
        raise Refused("invalid request, HttpMethod not support.")
    if not body.strip():
        raise Refused("invalid request, requestBody empty.")
    if access_token and not hmac.compare_digest(token.encode(), access_token.encode()):
        raise Refused("accessToken invalid")


def request(method: str, body: bytes) -> Request:
    """Parse a request. Raises Refused."""
    if method not in METHODS:
        raise Refused("invalid request, uri-mapping invalid.")
    try:
        found: Request = msgspec.json.decode(body, type=_KINDS[method], strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"openapi invoke error: {error}") from None
    if isinstance(found, Registry) and not (found.appname and found.instanceUuid):
        raise Refused("appname or instanceUuid is empty.")
    if isinstance(found, Pull) and not (found.topicList and found.appname and found.instanceUuid):
        raise Refused("Illegal parameters.", 401)
    if isinstance(found, Produce) and not all(each.topic and each.data for each in found.messageList or ()):
        raise Refused("topic or data of a message is empty: nothing of the list is stored")
    return found


def done(data: list[Shown] | None = None) -> bytes:
    """Return the answer. `data` is null without messages."""
    rows = None
    if data:
        rows = [
            {"id": row.id, "topic": row.topic, "data": row.data, "effectTime": row.effect_ms} for row in data
        ]
    return msgspec.json.encode({"code": 200, "msg": "success", "data": rows})


def refused(refusal: Refused) -> bytes:
    return msgspec.json.encode({"code": refusal.code, "msg": refusal.text, "data": None})
