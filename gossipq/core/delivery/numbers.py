"""The subscription numbers of each session, and how many subscriptions each
address and each user has.
"""

from collections.abc import Collection

from gossipq.rates import Payer
from gossipq.types import SessionId


class Numbers:
    """Numbers by session, in the order in which they came."""

    def __init__(self) -> None:
        self._by_session: dict[SessionId, dict[int, None]] = {}
        #: the address and user of a session, as of its first subscription
        self._payers: dict[SessionId, tuple[Payer, ...]] = {}
        self._counts: dict[Payer, int] = {}

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

    def of_payer(self, session: SessionId, number: int, payer: Payer) -> int:
        """How many subscriptions all sessions of this address or user have, counting this one."""
        return self._counts.get(payer, 0) + (number not in self._by_session.get(session, {}))

    def add(self, session: SessionId, number: int, payers: tuple[Payer, ...]) -> None:
        mine = self._by_session.setdefault(session, {})
        if number not in mine:
            self._payers.setdefault(session, payers)
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
        """Ends the session; returns the numbers of its subscriptions."""
        mine = self._by_session.pop(session, {})
        self._count(session, -len(mine))
        self._payers.pop(session, None)
        return mine

    def _count(self, session: SessionId, more: int) -> None:
        for payer in self._payers.get(session, ()):
            count = self._counts.get(payer, 0) + more
            if count:
                self._counts[payer] = count
            else:
                self._counts.pop(payer, None)
