"""Memory limits for incomplete requests and unread answers, for each
client and for a whole port.
"""

from gossipq import limits

FREE_BYTES = 64 * limits.KIB  #: free for each connection, whose number is bounded
ROOM_BYTES_MAX = 256 * limits.MIB  #: limit for the rest of all connections


class Room:
    """The memory of one port."""

    def __init__(self) -> None:
        self._taken = 0

    def has(self, size: int) -> bool:
        """True if another `size` bytes fit."""
        return size <= FREE_BYTES or self._taken + size - FREE_BYTES <= ROOM_BYTES_MAX

    def take(self, size: int) -> bool:
        """Take `size` bytes in any case. Returns whether they fit."""
        self._taken += size
        return size <= 0 or self._taken <= ROOM_BYTES_MAX


class Share:
    """The part of one request or connection."""

    def __init__(self, room: Room) -> None:
        self._room, self._counted = room, 0

    def hold(self, size: int) -> bool:
        """Set the used bytes. Returns whether they fit; otherwise the holder must be closed."""
        more = max(0, size - FREE_BYTES) - self._counted
        self._counted += more
        return self._room.take(more)

    def end(self) -> None:
        self.hold(0)
