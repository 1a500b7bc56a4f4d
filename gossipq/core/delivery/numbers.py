"""Which subscriptions each session has, and how many there are of each address."""

from collections.abc import Collection

from gossipq.types import SessionId


class Numbers:
    """By session, in the order in which they came."""

    def __init__(self) -> None:
        self._by_session: dict[SessionId, dict[int, None]] = {}
        self._address: dict[SessionId, str] = {}  #: from which it subscribed first
        self._counts: dict[str, int] = {}

    def __contains__(self, session: SessionId) -> bool:
        return session in self._by_session

    def of(self, session: SessionId) -> Collection[int]:
        return self._by_session.get(session, {})

    def counts(self, session: SessionId, number: int) -> int:
        """Subscriptions of the session, with that one."""
        mine = self._by_session.get(session, {})
        return len(mine) + (number not in mine)

    def of_address(self, session: SessionId, number: int, address: str) -> int:
        """Subscriptions of all sessions of an address, with that one."""
        return self._counts.get(address, 0) + (number not in self._by_session.get(session, {}))

    def add(self, session: SessionId, number: int, address: str) -> None:
        mine = self._by_session.setdefault(session, {})
        if number not in mine:
            self._address.setdefault(session, address)
            mine[number] = None
            self._count(session, 1)

    def remove(self, session: SessionId, number: int) -> None:
        mine = self._by_session.get(session)
        if mine is not None and number in mine:
            self._count(session, -1)
            del mine[number]
            if not mine:
                self.end(session)

    def end(self, session: SessionId) -> Collection[int]:
        """The session ends; the subscriptions that it had."""
        mine = self._by_session.pop(session, {})
        self._count(session, -len(mine))
        self._address.pop(session, None)
        return mine

    def _count(self, session: SessionId, more: int) -> None:
        address = self._address.get(session, "")
        count = self._counts.get(address, 0) + more
        if count:
            self._counts[address] = count
        else:
            self._counts.pop(address, None)
