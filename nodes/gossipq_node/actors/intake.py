"""The queue of a worker's input, which enforces the publish window of each connection.

ZeroMQ limits waiting messages by number, never by bytes. So if a turn does not take all messages, this module
takes the rest out of the sockets too, and refuses batches that a connection sent beyond its window. These
batches are certainly not stored; a client that keeps to its window is never refused. Up to RECEIVE_QUEUE
messages of a connection wait in its socket; then TCP blocks the sender.
"""

from collections import deque

from msgspec import structs

from gossipq import limits
from gossipq.types import Origin
from gossipq_node.ports import Incoming, Mailbox

ROUNDS_MAX = 256  #: receives of one turn; TCP blocks a client that sends faster


class Intake:
    def __init__(self, mailbox: Mailbox, window_bytes: int) -> None:
        self._mailbox = mailbox
        self._window_bytes = (
            window_bytes + limits.BATCH_BYTES_HARD_MAX
        )  # a client below its window may send one more batch
        self._peers: deque[Incoming] = deque()  # other nodes come first; they have limits of their own
        self._waiting: deque[Incoming] = deque()
        self._held: dict[Origin, int] = {}  # bytes of the waiting batches, by connection
        self._count: dict[Origin, int] = {}  # waiting messages, by connection
        self._total = 0
        self.waiting = False  #: the last turn left messages, so the next turn must not wait
        self._ended: set[Origin] = set()  # ended connections that still have waiting messages

    def take(self, arrived: list[Incoming]) -> tuple[list[Incoming], list[Incoming]]:
        """Return the messages of this turn, and the refused messages without their batches. `arrived` are the
        messages that the mailbox returned for this turn."""
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
        """Queue a message. Return False if its connection, or all connections, exceed their limit."""
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
        """Return ended connections that have no waiting messages left."""
        ended = self._mailbox.gone()
        if not ended and not self._ended:
            return ended
        self._ended.update(ended)
        gone = [origin for origin in self._ended if origin not in self._count]
        self._ended.difference_update(gone)
        return gone


def _cut(arrived: list[Incoming]) -> bool:
    """Return whether the mailbox may hold more messages, because `arrived` reached the limit of one
    receive."""
    size = 0
    for message in arrived:
        size += len(message.batch)
    return len(arrived) >= limits.TURN_MESSAGES_MAX or size >= limits.TURN_BYTES_MAX
