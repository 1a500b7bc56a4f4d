"""Answers of one connection, which leave in the order of their requests whenever they are known. Pure."""

from collections import deque


class Slot:
    """The place of one answer."""

    __slots__ = ("answer", "size")

    def __init__(self, size: int) -> None:
        self.answer: bytes | None = None
        self.size = size


class Answers:
    """`size` of a slot is what its request holds in memory until it is answered, in bytes."""

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._slots)

    def slot(self, size: int = 0) -> Slot:
        """For an answer to come; b"" when it is none."""
        made = Slot(size)
        self._slots.append(made)
        self.size += size
        return made

    def say(self, answer: bytes) -> None:
        """Behind all that is asked so far."""
        self.slot().answer = answer

    def take(self) -> bytes:
        """What can leave now."""
        slots, ready = self._slots, []
        while slots and (answer := slots[0].answer) is not None:
            self.size -= slots.popleft().size
            ready.append(answer)
        return b"".join(ready)
