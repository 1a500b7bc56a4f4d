"""Asking and answering: a request is a record whose headers say where its reply goes; the reply names its
request."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from gossipq import limits
from gossipq.errors import LeaseLost, NoReply
from gossipq.messages import CreateTopic
from gossipq.types import Offset
from gossipq.values import TopicOptions
from gossipq_client.session import Consuming, Held, Joining, Record, Subscription, joining
from gossipq_client.values import PublishOptions, Retry, inputs, payloads

REPLIES = "_replies"  #: the topic of all replies; each client reads its own route of it
REPLIES_RETENTION_MS = 10 * limits.MINUTE_MS
REPLIES_PARTITIONS = 8
TO, ROUTE, CORRELATION = "gossipq-reply-to", "gossipq-reply-route", "gossipq-correlation"
OUTCOME, NOTHING, FAILED = "gossipq-outcome", "nothing", "failed"  #: of a reply that has no value, and why
ERROR_CHARACTERS_MAX = 1_000
HEARD_MS = 1_000  #: who consumed a topic a moment ago is still there


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
        """Of the publish. The route is its key as well: what one client asks comes in order, and different
        clients are served by different partitions."""
        return {"route": self.route, "key": self.route, "headers": self.headers, "level": "stored"}


def _reply(message: Record, value: bytes, outcome: str) -> Reply | None:
    """None for a record that asks for no answer."""
    headers = message.headers_shown
    topic, route, correlation = headers.get(TO), headers.get(ROUTE, ""), headers.get(CORRELATION, "")
    if not isinstance(topic, str) or not isinstance(route, str):
        return None
    said: dict[str, str | bytes] = {CORRELATION: correlation}
    return Reply(topic, value, route, said | ({OUTCOME: outcome} if outcome else {}))


def answer(message: Record, result: Any) -> Reply | None:
    """The reply with a handler's result; a result of None is told too. Raises BadRequest for a result that
    JSON cannot express."""
    if result is None:
        return _reply(message, b"", NOTHING)
    reply = _reply(message, b"", "")
    return reply and reply._replace(value=payloads.encoded(result))


def failure(message: Record, error: BaseException) -> Reply | None:
    """That the handler failed, and how. None where it will be tried again on purpose, or by others."""
    if isinstance(error, Retry | LeaseLost):
        return None
    text = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
    return _reply(message, text.encode(errors="replace"), FAILED)


def told(topic: str, headers: Mapping[str, str | bytes], value: bytes) -> None:
    """Raises NoReply when a reply says that there is none."""
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
        self.route = ""  #: of the replies, once they are subscribed to
        self.subscription: Subscription | None = None
        self.heard_ms: dict[str, int] = {}  #: topics, and when somebody consumed them
        self._number = 0
        self._waiting: set[str] = set()
        self._replies: dict[str, tuple[Held, Offset]] = {}

    @property
    def ready(self) -> bool:
        """Whether replies published from now on arrive. Raises what the subscription was refused with."""
        if self.subscription is None:
            return False
        if self.subscription.error is not None:
            raise self.subscription.error
        return bool(self.subscription.parts) and all(part.subscribed for part in self.subscription.parts)

    def renew(self, consuming: Consuming) -> None:
        """What was refused before may be granted now, and a topic that was removed is made again."""
        if self.subscription is not None and self.subscription.error is not None:
            consuming.close(self.subscription)
            self.subscription = None

    def heard(self, topic: str, now_ms: int) -> bool:
        """Whether somebody was there a moment ago."""
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
        """The headers of the caller, and those that say where the reply goes. Raises BadRequest."""
        return {
            **payloads.headers_dict(headers),
            TO: REPLIES,
            ROUTE: self.route,
            CORRELATION: correlation,
        }

    def reply(self, correlation: str, consuming: Consuming) -> tuple[Held, Offset] | None:
        """Takes what has come; the reply, if it is among it. A reply that nobody waits for any more is
        dropped."""
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
