"""Room for what is under way: what strangers send, and do not take, is bounded for each, and here for all of
a port."""

from gossipq import limits

FREE_BYTES = 64 * limits.KIB  #: of each, which is bounded by the count of connections: what is small has room
ROOM_BYTES_MAX = 256 * limits.MIB  #: beyond that, of all


class Room:
    """Of one port."""

    def __init__(self) -> None:
        self._taken = 0

    def has(self, size: int) -> bool:
        """Whether somebody else may come with so many bytes."""
        return size <= FREE_BYTES or self._taken + size - FREE_BYTES <= ROOM_BYTES_MAX

    def take(self, size: int) -> bool:
        """Also what there is no room for; whether there was."""
        self._taken += size
        return size <= 0 or self._taken <= ROOM_BYTES_MAX


class Share:
    """What one request or connection has of it."""

    def __init__(self, room: Room) -> None:
        self._room, self._counted = room, 0

    def hold(self, size: int) -> bool:
        """From now on so many bytes; whether there is room for them. What holds them is to go if not."""
        more = max(0, size - FREE_BYTES) - self._counted
        self._counted += more
        return self._room.take(more)

    def end(self) -> None:
        self.hold(0)
