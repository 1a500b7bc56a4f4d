"""One client's side of the protocol. Pure: events and time come in, frames to send and connections to open lie in `links`.

    connected, disconnected, arrived, advance + tick  ->  Session  ->  links.out, links.actions, flights, calls, subscriptions

No sockets, no threads, no clock: the sync client and its asyncio twin drive the same session.
"""

from collections.abc import Callable

from gossipq import limits
from gossipq.errors import BadRequest, ProtocolError, UnknownTopic, from_code
from gossipq.messages import AtEnd, Confirm, Deliver, Ping, Pong, Ready, Refused, Resolve, Subscribed, Topics, Welcome
from gossipq.types import META_SHARD, Now
from gossipq.values import Message, Route
from gossipq.wire import frames
from gossipq_client import refs
from gossipq_client.calls import Call, Calls
from gossipq_client.consuming import Consuming
from gossipq_client.credit import Subscription
from gossipq_client.links import Links
from gossipq_client.publishing import Publishing

PATTERNS_MS = 3 * limits.SECOND_MS  #: how often a pattern is looked up again
TICK_MS = 250  #: pings, silence and fallbacks are looked at this often


class Session:
    def __init__(
        self, addresses: list[str], session: bytes, name: str, version: str, new_producer: Callable[[], bytes], now: Now
    ) -> None:
        self.links = Links(addresses, session, name, version, now)
        self.calls = Calls(self.links)
        self.publishing = Publishing(self.links, new_producer)
        self.consuming = Consuming(self.links, self.calls)
        self.bad_frames = 0
        self._watched: dict[Subscription, list[str]] = {}
        self._ticked_ms = now.boot_ms
        self._watched_ms = now.boot_ms

    # --- time

    def advance(self, now: Now) -> None:
        self.links.now_ms, self.links.wall_ms = now

    def tick(self) -> None:
        """Everything that time brings. Costs little when nothing is due."""
        now_ms = self.links.now_ms
        self.publishing.tick()
        if now_ms - self._ticked_ms >= TICK_MS:
            self._ticked_ms = now_ms
            self.links.tick()
            self.publishing.pump_all()
        self.consuming.tick()
        self.calls.pump_all()
        if self._watched and now_ms - self._watched_ms >= PATTERNS_MS:
            self._watched_ms = now_ms
            for subscription, patterns in list(self._watched.items()):
                if subscription.closing:
                    del self._watched[subscription]
                else:
                    self._look_up(subscription, patterns, create=False)

    def deadline_ms(self) -> int:
        """Boot time at which `tick` is due though nothing arrives."""
        due_ms = self._ticked_ms + TICK_MS
        for other in (self.publishing.deadline_ms(), self.consuming.deadline_ms(), self.calls.deadline_ms()):
            if other is not None and other < due_ms:
                due_ms = other
        return due_ms

    # --- events

    def connected(self, endpoint: str) -> None:
        self.links.connected(endpoint)

    def disconnected(self, endpoint: str) -> None:
        self.links.disconnected(endpoint)

    def arrived(self, endpoint: str, message: list[bytes]) -> None:
        """One message as it came. What breaks the protocol is counted and dropped."""
        try:
            header, body = frames.decode(message[0])
            self.links.alive(endpoint, header.request_id if header.verb == Pong.verb else 0)
            self._handle(endpoint, header, body, message)
        except ProtocolError as error:
            self.bad_frames += 1
            self.consuming.warnings.append(f"message from {endpoint} dropped: {error}")

    def _handle(self, endpoint: str, header: frames.Header, body: Message, message: list[bytes]) -> None:
        links, stale = self.links, header.term < self.links.term(header.shard)
        match body:
            case Confirm():
                if not stale:
                    for request_id in self.publishing.confirmed(body):
                        self.calls.answered(request_id, body)
                    self._learn(header, body.direct)
            case Deliver():
                if len(message) != 2:
                    raise ProtocolError(f"DELIVER of {len(message)} frames; 2 are needed")
                if not stale:
                    self.consuming.delivered(body, message[1])
            case Refused():
                self._refused(endpoint, header, body)
            case Subscribed():
                if not self.consuming.subscribed(header.request_id, body):
                    self.calls.answered(header.request_id, body)
                self._learn(header, body.direct)
            case AtEnd():
                self.consuming.at_end(body)
            case Ready():
                self.consuming.ready(body.subscription)
            case Welcome():
                if links.welcomed(header.request_id, body):
                    self.pump_all()
            case Ping() | Pong():
                pass
            case _:
                self.calls.answered(header.request_id, body, message[1:])

    def _learn(self, header: frames.Header, direct: str) -> None:
        if direct:
            self.links.learn(Route(header.shard, header.term, direct))

    def _refused(self, endpoint: str, header: frames.Header, body: Refused) -> None:
        error = from_code(body.code, body.message, body.hint, body.retry_after_ms, body.detail)
        if isinstance(error, BadRequest) and "HELLO" in body.message + body.hint:
            self.calls.forgotten(header.request_id)
            self.consuming.forgotten(header.request_id, header.shard)
            self.links.not_greeted(endpoint, header.shard)
            return
        if body.endpoint:
            self._learn(header, body.endpoint)
        if self.publishing.refused(header.request_id, error):
            self._renew_topics()
        elif not self.consuming.refused(header.request_id, error):
            self.calls.refused(header.request_id, error)

    def pump_all(self) -> None:
        """After a new greeting: subscriptions first, so that acks find them, then requests, then publishes in order."""
        self.consuming.pump_all()
        self.calls.pump_all()
        self.publishing.pump_all()

    # --- topics

    def _renew_topics(self) -> None:
        """Topics that their leader does not know are looked up once more: they may have been made anew."""
        for topic in self.publishing.stale:

            def learned(call: Call, name: str = topic.name) -> None:
                self._renewed(name, call)

            self.calls.ask(Resolve([topic.name]), META_SHARD, learned)
        self.publishing.stale.clear()

    def _renewed(self, name: str, call: Call) -> None:
        found = call.reply.topics if isinstance(call.reply, Topics) else []
        known = self.publishing.topics.get(name)
        if found:
            self.publishing.learn(found[0])
            self.publishing.pump_all()
        elif known is not None:
            error = call.error or UnknownTopic(f"topic {name!r} is gone", hint=f"gossipq topic create {name}")
            self.publishing.forget(known, error)

    # --- consuming

    def subscribe(self, subscription: Subscription) -> None:
        """Looks the topics up (and makes those named in full), then subscribes to their shards."""
        patterns = [name for name in subscription.names if "*" in name]
        literal = [name for name in subscription.names if "*" not in name]
        subscription.touched_ms = self.links.now_ms
        subscription.lookups = bool(patterns) + bool(literal)
        if literal:
            self._look_up(subscription, literal, create=True)
        if patterns:
            self._watched[subscription] = patterns
            self._look_up(subscription, patterns, create=False)

    def _look_up(self, subscription: Subscription, names: list[str], create: bool) -> None:
        def found(call: Call) -> None:
            subscription.lookups = max(0, subscription.lookups - 1)
            topics = call.reply.topics if isinstance(call.reply, Topics) else []
            virtual = next((topic for topic in topics if topic.config.virtual), None)
            if create and virtual is not None:
                subscription.error = refs.is_virtual(virtual)
            elif create and call.error is not None:
                subscription.error = call.error
            else:
                self.consuming.cover(subscription, [topic for topic in topics if not topic.config.virtual])

        self.calls.ask(Resolve(names, create), META_SHARD, found)

    # --- farewell

    def farewell(self) -> None:
        """Last acks and BYE: what is still held goes back uncounted."""
        self.consuming.farewell()
        self.links.bye()

    @property
    def settled(self) -> bool:
        """Nothing waits for an answer."""
        return self.publishing.idle and not len(self.calls) and not self.consuming.ack_due_ms
