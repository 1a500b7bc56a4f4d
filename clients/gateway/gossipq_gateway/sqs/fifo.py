"""Order of a FIFO queue at one gateway: while a message of a group is
in flight, later ones wait.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from gossipq_gateway.leases import Leasable, Lease, Leases

ATTEMPTS_MAX = 1_000  #: receives with a ReceiveRequestAttemptId that are remembered


class Keyed(Leasable, Protocol):
    """A record in flight, with its message group as key."""

    @property
    def key(self) -> bytes | None: ...


Item = TypeVar("Item", bound=Keyed)


class Order(Generic[Item]):
    """The order of one queue and caller.

    The cluster keeps the order among gateways: only one at a time gets records of a group.
    """

    def __init__(self, leases: Leases[Item]) -> None:
        self.leases = leases  #: of the caller's client
        self._busy: dict[bytes | None, list[Lease[Item]]] = {}
        self._waiting: list[Item] = []
        self._taken: list[Item] = []  #: records that are not delivered yet
        self.used_ms = 0
        #: by ReceiveRequestAttemptId: the result of a receive, which can be repeated
        self._attempts = OrderedDict[str, list[Lease[Item]]]()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, came: Iterable[Item], n: int) -> list[Item]:
        """Return at most `n` records to deliver, in order, from waiting and new ones."""
        found, waiting, held = list[Item](), list[Item](), {item.key for item in self._taken}
        self._busy = {key: left for key, leases in self._busy.items() if (left := self._standing(leases))}
        for item in (*self._waiting, *came):
            if item.lost:
                continue
            if item.key in self._busy or item.key in held or len(found) == n:
                waiting.append(item)
                held.add(item.key)
            else:
                found.append(item)
        self._waiting = waiting
        return found

    def hand_out(self, leases: list[Lease[Item]], attempt_id: str = "") -> None:
        for lease in leases:
            self._busy.setdefault(lease.record.key, []).append(lease)
        if attempt_id and leases:
            self._attempts[attempt_id] = leases
            if len(self._attempts) > ATTEMPTS_MAX:
                self._attempts.popitem(last=False)

    def again(self, attempt_id: str) -> list[Lease[Item]]:
        """Return the result of an earlier receive with this id, if all of it is still in flight."""
        leases = self._attempts.get(attempt_id, [])
        return leases if len(self._standing(leases)) == len(leases) else []

    @contextmanager
    def kept(self, taken: list[Item]) -> Iterator[None]:
        """Keep records in the order while they are processed before their delivery."""
        self._taken += taken
        try:
            yield
        finally:
            self._taken = [item for item in self._taken if item not in taken]

    def _standing(self, leases: list[Lease[Item]]) -> list[Lease[Item]]:
        return [lease for lease in leases if self.leases.holds(lease)]

    @property
    def in_hand(self) -> bool:
        """True if a message is in flight or about to be, so that its group must be remembered."""
        return bool(self._taken) or any(map(self._standing, self._busy.values()))

    def give_up(self) -> list[Item]:
        """Return the waiting records, to give them back, the last first."""
        waiting, self._waiting = self._waiting, []
        return [item for item in reversed(waiting) if not item.lost]
