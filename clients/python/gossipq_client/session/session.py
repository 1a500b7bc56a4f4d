"""One client's side of the protocol. Pure: events and time come in, frames to send and connections to open
lie in `links`.

    connected, disconnected,    ->  Session  ->  links.out, links.actions,
    arrived, advance + tick                      flights, calls, subscriptions

No sockets, no threads, no clock: the sync client and its asyncio twin drive the same session.
"""

from collections.abc import Callable
from difflib import get_close_matches

from gossipq import limits
from gossipq.errors import (
    BadRequest,
    Busy,
    GossipqError,
    NotLeader,
    ProtocolError,
    TooLarge,
    UnknownTopic,
    WrongVersion,
    from_code,
)
from gossipq.messages import (
    Ack,
    AckResults,
    AtEnd,
    Cancelled,
    Confirm,
    Deliver,
    Nack,
    Ping,
    Pong,
    ReadyMessage,
    RefusedMessage,
    Resolve,
    Share,
    Subscribed,
    Topics,
    Welcome,
)
from gossipq.types import META_SHARD, Now
from gossipq.values import Message, Route
from gossipq.wire import frames
from gossipq_client.session.calls import RETRY_MS, Call, Calls
from gossipq_client.session.credit import Subscription
from gossipq_client.session.deliveries import Consuming
from gossipq_client.session.links import Links
from gossipq_client.session.publisher import Publishing
from gossipq_client.values import NO_CREDENTIALS, Credentials, refs

PATTERNS_MS = 3 * limits.SECOND_MS  #: interval at which a pattern is looked up again
#: answers to pings arrive together: a client that waits for nothing else wakes once for all of them
PONGS_MS = 4
AWAITED_MS = 250  #: interval at which a missing topic is looked up


