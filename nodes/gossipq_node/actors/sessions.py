"""Sessions of clients at a worker: their connections, their quota, and the end of those that fall silent."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from msgspec import structs

from gossipq.core.desk import Client
from gossipq.errors import BadRequest, Busy, Refused
from gossipq.limits import (
    PING_MS,
    SESSION_ABSENCE_MS,
    SESSION_SHOWN_BYTES,
    SESSION_SILENCE_MS,
    SESSIONS_ENDED_PER_TURN,
)
from gossipq.messages import Hello
from gossipq.permissions import Rights, digest
from gossipq.rates import Payer, payers
from gossipq.types import Origin, SessionId, ShardId
from gossipq.values import Quota
from gossipq.wire import ownership
from gossipq.wire.batch import NO_PRODUCER

CLIENT_TEXT_MAX = 64
PRODUCERS_MAX = 64  #: checked producers that a session remembers
CONNECTIONS_MAX = 16  #: of one session; a further one replaces the one that was silent longest
KICKED_MAX = 1_024  #: kicked sessions that cannot greet, at a time
QUOTA = Quota()


class Session:
    """One client process, over one or more connections."""

    __slots__ = (
        "absent_ms",
        "account",
        "acts_for",
        "batches",
        "bytes",
        "client",
        "key",
        "last_ms",
        "name",
        "origins",
        "producers",
        "published",
        "renewed_ms",
        "resets",
        "shown",
        "since_ms",
        "version",
    )

    def __init__(self, client: Client, now_ms: int, name: str = "", version: str = "") -> None:
        self.client = client
        self.last_ms = now_ms
        self.since_ms = now_ms
        self.name = name
        self.version = version
        self.resets = False  #: whether the client asked for RESET when something of it ends
        self.renewed_ms = 0  #: when its leases were renewed last
        self.account: tuple[Payer, ...] = ()  #: payers whose quota it counts for
        self.shown, self.acts_for = b"", ""  #: digest of its token, and the user for whom it acts
        self.key = b""  #: of its owner; its producer ids are derived from the key
        self.producers: set[bytes] = set()  #: producer ids that were checked
        self.origins: dict[Origin, int] = {}  #: its connections, and when each sent a message last
        self.absent_ms: int | None = None  #: since when it has no connection; None: it has one
        self.batches = self.published = self.bytes = 0  #: counts of what it published

    def check_producer(self, producer: bytes) -> None:
        """Raise BadRequest if a producer id is not derived from the session's key."""
        if producer not in self.producers and producer != NO_PRODUCER:
            ownership.check_producer(producer, self.key)
            if len(self.producers) >= PRODUCERS_MAX:
                self.producers.clear()
            self.producers.add(producer)

    def producer(self, number: int) -> bytes:
        """Return the id of the session's producer with this number. Raises BadRequest for a session without a
        key."""
        if not self.key or not 0 <= number < 1 << 8 * ownership.NUMBER_BYTES:
            raise BadRequest(
                f"a sequence of producer {number} of a session {'with' if self.key else 'without'} a key",
                hint="tell a key in HELLO, or give the records ids instead of sequences",
            )
        return ownership.producer_of(self.key, number)

    def may_less(self, rights: Rights | None) -> bool:
        """Return whether `rights` allow less than those with which the session greeted before. A session that
        was only expected has not greeted yet."""
        before = self.client.rights
        return (
            bool(self.client.consumer)
            and rights is not None
            and (before is None or not before.within(rights))
        )


