"""The subscription numbers of each session."""

from collections.abc import Collection

from gossipq.types import SessionId


class Numbers:
    """Numbers by session, in the order in which they came."""

    def __init__(self) -> None:
        self._by_session: dict[SessionId, dict[int, None]] = {}

    def __contains__(self, session: SessionId) -> bool:
        return session in self._by_session

    def sessions(self) -> Collection[SessionId]:
        """Return the sessions that have a subscription."""
        return self._by_session.keys()

    def of(self, session: SessionId) -> Collection[int]:
        return self._by_session.get(session, {})

    def counts(self, session: SessionId, number: int) -> int:
        """How many subscriptions the session has, counting this one."""
        mine = self._by_session.get(session, {})
        return len(mine) + (number not in mine)

    def add(self, session: SessionId, number: int) -> None:
        self._by_session.setdefault(session, {})[number] = None

    def remove(self, session: SessionId, number: int) -> None:
        mine = self._by_session.get(session)
        if mine is not None and number in mine:
            del mine[number]
            if not mine:
                del self._by_session[session]

    def end(self, session: SessionId) -> Collection[int]:
        """Ends the session; returns the numbers of its subscriptions."""
        return self._by_session.pop(session, {})
