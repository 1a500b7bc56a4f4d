"""Leader time: what deadlines in the log are measured in. It never falls, and a jump of the wall clock does not move it.

Within one boot of the machine it goes on over a restart, so that nothing scheduled is early; on another machine, or after a
boot, it starts from the wall clock, but never before the last entry.
"""

import msgspec

from gossipq.core.ledger import records
from gossipq.core.ledger.records import ClockRow
from gossipq.core.storage import Table
from gossipq.types import Now

_decode = msgspec.msgpack.Decoder(ClockRow).decode


class LeaderTime:
    def __init__(self, state: Table, boot: str) -> None:
        """`boot` names this run of the machine."""
        self._state, self._boot = state, boot
        self.ahead_ms = 0  #: leader time minus boot time, in this leadership
        self._marked = False

    def start(self, now: Now, last_ms: int) -> None:
        """A leadership begins; `last_ms` is the time of the last entry."""
        row = self._state.get(records.CLOCK)
        mark = _decode(row) if row else None
        expected_ms = now.wall_ms
        if mark is not None and mark.boot == self._boot and mark.boot_ms <= now.boot_ms:
            expected_ms = mark.leader_ms + now.boot_ms - mark.boot_ms
        self.ahead_ms = max(expected_ms, last_ms) - now.boot_ms
        self._marked = False

    def at(self, boot_ms: int) -> int:
        return boot_ms + self.ahead_ms

    def mark(self, boot_ms: int) -> None:
        """Into the open transaction, once in a leadership: where a restart goes on."""
        if self._marked:
            return
        self._marked = True
        self._state.put(records.CLOCK, records.encode(ClockRow(self._boot, boot_ms, self.at(boot_ms))))
