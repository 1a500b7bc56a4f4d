"""Cache of the newest batches of all shards of a worker, so that delivery rarely reads the disk."""

from collections import OrderedDict

from gossipq import limits
from gossipq.core.storage.recent import Recent
from gossipq.types import Index, ShardId


class Bodies:
    """A bounded cache of batches that were checked on arrival."""

    __slots__ = ("_bodies", "_bytes", "_bytes_max", "recent")

    def __init__(self, bytes_max: int) -> None:
        self._bodies: OrderedDict[tuple[ShardId, Index], bytes] = OrderedDict()
        self._bytes, self._bytes_max = 0, bytes_max
        self.recent = Recent(limits.RECENT_BYTES_MAX)  #: newest entries, for other copies

    def get(self, shard: ShardId, index: Index) -> bytes | None:
        return self._bodies.get((shard, index))

    def put(self, shard: ShardId, bodies: list[tuple[Index, bytes]]) -> None:
        """Keep the batches of some entries; the oldest of all shards make room."""
        for index, body in bodies:
            self._bytes += len(body) - len(self._bodies.pop((shard, index), b""))
            self._bodies[shard, index] = body
        while self._bytes > self._bytes_max:
            self._bytes -= len(self._bodies.popitem(last=False)[1])

    def drop(self, shard: ShardId) -> None:
        """Forget a shard whose log was replaced."""
        for name in [name for name in self._bodies if name[0] == shard]:
            self._bytes -= len(self._bodies.pop(name))
