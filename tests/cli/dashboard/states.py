"""A cluster of three nodes in each state, as its nodes tell it, and the overview of it. Run as a program it
draws the screens of the folder beside it anew."""

from pathlib import Path

from msgspec.structs import replace

from gossipq.errors import GossipqError, StillJoining, TurnedAway, Unreachable
from gossipq.messages import StatsReply, StatusReply
from gossipq.values import CopyStats, GroupStats, Lead, Member, PartitionStats, WorkerStats
from gossipq_cli.dashboard.frame import screen
from gossipq_cli.dashboard.sources import fault
from gossipq_cli.dashboard.state import Board, Ui
from gossipq_ops.collect import Heard, Told, snapshot
from gossipq_ops.questions import Job, JobError, Planned, Ran, Ticked, Working

FOLDER = Path(__file__).with_name("screens")
SIZES = ((60, 20), (80, 24), (120, 40), (200, 60))
BEGIN_MS = 1_795_219_200_000  #: 2026-11-21 00:00 UTC
SHARDS, STEPS = 6, 20
NAMES = ("ada", "bob", "cat")
MEMBERS = [Member(f"{name}.1", name, f"tcp://{name}:7700", 1) for name in NAMES]


def leader_of(shard: int, away: tuple[str, ...]) -> str:
    """The next one that is there."""
    there = [name for name in NAMES if name not in away]
    return NAMES[shard % 3] if NAMES[shard % 3] in there else there[shard % len(there)]


def copies(name: str, away: tuple[str, ...], since_ms: int) -> list[CopyStats]:
    """Of the shards that a node leads."""
    if 2 * len(away) > len(NAMES):
        return []
    rows = []
    for shard in range(SHARDS):
        if leader_of(shard, away) == name:
            for member in MEMBERS:
                gone = member.name in away
                role = "leader" if member.name == name else "follower"
                silent_ms = since_ms if gone else 0
                rows.append(
                    CopyStats(shard, 1, member.copy, role, 900, 40 * gone, silent_ms, synced=not gone)
                )
    return rows


def status(name: str, step: int, away: tuple[str, ...] = (), **more: object) -> StatusReply:
    """`more`: of its only worker."""
    lost = 2 * len(away) > len(NAMES)
    led = {} if lost else {shard: leader_of(shard, away) for shard in range(SHARDS)}
    worker = WorkerStats(
        worker=0,
        pid=4_000 + NAMES.index(name),
        endpoint=f"tcp://{name}:7701",
        state="ready",
        restarts=0,
        leading=list(led.values()).count(name),
        sessions=4,
        published=400 * step,
        delivered=390 * step,
        acked=380 * step,
        refused=0,
        bad_frames=0,
        turns=50 * step,
        commits=50 * step,
        commit_us=1_870,
        store_bytes=(512 << 20) + (step << 16),
        cpu_ms=180 * step,
        rss_bytes=94 << 20,
        disk_free_bytes=38 << 30,
        leaderless=list(range(SHARDS)) if lost else [],
        away=[member.copy for member in MEMBERS if member.name in away] if lost else [],
    )
    return StatusReply(
        node=name,
        cluster_name="shop",
        cluster=bytes(16),
        version="0.2.0",
        mode="serf",
        uptime_ms=3_600_000 + 1_000 * step,
        shards=SHARDS,
        led=len(led),
        workers=[replace(worker, **more)],
        routes=[],
        copy=f"{name}.1",
        members=MEMBERS,
        leads=[Lead(shard, 1, f"{leader}.1") for shard, leader in led.items()],
        copies=copies(name, away, 1_000 * step),
        gossip="",
    )


def stats(step: int) -> StatsReply:
    partitions, groups = [], []
    for topic, rate in (("orders", 900), ("mails", 300), ("_alarms", 0)):
        published = rate * step
        partitions.append(
            PartitionStats(
                1 << 16, topic, 0, len(topic) % SHARDS, 0, published, published, 0, 200 * published
            )
        )
    for group, done in (("billing", 0.9), ("shipping", 1.0)):
        acked = round(900 * step * done)
        fields = dict.fromkeys(GroupStats.__struct_fields__, 0)
        fields |= {"partition": 1 << 16, "topic": "orders", "group": group, "paused": False}
        fields |= {"ready": 900 * step - acked, "acked": acked, "consumers": 2, "cursor": acked}
        groups.append(GroupStats(**fields))
    return StatsReply(partitions, groups)


