"""Health words for nodes and clusters, the same on every surface. docs/operate/monitoring.md lists them.

A finding has one word. Its scope says what the word is about: the observer, a node, a shard, or one
copy of a shard. The words are ordered by precedence: if several apply, the first describes the
whole. `of_node` judges one STATUS, `of_cluster` the answers of all nodes. No clock is read: times
are passed as ages.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from gossipq import limits
from gossipq.errors import GossipqError, NoQuorum, StillJoining, StoreFull, TurnedAway, Unreachable
from gossipq.messages import StatusReply
from gossipq.texts import many, span
from gossipq.values import CopyStats, Member, WorkerStats

NAMES_SHOWN = 5
ONE = "one node after the other (node.encrypt)"
ALONE = "copies=1"  #: shown with receipts while only one disk has the confirmed records
VOTERS = ("leader", "follower", "witness")  #: roles of copies that vote
REPLICATED = 3  #: copies of a shard in a cluster of three nodes or more


class Scope(StrEnum):
    OBSERVER, NODE, SHARD, COPY = "observer", "node", "shard", "copy"


class State(StrEnum):
    """Worst first."""

    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    JOINING = "joining"
    STARTING = "starting"
    PAUSED = "paused"
    NO_QUORUM = "no quorum"
    STOPPED = "stopped"
    FULL = "full"
    DEGRADED = "degraded"
    STALE = "stale"
    HEALTHY = "healthy"


class Meaning(NamedTuple):
    """Meaning of a word.

    If `serves` is True, clients can work and /readyz stays 200. `command` helps or shows more.
    """

    scope: Scope
    serves: bool
    text: str
    command: str


MEANINGS: dict[State, Meaning] = {
    State.UNREACHABLE: Meaning(
        Scope.OBSERVER, False, "Nothing answers at any address that was asked.", "gossipq doctor --data DIR"
    ),
    State.REFUSED: Meaning(
        Scope.NODE,
        False,
        "The node refuses the caller, or its cluster refuses the node; it says why.",
        "gossipq status",
    ),
    State.JOINING: Meaning(
        Scope.NODE,
        False,
        "The node runs and belongs to no cluster yet: it waits for the others.",
        "the log of the node",
    ),
    State.STARTING: Meaning(
        Scope.NODE,
        False,
        "A worker of the node opens its store, for the first time or again.",
        "gossipq status",
    ),
    State.PAUSED: Meaning(
        Scope.NODE,
        False,
        "A process of the node has not responded for three seconds.",
        "gossipq status",
    ),
    State.NO_QUORUM: Meaning(
        Scope.SHARD,
        False,
        "Shards have no leader, because most of their copies are away, or for a moment while another one is "
        "elected.",
        "gossipq cluster ls",
    ),
    State.STOPPED: Meaning(
        Scope.SHARD,
        False,
        "A shard stopped, because what is on disk is not what was written, and no other node leads it.",
        "gossipq store verify --data DIR",
    ),
    State.FULL: Meaning(
        Scope.NODE,
        False,
        "A worker refuses publishes, because its disk or store is nearly full.",
        "gossipq check disk",
    ),
    State.DEGRADED: Meaning(
        Scope.COPY,
        True,
        "Everything is served, but copies of shards are missing or not in sync yet.",
        "gossipq cluster ls",
    ),
    State.STALE: Meaning(
        Scope.OBSERVER,
        True,
        "The figures shown are older than three seconds; their age is beside them.",
        "gossipq status",
    ),
    State.HEALTHY: Meaning(
        Scope.NODE, True, "Every shard has a leader, and every copy is in sync.", "gossipq top"
    ),
}


class Finding(NamedTuple):
    state: State
    subject: str  #: the node, worker or shard that the finding is about
    text: str  #: for people: the problem and its cause

    @property
    def command(self) -> str:
        """The command that shows more."""
        return MEANINGS[self.state].command


class Health(NamedTuple):
    findings: tuple[Finding, ...]  #: worst first; empty if all is well

    @property
    def state(self) -> State:
        return self.findings[0].state if self.findings else State.HEALTHY

    @property
    def text(self) -> str:
        """All findings in one line, or "" if all is well."""
        return "; ".join(f"{finding.state}: {finding.text}" for finding in self.findings)

    @property
    def command(self) -> str:
        return MEANINGS[self.state].command

    @property
    def serves(self) -> bool:
        return all(MEANINGS[finding.state].serves for finding in self.findings)


def health(findings: Iterable[Finding]) -> Health:
    order = list(State)
    return Health(tuple(sorted(findings, key=lambda finding: order.index(finding.state))))


def of_node(status: StatusReply) -> Health:
    """Judge one node by its own STATUS: its workers, its shards, and the copies of shards it
    leads.
    """
    return health(
        [
            *_of_workers(status),
            *_leaderless(status),
            *of_copies(status.copies, status.members),
        ]
    )


def of_cluster(
    asked: StatusReply,
    answers: Mapping[str, StatusReply | None],
    copies: Sequence[CopyStats],
    nodes: int = 0,
) -> Health:
    """Judge a cluster by the answers of all its nodes.

    `answers` maps a copy's name to its STATUS, None = the node does not answer. `copies` are rows
    of the newest leaders. `nodes` is the number of nodes that must answer. For other nodes than
    `asked`, a worker that is starting is left out: its copies show that.
    """
    findings = _of_workers(asked)
    for status in answers.values():
        if status is not None and status.copy != asked.copy:
            findings += [found for found in _of_workers(status) if found.state is not State.STARTING]
    heard = {row.copy for row in copies if row.silent_ms < limits.SILENT_COPY_MS}
    here = {row.shard for row in copies if row.role == "leader"}
    afar = {shard: by for shard, by in _led_unheard(asked, answers, heard).items() if shard not in here}
    led = here | afar.keys()
    stopped = {shard for status in answers.values() if status is not None for shard in _stopped(status)}
    missing, unheard = asked.shards - len(led | stopped), misjudged(asked, answers)
    if missing or not asked.shards:
        silent = [member for member in asked.members if answers.get(member.copy) is None]
        away = [member.name for member in silent if member.copy not in heard]
        findings.append(no_leader(missing, asked.shards, away, len(asked.members), bool(unheard)))
    for name, count in Counter(afar.values()).items():
        text = f"{name} does not answer here, and leads {many(count, 'shard')}, as the others say"
        findings.append(Finding(State.DEGRADED, name, text))
    answering = sum(status is not None for status in answers.values())
    if answering < nodes:
        findings.append(Finding(State.DEGRADED, "", f"{answering} of {many(nodes, 'node')} answer"))
    return health([*findings, *unheard, *of_copies(copies, asked.members, asked.shards)])


def _led_unheard(
    asked: StatusReply, answers: Mapping[str, StatusReply | None], heard_of: Collection[str]
) -> dict[int, str]:
    """Return shard -> name of its leader, for leaders that do not answer this observer.

    Their frontdoor hangs, or they are unreachable from here. A leader counts as alive if most
    voters answer here and at most a few of them miss it, or if another answering leader heard it.
    """
    silent = {row.copy: row.name for row in asked.members if answers.get(row.copy) is None}
    voters = voters_wanted(asked.members)
    if 2 * len(silent.keys() - heard_of) >= voters:
        return {}
    heard = [status for status in answers.values() if status is not None]
    missed = Counter(shard for status in heard for worker in status.workers for shard in worker.leaderless)
    may_miss = min(len(heard) - 1, (voters - 1) // 2)
    leads = [lead for status in heard for lead in status.leads]
    newest = {lead.shard: lead for lead in sorted(leads, key=lambda lead: lead.term)}
    return {
        shard: silent[lead.copy]
        for shard, lead in newest.items()
        if lead.copy in silent and missed[shard] <= may_miss
    }


def misjudged(asked: StatusReply, answers: Mapping[str, StatusReply | None]) -> list[Finding]:
    """Find nodes whose encryption differs from the roster, so that the others cannot reach them.

    Nodes find each other by the roster, and the roster changes only by a majority.
    """
    heard = [status for status in answers.values() if status is not None and status.copy != asked.copy]
    found = []
    for status in (asked, *heard):
        others = [each for each in (asked, *heard) if each.copy != status.copy]
        rows = [row for each in others for row in each.members if row.copy == status.copy]
        if rows and all(row.encrypts != bool(status.door) for row in rows):
            does, known = ("encrypts", "does not") if status.door else ("does not encrypt", "does")
            text = f"{status.node} {does}, and the others know it as one that {known}: they do not reach it"
            found.append(Finding(State.DEGRADED, status.node, f"{text}; start it as before, and then {ONE}"))
    return found


def no_leader(shards: int, of: int, away: Sequence[str], nodes: int, unheard: bool = False) -> Finding:
    """Return the finding that `shards` of `of` shards have no leader.

    `away` names the nodes that do not answer. `unheard`: nodes cannot hear each other, because the
    roster has the wrong encryption for some.
    """
    if of <= 0:
        return Finding(State.NO_QUORUM, "", "no shard is known")
    names = _names(away)
    why = (
        f"{len(away)} of {many(nodes, 'node')} {'is' if len(away) == 1 else 'are'} away: {names}"
        if away
        else "not all nodes that encrypt, or do not, are known as such"
        if unheard
        else "being elected"
    )
    return Finding(
        State.NO_QUORUM, names, f"{shards} of {many(of, 'shard')} {_have(shards)} no leader ({why})"
    )


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _names(names: Iterable[str]) -> str:
    found = sorted(set(names))
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    return ", ".join(found[:NAMES_SHOWN]) + more


def _stopped(status: StatusReply) -> set[int]:
    """Shards whose copy here is damaged and that have no known leader on a reachable node."""
    led = {lead.shard: lead.copy for lead in status.leads if lead.copy != status.copy}
    return {
        shard
        for worker in status.workers
        for shard in worker.stopped
        if shard not in led or led[shard] in worker.away
    }


def _of_workers(status: StatusReply) -> list[Finding]:
    stopped = _stopped(status)
    return [found for worker in status.workers for found in _of_worker(status.node, worker, stopped)]


def _of_worker(node: str, worker: WorkerStats, unserved: set[int]) -> list[Finding]:
    subject, detail = f"worker-{worker.worker} of {node}", worker.detail
    if worker.state == "down":
        return [Finding(State.STARTING, node, f"{subject} is not running{': ' if detail else ''}{detail}")]
    if worker.state == "recovering":
        return [
            Finding(State.STARTING, node, f"{subject} opens its store again{': ' if detail else ''}{detail}")
        ]
    if worker.state == "starting":
        return [Finding(State.STARTING, node, f"{subject} is starting")]
    found = []
    if worker.silent_ms > limits.FRESH_MS:
        text = f"{subject} (pid {worker.pid}) has not responded for {worker.silent_ms // 1_000} s"
        found.append(Finding(State.PAUSED, node, text))
    if worker.state == "full":
        found.append(Finding(State.FULL, node, f"{subject} refuses publishes: {detail}"))
    for shard in worker.stopped:
        state = State.STOPPED if shard in unserved else State.DEGRADED
        found.append(Finding(state, node, f"shard {shard} stopped on {subject}: {detail}"))
    return found


def _leaderless(status: StatusReply) -> list[Finding]:
    """Find shards without a leader: those kept here, and those for which no leader is known at
    all.
    """
    without = {shard for worker in status.workers for shard in worker.leaderless}
    led = {lead.shard for lead in status.leads}
    ready = all(worker.state in ("ready", "full") for worker in status.workers)
    unknown = set(range(status.shards)) - led if ready else set()
    count = len((without | unknown) - _stopped(status))
    if not count:
        return []
    names = {member.copy: member.name for member in status.members}
    away = {names.get(copy, copy[:8]) for worker in status.workers for copy in worker.away}
    return [no_leader(count, status.shards, sorted(away), len(status.members))]


def of_copies(
    rows: Sequence[CopyStats], members: Sequence[Member], shards: int | None = None
) -> list[Finding]:
    """Findings about copies that are silent, still learning, or wanted but not created yet.

    `rows` are those of shards that have a leader. With `shards`, rows of all shards are given.
    """
    names = {member.copy: member.name for member in members}
    away, learning = _late(rows, names, True), _late(rows, names, False)
    late = {row.shard for row in rows if not row.synced or row.silent_ms >= limits.SILENT_COPY_MS}
    full, voters = (
        Counter(r.shard for r in rows if r.role != "witness"),
        Counter(r.shard for r in rows if r.role in VOTERS),
    )
    wanted, voting = copies_wanted(members), voters_wanted(members)
    few = sum((full[shard] < wanted or voters[shard] < voting) for shard in full if shard not in late)
    found = [
        Finding(State.DEGRADED, name, f"{name} is away: its copies of {many(count, 'shard')} are missing")
        for name, count in away.items()
    ]
    found += [
        Finding(State.DEGRADED, name, f"{name} still learns {many(count, 'shard')}")
        for name, count in learning.items()
    ]
    alone = on_one_disk(rows, members)
    if alone:
        text = f"{many(len(alone), 'shard')} {'is' if len(alone) == 1 else 'are'} on one disk alone ({ALONE})"
        found.append(
            Finding(State.DEGRADED, "", f"{text}: a confirm means one disk until others are in sync")
        )
    if few:
        of = f" of {shards}" if shards else ""
        found.append(Finding(State.DEGRADED, "", f"{few}{of} shards wait for another copy"))
    return found


def on_one_disk(rows: Iterable[CopyStats], members: Iterable[Member]) -> list[int]:
    """Shards with only one full copy in sync where there should be more: a confirm means one
    disk.
    """
    if copies_wanted(members) < 2:
        return []
    synced = Counter(row.shard for row in rows if row.role != "witness" and row.synced)
    return sorted(shard for shard, count in synced.items() if count == 1)


def _late(rows: Iterable[CopyStats], names: Mapping[str, str], silent: bool) -> dict[str, int]:
    """Return node -> number of its copies that are silent (`silent`), or else not in sync."""
    found: dict[str, int] = {}
    for row in rows:
        away = row.silent_ms >= limits.SILENT_COPY_MS
        if row.role != "leader" and (away if silent else not (away or row.synced)):
            name = names.get(row.copy, row.copy[:8])
            found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items()))


def copies_wanted(members: Iterable[Member]) -> int:
    """Minimum of full copies for each shard."""
    full = sum(member.state == "in" and not member.witness for member in members)
    return max(1, min(REPLICATED, full))


def voters_wanted(members: Iterable[Member]) -> int:
    """Minimum of voters for each shard: two full nodes without a witness have one voter, one
    standby.
    """
    witnesses = [member.witness for member in members if member.state == "in"]
    full = witnesses.count(False)
    return REPLICATED if full >= REPLICATED or (full == 2 and len(witnesses) > full) else 1


def aged(age_ms: int) -> Finding | None:
    """Finding that figures are stale if they are older than FRESH_MS, else None."""
    if age_ms <= limits.FRESH_MS:
        return None
    return Finding(State.STALE, "", f"figures of {age_ms // 1_000} s ago")


def of_error(error: GossipqError) -> State | None:
    """Health word for an error of a client. None if the error concerns only the request."""
    if isinstance(error, NoQuorum):
        return State.NO_QUORUM
    if isinstance(error, TurnedAway):
        return State.JOINING if error.why == StillJoining.code else State.REFUSED
    if isinstance(error, StoreFull):
        return State.FULL
    return State.UNREACHABLE if isinstance(error, Unreachable) else None


def table() -> list[tuple[str, str, str, str]]:
    """Rows of (word, scope, whether /readyz stays 200, meaning), by precedence, for
    docs/operate/monitoring.md.
    """
    return [
        (state, MEANINGS[state].scope, "yes" if MEANINGS[state].serves else "no", MEANINGS[state].text)
        for state in State
    ]


def wrong_clocks(copies: Iterable[CopyStats], members: Iterable[Member]) -> dict[str, str]:
    """Return node name -> problem of its wall clock, as the leaders of its shards see it."""
    names = {member.copy: member.name for member in members}
    off_ms: dict[str, int] = {}
    for row in copies:
        if row.silent_ms < limits.SILENT_COPY_MS:
            off_ms[row.copy] = max(row.clock_ms, off_ms.get(row.copy, 0), key=abs)
    return {
        names.get(copy, copy): f"the wall clock of {names.get(copy, copy)} is {span(abs(ms))} "
        f"{'ahead of' if ms > 0 else 'behind'} the time of its cluster"
        for copy, ms in off_ms.items()
        if abs(ms) > limits.CLOCK_OFF_MS
    }
