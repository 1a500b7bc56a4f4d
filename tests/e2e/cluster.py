"""Several real nodes on this machine: started, killed, paused, started again, and looked at."""

import ctypes
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from e2e.harness import Node
from gossipq.errors import GossipqError
from gossipq.limits import GOSSIP_PORT_STEP
from gossipq.messages import StatusReply
from gossipq_client import connect
from waiting import until

HEALTHY_S = 40.0
STATUS_S = 3.0  #: how long a node may take to say how it is
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
WAIT_ANY_THREAD = 0x40000000


class Member(Node):
    """A node of a cluster."""

    def __init__(self, data: Path, *flags: str) -> None:
        super().__init__(data, *flags)
        self.name = data.name
        self.paused = False

    @property
    def running(self) -> bool:
        return self.process is not None

    def pause(self) -> None:
        """Sends SIGSTOP to all its processes: TCP stays up, but no process answers."""
        self.signal_all(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self.signal_all(signal.SIGCONT)
        self.paused = False

    def kill(self) -> None:
        super().kill()
        self.paused = False

    def status(self) -> StatusReply:
        """Raises a GossipqError when it does not say so in time."""
        with connect(self.endpoint, timeout=STATUS_S) as mq:
            return mq.admin.raw.status()

    def agent_pids(self) -> list[int]:
        """Of its Serf agent."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if words[0].endswith(b"serf") and any(bytes(self.data) in word for word in words):
                    found.append(int(path.parent.name))
        return found

    def worker_pids(self) -> list[int]:
        return [worker.pid for worker in self.status().workers]


class Cluster:
    """Nodes a, b, c ... in directories below `place`; the first founds, the others are told its address."""

    def __init__(
        self,
        place: Path,
        count: int = 3,
        workers: int = 1,
        witnesses: int = 0,
        dress: Callable[[Member], None] = lambda member: None,
        serf: bool = False,
    ) -> None:
        """`dress` may give each member another address, disk or environment before anybody is told of it.
        `serf`: they find each other by their agents, not by a list."""
        self.place, self.workers, self._dress, self._serf = place, workers, dress, serf
        self.members: list[Member] = []
        for _ in range(count):
            self.make()
        for _ in range(witnesses):
            self.make("--witness")

    def make(self, *flags: str) -> Member:
        """One more, not started."""
        number = len(self.members)
        first = self._told() if number else ("--mode", "serf" if self._serf else "static")
        name = chr(ord("a") + number)
        workers = "1" if "--witness" in flags else str(self.workers)
        member = Member(self.place / name, "--workers", workers, "--name", name, *first, *flags)
        self._dress(member)
        self.members.append(member)
        return member

    def _told(self) -> tuple[str, str]:
        """How a node learns of the first one."""
        first = self.members[0]
        return (
            ("--join", f"127.0.0.1:{first.port + GOSSIP_PORT_STEP}")
            if self._serf
            else ("--peer", first.endpoint)
        )

    def start(self) -> "Cluster":
        for member in self.members:
            member.start()
        return self

    def start_at_once(self) -> None:
        """All of them again: none may wait for another before that one is started."""
        for member in self.members:
            member.spawn()
        for member in self.members:
            member.await_ready()

    @property
    def servers(self) -> list[str]:
        return [member.endpoint for member in self.members]

    def running(self) -> list[Member]:
        return [member for member in self.members if member.running and not member.paused]

    # --- looking

    def statuses(self) -> list[StatusReply]:
        """Of every node that should answer. Raises a GossipqError when one does not."""
        return [member.status() for member in self.running()]

    def by_copy(self, copy: str) -> Member:
        """The member with that copy."""
        names = {row.copy: row.name for status in self.statuses() for row in status.members}
        return next(member for member in self.members if member.name == names[copy])

    def wait_healthy(
        self, voters: int = 3, balanced: bool = False, still: bool = False, patience_s: float = HEALTHY_S
    ) -> None:
        """Until each shard has one leader and `voters` copies that keep up. `balanced`: and each full node
        leads its share. `still`: and all copies have all of it, which they only do without load."""
        said = ""

        def healthy() -> bool:
            nonlocal said
            try:
                said = self._unwell(voters, balanced, still)
            except (GossipqError, AssertionError) as error:
                said = str(error)
            return not said

        end = time.monotonic() + patience_s
        while not healthy():
            assert time.monotonic() < end, f"not healthy: {said}"
            time.sleep(0.2)

    def _unwell(self, voters: int, balanced: bool, still: bool) -> str:
        statuses = self.statuses()
        copies = [copy for status in statuses for copy in status.copies]
        leads = Counter(copy.shard for copy in copies if copy.role == "leader")
        shards = statuses[0].shards
        if len(leads) < shards or max(leads.values(), default=0) > 1:
            return f"{len(leads)} of {shards} shards have a leader, {sum(leads.values())} lead"
        members = {row.copy: row for row in statuses[0].members}
        full = [row for row in members.values() if not row.witness]
        if len(members) < len(self.members):
            return f"the roster has {sorted(row.name for row in members.values())}"
        voting = Counter(
            copy.shard
            for copy in copies
            if copy.role != "learner" and (copy.synced or members[copy.copy].witness)
        )
        if min(voting.values(), default=0) < min(voters, len(members)):
            return f"a shard has {min(voting.values(), default=0)} voters in step"
        behind = [copy for copy in copies if copy.behind and not members[copy.copy].witness]
        if still and behind:
            return f"{len(behind)} copies are behind"
        led = Counter(copy.copy for copy in copies if copy.role == "leader")
        if balanced and any(led[row.copy] < shards // len(full) - 1 for row in full):
            return f"leads {dict(led)}"
        return ""

    def leader(self, topic: str, partition: int = 0, besides: Member | None = None) -> Member:
        """The node that leads that partition now. `besides` is not asked: what it last heard of itself may be
        old."""
        with connect(*(member.endpoint for member in self.running())) as mq:
            shard = next(found for found in mq.topics(topic) if found.name == topic).shards[partition]
        return self.leader_of(shard, besides)

    def leader_of(self, shard: int, besides: Member | None = None) -> Member:
        def find() -> Member | None:
            for member in (member for member in self.running() if member is not besides):
                with suppress(GossipqError):  # who does not say how it is now may be asked again
                    if any(row.shard == shard and row.role == "leader" for row in member.status().copies):
                        return member
            return None

        found: Member = until(find, HEALTHY_S, f"nobody leads shard {shard}")
        return found

    # --- the end

    def stop(self) -> None:
        """Sends SIGTERM to all at once, so that none waits for another; the
        stores are whole afterwards.
        """
        for member in self.members:
            if member.paused:
                member.resume()
        for member in self.members:
            if member.running:
                member.signal(signal.SIGTERM)
        for member in self.members:
            if member.running:
                member.stop()

    def kill(self) -> None:
        """However they are."""
        for member in self.members:
            if member.running:
                member.kill()

    def logs(self) -> str:
        return "\n".join(
            f"--- {member.name}\n{member.log()}" for member in self.members if member.log_path.exists()
        )


@contextmanager
def cluster(
    place: Path,
    count: int = 3,
    workers: int = 1,
    witnesses: int = 0,
    dress: Callable[[Member], None] = lambda member: None,
    serf: bool = False,
) -> Iterator[Cluster]:
    """Started; ended whatever happens."""
    made = Cluster(place, count, workers, witnesses, dress, serf)
    try:
        yield made.start()
    finally:
        made.kill()


@contextmanager
def hung(pid: int) -> Iterator[None]:
    """The main thread of a process stands still while its other threads go on: its sockets still answer for
    it. Raises PermissionError where one process may not hold another."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(PTRACE_ATTACH, pid, None, None):
        raise PermissionError(ctypes.get_errno(), "ptrace")
    os.waitpid(pid, WAIT_ANY_THREAD)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            libc.ptrace(PTRACE_DETACH, pid, None, None)
