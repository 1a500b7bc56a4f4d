"""Requests and replies. The headers of a request say where its reply goes, and
the reply names its request.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gossipq import limits
from gossipq.errors import LeaseLost, NoReply
from gossipq.messages import CreateTopic
from gossipq.types import Offset
from gossipq.values import TopicOptions
from gossipq_client.session import Consuming, Held, Joining, Record, Subscription, joining
from gossipq_client.values import CheckedCodec, PublishOptions, Retry, inputs, payloads

REPLIES = "_replies"  #: the topic of all replies; each client reads its own route there
REPLIES_RETENTION_MS = 10 * limits.MINUTE_MS
REPLIES_PARTITIONS = 8
TO, ROUTE, CORRELATION = "gossipq-reply-to", "gossipq-reply-route", "gossipq-correlation"
#: header of a reply without a value, and its two reasons
OUTCOME, NOTHING, FAILED = "gossipq-outcome", "nothing", "failed"
ERROR_CHARACTERS_MAX = 1_000
HEARD_MS = 1_000  #: a topic that had a consumer this recently counts as served


def make_replies() -> CreateTopic:
    return CreateTopic(
        REPLIES,
        TopicOptions(partitions=REPLIES_PARTITIONS, retention_ms=REPLIES_RETENTION_MS, retain="acked"),
        True,
    )


class Reply(NamedTuple):
    """The answer to a request, and how it is published."""

    topic: str
    value: bytes
    route: str
    headers: dict[str, str | bytes]

    @property
    def options(self) -> PublishOptions:
        """Options for publishing the reply. Its route is also its key, so the replies to one client
        come in order, and different partitions serve different clients.
        """
        return {"route": self.route, "key": self.route, "headers": self.headers, "level": "stored"}


def _reply(message: Record, value: bytes, outcome: str) -> Reply | None:
    """The reply to a record; None if the record asks for none."""
    headers = message.headers_shown
    topic, route, correlation = headers.get(TO), headers.get(ROUTE, ""), headers.get(CORRELATION, "")
    if not isinstance(topic, str) or not isinstance(route, str):
        return None
    said: dict[str, str | bytes] = {CORRELATION: correlation}
    return Reply(topic, value, route, said | ({OUTCOME: outcome} if outcome else {}))


def answer(message: Record[Any], result: Any, codec: CheckedCodec) -> Reply | None:
    """The reply with a handler's result; None is a result, too. Raises BadRequest if the codec cannot
    encode the result.
    """
    if result is None:
        return _reply(message, b"", NOTHING)
    reply = _reply(message, b"", "")
    return reply and reply._replace(value=codec.encoded(result, reply.topic))


def failure(message: Record, error: BaseException) -> Reply | None:
    """The reply that the handler failed, and how. None if the record will be tried again on
    purpose, or by other consumers.
    """
    if isinstance(error, Retry | LeaseLost):
        return None
    text = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
    return _reply(message, text.encode(errors="replace"), FAILED)


def told(topic: str, headers: Mapping[str, str | bytes], value: bytes) -> None:
    """Raises NoReply if the reply carries no value."""
    match headers.get(OUTCOME):
        case "nothing":
            hint = "a handler that answers returns a value"
            raise NoReply(f"the handler of {topic!r} returned nothing", hint=hint)
        case "failed":
            text = value.decode(errors="replace")
            raise NoReply(f"the handler of {topic!r} failed: {text}", hint=f"gossipq dlq ls {topic}")


class Requests:
    """The requests of one client that wait for their replies."""

    def __init__(self) -> None:
        self.route = ""  #: route of the replies, once they are subscribed to
        self.subscription: Subscription | None = None
        self.heard_ms: dict[str, int] = {}  #: topic -> when it last had a consumer
        self._number = 0
        self._waiting: set[str] = set()
        self._replies: dict[str, tuple[Held, Offset]] = {}

    @property
    def ready(self) -> bool:
        """True if replies that are published from now on arrive. Raises the error that
        refused the subscription.
        """
        if self.subscription is None:
            return False
        if self.subscription.error is not None:
            raise self.subscription.error
        return bool(self.subscription.parts) and all(part.subscribed for part in self.subscription.parts)

    def renew(self, consuming: Consuming) -> None:
        """Drops a refused subscription: it may be granted now, and a
        removed topic is created again.
        """
        if self.subscription is not None and self.subscription.error is not None:
            consuming.close(self.subscription)
            self.subscription = None

    def heard(self, topic: str, now_ms: int) -> bool:
        """True if the topic had a consumer a moment ago."""
        return now_ms - self.heard_ms.get(topic, -HEARD_MS) < HEARD_MS

    def joining(self) -> Joining:
        return joining(REPLIES, None, start="new", route=self.route)

    def begin(self) -> str:
        """The correlation of a new request."""
        self._number += 1
        correlation = str(self._number)
        self._waiting.add(correlation)
        return correlation

    def headers(self, correlation: str, headers: inputs.Headers | bytes | None) -> dict[str, str | bytes]:
        """The caller's headers, and those that say where the reply goes. Raises BadRequest."""
        return {
            **payloads.headers_dict(headers),
            TO: REPLIES,
            ROUTE: self.route,
            CORRELATION: correlation,
        }

    def reply(self, correlation: str, consuming: Consuming) -> tuple[Held, Offset] | None:
        """Takes all replies that have arrived; returns the one for `correlation` if it is there.
        Replies that no caller waits for are dropped.
        """
        assert self.subscription is not None, "replies are read before something is asked"
        while self.subscription.ready:
            for piece in consuming.take(self.subscription, len(self.subscription.ready[0].values())):
                for offset in range(piece.first, piece.end):
                    headers = payloads.headers_shown(piece.held.header_bytes(offset))
                    of = str(headers.get(CORRELATION, ""))
                    if of in self._waiting:
                        self._replies.setdefault(of, (piece.held, offset))
        return self._replies.get(correlation)

    def end(self, correlation: str) -> None:
        self._waiting.discard(correlation)
        self._replies.pop(correlation, None)
