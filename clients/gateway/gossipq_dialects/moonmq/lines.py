"""Connections of moonmq's clients over TCP.

moonmq's own client needs a lock for pushes and holds it during a request, so a reply is always sent
before waiting pushes. It stores 16 messages, so at most `in_flight_max` of a queue are in flight.
"""

from collections import deque
from functools import partial

from gossipq.errors import GossipqError
from gossipq_client import Record
from gossipq_client.aio import Message
from gossipq_client.values import GIVEN_BACK
from gossipq_dialects.acks import acked
from gossipq_dialects.answers import Slot
from gossipq_dialects.feeds import Feed
from gossipq_dialects.lines import Hangup, Line, Lines
from gossipq_dialects.moonmq import wire
from gossipq_dialects.moonmq.broker import Broker
from gossipq_dialects.moonmq.fanouts import Fanout
from gossipq_dialects.names import topic_of

BOUND_MAX = 1_000  #: queues of one connection


class MoonLine(Line):
    def __init__(self, lines: Lines, broker: Broker) -> None:
        super().__init__(lines)
        self._broker, self._splitter = broker, wire.Splitter()
        self._bound: dict[str, Binding] = {}

    def unfinished(self) -> int:
        return len(self._splitter)

    def take(self, data: bytes) -> None:
        try:
            for frame in self._splitter.feed(data):
                self.lines.counters.request()
                try:
                    self._do(wire.request(frame, self._bound), len(frame.body))
                except GossipqError as error:
                    self.refuse(wire.Refusal(400, error.message))
        except wire.Malformed as error:
            raise Hangup(str(error)) from None

    def _do(self, asked: wire.Request, size: int) -> None:
        match asked:
            case wire.Publish():
                slot = self.answers.slot(size)
                try:
                    self._broker.publish(asked, partial(self._published, slot))
                except GossipqError as error:
                    self.lines.counters.error()
                    self.answer(slot, wire.error(400, error.message))
            case wire.Bind():
                self._bind(asked)
            case wire.Unbind():
                for queue in [asked.queue] if asked.queue else list(self._bound):
                    if queue in self._bound:
                        self._bound.pop(queue).close()
                self.say(wire.unbound(asked.queue))
            case wire.Ack():
                self._bound[asked.queue].ack(asked.number)
            case wire.Auth():
                self.say(wire.authenticated())
            case wire.Refusal():
                self.refuse(asked)

    def refuse(self, refusal: wire.Refusal) -> None:
        self.lines.counters.error()
        self.say(refusal.frame)

    def _published(self, slot: Slot, number: int, error: GossipqError | None) -> None:
        said = wire.published(number) if error is None else wire.error(500, error.message)
        self.answer(slot, said)

    def _bind(self, asked: wire.Bind) -> None:
        """Bind. Binding again changes key and ack."""
        topic_of(asked.queue)  # refused before any answer
        if asked.queue in self._bound:
            self._bound.pop(asked.queue).close()
        elif len(self._bound) >= BOUND_MAX:
            self.refuse(wire.Refusal(400, f"bound to {BOUND_MAX} queues already"))
            return
        binding = Binding(self, asked)
        self.say(wire.bound(asked.queue))
        self._bound[asked.queue] = binding
        try:
            binding.begin(self._broker)
        except GossipqError as error:
            binding.ended(error)

    def roomy(self) -> None:
        for binding in self._bound.values():
            binding.roomy()

    def answered(self) -> None:
        """All requests are answered: waiting pushes can be sent."""
        for binding in self._bound.values():
            binding.send_waiting()

    def swept(self) -> None:
        for binding in self._bound.values():
            binding.forget_lost()

    def closed(self) -> None:
        for binding in self._bound.values():
            binding.close()
        self._bound.clear()


class Binding:
    """One queue of a connection: direct and fanout messages."""

    def __init__(self, line: MoonLine, asked: wire.Bind) -> None:
        self._line, self._asked = line, asked
        self._feed: Feed | None = None
        self._fanout: Fanout | None = None
        self._in_hand: dict[int, Message] = {}
        self._waiting: deque[bytes] = deque()  #: pushes that wait for open replies
        self._all = Everyone(self)

    def begin(self, broker: Broker) -> None:
        """Begin. Raises BadName, BadRequest."""
        self._feed = broker.join(self._asked.queue, self._asked.key, self)
        self._fanout = broker.listen(self._asked.queue, self._all)

    def has_room(self) -> bool:
        line = self._line
        unsent = len(self._in_hand) if self._asked.acks else len(self._waiting)
        return line.is_open and not line.is_full and unsent < self.in_flight_max

    @property
    def in_flight_max(self) -> int:
        return self._line._broker.options.in_flight_max

    def give(self, message: Message) -> None:
        number = wire.number_of(message.partition, message.offset, False)
        if self._asked.acks:
            self._in_hand[number] = message
        elif acked(message):
            self._line.lines.counters.acked()
        self.push(number, message)

    def push(self, number: int, message: Record) -> None:
        self._line.lines.counters.delivered()
        frame = wire.push(self._asked.queue, number, message.value)
        if self._line.answers:
            self._waiting.append(frame)
        else:
            self._line.push(frame)

    def send_waiting(self) -> None:
        if self._waiting:
            self._line.push(b"".join(self._waiting))
            self._waiting.clear()
            self.roomy()

    def forget_lost(self) -> None:
        """Forget lost messages, which others got while this gateway was cut off."""
        lost = [number for number, message in self._in_hand.items() if message.lost]
        for number in lost:
            del self._in_hand[number]
        if lost:
            self.roomy()

    def ack(self, number: int) -> None:
        """Ack a number. Unknown numbers are ignored."""
        message = self._in_hand.pop(number, None)
        if message is not None:
            if acked(message):
                self._line.lines.counters.acked()
            if self._feed is not None:
                self._feed.roomy(self)
        elif number > wire.FANOUT_BIT:
            self._line.lines.counters.acked()
            self._all.done(number)

    def roomy(self) -> None:
        if self._feed is not None:
            self._feed.roomy(self)
        if self._fanout is not None:
            self._fanout.roomy(self._all)

    def ended(self, error: GossipqError) -> None:
        self._line.refuse(wire.Refusal(500, error.message))
        self._line.hang_up()

    def fanned(self, offset: int) -> None:
        if self._fanout is not None:
            self._fanout.acked(self._all, offset)

    @property
    def acks(self) -> bool:
        return self._asked.acks

    def close(self) -> None:
        """Give all messages back."""
        if self._feed is not None:
            self._feed.leave(self)
        if self._fanout is not None:
            self._fanout.leave(self._all)
        for message in self._in_hand.values():
            message.settle(GIVEN_BACK)
        self._in_hand.clear()


class Everyone:
    """The fanout part of a binding."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._in_hand: dict[int, int] = {}

    def has_room(self) -> bool:
        return self._binding.has_room() and len(self._in_hand) < self._binding.in_flight_max

    def give(self, message: Record) -> None:
        number = wire.number_of(message.partition, message.offset, True)
        self._in_hand[number] = message.offset
        self._binding.push(number, message)
        if not self._binding.acks:
            self.done(number)

    def done(self, number: int) -> None:
        offset = self._in_hand.pop(number, None)
        if offset is not None:
            self._binding.fanned(offset)

    def ended(self, error: GossipqError) -> None:
        self._binding.ended(error)
