"""Answers of one connection, sent in the order of their requests. Pure."""

from collections import deque


class Slot:
    """The place of one answer."""

    __slots__ = ("answer", "size")

    def __init__(self, size: int) -> None:
        self.answer: bytes | None = None
        self.size = size


class Answers:
    """A queue of answers. `size` of a slot is the memory of its request
    until the answer, in bytes.
    """

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, size: int = 0) -> Slot:
        """Return a place for a later answer. An empty answer is skipped."""
        made = Slot(size)
        self._slots.append(made)
        self.size += size
        return made

    def say(self, answer: bytes) -> None:
        """Answer after all earlier requests."""
        self.slot().answer = answer

    def take(self) -> bytes:
        """Return the answers that can be sent now."""
        slots, ready = self._slots, []
        while slots and (answer := slots[0].answer) is not None:
            self.size -= slots.popleft().size
            ready.append(answer)
        return b"".join(ready)
