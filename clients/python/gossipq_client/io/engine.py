"""Shared by the sync client and its asyncio twin: a session with sockets, and
every step that does not wait.
"""

import logging
import os
import weakref
from collections import deque
from collections.abc import Callable
from itertools import count as counted
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from gossipq import __version__, limits
from gossipq.clock import SystemClock
from gossipq.errors import (
    Backpressure,
    BadName,
    BadRequest,
    ClientClosed,
    ConfigError,
    ForkedClient,
    GossipqError,
    NoQuorum,
    NotConfirmed,
    TurnedAway,
    UnknownTopic,
    Unreachable,
)
from gossipq.messages import Resolve, Topics
from gossipq.texts import many
from gossipq.types import META_SHARD, Offset, partition_of, topic_id_of
from gossipq.wire import ownership
from gossipq_client.io import contexts
from gossipq_client.io.transport import Transport, wait
from gossipq_client.operations import Operating
from gossipq_client.session import (
    ACK_LINGER_MS,
    Call,
    Flight,
    Held,
    Joining,
    Patience,
    Record,
    Session,
    Subscription,
    Topic,
    Writer,
    rebuild,
)
from gossipq_client.values import NO_CREDENTIALS, PLAIN, Credentials, Options, refs

Stepped = TypeVar("Stepped")

log = logging.getLogger("gossipq_client")

TICK_MS_MAX = 20  #: a busy client looks at its timers this often
REQUEST_SECONDS = 10.0  #: how long connecting and requests wait for a node
CLOSE_SECONDS = 30.0  #: how long `close` waits for confirms
ERROR_CLOSE_SECONDS = 5.0  #: the same, when a `with` block ends in an exception
VIRTUAL_MS = 3_000  #: how long the answer is used that tells what a virtual topic is bound to
PAUSE_SECONDS = 0.5  #: pause after an error in background work
LOOK_MS = 1_000  #: time between two looks at the file of credentials
LINGER_MS = 500  #: how long closing sockets try to send a farewell


def in_handler() -> RuntimeError:
    """The error for a signal handler that calls the very client that it interrupted."""
    return RuntimeError(
        "a signal handler called a client of gossipq that is at work in the same thread, and nothing was "
        "done: set a flag there and look at it later; close() and stop() can be called at any time"
    )


class Refusing(list[Record]):
    """Takes the place of the list of acks when a client is closed or forked."""

    def __init__(self, engine: "Engine") -> None:
        super().__init__()
        self._engine = engine

    def append(self, record: Record) -> None:
        """Raises ClientClosed."""
        self._engine.check()


