"""The course of the demo."""

import time
from collections import deque
from contextlib import suppress
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from gossipq import limits
from gossipq_cli import failures
from gossipq_cli.demo import stage
from gossipq_cli.demo.account import Account, checksums, unpack_runs
from gossipq_cli.demo.nodes import DemoNode, Nodes
from gossipq_cli.demo.screen import Screen
from gossipq_cli.demo.takeover import Takeover

if TYPE_CHECKING:
    from gossipq_client import Client

TOPIC, GROUP, CONSUMERS, PARTITIONS = "python.lines", "readers", 3, 4
QUIET_S = 60.0  #: after this time without progress, the demo stops and reports missing records
LOOK_S = 0.05


class Play:
    """One thread that publishes, reads the consumers' reports, and kills.

    Half way it kills a consumer and, with several nodes, the leader of the first partition.
    """

    def __init__(
        self, mq: "Client", nodes: Nodes, members: list[stage.Member], total: int, shown: Screen
    ) -> None:
        self.mq, self.nodes, self.members, self.total, self.shown = mq, nodes, list(members), total, shown
        self.account = Account()
        self.settled = 0  #: number of files whose records are confirmed
        self.takeover: Takeover | None = None
        self.fallen: DemoNode | None = None
        self.open: deque[tuple[Any, Any]] = deque()
        self.victim: stage.Member | None = members[-1]
        self.pause_s = 0.0  #: the longest time without a new delivery
        self.moved_s: float | None = None  #: time of the last delivery

    def publish(self, files: list[tuple[bytes, list[bytes]]]) -> None:
        for name, lines in files:
            self.open.append((self.mq.post_many(TOPIC, lines, key=name), checksums(lines)))
            self.account.published += len(lines)
            self.look(0.0)
        self.mq.flush(QUIET_S)
        while self.open:
            self.settle()
        if self.takeover is not None:
            self.takeover.end()

    def finish(self) -> None:
        """Run until everything has arrived and is acked, or QUIET_S pass without progress.

        Then the consumers are stopped.
        """
        quiet_since, before = time.monotonic(), -1
        while self.members and not self.over() and time.monotonic() - quiet_since < QUIET_S:
            self.look(LOOK_S)
            if self.account.delivered != before:
                quiet_since, before = time.monotonic(), self.account.delivered
        if not self.members:
            raise failures.Failure("failed", "all consumers ended early")
        for member in self.members:
            with suppress(OSError):  # it has ended already
                member.pipe.send_bytes(b"stop")
        deadline = time.monotonic() + stage.STOP_S
        while any(member.process.is_alive() for member in self.members) and time.monotonic() < deadline:
            self.look(LOOK_S)

    def over(self) -> bool:
        """True if all records arrived and are acked. The victim's unacked
        ones are redelivered first.
        """
        return self.account.distinct >= self.total and self.acked() >= self.total

    def look(self, wait_s: float) -> None:
        """Note receipts and reports; kill the victim when half has been delivered."""
        while self.open and self.open[0][0].done():
            self.settle()
        if wait_s and self.open:
            self.settle()
        for member in self.ready(wait_s):
            self.read(member)
        if self.victim is not None and self.account.distinct * 2 >= self.total:
            self.kill(self.victim)
        if (
            self.takeover is None
            and len(self.nodes.members) > 1
            and self.total > self.account.published >= self.total // 2
        ):
            self.fell()
        if self.fallen is not None and self.takeover is not None and self.takeover.over:
            self.rise(self.fallen, self.takeover)
        self.shown.show(self.account.published, self.account.confirmed, self.account.distinct)

    def ready(self, wait_s: float) -> list[stage.Member]:
        found = set(map(id, wait([member.pipe for member in self.members], wait_s)))
        return [member for member in self.members if id(member.pipe) in found]

    def settle(self) -> None:
        pending, sums = self.open.popleft()
        receipt, at = pending.result(None), 0
        for part in receipt.receipts or (receipt,):
            self.account.confirm(part.partition, part.offset, sums[at : at + part.count])
            at += part.count
            if self.takeover is not None:
                self.takeover.confirmed(self.settled, part.partition, time.monotonic())
        self.settled += 1

    def read(self, member: stage.Member) -> None:
        try:
            report = member.pipe.recv_bytes()
        except (EOFError, OSError):
            self.members.remove(member)
            return
        before = self.account.distinct
        for run in unpack_runs(report):
            self.account.deliver(*run)
        if self.account.distinct > before:
            now_s = time.monotonic()
            self.pause_s = max(self.pause_s, now_s - (self.moved_s or now_s))
            self.moved_s = now_s

    def kill(self, victim: stage.Member) -> None:
        self.victim = None
        victim.process.kill()
        who = f"kill -9 {victim.process.pid} ({victim.process.name})"
        absence_s = limits.SESSION_ABSENCE_MS / 1_000
        self.shown.say(
            f"half way: {who}; the others go on, and what it holds comes to them in {absence_s:g} s"
        )

    def fell(self) -> None:
        """Kill the leader of the first partition with SIGKILL."""
        shards = self.shards()
        leader, led = self.nodes.leader(shards[0])
        if leader is None:
            return  # leadership is moving now
        partitions = [partition for partition, shard in enumerate(shards) if shard in led]
        assert leader.process is not None, "it answered"
        self.shown.say(
            f"half way: kill -9 {leader.process.pid} ({leader.name}), which leads {len(led)} shards"
        )
        leader.kill()
        self.takeover = Takeover(led, partitions, self.settled + len(self.open), time.monotonic())
        self.fallen = leader

    def rise(self, fallen: DemoNode, takeover: Takeover) -> None:
        self.fallen = None
        self.shown.say(
            f"others lead them after {takeover.ms_max / 1000:.1f} s; {fallen.name} starts again, as a "
            "follower"
        )
        fallen.start()

    def shards(self) -> tuple[int, ...]:
        return next(topic.shards for topic in self.mq.topics(TOPIC) if topic.name == TOPIC)

    def acked(self) -> int:
        """Return the number of acked records, as the node counts."""
        return sum(group.acked for group in self.mq.topic(TOPIC).groups() if group.group == GROUP)