class Sessions:
    def __init__(self, token: bytes = b"", quota: Quota = QUOTA) -> None:
        """`token`: the secret of the cluster; b"" without one. `quota`: the maximum number of sessions."""
        self._token, self._quota = token, quota
        self._counts = Counter[Payer]()  #: sessions of each address and user
        self._sessions: dict[SessionId, Session] = {}
        self._by_origin: dict[Origin, Session] = {}
        #: connection -> shard on which it sent HELLO -> the term of the leader then
        self._greeted: dict[Origin, dict[ShardId, int]] = {}
        self._checked_ms = 0
        #: sessions without a connection, longest first
        self.absent: dict[SessionId, None] = {}
        self._kicked: dict[bytes, int] = {}  #: first bytes of a session -> until when its HELLO is refused
        self._reset: list[Origin] = []  # connections that get RESET, because their session has ended

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, origin: Origin, now_ms: int) -> Session | None:
        """Return the session that sent a message, and note that it is alive."""
        session = self._by_origin.get(origin)
        if session is not None:
            session.last_ms = session.origins[origin] = now_ms
        return session

    def greet(
        self, origin: Origin, hello: Hello, now_ms: int, address: str = "", rights: Rights | None = None
    ) -> bool:
        """Handle HELLO: this connection belongs to that session from now on, with `rights`.

        Return True if the session was started over because its rights shrank: its subscriptions must not
        outlive the user or the token with which they began. Raises BadRequest if the session has another
        owner, Refused if an operator has ended it, Busy if a quota is reached.
        """
        ownership.check_session(hello.session, hello.key)
        if (left_ms := self._kicked.get(hello.session[:SESSION_SHOWN_BYTES], 0) - now_ms) > 0:
            hint = "an operator did that: gossipq client kick; ask why"
            raise Refused("this session was ended", hint=hint, retry_after_ms=left_ms)
        session = self._sessions.get(hello.session)
        account = payers(address, rights.user if rights is not None else "")
        if session is None:
            self._check_quota(account)
        elif session.client.rights is not rights and session.client.consumer:
            self._check_quota([payer for payer in account if payer not in session.account], fresh=False)
        over = session is not None and session.may_less(rights)
        if session is not None and over:
            self._end(session)
            session = None
        greeted = self._greeted.get(origin, {}) if self._by_origin.get(origin) is session else {}
        self._leave(origin)
        if session is None:
            session = self._sessions[hello.session] = Session(Client(hello.session, ""), now_ms)
        if not session.client.consumer:  # a new session, or an expected one, whose name was unknown
            session.name, session.version = hello.client[:CLIENT_TEXT_MAX], hello.version[:CLIENT_TEXT_MAX]
            name, node = (
                f"{session.name}/{hello.session[:4].hex()}",
                ownership.is_of_node(self._token, hello.key),
            )
            session.client = Client(hello.session, name, node, address, rights)
            self._charge(session, account)
        elif session.client.rights is not rights:
            session.client = structs.replace(session.client, rights=rights)
            self._charge(session, account)
        session.shown, session.acts_for = digest(hello.auth) if hello.auth else b"", hello.user
        if len(session.origins) >= CONNECTIONS_MAX:
            self._leave(min(session.origins, key=session.origins.__getitem__))
        session.key, session.resets = hello.key, hello.resets
        session.last_ms = session.origins[origin] = now_ms
        self._by_origin[origin], self._greeted[origin] = session, greeted
        session.absent_ms = None
        self.absent.pop(hello.session, None)
        return over

    def end(self, session: Session) -> SessionId:
        """End a session. Its client may greet again."""
        self._end(session)
        return session.client.session

    def _charge(self, session: Session, account: tuple[Payer, ...]) -> None:
        """Count the session for the quota of these payers; () = it has ended."""
        self._counts.update(account)
        self._counts.subtract(session.account)
        for payer in session.account:
            if not self._counts[payer]:
                del self._counts[payer]
        session.account = account

    def _check_quota(self, account: Iterable[Payer], fresh: bool = True) -> None:
        """Raise Busy if a quota of sessions is reached. `fresh`: this adds a session."""
        quota = self._quota
        for name, count, most in (
            ("sessions", len(self._sessions) - (not fresh), quota.sessions),
            *(
                (payer.quota("sessions"), self._counts[payer], payer.most(quota, "sessions"))
                for payer in account
            ),
        ):
            if count >= most:
                raise Busy(
                    f"all sessions are there that the quota cluster.quota.{name} allows, {most}",
                    hint="raise it in cluster.toml, or end some: gossipq client ls",
                    retry_after_ms=SESSION_SILENCE_MS,
                )

    def lost(self, origin: Origin, now_ms: int) -> None:
        """Remove a connection that has ended. A session without connections ends after SESSION_ABSENCE_MS."""
        session = self._by_origin.get(origin)
        self._leave(origin)
        if session is not None and not session.origins:
            session.absent_ms = now_ms
            self.absent[session.client.session] = None

    def next_deadline_ms(self) -> int | None:
        """Return when the next session without a connection ends."""
        for session in self.absent:
            return (self._sessions[session].absent_ms or 0) + SESSION_ABSENCE_MS
        return None

    def resets(self, origin: Origin) -> bool:
        """Return whether the session of this connection asked for RESET."""
        session = self._by_origin.get(origin)
        return session is not None and session.resets

    def greeted(self, origin: Origin, shard: ShardId, term: int) -> None:
        """Note that a connection sent HELLO on a shard, and the term in which this worker leads it."""
        self._greeted[origin][shard] = term

    def knows(self, origin: Origin, shard: ShardId, term: int) -> bool:
        """Return whether a ping may be answered. A client that relies on RESET owns in a shard what it got
        there on this connection, in the term of its HELLO.

        A leader that was killed could not send RESET, and the worker that leads now may know the session
        from another shard. A frontdoor that forwards may use another connection, and subscriptions of the
        old one end there. In both cases the worker refuses the ping, and the client greets again.
        """
        session = self._by_origin[origin]
        return not session.resets or self._greeted[origin].get(shard) == term

    def take_reset(self) -> list[Origin]:
        """Return the connections that must get RESET, and forget them."""
        taken, self._reset = self._reset, []
        return taken

    def renews(self, origin: Origin, now_ms: int) -> bool:
        """Return whether this ping renews leases: at most one in half a ping interval does, however many
        arrive."""
        session = self._by_origin[origin]
        if now_ms < session.renewed_ms + PING_MS // 2:
            return False
        session.renewed_ms = now_ms
        return True

    def kick(self, session: bytes, until_ms: int) -> list[SessionId]:
        """End the sessions that begin with these bytes (LIST_CLIENTS shows them), and refuse their HELLO
        until `until_ms`. Return the sessions that were known here. Raises BadRequest, Refused."""
        if not SESSION_SHOWN_BYTES <= len(session) <= ownership.SESSION_BYTES:
            raise BadRequest(
                f"a session is shown by {SESSION_SHOWN_BYTES} bytes, not {len(session)}",
                hint="gossipq client ls",
            )
        short = session[:SESSION_SHOWN_BYTES]
        self._kicked = {each: at_ms for each, at_ms in self._kicked.items() if at_ms > self._checked_ms}
        if len(self._kicked) >= KICKED_MAX and short not in self._kicked:
            hint = "wait until some of them may greet again, and choose shorter times"
            raise Refused(f"{KICKED_MAX} sessions are kept out already", hint=hint)
        self._kicked[short] = until_ms
        known = [each for each in self._sessions.values() if each.client.session.startswith(short)]
        for each in known:
            self._end(each)
        return [each.client.session for each in known]

    def expect(self, session: SessionId, now_ms: int) -> None:
        """Give a session that a shard knows, and this worker does not, the usual time to show itself: it has
        records from before a takeover."""
        if session not in self._sessions:
            self._sessions[session] = Session(Client(session, ""), now_ms)

    def bye(self, origin: Origin) -> SessionId | None:
        """Handle BYE: end the session of a connection."""
        session = self._by_origin.get(origin)
        if session is None:
            return None
        session.resets = False
        self._end(session)
        return session.client.session

    def forget_connections(self) -> None:
        """Make every connection greet again. Sessions and their leases stay."""
        for origin, session in list(self._by_origin.items()):
            if session.resets:
                self._reset.append(origin)
            self._leave(origin)

    def _leave(self, origin: Origin) -> None:
        self._greeted.pop(origin, None)
        session = self._by_origin.pop(origin, None)
        if session is not None:
            session.origins.pop(origin, None)

    def _end(self, session: Session) -> None:
        for origin in list(session.origins):
            if session.resets:
                self._reset.append(origin)
            self._leave(origin)
        self._sessions.pop(session.client.session, None)
        self._charge(session, ())
        self.absent.pop(session.client.session, None)

    def over(self, now_ms: int) -> list[SessionId]:
        """End sessions that did not reconnect in time, at most SESSIONS_ENDED_PER_TURN, and return them."""
        gone = list[Session]()
        for name in islice(self.absent, SESSIONS_ENDED_PER_TURN):
            session = self._sessions[name]
            if (session.absent_ms or 0) + SESSION_ABSENCE_MS > now_ms:
                break
            gone.append(session)
        for session in gone:
            self._end(session)
        return [session.client.session for session in gone]

    def sending(self, now_ms: int, moving: Callable[[Origin], bool]) -> list[SessionId]:
        """Return silent sessions whose large message is arriving, and count them as alive: their pings wait
        behind that message. `moving`: see ports.Mailbox."""
        found = [
            session
            for session in self._sessions.values()
            if now_ms - session.last_ms > 2 * PING_MS and any(map(moving, session.origins))
        ]
        for session in found:
            session.last_ms = now_ms
        return [session.client.session for session in found]

    def silent(self, now_ms: int) -> list[SessionId]:
        """End sessions that were silent for too long, at most SESSIONS_ENDED_PER_TURN, and return them. A
        pause of this process does not count as their silence."""
        paused_ms = now_ms - self._checked_ms - 2 * PING_MS
        if paused_ms > 0:
            for session in self._sessions.values():
                session.last_ms = min(now_ms, session.last_ms + paused_ms)
        self._checked_ms = now_ms
        late = (
            session for session in self._sessions.values() if now_ms - session.last_ms > SESSION_SILENCE_MS
        )
        gone = list(islice(late, SESSIONS_ENDED_PER_TURN))
        for session in gone:
            self._end(session)
        return [session.client.session for session in gone]
