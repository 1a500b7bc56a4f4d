"""A client that cancels records while consumers have them, and the check of that (P28)."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gossipq.messages import Cancel, Done, RefusedMessage
from gossipq.values import Ref
from sim.clients import PATIENCE_MS, Party
from sim.history import Cancelled, History

if TYPE_CHECKING:
    from sim.world import World

CANCELS_SHARE = 0.5  #: of the runs with unique names
NEWEST = 20  #: deliveries, of which one record is cancelled
FRESH_MS = 200  #: they are not older, so their consumers have them


class Canceller(Party):
    """Cancels one record after the other that a group got lately. It does not repeat what is not answered."""

    def __init__(self, world: "World", home: Callable[[], tuple[int, int]], group: str) -> None:
        super().__init__(world, "canceller")
        self.home, self.group = home, group
        self.waiting = self.partition = self.offset = 0
        self.next()

    def next(self) -> None:
        self.waiting = 0
        if self.stopped:
            return
        self.partition, self.shard = self.home()
        pushed, since_ms = self.world.history.pushed[-NEWEST:], self.world.now - FRESH_MS
        rows = [row for row in pushed if row.group == self.group and row.time_ms > since_ms]
        if self.partition and rows:
            row = self.dice.choice(rows)
            self.offset = row.offset + self.dice.randrange(len(row.values))
            self.waiting = self.ask(Cancel(Ref(self.partition, self.offset), running=True))
            self.world.at(PATIENCE_MS, self.again, self.waiting)
        else:
            self.world.at(20, self.next)

    def again(self, request_id: int) -> None:
        if request_id == self.waiting:
            self.turn_away()
            self.next()

    def receive(self, node: str, request_id: int, term: int, answer: Any, sent_ms: int) -> None:
        if request_id != self.waiting:
            return
        self.waiting = 0
        if isinstance(answer, Done):
            self.world.history.cancelled.append(Cancelled(sent_ms, self.partition, self.offset))
            self.world.history.count("cancelled")
        elif isinstance(answer, RefusedMessage) and answer.code == "not_leader":
            self.turn_away()
        self.world.at(self.dice.randrange(10, 200), self.next)


def cancelled_records_stay_away(history: History) -> Iterator[str]:
    """P28: no consumer gets a record after its cancel was confirmed, and every copy has it void."""
    ended: dict[tuple[int, int], int] = {}
    for row in history.cancelled:
        ended.setdefault((row.partition, row.offset), row.time_ms)
    for pushed in history.pushed if ended else ():
        for offset in range(pushed.offset, pushed.offset + len(pushed.values)):
            ended_ms = ended.get((pushed.partition, offset), pushed.time_ms)
            if pushed.time_ms > ended_ms and pushed.group:
                yield (
                    f"P28 {offset} went to {pushed.consumer} at {pushed.time_ms}, after it was cancelled at "
                    f"{ended_ms}"
                )
    for copy in history.copies:
        for partition, offset in ended:
            if partition not in copy.records or offset < copy.firsts.get(partition, 0):
                continue
            voids = (copy.voids or {}).get(partition, [])
            if not any(first <= offset < end for first, end in voids):
                yield f"P28 {copy.name} has {offset}, whose cancel was confirmed"


CANCEL_CHECKS = [cancelled_records_stay_away]
