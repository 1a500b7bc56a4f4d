"""The order of a FIFO queue among those who receive over one gateway: while a message of a group is in hand,
later ones of that group wait."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from gossipq_gateway.leases import Leasable, Lease, Leases

ATTEMPTS_MAX = 1_000  #: receives with a ReceiveRequestAttemptId that are remembered


class Keyed(Leasable, Protocol):
    """A record in hand, with the group of its message as key."""

    @property
    def key(self) -> bytes | None: ...


Item = TypeVar("Item", bound=Keyed)


class Order(Generic[Item]):
    """Of one queue and caller. The cluster keeps the order among gateways: a group is with one of them at a
    time."""

    def __init__(self, leases: Leases[Item]) -> None:
        self.leases = leases  #: of the client that the caller has
        self._busy: dict[bytes | None, list[Lease[Item]]] = {}
        self._waiting: list[Item] = []
        self._taken: list[Item] = []  #: and not handed out yet
        self.used_ms = 0
        #: by ReceiveRequestAttemptId: what a receive got, which may be asked again
        self._attempts = OrderedDict[str, list[Lease[Item]]]()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, came: Iterable[Item], n: int) -> list[Item]:
        """At most `n` to hand out, of what waits and what came, in order."""
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
        """What a receive with this id got, if all of it is still in hand."""
        leases = self._attempts.get(attempt_id, [])
        return leases if len(self._standing(leases)) == len(leases) else []

    @contextmanager
    def kept(self, taken: list[Item]) -> Iterator[None]:
        """While something is done with what was taken, before it is handed out, or moved."""
        self._taken += taken
        try:
            yield
        finally:
            self._taken = [item for item in self._taken if item not in taken]

    def _standing(self, leases: list[Lease[Item]]) -> list[Lease[Item]]:
        return [lease for lease in leases if self.leases.holds(lease)]

    @property
    def in_hand(self) -> bool:
        """Whether somebody has a message, or is about to, so that its group must be remembered."""
        return bool(self._taken) or any(map(self._standing, self._busy.values()))

    def give_up(self) -> list[Item]:
        """What waits, to go back: the last first."""
        waiting, self._waiting = self._waiting, []
        return [item for item in reversed(waiting) if not item.lost]
