"""Decides whether a worker has space for more. While the map or the disk is nearly full, publishes
are refused; acks and removals continue.
"""

from gossipq import limits
from gossipq.texts import size
from gossipq.types import Now
from gossipq_node.ports import StoreUsage
from gossipq_node.settings import WorkerSettings

HOARD_BYTES = limits.MIB  #: free bytes in a store's file that are worth returning to the disk
FULL_HOLD_MS = 2_000  #: publishes stay refused this long after a disk refused a write


class Space:
    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._hold_ms = 0  # refused until then, whatever the numbers are
        self.full = ""  #: why publishes are refused; "" if they are not
        self.short = ""  #: why memory ran out, until the store is open again
        #: the disk is low, and this store's file has free space that others could use
        self.hoards = False
        self.file_bytes = self.free_bytes = self.reserve_bytes = self.disk_free_bytes = 0

    def refused(self, why: str) -> None:
        """The disk refused a write."""
        self.full = why

    def opened(self, now: Now) -> None:
        """The store is open again after it was full or memory ran out."""
        if self.full:
            self._hold_ms = now.boot_ms + FULL_HOLD_MS
        self.short = ""

    def look(self, usage: StoreUsage, now: Now) -> None:
        settings = self._settings
        self.file_bytes, self.disk_free_bytes = usage.file_bytes, usage.disk_free_bytes
        self.reserve_bytes = max(
            settings.disk_reserve_bytes, usage.disk_bytes * settings.disk_reserve_percent // 100
        )
        # free space in a file is used again
        spare_bytes = max(0, usage.file_bytes - usage.used_bytes)
        self.free_bytes = usage.disk_free_bytes + spare_bytes
        self.hoards = spare_bytes >= HOARD_BYTES and usage.disk_free_bytes < 2 * self.reserve_bytes
        if usage.used_bytes >= usage.map_bytes // 100 * limits.MAP_FULL_PERCENT:
            self.full = f"the store holds {size(usage.used_bytes)} of the {size(usage.map_bytes)} of its map"
        elif self.free_bytes < self.reserve_bytes:
            free, reserve = size(self.free_bytes), size(self.reserve_bytes)
            self.full = f"the disk has {free} free, {reserve} are kept in reserve"
        elif now.boot_ms >= self._hold_ms:
            self.full = ""
