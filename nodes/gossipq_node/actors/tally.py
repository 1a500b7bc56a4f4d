"""The counters of a worker. They continue when its shards are opened again."""

import os
from collections import deque
from collections.abc import Sequence

from gossipq.core.shard import Shard
from gossipq.values import WorkerStats
from gossipq_node.ports import Mailbox, Measure
from gossipq_node.settings import WorkerSettings

COUNTERS = ("published", "delivered", "acked", "refused", "dead")


def _counts(shard: Shard) -> dict[str, int]:
    return {
        "published": shard.desk.counts.published,
        "delivered": shard.delivered,
        "acked": shard.desk.counts.acked,
        "refused": shard.desk.counts.refused,
        "dead": shard.desk.counts.dead,
    }


class Tally:
    def __init__(self, window: int, measure: Measure) -> None:
        """Dead letters are counted over the last `window` rows."""
        self.refused = 0  #: before they reached a shard
        self.turns = self.commits = self.bad_frames = 0
        self.commit_us = 0  #: moving average
        self._measure = measure
        self._gone: dict[str, int] = {}  # of shards that were dropped
        self._dead: deque[int] = deque([0], maxlen=window)

    def committed(self, took_us: int) -> None:
        self.commit_us += (took_us - self.commit_us) // 16
        self.commits += 1

    def add(self, shard: Shard) -> None:
        """It is dropped now."""
        for name, count in _counts(shard).items():
            self._gone[name] = self._gone.get(name, 0) + count

    def _totals(self, shards: Sequence[Shard]) -> dict[str, int]:
        totals = dict.fromkeys(COUNTERS, 0) | self._gone
        for shard in shards:
            for name, count in _counts(shard).items():
                totals[name] += count
        totals["refused"] += self.refused
        self._dead.append(totals["dead"])
        return totals

    def row(
        self,
        settings: WorkerSettings,
        state: str,
        shards: Sequence[Shard],
        sessions: int,
        mailbox: Mailbox,
        store_bytes: int,
    ) -> WorkerStats:
        totals, use = self._totals(shards), self._measure()
        return WorkerStats(
            worker=settings.worker,
            pid=os.getpid(),
            endpoint=settings.endpoint,
            state=state,
            restarts=settings.restarts,
            leading=sum(shard.leading for shard in shards),
            sessions=sessions,
            bad_frames=self.bad_frames + mailbox.bad_frames,
            dropped=mailbox.dropped,
            turned_away=mailbox.turned_away,
            turns=self.turns,
            commits=self.commits,
            commit_us=self.commit_us,
            store_bytes=store_bytes,
            dead_per_minute=self._dead[-1] - self._dead[0],
            cpu_ms=use.cpu_ms,
            rss_bytes=use.rss_bytes,
            **totals,  # type: ignore[arg-type]
        )
