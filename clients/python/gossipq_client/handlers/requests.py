"""Asking and answering: a request is a record whose headers say where its reply goes; the reply names its
request."""

from typing import NamedTuple

from gossipq import limits
from gossipq.messages import CreateTopic
from gossipq.types import Offset
from gossipq.values import TopicOptions
from gossipq_client.session import Consuming, Held, Joining, Record, Subscription, joining
from gossipq_client.values import inputs

REPLIES = "_replies"  #: the topic of all replies; each client reads its own route of it
REPLIES_RETENTION_MS = 10 * limits.MINUTE_MS
TO, ROUTE, CORRELATION = "gossipq-reply-to", "gossipq-reply-route", "gossipq-correlation"


def make_replies() -> CreateTopic:
    return CreateTopic(
        REPLIES, TopicOptions(partitions=1, retention_ms=REPLIES_RETENTION_MS, retain="acked"), True
    )


class Reply(NamedTuple):
    """Where the answer to a request goes."""

    topic: str
    route: str
    headers: dict[str, str | bytes]


def reply_to(message: Record) -> Reply | None:
    """None for a record that asks for no answer."""
    headers = message.headers
    topic, route, correlation = headers.get(TO), headers.get(ROUTE, ""), headers.get(CORRELATION, "")
    if not isinstance(topic, str) or not isinstance(route, str):
        return None
    return Reply(topic, route, {CORRELATION: correlation})


class Requests:
    """The requests of one client that wait for their replies."""

    def __init__(self, route: str) -> None:
        self.route = route
        self.subscription: Subscription | None = None
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

    def joining(self) -> Joining:
        return joining(REPLIES, None, start="new", routes=[self.route])

    def begin(self) -> str:
        """The correlation of a new request."""
        self._number += 1
        correlation = str(self._number)
        self._waiting.add(correlation)
        return correlation

    def headers(self, correlation: str, headers: inputs.Headers | None) -> dict[str, str | bytes]:
        return {**(headers or {}), TO: REPLIES, ROUTE: self.route, CORRELATION: correlation}

    def reply(self, correlation: str, consuming: Consuming) -> tuple[Held, Offset] | None:
        """Takes what has come; the reply, if it is among it. A reply that nobody waits for any more is
        dropped."""
        assert self.subscription is not None, "replies are read before something is asked"
        while self.subscription.ready:
            for piece in consuming.take(self.subscription, len(self.subscription.ready[0].values())):
                for offset in range(piece.first, piece.end):
                    of = str(piece.held.headers(offset).get(CORRELATION, ""))
                    if of in self._waiting:
                        self._replies.setdefault(of, (piece.held, offset))
        return self._replies.get(correlation)

    def end(self, correlation: str) -> None:
        self._waiting.discard(correlation)
        self._replies.pop(correlation, None)
