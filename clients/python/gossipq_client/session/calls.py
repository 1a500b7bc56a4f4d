"""Requests with one answer each. They are sent when there is a connection, and again to each new
leader, after each greeting, and while a leader is busy.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import structs

from gossipq.errors import BadRequest, Busy, GossipqError, NotLeader, ProtocolError
from gossipq.values import Message
from gossipq.wire import frames
from gossipq_client.session.links import Links

Answer = TypeVar("Answer", bound=Message)
Request = TypeVar("Request", bound=Message)

RETRY_MS = 50  #: pause before a request is sent again if the leader named none


class Call:
    """One request, sometimes with a second frame. `then` gets the answer or the error, once."""

    __slots__ = (
        "body",
        "done",
        "error",
        "frames",
        "greeting",
        "message",
        "reply",
        "request_id",
        "retry_at_ms",
        "shard",
        "term",
        "then",
    )

    def __init__(
        self, message: Message, shard: int, then: Callable[["Call"], None] | None, body: bytes | bytearray
    ) -> None:
        self.message, self.shard, self.then, self.body = message, shard, then, body
        self.frames: Sequence[bytes] = ()  #: further frames of the answer
        self.request_id = self.greeting = self.retry_at_ms = 0
        self.term = 0  #: term of the leader that was asked, as far as known
        self.done = False
        self.reply: Message | None = None
        self.error: GossipqError | None = None

    def settle(self, reply: Message | None, error: GossipqError | None) -> None:
        self.reply, self.error, self.done = reply, error, True
        if self.then is not None:
            self.then(self)

    def answer(self, kind: type[Answer]) -> Answer:
        """The answer of a finished call. Raises its error, or ProtocolError for
        an answer of another kind.
        """
        if self.error is not None:
            raise self.error
        if not isinstance(self.reply, kind):
            raise ProtocolError(f"{type(self.message).__name__} answered by {type(self.reply).__name__}")
        return self.reply


class Calls:
    def __init__(self, links: Links) -> None:
        #: whether its leader knows that subscription
        self.stands: Callable[[int], bool] = lambda subscription: True
        self._links = links
        self.open: dict[Call, None] = {}  #: unanswered calls, in the order in which they were asked
        self._sent: dict[int, Call] = {}
        self._keyed = 0

    @property
    def cluster(self) -> bytes:
        """The cluster's uuid, b"" until a node has answered."""
        return self._links.cluster

    def __len__(self) -> int:
        return len(self.open)

    def ask(
        self,
        message: Message,
        shard: int,
        then: Callable[[Call], None] | None = None,
        body: bytes | bytearray = b"",
    ) -> Call:
        """Sends a request. Raises BadRequest if no frame can carry it; otherwise every exchange
        would try to send it and fail.
        """
        try:
            frames.encode(message)
        except (UnicodeEncodeError, OverflowError, TypeError) as error:
            raise BadRequest(f"{type(message).__name__} cannot be sent: {error}") from None
        call = Call(self.with_key(message), shard, then, body)
        self.open[call] = None
        self._pump(call)
        return call

    def with_key(self, message: Request) -> Request:
        """Adds an idempotency key to a request that must not be done twice; every repeat has the
        same key. `ask` does this. A signed request needs the key first, since the proof covers it.
        """
        if getattr(message, "idempotency_key", None) != b"":
            return message
        self._keyed += 1
        key = self._links.session + self._keyed.to_bytes(8, "big")
        return structs.replace(message, idempotency_key=key)

    def prepare(self, message: Message, shard: int, then: Callable[[Call], None] | None = None) -> Call:
        """A call that `send` sends later, or that is sent when all calls are sent again. Before
        that it has no `request_id`, and its message may grow.
        """
        call = Call(message, shard, then, b"")
        self.open[call] = None
        return call

    def send(self, call: Call) -> None:
        """Sends a prepared call, if there is a connection."""
        self._pump(call)

    def cancel(self, call: Call) -> None:
        """Drops a call whose caller no longer waits; a late answer is ignored."""
        self.open.pop(call, None)
        self._sent.pop(call.request_id, None)

    def is_open(self, call: Call) -> bool:
        """True while the call waits for its answer."""
        return call in self.open and not call.done

    def open_calls(self) -> list[Call]:
        """Unanswered calls, in the order in which they were asked."""
        return [call for call in self.open if not call.done]

    def of_subscriptions(self, numbers: set[int]) -> list[Call]:
        """Unanswered calls about one of these subscriptions."""
        return [call for call in self.open_calls() if getattr(call.message, "subscription", 0) in numbers]

    def unanswered(self) -> list[Message]:
        """Messages of unanswered calls, in the order in which they were asked."""
        return [call.message for call in self.open_calls()]

    def pump_all(self) -> None:
        for call in list(self.open):
            self._pump(call)

    def _pump(self, call: Call) -> None:
        lane = self._links.lane(call.shard)
        if lane is None or call.done or self._links.now_ms < call.retry_at_ms:
            return
        if lane.greeting == call.greeting or not self.stands(getattr(call.message, "subscription", 0)):
            return
        self._sent.pop(call.request_id, None)
        call.request_id, call.greeting = self._links.next_id(), lane.greeting
        call.term = max(call.term, self._links.term(call.shard))
        self._sent[call.request_id] = call
        self._links.send(lane, call.message, call.shard, call.request_id, call.body)

    def deadline_ms(self) -> int | None:
        now_ms = self._links.now_ms
        return min((call.retry_at_ms for call in self.open if call.retry_at_ms > now_ms), default=None)

    def answered(self, request_id: int, reply: Message, frames: Sequence[bytes] = ()) -> bool:
        """Takes an answer. Returns False if no call waits for it."""
        call = self._sent.get(request_id)
        if call is None:
            return False
        call.frames = frames
        self.settle(call, reply, None)
        return True

    def settle(self, call: Call, reply: Message | None, error: GossipqError | None) -> None:
        """Removes the call last, so that `rebuild` finds one that was settled half way."""
        call.settle(reply, error)
        self.cancel(call)

    def refused(self, request_id: int, error: GossipqError) -> bool:
        call = self._sent.get(request_id)
        if call is None:
            return False
        if isinstance(error, NotLeader) or type(error) is Busy:
            pause_ms = 0 if isinstance(error, NotLeader) else error.retry_after_ms or RETRY_MS
            del self._sent[request_id]
            call.greeting, call.retry_at_ms = 0, self._links.now_ms + pause_ms
        else:
            self.settle(call, None, error)
        return True

    def forgotten(self, request_id: int, term: int = 0, pause_ms: int = 0) -> bool:
        """The process that answered did not know what the request is about. Sends it again; with a
        `term` only if it was last sent in an earlier one. Returns False if it is not sent again.
        """
        call = self._sent.get(request_id)
        if call is None or 0 < term <= call.term:
            return False
        del self._sent[request_id]
        call.greeting, call.term, call.retry_at_ms = 0, max(call.term, term), self._links.now_ms + pause_ms
        return True
