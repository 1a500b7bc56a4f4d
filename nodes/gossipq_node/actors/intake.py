"""What has come for a worker and waits for its turn: the publish window of each connection, enforced.

ZeroMQ bounds what waits by messages, never by bytes. So when a turn has not taken all, the rest is taken out
too, and what a connection sent beyond its window is refused: those batches are certainly not stored, and who
keeps to the window never hears of it. Batches that nobody has refused yet wait in the sockets, RECEIVE_QUEUE
of a connection; then TCP holds their sender back.
"""

from collections import deque

from msgspec import structs

from gossipq import limits
from gossipq.types import Origin
from gossipq_node.ports import Incoming, Mailbox

ROUNDS_MAX = 256  #: of taking out, in one turn; who sends faster is held back by TCP


class Intake:
    def __init__(self, mailbox: Mailbox, window_bytes: int) -> None:
        self._mailbox = mailbox
        self._window_bytes = window_bytes + limits.BATCH_BYTES_HARD_MAX  # who is below it may send one more
        self._peers: deque[Incoming] = deque()  # other nodes go first, and keep to bounds of their own
        self._waiting: deque[Incoming] = deque()
        self._held: dict[Origin, int] = {}  # bytes of the batches that wait
        self._count: dict[Origin, int] = {}  # messages that wait
        self._total = 0
        self.waiting = False  #: the last turn has left work for another one at once
        self._ended: set[Origin] = set()  # connections that are gone, of which something waits

    def take(self, arrived: list[Incoming]) -> tuple[list[Incoming], list[Incoming]]:
        """What this turn works on, and what is refused, whose batches are gone. `arrived` is what the mailbox
        gave for it."""
        if not self._waiting and not self._peers and not _cut(arrived):
            return arrived, []
        refused: list[Incoming] = []
        for _ in range(ROUNDS_MAX):
            for message in arrived:
                if not self._mailbox.from_client(message.origin):
                    self._peers.append(message)
                elif not self._wait(message):
                    refused.append(structs.replace(message, batch=b""))
            if not _cut(arrived):
                break
            arrived = self._mailbox.receive(0)
        now: list[Incoming] = []
        size = 0
        while (
            (self._waiting or self._peers)
            and len(now) < limits.TURN_MESSAGES_MAX
            and size < limits.TURN_BYTES_MAX
        ):
            now.append(self._peers.popleft() if self._peers else self._next())
            size += len(now[-1].batch)
        self.waiting = bool(self._waiting or self._peers)
        return now, refused

    def _wait(self, message: Incoming) -> bool:
        """False: its connection, or all of them, have sent too much."""
        origin, size = message.origin, len(message.batch)
        held = self._held.get(origin, 0) + size
        if size and (held > self._window_bytes or self._total + size > limits.INTAKE_BYTES_MAX):
            return False
        self._waiting.append(message)
        self._held[origin], self._count[origin] = held, self._count.get(origin, 0) + 1
        self._total += size
        return True

    def _next(self) -> Incoming:
        message = self._waiting.popleft()
        origin, size = message.origin, len(message.batch)
        self._held[origin] -= size
        self._count[origin] -= 1
        self._total -= size
        if not self._count[origin]:
            del self._held[origin], self._count[origin]
        return message

    def gone(self) -> list[Origin]:
        """Connections that ended, and of which nothing waits any more."""
        ended = self._mailbox.gone()
        if not ended and not self._ended:
            return ended
        self._ended.update(ended)
        gone = [origin for origin in self._ended if origin not in self._count]
        self._ended.difference_update(gone)
        return gone


def _cut(arrived: list[Incoming]) -> bool:
    """Whether the mailbox may have more."""
    size = 0
    for message in arrived:
        size += len(message.batch)
    return len(arrived) >= limits.TURN_MESSAGES_MAX or size >= limits.TURN_BYTES_MAX