class Engine:
    """One session over real sockets. No method blocks; only one thread at a time may call it."""

    alive: ClassVar["weakref.WeakSet[Engine]"] = weakref.WeakSet()

    def __init__(
        self,
        addresses: list[str],
        name: str,
        on_fork: Callable[[], None],
        key: bytes = b"",
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        """`key` is the key of the session's owner, see `gossipq.wire.ownership`;
        without one, a random key.
        """
        self.clock = SystemClock()
        self.transport = Transport(credentials.door)
        self._credentials, self._stamp, self._looked_ms = credentials, contexts.stamp(credentials.file), 0
        key, numbers = key or os.urandom(ownership.KEY_BYTES), counted(1)
        self.session = Session(
            addresses,
            ownership.session_of(key),
            name,
            __version__,
            lambda: ownership.producer_of(key, next(numbers)),
            self.clock.now(),
            key,
            credentials,
        )
        self.asking = Operating(self.session)
        #: see there; a `Refusing` after the client is closed or forked
        self.noted = self.session.consuming.noted
        self.forked = self.closed = False
        self.ended = False  #: closed, and nothing more is sent
        #: no new publish may begin: an application that publishes without pauses
        #: would keep the client open
        self.closing = False
        self.busy = False  #: a step is running
        self.torn = False  #: a step ended half way, see `_hindered`
        #: work that finalizers leave for the next step; doing it twice is harmless
        self.later: deque[Callable[[], None]] = deque()
        #: messages for the log, which are never logged within a step: a log handler may wait for
        #: the owner of this client. Calls of users that wait for the outcome of a publish are like these
        self.untold: deque[tuple[str, Exception | None] | Callable[[], object]] = deque()
        self.on_fork = on_fork
        self._due_ms = 0
        #: boot time. A wait after `exchange` that ends by then need not ask for `timeout_ms`: the
        #: next look at the timers comes earlier than most deadlines
        self.soon_ms = 0
        self.parts: dict[str, Any] = {}  #: what parts of a client keep for this session, by their names
        Engine.alive.add(self)

    # --- steps

    def step(self, do: Callable[..., Stepped], *arguments: Any) -> Stepped:
        """Call `do` as one step: the session is consistent before the next step begins, even if an
        exception from a signal handler ends this one half way. One step at a time.

        An error of gossipq is taken for one of `do`, which leaves no work half done.

        Raises ClientClosed, the errors of `do`, and RuntimeError if a signal
        handler interrupted a step.
        """
        if self.busy or self.torn or self.closed or self.forked:
            self._hindered()
        if self.noted:
            self._join_noted()
        try:
            self.busy = True
            return do(*arguments)
        except GossipqError:
            raise
        except BaseException:
            self.torn = True
            raise
        finally:
            self.busy = False

    def _hindered(self) -> None:
        """Raise if no step is possible now. After a torn step, connect again.

        An exception that ends this half way, too, is no harm: the next step begins it anew.
        """
        self.check()
        if self.busy:
            raise in_handler()
        if not self.torn:
            return
        try:
            self.busy = True
            self.transport.restart()
            rebuild(self.session, self.clock.now())
            self._due_ms = 0
            self.torn = False
        finally:
            self.busy = False

    def note(
        self, do: Callable[[Held, Offset, Offset], None], held: Held, first: Offset, end: Offset
    ) -> None:
        """Notes the state of records that are here. The notes are consistent at any moment, so an
        exception from outside cannot tear them. Messages of a finalizer or signal handler in the
        middle of it are sent later.
        """
        if self.busy or self.torn or self.closed or self.forked:
            self._hindered()
        try:
            self.busy = True
            do(held, first, end)
        finally:
            self.busy = False

    def _join_noted(self) -> None:
        """Hands the acks since the last step to the session."""
        try:
            self.busy = True
            self.session.consuming.join_noted()
        finally:
            self.busy = False

    def check(self) -> None:
        """Raises ClientClosed."""
        if self.forked:
            raise forked()
        if self.closed:
            raise ClientClosed("this client is closed", hint="call connect() again")

    @property
    def usable(self) -> bool:
        return not self.closed and not self.forked

    def exchange(self, thorough: bool = False, lingering: bool = False) -> bool:
        """Sends what waits and takes what has arrived; returns True if something has. `thorough`
        also looks at connections; `lingering` leaves acks that are not due for the next call.
        """
        session, transport, links = self.session, self.transport, self.session.links
        publishing, consuming = session.publishing, session.consuming
        now = self.clock.now()
        links.now_ms, links.wall_ms = now.boot_ms, now.wall_ms
        while self.later:
            self.later[0]()
            self.later.popleft()
        due = links.now_ms >= self._due_ms or (consuming.hands and consuming.hands_due)
        if due or (thorough and links.now_ms >= session.deadline_ms()):
            thorough = True
            self._tick()
        moved = False
        if thorough or links.actions:
            moved = self._connections()
        # most exchanges are of one record, so parts with nothing to send are not called
        if publishing.gathered:
            publishing.depart()
        if consuming.fresh or consuming.due or consuming.hungry:
            consuming.flush(lingering)
        while True:
            if links.out:
                transport.send(links.out)
            arrived = transport.receive()
            for endpoint, message in arrived:
                session.arrived(endpoint, message)
            moved = moved or bool(arrived)
            if not links.out:
                break  # checked last: a send may swallow the signal of an arrival
        self.soon_ms = min(self._due_ms, publishing.linger_ms) if publishing.linger_ms else self._due_ms
        if consuming.warnings:
            self.untold += [(text, None) for text in consuming.warnings]
            consuming.warnings.clear()
        return moved

    def when_done(self, flights: list[Flight], call: Callable[[], object]) -> bool:
        """Let `tell` make a call once all of these flights are done. Return False if they are done now. Call
        within a step."""

        def heard() -> None:
            if all(flight.done for flight in flights):
                self.untold.append(call)

        under_way = [flight for flight in flights if not flight.done]
        for flight in under_way:
            flight.calls = [*(flight.calls or ()), heard]
        return bool(under_way)

    def _tick(self) -> None:
        """Let time pass in the session."""
        session, links = self.session, self.session.links
        for endpoint in filter(self.transport.moving, links.quiet()):
            links.moving(endpoint)
        session.tick()
        self._due_ms = min(session.deadline_ms(), links.now_ms + TICK_MS_MAX)

    def tell(self) -> None:
        """Write waiting messages to the log, and make calls that wait for an outcome. Call it outside of a
        step and without holding locks.
        """
        while self.untold:
            told = self.untold.popleft()
            if isinstance(told, tuple):
                text, error = told
                log.log(logging.ERROR if error else logging.WARNING, text, exc_info=error)
                continue
            try:
                told()
            except Exception:
                log.exception("a done callback of a receipt raised an error")

    def begin(self, held: Held, offset: Offset) -> None:
        """User code begins a record. If the leader must know that before, only
        this message is sent now.
        """
        self.session.consuming.begin(held, offset, offset + 1)
        self.transport.send(self.session.links.out)

    def _connections(self) -> bool:
        links, transport, changed = self.session.links, self.transport, False
        if self._credentials.file and links.now_ms >= self._looked_ms:
            self._look_at_credentials()
        for endpoint, up in transport.events():
            changed = True
            (links.connected if up else links.disconnected)(endpoint)
        while transport.missed:
            self.session.missed(transport.missed.pop())
        later: list[tuple[str, str]] = []
        while links.actions:
            action, endpoint = links.actions.pop(0)
            later = [each for each in later if each[1] != endpoint]
            if action != "open":
                transport.close_peer(endpoint)
            if action != "close" and not transport.open(endpoint):
                later.append(("open", endpoint))
        if later and links.refusal is None:
            links.refusal = Unreachable(
                "no descriptor is left for a connection", hint="close files, or raise ulimit -n"
            )
            self.untold.append((f"{later[0][1]}: {links.refusal}", None))
        links.actions += later
        return changed

    def _look_at_credentials(self) -> None:
        """Looks for new credentials in their file; they are used for HELLO and
        for dialling from now on.
        """
        known, links = self._credentials, self.session.links
        self._looked_ms = links.now_ms + LOOK_MS
        stamp = contexts.stamp(known.file)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            read = contexts.read_credentials(Path(known.file))
        except ConfigError as error:
            self.untold.append((f"the credentials that were read before stay in use: {error.message}", None))
            return
        self._credentials = known._replace(token=read.token, door=read.door)
        self.transport.keys_of_doors(read.door)
        links.show(self._credentials)

    def timeout_ms(self) -> int:
        """How long the client has nothing to do if nothing arrives."""
        session = self.session
        due_ms = max(0, session.deadline_ms() - session.links.now_ms)
        return min(due_ms, ACK_LINGER_MS) if self.noted else due_ms

    def now_ms(self) -> int:
        return self.clock.now().boot_ms

    # --- publishing

    def find_topic(self, name: str, create: bool = True) -> Topic | Call:
        """The topic, or the request that looks it up (and creates a missing one). A virtual topic
        is looked up again after a while, since it may be bound to another one. Raises ClientClosed,
        or BadRequest for a pattern.
        """
        if self.closing:
            raise ClientClosed("this client is being closed", hint="call connect() again")
        known = self.session.publishing.topics.get(name)
        if known is not None and (known.writers or self.now_ms() - known.learned_ms < VIRTUAL_MS):
            return known
        if "*" in name:
            raise BadName(f"{name!r} is a pattern, and a record goes to one topic", hint="name the topic")
        return self.session.calls.ask(Resolve([name], create), META_SHARD)

    def learn_topic(self, name: str, call: Call) -> Topic:
        """The topic that a look-up returned. Raises its error."""
        for info in call.answer(Topics).topics:
            if info.name == name:
                return self.session.publishing.learn(info)
        raise UnknownTopic(f"no topic {name}", hint=f"gossipq topic create {name}")

    @staticmethod
    def made_ids(count: int) -> list[bytes]:
        """New ids for records that are copied; each copy is recognized by its id."""
        return [os.urandom(16).hex().encode() for _ in range(count)]

    def append(self, name: str, value: bytes, options: Options) -> tuple[Flight, int] | None:
        """Add a record to the open batch of its partition. Return that batch and the record's place there.

        Return None if this needs a wait or raises: the topic is virtual or not known yet, the window is full,
        or the client is being closed. Call within a step."""
        publishing = self.session.publishing
        topic = publishing.topics.get(name)
        if topic is None or not topic.writers or self.closing:
            return None
        plain = options is PLAIN
        if plain:
            writer = topic.writers[topic.turn % len(topic.writers)]
        else:
            writer = topic.writer(options.chooser, options.partition)
        # a lone record finds nothing waiting before it
        if (publishing.unconfirmed_bytes or publishing.loose or self.transport.backlog_bytes) and self.full(
            writer
        ):
            return None
        links = self.session.links
        now = self.clock.now()
        links.now_ms, links.wall_ms = now.boot_ms, now.wall_ms
        return publishing.append(writer, value, *(() if plain else options.record))

    def patience(self, writer: Writer, wait_s: float | None, timeout_s: float) -> Patience:
        """The patience of a caller that finds the window full."""
        return Patience(self.session.publishing, writer, wait_s, timeout_s, self.now_ms())

    def full(self, writer: Writer) -> bool:
        return (
            self.session.publishing.full(writer)
            or self.transport.backlog_bytes >= limits.PUBLISH_WINDOW_BYTES
        )

    def require_room(self, flights: list[Flight]) -> None:
        """Raises Backpressure unless all of them can be sent now."""
        if flights and not self.session.publishing.has_room(flights):
            raise self.backpressure(flights[0].writer)

    def take_all(self, flights: list[Flight]) -> None:
        """Sends them now. Raises Backpressure unless all can be sent."""
        self.require_room(flights)
        self.session.advance(self.clock.now())
        for flight in flights:
            self.session.publishing.take(flight)

    def require_open(self, writers: list[Writer]) -> None:
        """Raises Backpressure if one of them is full."""
        for writer in writers:
            if self.full(writer):
                raise self.backpressure(writer)

    def backpressure(self, writer: Writer, silent_s: float = 0) -> Backpressure:
        """The error for a full window. `silent_s` tells for how many seconds no confirm came; then
        the nodes are the cause, not a fast publisher.
        """
        without = f"{many(self.session.publishing.unconfirmed_records(), 'record')} without a confirm"
        if silent_s:
            away = self.unreachable()
            hint = f"{away.hint}; wait=None waits for as long as it takes"
            return Backpressure(f"{without}, for {silent_s:g} s: {away.message}", hint=hint)
        return Backpressure(without, hint=f"flush() first, or slow down: {writer.topic.name}")

    @staticmethod
    def writer_beside(held: Held, topic: Topic, options: Options) -> Writer:
        """The writer for a result of a held record. Raises BadRequest unless the topic has that
        partition in the record's shard.
        """
        if topic.virtual:
            raise refs.is_virtual(topic.info)
        part, number = held.part, partition_of(held.partition)
        if options.chooser is None and options.partition is None:
            writer = topic.writer_in(part.shard, number)
        else:
            writer = topic.writer(options.chooser, options.partition)
        if writer is None or writer.shard != part.shard:
            source = part.subscription.topics[topic_id_of(held.partition)].name
            raise BadRequest(
                f"topic {topic.name!r} does not lie in one shard with partition {number} of {source!r}",
                hint=f"create_topic({topic.name!r}, beside={source!r}), and the same key or partition",
            )
        return writer

    # --- consuming

    def made_subscription(self, asked: Joining, stop_at_end: bool) -> Subscription:
        """A subscription for `session.subscribe`."""
        return asked.subscription(self.clock.now().wall_ms, stop_at_end)

    def subscribe(self, asked: Joining, stop_at_end: bool) -> Subscription:
        """Call within a step."""
        subscription = self.made_subscription(asked, stop_at_end)
        self.session.subscribe(subscription)
        return subscription

    def waits_for(self, subscription: Subscription, patience_s: float) -> GossipqError | None:
        """The error of a subscription that waits in vain: its topics or a leader have not answered
        for this many seconds. None if a node answers.
        """
        if self.session.consuming.silence_ms(subscription) < patience_s * 1000:
            return None
        return self.unreachable()

    # --- requests

    def in_vain(self, call: Call) -> bool:
        """True if no node can answer now."""
        return self.session.links.in_vain(call.shard)

    def unreachable(self) -> Unreachable:
        links = self.session.links
        home = links.home
        if home.greeting and home.away:
            away = f"{', '.join(home.away)} {'is' if len(home.away) == 1 else 'are'} away"
            shards = many(len(home.leaderless), "shard")
            text = f"{home.endpoint} answers, and {shards} cannot have a leader: {away}"
            return NoQuorum(text, hint="gossipq cluster ls")
        addresses, refusal = ", ".join(self.session.links.addresses), self.session.links.refusal
        if refusal is not None:
            turned_away = TurnedAway(f"{addresses}: {refusal.message}", hint=refusal.hint)
            turned_away.why = refusal.code
            return turned_away
        if links.home.greeting:
            return Unreachable(
                f"{links.home.endpoint} responds, but the leader of the shard does not",
                hint="gossipq status",
            )
        hint, text = contexts.hint_of(links.addresses, self._credentials), f"no node answers at {addresses}"
        if not (self._credentials.door or contexts.are_here(links.addresses)):
            text = f"no node answers unencrypted at {addresses}, and no key of an encrypted port is given"
        return Unreachable(text, hint=hint)

    # --- farewell

    def disown(self) -> bool:
        """In a forked child: records in flight, loops and receipts stay with the parent. Return False if
        another thread of the parent was amid a step."""
        try:
            self.session.consuming.disown(forked())
        except Exception:
            return False
        return True

    def take_leave(self) -> Callable[[], bool]:
        """Begins to close the client. Records that were published or acked before are still stored,
        also those of callers that wait for room. The returned function closes the client for
        callers as soon as this is done, in the same step, so that no publish slips in between. Acks
        of a loop that continues are sent with the farewell. Call both within a step.
        """
        self.closing = True
        publishing, passed = self.session.publishing, self.session.mark()
        publishing.plain.clear()

        def settled() -> bool:
            if publishing.idle and passed():
                publishing.plain.clear()
                self._close()
            return self.closed

        return settled

    def _close(self) -> None:
        self.closed, self.noted = True, Refusing(self)

    def farewell(self) -> None:
        self._close()
        self.ended = True
        Engine.alive.discard(self)
        try:
            # otherwise the connections are in disorder, and the node misses this client soon
            if not self.torn:
                if self.session.consuming.noted:
                    self._join_noted()
                self.session.publishing.plain.clear()
                self.session.farewell()
                self.transport.send(self.session.links.out)
            self.transport.close(LINGER_MS)
        except BaseException:
            # interrupted: it is done again, since open sockets would keep a collector
            self.ended = False
            raise

    def finish(self, seconds: float) -> GossipqError | None:
        """Waits, at the end of the program, until all that is owed is sent. Returns an error that
        no caller has seen: of a publish, or of acks.
        """
        self.step(self.session.publishing.seal_all)
        deadline_ms = self.now_ms() + seconds * 1000
        while self.session.owes:
            self.step(self.exchange, True)
            left_ms = deadline_ms - self.now_ms()
            if left_ms <= 0:
                break
            if self.session.owes:
                wait(self.transport.fds, min(left_ms, self.timeout_ms()))
        return self.session.failure()

    def unconfirmed(self, seconds: float | None) -> NotConfirmed:
        """The error for a publish whose time is over."""
        return self._not_confirmed(f"no confirm within {round(seconds or 0, 3)} s", "it may be stored")

    def lost(self) -> GossipqError:
        """The error for a flush whose time is over."""
        count = self.session.publishing.unconfirmed_records()
        if not count:  # only requests and acks wait
            return self.unreachable()
        return self._not_confirmed(f"no confirm in time for {many(count, 'record')}", "they may be stored")

    def _not_confirmed(self, text: str, fate: str) -> NotConfirmed:
        """An error that also names the cause: a node refuses this client, or no node answers."""
        links, hint = self.session.links, f"{fate}; gossipq status"
        if links.refusal is not None:
            return NotConfirmed(f"{text}: {links.refusal.message}", hint=links.refusal.hint)
        if not links.home.greeting:
            text = f"{text}: {self.unreachable().message}"
        return NotConfirmed(text, hint=hint)


def forked() -> ForkedClient:
    """Return the error for a forked child that uses an engine of its parent."""
    return ForkedClient("this belongs to the parent process", hint="call connect() again in the child")


_inherited: list[Engine] = []  #: engines of the parent: sockets that are freed here would disturb it


def _in_child() -> None:
    """A forked child shares nothing with the engines of its parent: they refuse to work here."""
    for engine in list(Engine.alive):
        engine.forked, engine.noted = True, Refusing(engine)
        _inherited.append(engine)
        engine.on_fork()
        engine.session.publishing.plain.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
