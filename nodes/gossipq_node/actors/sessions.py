"""Who talks to a worker: sessions by their connections, and which of them have fallen silent."""

from gossipq.core.consuming import Client
from gossipq.limits import PING_MS, SESSION_SILENCE_MS
from gossipq.messages import Hello
from gossipq.types import Origin, SessionId

CLIENT_TEXT_MAX = 64


class Session:
    """One client process, over one or more connections."""

    __slots__ = ("client", "last_ms", "origins")

    def __init__(self, client: Client, now_ms: int) -> None:
        self.client, self.last_ms = client, now_ms
        self.origins: set[Origin] = set()


class Sessions:
    def __init__(self) -> None:
        self._sessions: dict[SessionId, Session] = {}
        self._by_origin: dict[Origin, Session] = {}
        self._checked_ms = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, origin: Origin, now_ms: int) -> Client | None:
        """Who sent a message; hearing from it keeps it alive."""
        session = self._by_origin.get(origin)
        if session is None:
            return None
        session.last_ms = now_ms
        return session.client

    def greet(self, origin: Origin, hello: Hello, now_ms: int) -> None:
        """HELLO: this connection speaks for that session from now on."""
        self._leave(origin)
        session = self._sessions.get(hello.session)
        if session is None:
            consumer = f"{hello.client[:CLIENT_TEXT_MAX]}/{hello.session[:4].hex()}"
            session = self._sessions[hello.session] = Session(Client(hello.session, consumer), now_ms)
        session.last_ms = now_ms
        session.origins.add(origin)
        self._by_origin[origin] = session

    def expect(self, session: SessionId, now_ms: int) -> None:
        """A session that holds records from before a takeover: it has the usual silence to show itself."""
        if session not in self._sessions:
            self._sessions[session] = Session(Client(session, ""), now_ms)

    def bye(self, origin: Origin) -> SessionId | None:
        """The session ends by its own word."""
        session = self._by_origin.get(origin)
        if session is None:
            return None
        self._end(session)
        return session.client.session

    def forget_connections(self) -> None:
        """Everybody has to greet again; the sessions and what they hold live on."""
        for origin in list(self._by_origin):
            self._leave(origin)

    def _leave(self, origin: Origin) -> None:
        session = self._by_origin.pop(origin, None)
        if session is not None:
            session.origins.discard(origin)

    def _end(self, session: Session) -> None:
        for origin in list(session.origins):
            self._leave(origin)
        self._sessions.pop(session.client.session, None)

    def silent(self, now_ms: int) -> list[SessionId]:
        """Ends the sessions that were not heard of for too long. A pause of this process is not held against them."""
        paused_ms = now_ms - self._checked_ms - 2 * PING_MS
        if paused_ms > 0:
            for session in self._sessions.values():
                session.last_ms = min(now_ms, session.last_ms + paused_ms)
        self._checked_ms = now_ms
        gone = [session for session in self._sessions.values() if now_ms - session.last_ms > SESSION_SILENCE_MS]
        for session in gone:
            self._end(session)
        return [session.client.session for session in gone]
