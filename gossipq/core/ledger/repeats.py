"""Requests with an idempotency key, which have their effect only once.

The leader logs a NOOP with the key before the first entry of such a request; nodes without support
for keys ignore it. When the next entry is applied, the key is stored with the outcome. A later
request with this key gets that outcome, also from the next leader. If the same request was sent
twice before either was applied, the second one is refused with busy and changes nothing.
"""

from collections import OrderedDict
from typing import Any

import msgspec

from gossipq import limits
from gossipq.core.ledger import records
from gossipq.core.ledger.outcomes import Counted, Outcome, Published, Voided, refused
from gossipq.core.ledger.records import Announced, DoneRow
from gossipq.core.storage import Entry, Table, log
from gossipq.types import Index
from gossipq.values import Ref

KEPT_MS = 10 * limits.MINUTE_MS  #: leader time for which a key is known: longer than clients retry
KEPT_MAX = 4_096  #: keys of a shard; the oldest are forgotten first


class Repeats:
    def __init__(self, state: Table) -> None:
        self._state = state
        row = state.get(records.ANNOUNCED)
        #: the key of the next entry, if that belongs to a request with one
        self.announced = msgspec.msgpack.decode(row, type=Announced) if row else None
        self._done: OrderedDict[Index, DoneRow] = OrderedDict()  # oldest first
        for key, row in state.scan(b"k", records.after(b"k")):
            self._done[records.U64.unpack_from(key, 1)[0]] = msgspec.msgpack.decode(row, type=DoneRow)
        self._by_key = {done.key: index for index, done in self._done.items()}

    def find(self, key: bytes) -> tuple[Index, DoneRow] | None:
        """Return the entry of a finished request and its outcome. None if unknown, or too long
        ago.
        """
        index = self._by_key.get(key)
        return None if index is None else (index, self._done[index])

    def announce(self, entry: Entry, key: bytes) -> None:
        self.announced = Announced(key, entry.term, entry.index)
        self._state.put(records.ANNOUNCED, records.encode(self.announced))

    def claim(self, entry: Entry) -> tuple[bytes, Outcome | None]:
        """Return the key for the entry behind such a NOOP, and a refusal if the request is already
        done.

        b"" = the entry has no key.
        """
        found, self.announced = self.announced, None
        self._state.delete(records.ANNOUNCED)
        if found is None or (found.term, found.index + 1) != (entry.term, entry.index):
            # the leader changed before the entry was stored, or a node without keys applied it here
            return b"", None
        if found.key in self._by_key:
            return found.key, refused("busy", "the same request is done: its answer is ready in a moment")
        return found.key, None

    def note(self, key: bytes, entry: Entry, payload: Any, outcome: Outcome) -> None:
        """Remember the outcome of an applied entry. Refused requests are not remembered."""
        if not key or outcome.error:
            return
        count = outcome.count if isinstance(outcome, Counted) else 1
        done = DoneRow(key, entry.time_ms, count, ref=_record_of(entry, payload))
        if isinstance(outcome, Voided) and (stored := outcome.published) is not None:
            place = {"partition": stored.partition, "offset": stored.offset, "runs": stored.runs}
            done = msgspec.structs.replace(done, **place)
        self._done[entry.index] = done
        self._by_key[key] = entry.index
        self._state.put(records.key(b"k", entry.index), records.encode(done))
        while len(self._done) > KEPT_MAX or next(iter(self._done.values())).time_ms < entry.time_ms - KEPT_MS:
            index, old = self._done.popitem(last=False)
            del self._by_key[old.key]
            self._state.delete(records.key(b"k", index))


def _record_of(entry: Entry, payload: Any) -> Ref | None:
    """Return the record that a request named or made, by its place."""
    kind = entry.kind
    if kind == log.JOIN:
        return Ref(payload.partition, index=entry.index)
    if kind == log.VOID:
        return Ref(payload.partition, payload.offset, payload.index, payload.record)
    if kind == log.REQUEUE:
        return Ref(payload.partition, payload.ranges[0][0])
    return None


def stored_by(done: DoneRow) -> Published | None:
    """Return the outcome of a stored EDIT, or None if the entry was another kind."""
    if done.partition < 0:
        return None
    return Published(partition=done.partition, offset=done.offset, added=1, runs=done.runs)
