"""Alarms of a worker for its operator: about its groups, its disk and its shards."""

from collections.abc import Iterable, Mapping

from gossipq.core.ledger import Ledger
from gossipq.core.requests import SLOW_COMMIT_US, Watch, alarm
from gossipq.texts import size
from gossipq.types import Now
from gossipq.values import Alarm
from gossipq_node.actors.space import Space

LOOK_MS = 10_000  #: time between two looks at the groups


class WorkerAlarms:
    def __init__(self, node: str, worker: int) -> None:
        self._node = node
        self._worker = f"worker-{worker}"
        self._watch = Watch(node)
        self._look_ms = 0
        self._groups: list[Alarm] = []
        self.low = ""  #: why space will soon run out

    def look(self, ledgers: Iterable[Ledger], now: Now) -> None:
        """Looks at the groups, if it is time."""
        if now.boot_ms >= self._look_ms:
            self._look_ms = now.boot_ms + LOOK_MS
            self._groups = self._watch.look(ledgers, now.boot_ms)

    def space(self, free_bytes: int, reserve: int) -> None:
        """Tells the free bytes, and how few stop publishes."""
        self.low = (
            f"the disk has {size(free_bytes)} free, publishes stop at {size(reserve)}"
            if free_bytes < 2 * reserve
            else ""
        )

    def raised(self, state: str, space: Space, commit_us: int, damaged: Mapping[int, str]) -> list[Alarm]:
        """All alarms at this moment."""
        full = space.full
        said = {
            "out_of_memory": space.short,
            "write_failed": full if state == "recovering" else "",
            "store_full": full if state == "full" else "",
            "disk_low": self.low if state == "ready" else "",
            "slow_disk": f"a commit takes {commit_us / 1_000:,.0f} ms" if commit_us > SLOW_COMMIT_US else "",
        }
        found = [alarm(name, self._node, self._worker, text) for name, text in said.items() if text]
        found += [
            alarm("shard_damaged", self._node, f"shard {shard}", text) for shard, text in damaged.items()
        ]
        return found + self._groups