class Session:
    def __init__(
        self,
        addresses: list[str],
        session: bytes,
        name: str,
        version: str,
        new_producer: Callable[[], bytes],
        now: Now,
        key: bytes = b"",
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """`key`: session and producer ids are derived from it."""
        self.links = Links(addresses, session, name, version, now, key, credentials)
        self.calls = Calls(self.links)
        self.publishing = Publishing(self.links, new_producer)
        self.consuming = Consuming(self.links, self.calls)
        self.publishing.stands = self.consuming.stands
        self.bad_frames = 0
        self._watched: dict[Subscription, list[str]] = {}
        self._watched_ms = self._awaited_ms = now.boot_ms
        #: names of missing topics for which calls wait
        self._awaited: dict[Subscription, list[str]] = {}

    # --- time

    def advance(self, now: Now) -> None:
        self.links.now_ms, self.links.wall_ms = now.boot_ms, now.wall_ms

    def tick(self) -> None:
        """Do all work that is due. Costs little when nothing is due."""
        now_ms = self.links.now_ms
        if self.publishing.waiting or self.publishing.linger_ms:
            self.publishing.tick()
        if self.links.is_due():
            self.links.tick()
            self.publishing.pump_all()
        self._follow()
        if self.consuming.parts:
            self.consuming.tick()
        if self.calls.open:
            self.calls.pump_all()
        if self._watched and now_ms - self._watched_ms >= PATTERNS_MS:
            self._watched_ms = now_ms
            for subscription, patterns in list(self._watched.items()):
                if subscription.closing:
                    del self._watched[subscription]
                else:
                    self._look_up(subscription, patterns)

        if self._awaited and now_ms - self._awaited_ms >= AWAITED_MS:
            self._awaited_ms = now_ms
            for subscription, names in list(self._awaited.items()):
                del self._awaited[subscription]
                subscription.awaits = False
                if not subscription.closing:
                    self._look_up(subscription, names, named=True)

    def deadline_ms(self) -> int:
        """Return the boot time at which `tick` is due if nothing arrives."""
        dues_ms: list[int | None] = [self.links.deadline_ms()]
        if self.publishing.waiting or self.publishing.linger_ms:
            dues_ms.append(self.publishing.deadline_ms())
        if self.consuming.parts:
            dues_ms.append(self.consuming.deadline_ms())
        if self.calls.open:
            dues_ms.append(self.calls.deadline_ms())
        if self._awaited:
            dues_ms.append(self._awaited_ms + AWAITED_MS)
        return min([due_ms for due_ms in dues_ms if due_ms is not None])

    def rest_ms(self) -> int:
        """Return for how long only answers to pings can arrive: pings have just followed a silence."""
        return PONGS_MS if self.links.stirred_ms == self.links.now_ms and self.settled else 0

    # --- events

    def connected(self, endpoint: str) -> None:
        self.links.connected(endpoint)

    def disconnected(self, endpoint: str) -> None:
        self.links.disconnected(endpoint)

    def missed(self, endpoint: str) -> None:
        self.links.missed(endpoint)
        self._follow()

    def arrived(self, endpoint: str, message: list[bytes]) -> None:
        """Handle a message as it arrived. A message that breaks the protocol is counted and dropped."""
        try:
            header, body = frames.decode(message[0])
            self.links.alive(endpoint, header.request_id if header.verb == Pong.verb else 0, header.shard)
            self._handle(endpoint, header, body, message)
            if self.links.leaders.moved:
                self._follow()
        except ProtocolError as error:
            self.bad_frames += 1
            if isinstance(error, WrongVersion):  # the node is alive, but of another version
                self.links.misunderstood(endpoint, error)
                return
            self.consuming.warnings.append(f"message from {endpoint} dropped: {error}")

    def _follow(self) -> None:
        """Send requests and publishes that wait for a leader to the new leader."""
        if self.links.leaders.moved:
            self.links.leaders.moved = False
            self.pump_all()

    def _handle(self, endpoint: str, header: frames.Header, body: Message, message: list[bytes]) -> None:
        match body:
            case Confirm() if self.links.heard(header.shard, header.term, endpoint):
                for request_id in self.publishing.confirmed(body):
                    self.calls.answered(request_id, body)
                if body.direct:
                    self._learn(header, body.direct)
            case Welcome():
                if self.links.welcomed(header.request_id, body):
                    self.pump_all()
            case Ping() | Pong():
                pass
            case RefusedMessage():
                self._refused(endpoint, header, body)
            case Deliver() | ReadyMessage() | Share() | Cancelled() | AtEnd() | Subscribed() if (
                0 < header.term < self.links.term(header.shard)
            ):
                pass  # subscriptions of an earlier term are sent again
            case _ if not self.links.heard(header.shard, header.term, endpoint):
                for request_id in (
                    [row[0] for row in body.rows] if isinstance(body, Confirm) else [header.request_id]
                ):
                    self._ask_again(request_id)
            case _:
                self._hear(endpoint, header, body, message)

    def _hear(self, endpoint: str, header: frames.Header, body: Message, message: list[bytes]) -> None:
        """Return the leader of a shard, or the home node."""
        match body:
            case Deliver():
                if len(message) != 2:
                    raise ProtocolError(f"DELIVER of {len(message)} frames; 2 are needed")
                self.consuming.delivered(body, message[1], endpoint)
            case Subscribed():
                if self.consuming.subscribed(header.request_id, body):
                    self.calls.pump_all()
                    self.publishing.pump_all()
                else:
                    self.calls.answered(header.request_id, body)
                if body.direct:
                    self._learn(header, body.direct)
            case AtEnd():
                self.consuming.at_end(body)
            case ReadyMessage():
                self.consuming.ready(body.subscription)
            case Share():
                self.consuming.share(body.subscription, body.keep)
            case Cancelled():
                self.consuming.cancelled(body)
            case _:
                self.calls.answered(header.request_id, body, message[1:])

    def _learn(self, header: frames.Header, direct: str) -> None:
        self.links.learn(Route(header.shard, header.term, direct))

    def _refused(self, endpoint: str, header: frames.Header, body: RefusedMessage) -> None:
        error = from_code(body.code, body.message, body.hint, body.retry_after_ms, body.detail)
        if isinstance(error, BadRequest) and "HELLO" in body.message + body.hint:
            self.calls.forgotten(header.request_id)
            self.publishing.unheard(header.request_id)
            self.consuming.forgotten(header.request_id, header.shard)
            self.links.not_greeted(endpoint, header.shard)
            return
        if header.request_id and self.links.unwelcome(header.request_id, error):
            return
        if not isinstance(error, Busy | NotLeader):
            if self.links.outdated(header.shard, header.term, endpoint):
                self._ask_again(header.request_id)
                return
            if header.term > self.links.term(header.shard):
                self.links.heard(header.shard, header.term, endpoint)
        if isinstance(error, BadRequest) and not isinstance(error, TooLarge) and self._asked_before(header):
            return
        if isinstance(error, NotLeader):
            self._not_leader(endpoint, header, body.endpoint, error)
        elif self.publishing.refused(header.request_id, error):
            self._renew_topics()
        elif not self.consuming.refused(header.request_id, error):
            self.calls.refused(header.request_id, error)

    def _ask_again(self, request_id: int) -> None:
        """Send a request again that a former leader refused: its refusal does not count. It is sent even if
        the same worker leads again."""
        if not self.calls.forgotten(request_id, pause_ms=RETRY_MS):
            self.publishing.doubtful(request_id)

    def _asked_before(self, header: frames.Header) -> bool:
        """Whether a request was sent in an earlier term, so the new leader does not know its subscription.
        It is then sent again."""
        term = max(header.term, self.links.term(header.shard))
        return self.calls.forgotten(header.request_id, term) or self.publishing.forgotten(
            header.request_id, term
        )

    def _not_leader(self, endpoint: str, header: frames.Header, better: str, error: GossipqError) -> None:
        """Send a request again to the new leader. Without a request id, the subscriptions of the shard have
        ended."""
        request_id = header.request_id
        if not request_id:
            self.consuming.forgotten(0, header.shard)
        elif not (
            self.publishing.refused(request_id, error)
            or self.consuming.refused(request_id, error)
            or self.calls.refused(request_id, error)
        ):
            return
        self.links.not_led(header.shard, header.term, endpoint, better)
        self.links.leaders.moved = True

    def pump_all(self) -> None:
        """After a new greeting, send everything again: subscriptions first, so that acks find them, then
        requests, then publishes in order."""
        self.consuming.pump_all()
        self.calls.pump_all()
        self.publishing.pump_all()

    # --- topics

    def _renew_topics(self) -> None:
        """Look up topics again that their leader does not know: they may have been created again."""
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
            error = call.error or UnknownTopic(
                f"topic {name!r} was removed", hint=f"gossipq topic create {name}"
            )
            self.publishing.forget(known, error)

    # --- consuming

    def subscribe(self, subscription: Subscription) -> None:
        """Look up the topics (and create those named in full, if asked to), then subscribe to their shards. A
        second call does no harm."""
        if subscription.asked:
            return
        patterns = [name for name in subscription.names if "*" in name]
        literal = [name for name in subscription.names if "*" not in name]
        subscription.touched_ms = self.links.now_ms
        if literal:
            subscription.patience_ms += self.links.now_ms
            self._look_up(subscription, literal, named=True)
        if patterns:
            self._watched[subscription] = patterns
            self._look_up(subscription, patterns)
        subscription.asked = True

    def _look_up(
        self, subscription: Subscription, names: list[str], named: bool = False, after: str = ""
    ) -> None:
        """`named`: the names are complete, and each topic must exist."""

        def found(call: Call) -> None:
            topics = call.reply.topics if isinstance(call.reply, Topics) else []
            virtual = next((topic for topic in topics if topic.config.virtual), None)
            if named and virtual is not None:
                subscription.error = refs.is_virtual(virtual)
            elif named and call.error is not None:
                subscription.error = call.error
            elif not subscription.closing:
                self.consuming.cover(subscription, [topic for topic in topics if not topic.config.virtual])
                more = call.reply.more if isinstance(call.reply, Topics) else ""
                if more:
                    self._look_up(subscription, names, named, more)
                if named and (missing := _behind(names, after, more) - {topic.name for topic in topics}):
                    self._miss(subscription, sorted(missing))
            subscription.answered(call)

        if not subscription.lookups:
            subscription.looked_up_ms = self.links.now_ms
        request = Resolve(names, named and subscription.creates, after)
        subscription.lookups.add(self.calls.ask(request, META_SHARD, found))

    def _miss(self, subscription: Subscription, names: list[str]) -> None:
        """Wait for missing topics, and look for the most similar name for the error."""
        if self.links.now_ms < subscription.patience_ms:
            subscription.awaits = True
            waiting = self._awaited.get(subscription, [])
            self._awaited[subscription] = sorted({*names, *waiting})
            return

        def known(call: Call) -> None:
            there = [topic.name for topic in call.reply.topics] if isinstance(call.reply, Topics) else []
            missing = [name for name in names if name not in there]
            if missing:
                near = get_close_matches(missing[0], there, n=1)
                text = f"no topic {missing[0]}" + (f"; did you mean {near[0]}?" if near else "")
                hint = f"create=True makes it, wait= waits for it; gossipq topic create {missing[0]}"
                subscription.error = UnknownTopic(text, hint=hint)
            else:  # created meanwhile
                self._look_up(subscription, names, named=True)
            subscription.answered(call)

        subscription.lookups.add(self.calls.ask(Resolve(["*"]), META_SHARD, known))

    # --- farewell

    def farewell(self) -> None:
        """Send the last acks, and BYE: the leaders redeliver records that are still held, and count no
        attempt."""
        self.consuming.farewell()
        self.links.bye()

    def mark(self) -> Callable[[], bool]:
        """Send waiting publishes and acks. Return a function that tells if all requests that wait now are
        answered, and the ends of subscriptions that follow from them. Later publishes and acks do not count,
        so a busy program cannot delay a flush for ever."""
        published = self.publishing.mark()
        self.consuming.flush()
        calls, ending = self.calls.open_calls()[::-1], self.consuming.ending()

        def passed() -> bool:
            while True:
                while calls and not self.calls.is_open(calls[-1]):
                    calls.pop()
                if calls:
                    return False
                # records that still arrived are given back, before the end of the subscription
                calls.extend(self.calls.of_subscriptions(ending))
                if not calls:
                    return published()

        return passed

    def failure(self) -> GossipqError | None:
        """Return the error of a failed publish or of lost acks that the user has not seen yet."""
        return self.publishing.failure() or self.consuming.lost_acks()

    @property
    def owes(self) -> bool:
        """Whether publishes wait for a confirm, or acks wait to be stored."""
        waiting = any(isinstance(message, Ack | AckResults | Nack) for message in self.calls.unanswered())
        return waiting or not self.publishing.idle or bool(self.consuming.ack_due_ms)

    @property
    def settled(self) -> bool:
        """Whether no request waits for an answer."""
        return self.publishing.idle and not len(self.calls) and not self.consuming.ack_due_ms


def _behind(names: list[str], after: str, more: str) -> set[str]:
    """Return the names that a page of an answer covers: after `after`, up to `more` ("" = all)."""
    return {name for name in names if name > after and (not more or name <= more)}
