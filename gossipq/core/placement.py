"""Which shard holds what. Decided once, when a topic is made, and recorded; never recomputed."""

from zlib import crc32


def topic_shards(name: str, partitions: int, shards: int) -> list[int]:
    """Neighbouring shards, and so different workers, from a start that goes with the name. Shard 0 is left to the register."""
    if shards == 1:
        return [0] * partitions
    start = crc32(name.encode())
    return [1 + (start + i) % (shards - 1) for i in range(partitions)]