def cluster(away: tuple[str, ...] = (), **workers: dict[str, object]) -> Board:
    """After some seconds. `away`: these do not answer; `workers`: what that of a node tells otherwise."""
    board = Board()
    for step in range(1, STEPS + 1):
        whole = step <= STEPS // 2
        heard = []
        for name in NAMES:
            gone = not whole and name in away
            said = status(name, STEPS // 2 if gone else step, () if whole or gone else away)
            if not whole and name in workers:
                said = replace(said, workers=[replace(said.workers[0], **workers[name])])
            heard.append(Heard(said, f"tcp://{name}:7700", 1_000 * (step - STEPS // 2) if gone else 0, 400))
        counted = step if whole or len(away) < 2 else STEPS // 2
        told = Told(heard, stats(counted), [], counted_ms=BEGIN_MS + 1_000 * counted)
        board.history.add(snapshot(told, BEGIN_MS + 1_000 * step, "tcp://ada:7700"))
    return board


def working(now_ms: int, *names: str) -> tuple[Working, Ticked]:
    """A group at work: one job runs for two minutes, one is retried, and a schedule ticks every 12
    minutes. `names`: of topic, group, schedule, and texts."""
    topic, group, name, text = names
    minute_ms = 60_000
    job = Job(f"{topic}/3/7", group, "running", text, text, now_ms - 2 * minute_ms, 1, 0, 0.25, text)
    retried = job._replace(ref=f"{topic}/3/8", state="retrying", time_ms=now_ms + 5_000, progress=-1.0)
    error = JobError(topic, group, "1f0c9a2e", text, 7, now_ms, f"{topic}/3/9")
    planned = Planned(topic, name, text, now_ms + minute_ms, 12, False)
    runs = [
        Ran(now_ms - 6 * minute_ms, f"{topic}/3/6", "running", now_ms - 3 * minute_ms, progress=0.5),
        Ran(now_ms - 30 * minute_ms, f"{topic}/3/5", "failed", 0, now_ms - 15 * minute_ms, text),
        Ran(now_ms - 45 * minute_ms, "", "skipped", because=text),
        Ran(now_ms - 90 * minute_ms, f"{topic}/3/4", "succeeded", 0, now_ms - 80 * minute_ms),
    ]
    return Working([job, retried], [error], [planned], 70, True), Ticked(planned, runs, [planned.next_ms])


def met(error: GossipqError) -> Board:
    """Of a dashboard that never got an answer."""
    board = Board()
    board.fault = fault(error)
    return board


def silent() -> Board:
    """Its node was there and answers no more."""
    board = cluster()
    board.age_ms, board.fault = 42_000, fault(Unreachable("no node answers at tcp://ada:7700"))
    return board


def refused(why: str, text: str) -> GossipqError:
    error = TurnedAway(text)
    error.why = why
    return error


FULL: dict[str, object] = {"state": "full", "detail": "1.0 GiB free of a reserve of 1.0 GiB"}
STATES = {
    "healthy": lambda: cluster(),
    "starting": lambda: cluster(ada={"state": "starting", "leading": 0}),
    "joining": lambda: met(refused(StillJoining.code, "the node is not in its cluster yet")),
    "one-away": lambda: cluster(("cat",)),
    "two-of-three-away": lambda: cluster(("bob", "cat")),
    "full-on-one": lambda: cluster(bob=FULL),
    "full-on-all": lambda: cluster(ada=FULL, bob=FULL, cat=FULL),
    "paused-worker": lambda: cluster(ada={"silent_ms": 9_000}),
    "stopped-shard": lambda: cluster(ada={"stopped": [3], "detail": "the entry at 17 is damaged"}),
    "unreachable": lambda: met(
        Unreachable("no node answers at tcp://ada:7700", hint="start one: gossipq node")
    ),
    "silent": silent,
    "other-version": lambda: met(
        refused("other_version", "the node speaks version 3, this client version 2")
    ),
}


def drawn(state: str) -> str:
    """The overview at each size, the lines without the blanks at their ends."""
    parts = []
    for width, height in SIZES:
        lines = screen(STATES[state](), Ui(), width, height)
        parts += [f"== {width}x{height}", *(line.plain.rstrip() for line in lines)]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in STATES:
        (FOLDER / f"{name}.txt").write_text(drawn(name), "utf-8")
