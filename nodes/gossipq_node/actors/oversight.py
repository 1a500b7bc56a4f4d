"""The frontdoor's view of its node: each worker's last report, when it
came, and which alarms follow.
"""

from collections import deque
from collections.abc import Sequence
from itertools import groupby

from gossipq.core.requests import HANGS_MS, RESTART_WINDOW_MS, RaisedAlarms, alarm, key_of
from gossipq.health import wrong_clocks
from gossipq.messages import StatusReply
from gossipq.peer_messages import Report
from gossipq.texts import many
from gossipq.types import Now
from gossipq.values import Alarm, Timing, WorkerStats
from gossipq_node.actors.discovery import OFF, PAIR, pair_without_witness

LATE_MS = 5_000  #: time that a copy gets to catch up before it raises an alarm
GOSSIP_MS = 30_000  #: time that the gossip agent gets to start before it raises an alarm


class Oversight:
    def __init__(self, node: str, workers: int, warnings: Sequence[str], now: Now) -> None:
        self._node, self._warnings = node, warnings
        self._heard_ms = dict.fromkeys(range(workers), now.boot_ms)
        self._reports: dict[int, Report] = {}
        #: by worker: (boot time, restarts), oldest first
        self._restarts: dict[int, deque[tuple[int, int]]] = {}
        self._standing = RaisedAlarms()
        self._gossip_ms = now.boot_ms  # when gossip last worked
        self._late_ms: dict[tuple[str, str, str], int] = {}  # since when copies are behind

    def heard(self, report: Report, now: Now) -> None:
        self._heard_ms[report.stats.worker] = now.boot_ms
        self._reports[report.stats.worker] = report

    def heard_ms(self) -> dict[int, int]:
        """Boot time of each worker's last report."""
        return dict(self._heard_ms)

    def timings(self) -> dict[int, list[Timing]]:
        """Timings by worker, from its last report."""
        return {worker: report.timings for worker, report in self._reports.items()}

    def alarms(self, status: StatusReply, now: Now) -> list[Alarm]:
        """Alarms of the node, its workers, and the shards that it leads or keeps, each with the
        time when it was first raised.
        """
        found = [
            alarm("insecure", self._node, "", warning)
            for warning in self._warnings
            if warning.startswith("--insecure")
        ]
        for stats in status.workers:
            found += self._of_worker(stats, now)
        if status.gossip in ("", OFF):
            self._gossip_ms = now.boot_ms
        elif now.boot_ms - self._gossip_ms >= GOSSIP_MS:
            found.append(alarm("gossip", self._node, "", f"gossip is degraded: {status.gossip}"))
        if pair_without_witness(status.members):
            found.append(alarm("pair", self._node, "", PAIR))
        return self._standing.stamp([*found, *self._of_copies(status, now)], now.wall_ms)

    def _of_copies(self, status: StatusReply, now: Now) -> list[Alarm]:
        """One alarm per node, since a silent node is behind in many shards. None while
        copies come and go as planned.
        """
        names = {member.copy: member.name for member in status.members}
        behind: dict[str, int] = {}
        alone = 0
        for _, rows in groupby(status.copies, key=lambda row: row.shard):
            full = [row for row in rows if row.role != "witness"]
            late = [row for row in full if not row.synced]
            alone += bool(late) and len(full) - len(late) == 1
            for row in late:
                behind[names.get(row.copy, row.copy)] = behind.get(names.get(row.copy, row.copy), 0) + 1
        found = [
            alarm(
                "copy_behind",
                self._node,
                name,
                f"{name} is not in sync in {shards} of the shards that {self._node} leads",
            )
            for name, shards in behind.items()
        ]
        clocks = wrong_clocks(status.copies, status.members)
        found += [alarm("clock", self._node, name, text) for name, text in clocks.items()]
        if alone:
            found.append(
                alarm(
                    "last_copy",
                    self._node,
                    "",
                    f"{many(alone, 'shard')} led by {self._node} {'has' if alone == 1 else 'have'} one copy "
                    "in sync",
                )
            )
        self._late_ms = {key_of(each): self._late_ms.get(key_of(each), now.boot_ms) for each in found}
        return [each for each in found if now.boot_ms - self._late_ms[key_of(each)] >= LATE_MS]

    def _of_worker(self, stats: WorkerStats, now: Now) -> list[Alarm]:
        subject, silent_ms = f"worker-{stats.worker}", now.boot_ms - self._heard_ms[stats.worker]
        found = []
        if stats.state == "down":
            self._reports.pop(stats.worker, None)
            self._heard_ms[stats.worker] = now.boot_ms
            found.append(
                alarm(
                    "worker_down",
                    self._node,
                    subject,
                    f"{subject} is not running: {stats.detail or 'it ended'}",
                )
            )
        elif silent_ms > HANGS_MS:
            text = f"{subject} (pid {stats.pid}) has not responded for {silent_ms // 1_000} s"
            found.append(alarm("worker_hangs", self._node, subject, text))
        if restarts := self._restarted(stats, now.boot_ms):
            times = "once" if restarts == 1 else f"{restarts} times"
            text = f"{subject} was started again {times} in the last {RESTART_WINDOW_MS // 60_000} minutes"
            found.append(alarm("worker_restarts", self._node, subject, text))
        report = self._reports.get(stats.worker)
        return found + (report.alarms if report is not None else [])

    def _restarted(self, stats: WorkerStats, boot_ms: int) -> int:
        """How often a worker restarted within the window."""
        seen = self._restarts.setdefault(stats.worker, deque([(boot_ms, stats.restarts)]))
        if seen[-1][1] != stats.restarts:
            seen.append((boot_ms, stats.restarts))
        while len(seen) > 1 and seen[1][0] < boot_ms - RESTART_WINDOW_MS:
            seen.popleft()
        return seen[-1][1] - seen[0][1]
