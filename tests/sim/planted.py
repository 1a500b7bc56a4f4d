"""Planted bugs: each patches one rule of the core and names the check that must find it.

They test the simulator: a check that misses its planted bug would miss a real one too. `sim.hunt` runs each
of them over fresh seeds. The docstring of a patch says what the core does wrong under it.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
import pytest

from gossipq import limits
from gossipq.core.copies import snapshot
from gossipq.core.copies.peers import Peers
from gossipq.core.copies.reconfiguration import Reconfiguration
from gossipq.core.delivery import consumers, dispatch, selector, tries
from gossipq.core.delivery.attempts import Attempts, Budget
from gossipq.core.delivery.consumers import PartitionView, Subscription
from gossipq.core.delivery.dispatch import Dispatch
from gossipq.core.delivery.expiry import Expiry
from gossipq.core.delivery.flow_backlog import FlowBacklogs
from gossipq.core.delivery.flow_limits import FlowLimits
from gossipq.core.delivery.flow_pauses import FlowPauses
from gossipq.core.delivery.flows import NONE, FlowIndex, FlowRun, Level
from gossipq.core.delivery.holdings import Holdings
from gossipq.core.delivery.key_order import DONE, KeyOrder
from gossipq.core.delivery.keys import UNBOUNDED, Keys
from gossipq.core.delivery.limit_division import LimitDivision, LimitUse
from gossipq.core.delivery.outbox import Outbox
from gossipq.core.delivery.prefetch import Prefetch
from gossipq.core.delivery.selector import Selector
from gossipq.core.delivery.settlement import Settlement
from gossipq.core.delivery.window import MOVED, Lease, OwnedLeases
from gossipq.core.desk import Answers, Asker, Desk, Request
from gossipq.core.leader import SERVES, Leader
from gossipq.core.ledger import ScheduleName, outcomes, records
from gossipq.core.ledger.cluster_state import ClusterState
from gossipq.core.ledger.dedup import Dedup
from gossipq.core.ledger.joins import Joins
from gossipq.core.ledger.ledger import Ledger
from gossipq.core.ledger.partitions import Partitions
from gossipq.core.ledger.producers import Producer, Producers
from gossipq.core.ledger.results import Results
from gossipq.core.ledger.retention import Sweeper
from gossipq.core.ledger.schedule import ScheduledRecords
from gossipq.core.ledger.timetable import Timetable
from gossipq.core.raft import campaign, cluster_time, voters
from gossipq.core.raft.cluster_time import ClusterTime
from gossipq.core.raft.progress import Progress
from gossipq.core.raft.replica import HardState, Replica
from gossipq.core.register.roster import Roster
from gossipq.core.register.topics import TopicRegister
from gossipq.core.requests import schedules, ticks
from gossipq.core.requests.jobs import JobRequests
from gossipq.core.requests.joins import JoinRequests, OpenJoin
from gossipq.core.requests.letters import LetterJob
from gossipq.core.requests.mend import MendRequests
from gossipq.core.requests.publish import PublishRequests
from gossipq.core.requests.schedules import ScheduleRequests
from gossipq.core.shard import Shard
from gossipq.core.storage import log, payloads
from gossipq.core.storage.log import Entry
from gossipq.core.storage.payloads import CopySet, ReleaseRow
from gossipq.errors import StoreError
from gossipq.messages import Acked, AskJob
from gossipq.types import DELAY, ID_HASH, KEY_HASH, Slice
from gossipq.values import JobInfo, Rate
from sim import cancels, clients, divided, jobs, results, world
from sim.clients import SHARDED
from sim.disk import Disk
from sim.faults import Faults
from sim.history import Copy
from sim.jobs import MODES
from sim.node import MeantFault, Node
from sim.world import FIXED, STEERED, Probe, World

Patch = Callable[[pytest.MonkeyPatch], None]
WAY_MS = 200  #: the longest time that a message needs between two distant hosts


class Planted(NamedTuple):
    """A planted bug, the check that must find it, and the runs in which it can show."""

    plant: Patch
    trips: str  #: the label of its fault, or the name of an error that the core raises
    adversary: bool = False  #: leaders fall at the worst moment
    under: Patch | None = None  #: a second patch, which makes the conditions that the bug needs
    kinds: tuple[str, ...] = FIXED  #: of clusters
    modes: tuple[str, ...] = MODES  #: of groups of jobs


def leaders_are_cut_off(patch: pytest.MonkeyPatch) -> None:
    """Cut each leader off from the other copies after a while, for some seconds. Its clients still reach
    it."""

    def later(faults: Faults, node: Node, shard: Shard) -> None:
        after_ms, for_ms = faults.dice.randrange(300, 1_500), faults.dice.randrange(2_000, 4_000)
        faults.world.at(after_ms, faults.isolate, node.name[0], for_ms)

    patch.setattr(Faults, "greet_leader", later)


def some_nodes_are_far_away(patch: pytest.MonkeyPatch) -> None:
    """Cut leaders off, and give each pair of hosts its own delay, so that another copy hears of a leader
    sooner than the next leader does."""
    delays = Faults.delays

    def far(faults: Faults, source: str, target: str) -> list[int]:
        wire = Random(f"{faults.world.seed} {min(source, target)} {max(source, target)}")
        way_ms = 0 if "x" in (source, target) else wire.randrange(WAY_MS)
        return [delay_ms + way_ms for delay_ms in delays(faults, source, target)]

    patch.setattr(Faults, "delays", far)
    leaders_are_cut_off(patch)


def leaders_fall_at_once(patch: pytest.MonkeyPatch) -> None:
    """Cut each leader off, with its clients, when its first entries may be committed. At the same time the
    leader before it is reachable again, whose log has more entries that were not committed."""

    def fall(faults: Faults, node: Node, shard: Shard) -> None:
        faults.cuts.clear()
        faults.world.at(faults.dice.randrange(20, 60), faults.isolate, node.name[0], 3_000)

    patch.setattr(Faults, "greet_leader", fall)


def confirm_before_fsync(patch: pytest.MonkeyPatch) -> None:
    """A leader confirms entries before its disk has them, and the turn does not sync."""
    patch.setattr(Shard, "promised", property(lambda shard: shard.replica.hard_changed))
    patch.setattr(Replica, "dirty", property(lambda replica: replica.hard_changed))
    advance = Shard.advance

    def eager(shard: Shard, boot_ms: int) -> Any:
        shard.replica.saved, shard.desk.promised = shard.replica.log.last, False
        if shard.leading:
            shard.replica._advance()
        return advance(shard, boot_ms)

    patch.setattr(Shard, "advance", eager)


def confirm_on_leader_only(patch: pytest.MonkeyPatch) -> None:
    def advance(replica: Replica) -> None:
        replica.commit = max(replica.commit, replica.saved)

    patch.setattr(Replica, "_advance", advance)


def vote_not_stored(patch: pytest.MonkeyPatch) -> None:
    take = Replica.take_unsaved

    def forgetful(replica: Replica) -> Any:
        taken = take(replica)
        if taken.hard is None:
            return taken
        return msgspec.structs.replace(taken, hard=HardState(taken.hard.term, ""))

    patch.setattr(Replica, "take_unsaved", forgetful)


def term_reset_on_restart(patch: pytest.MonkeyPatch) -> None:
    init = Replica.__init__

    def reset(replica: Replica, me: str, config: Any, hard: HardState, *rest: Any) -> None:
        init(replica, me, config, HardState(), *rest)

    patch.setattr(Replica, "__init__", reset)


def compare_index_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(campaign, "up_to_date", lambda replica, request: request.last_index >= replica.log.last)


def quorum_of_the_visible(patch: pytest.MonkeyPatch) -> None:
    """A majority of the copies that answer is enough, even if only one answers."""
    patch.setattr(voters, "quorum_size", lambda names: max(1, len(names) // 2))


def old_term_by_count(patch: pytest.MonkeyPatch) -> None:
    """A leader commits an entry of an older term as soon as a majority has it, without an entry of its own
    term behind it (figure 8 of the Raft paper). The NOOP, which would hide that, comes 100 ms later."""
    tick, propose, advance, take_over = Shard.tick, Desk.propose, Replica._advance, Shard._take_over
    led_ms: dict[Shard, int] = {}  # when it took over

    def count(replica: Replica) -> None:
        matches = [
            replica.progress[n].match if n in replica.progress else replica.saved
            for n in replica.config.voters
        ]
        if replica.config.voters:
            index = sorted(matches)[len(matches) - voters.quorum_size(replica.config.voters)]
            replica.commit = max(replica.commit, min(index, replica.log.last))
        advance(replica)

    def later(desk: Desk, kind: int, payload: bytes, *rest: Any, **more: Any) -> int:
        if kind == log.NOOP and desk.replica.commit < desk.replica.log.last:
            return 0
        return propose(desk, kind, payload, *rest, **more)

    def timed(shard: Shard) -> Leader:
        led_ms[shard] = shard.desk.boot_ms
        return take_over(shard)

    def catch_up(shard: Shard) -> None:
        tick(shard)
        over = (
            shard.desk.boot_ms > led_ms.get(shard, 0) + 100 and shard.replica.commit == shard.replica.log.last
        )
        leader = shard.leadership
        if leader is not None and leader.state is not SERVES and over:
            propose(shard.desk, log.NOOP, b"")

    patch.setattr(Replica, "_advance", count)
    patch.setattr(Desk, "propose", later)
    patch.setattr(Shard, "_take_over", timed)
    patch.setattr(Shard, "tick", catch_up)


def reborn_replica_votes(patch: pytest.MonkeyPatch) -> None:
    """A copy whose disk was lost returns empty under its old name, and votes."""

    def reborn(faults: Faults, node: Node) -> None:
        for table in node.disk.tables:
            table.delete_range(b"", b"\xff" * 8, 2**31)
        known = next(
            other.shard.replica.config for other in faults.world.nodes.values() if other.shard is not None
        )
        meta = records.Meta(voters=known.voters)
        node.disk.state.put(records.META, records.encode(meta))
        node.disk.commit()
        node.on_disk.clear()

    found = World._found

    def unlucky(world: World) -> None:
        world.faults.wipes = True
        found(world)

    patch.setattr(Faults, "ruin", reborn)
    patch.setattr(World, "_found", unlucky)


def cut_to_commit(patch: pytest.MonkeyPatch) -> None:
    """A follower that hears a new leader drops all entries that it does not know to be committed, as Kafka
    did before KIP-101."""
    hear = Replica.hear

    def cut(replica: Replica, leader: str) -> None:
        if replica.leader != leader and replica.commit < replica.log.last:
            replica._cut(replica.commit + 1)
        hear(replica, leader)

    patch.setattr(Replica, "hear", cut)


def push_before_commit(patch: pytest.MonkeyPatch) -> None:
    advance = Shard.advance

    def early(shard: Shard, boot_ms: int) -> Any:
        if shard.serving and not shard.replica.dirty:
            shard.replica.commit = shard.replica.log.last
        return advance(shard, boot_ms)

    patch.setattr(Shard, "advance", early)


def acked_before_commit(patch: pytest.MonkeyPatch) -> None:
    def early(gathering: Outbox, index: int, *waiters: Any) -> None:
        for waiter in waiters:
            waiter.entries += 1  # no later outcome takes the answer back
            gathering._desk.reply(waiter, Acked(waiter.lost))

    patch.setattr(Outbox, "_waits", early)


def snapshot_without_producers(patch: pytest.MonkeyPatch) -> None:
    read = snapshot.Spool.read

    def forgetful(spool: snapshot.Spool, rows_max: int) -> None:
        before = len(spool.parts)
        read(spool, rows_max)
        for number in range(before, len(spool.parts)):
            rows = [row for row in msgspec.msgpack.decode(spool.parts[number]) if row[0][:1] != b"S"]
            spool.parts[number] = msgspec.msgpack.encode(rows)

    patch.setattr(snapshot.Spool, "read", forgetful)


def lease_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A leader that was paused or cut off delivers without asking whether it still leads."""
    patch.setattr(Replica, "holds_lease", property(lambda replica: replica.role == "leader"))
    patch.setattr(Replica, "keep_leading", lambda replica: replica._advance())


def wall_clock_in_apply(patch: pytest.MonkeyPatch) -> None:
    turn, apply = Node.turn, Ledger.apply
    wall: list[int] = [0]

    def timed(node: Node) -> None:
        wall[0] = node.clock().wall_ms
        turn(node)

    def local(ledger: Ledger, entry: Entry) -> object:
        return apply(ledger, msgspec.structs.replace(entry, time_ms=wall[0]))

    patch.setattr(Node, "turn", timed)
    patch.setattr(Ledger, "apply", local)


def reader_drops_last_batch(patch: pytest.MonkeyPatch) -> None:
    """A bug of the checkers, not of the core: the dump of a copy lacks the last record of each partition."""
    dump = Node.dump

    def short(node: Node, shard: Shard) -> Copy:
        copy = dump(node, shard)
        for kept in copy.records.values():
            kept.pop(max(kept, default=0), None)
        return copy

    patch.setattr(Node, "dump", short)


def quorums_that_do_not_meet(patch: pytest.MonkeyPatch) -> None:
    """Several voters change in one entry, so that two majorities need not share a copy."""
    patch.setattr(
        Peers,
        "check_change",
        lambda self, message: CopySet(message.voters, message.witnesses, message.learners),
    )


def memory_ahead_of_disk(patch: pytest.MonkeyPatch) -> None:
    """After a failed commit, the worker keeps the state in memory instead of reading it from disk again."""

    commit = Node.commit

    def keep(node: Node) -> None:
        try:
            commit(node)
        except StoreError:
            node.disk.undo()

    patch.setattr(Node, "commit", keep)


def apply_reads_outside(patch: pytest.MonkeyPatch) -> None:
    """Applying an entry reads the state of a producer from memory alone, which a restart empties."""

    def remembered(producers: Producers, partition: int, producer: bytes) -> Producer:
        return producers._opened.setdefault((partition, producer), Producer(None))

    patch.setattr(Producers, "get", remembered)


def handed_out_when_over(patch: pytest.MonkeyPatch) -> None:
    """A leader delivers records without checking whether they have expired."""
    patch.setattr(Selector, "is_expired", lambda self, view, first, end, attempts, place: (False, end))


def living_records_hide_expired_ones(patch: pytest.MonkeyPatch) -> None:
    """In a group without a consumer, a record expires only when no older record waits before it."""
    waiting = Expiry._waiting

    def front(expiry: Expiry, view: PartitionView, first: int, end: int) -> list[tuple[int, int, int]]:
        return [each for each in waiting(expiry, view, first, end) if each[0] == view.window.next]

    patch.setattr(Expiry, "_waiting", front)


def early(patch: pytest.MonkeyPatch) -> None:
    """Records are released before they are due, on every copy."""
    plan, release, next_ms = ScheduledRecords.plan, ScheduledRecords.release, ScheduledRecords.next_ms
    patch.setattr(
        ScheduledRecords, "plan", lambda self, leader_ms, opened: plan(self, leader_ms + 2_000, opened)
    )
    patch.setattr(
        ScheduledRecords,
        "release",
        lambda self, row, offset, time_ms: release(self, row, offset, time_ms + 2_000),
    )
    patch.setattr(
        ScheduledRecords, "next_ms", lambda self: (due_ms := next_ms(self)) and max(0, due_ms - 2_000)
    )


def ids_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Every id counts as older than the dedup window."""
    find = Dedup.sort_out
    patch.setattr(Dedup, "sort_out", lambda self, *what: find(self, *what[:4], -1, *what[5:]))


def ids_leave_before_their_records_are_due(patch: pytest.MonkeyPatch) -> None:
    """The dedup window of an id begins when its record is published, even if the record is delayed."""
    find = Dedup.sort_out
    patch.setattr(Dedup, "sort_out", lambda self, *what: find(self, *what[:5]))


def ids_meet_again(patch: pytest.MonkeyPatch) -> None:
    """Give jobs delays and a few ids, with a dedup window that is shorter than most delays."""
    patch.setattr(jobs, "ASKS", (DELAY, ID_HASH))
    patch.setattr(jobs, "DEDUP_MS", (jobs.SHORT_MS,))
    patch.setattr(jobs, "IDS", 6)


def two_at_once(patch: pytest.MonkeyPatch) -> None:
    """A leader delivers to all consumers of an exclusive group, and records of one key to several
    consumers."""
    for module in (consumers, dispatch, selector):
        patch.setattr(module, "EXCLUSIVE", "")
    patch.setattr(Keys, "allowed", lambda self, hashes, *rest: len(hashes))


def one_attempt_too_many(patch: pytest.MonkeyPatch) -> None:
    policy = Attempts.policy

    def patient(failing: Attempts, view: Any, place: Any) -> Any:
        found = policy(failing, view, place)
        return found._replace(attempts_max=found.attempts_max + 1)

    patch.setattr(Attempts, "policy", patient)


def at_most_once_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A leader delivers to a group without acks and does not store the records as done."""

    def ack_on_delivery(
        settlement: Settlement, subscription: Subscription, view: PartitionView, first: int, end: int
    ) -> None:
        view.window.move(first, end, MOVED)
        settlement.key_order.release_keys(view, first, end, DONE, held=False)

    patch.setattr(Settlement, "ack_on_delivery", ack_on_delivery)


def routes_not_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(consumers, "matcher", lambda routes: None)


def names_not_unique(patch: pytest.MonkeyPatch) -> None:
    """A new row of the roster does not replace an older row with the same name."""

    def member(state: ClusterState, entry: Entry, payload: payloads.RosterChange) -> outcomes.Outcome:
        copy = payload.member.copy
        state.members.pop(copy, None)
        if not payload.gone:
            state.members[copy] = payload.member
            state._state.put(b"m" + copy.encode(), records.encode(payload.member))
        state.roster_version = entry.index
        return outcomes.DONE

    patch.setattr(ClusterState, "member", member)


def commit_ahead_of_own_disk(patch: pytest.MonkeyPatch) -> None:
    """A leader commits an entry that two other copies have, before its own disk has it."""
    advance = Replica._advance

    def ahead(replica: Replica) -> None:
        advance(replica)
        others = sorted((other.match for other in replica.progress.values() if other.full), reverse=True)
        if len(others) > 1 and replica.log.term_at(others[1]) == replica.hard.term:
            replica.commit = max(replica.commit, others[1])

    patch.setattr(Replica, "_advance", ahead)


def one_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """A leader uses its own wall clock, instead of the clocks of a majority and its boot clock."""
    lead = ClusterTime.lead

    def trusting(time: ClusterTime, voters: list[str], last_ms: int) -> None:
        time.heard_leader(time.reading().wall_ms, True)
        lead(time, voters, last_ms)

    patch.setattr(ClusterTime, "lead", trusting)


def first_clock_heard(patch: pytest.MonkeyPatch) -> None:
    """The latest wall clock decides, instead of the time that a majority of clocks has passed."""
    patch.setattr(cluster_time, "passed", lambda clocks, voters: max(clocks))


def delays_go_by_leader_time(patch: pytest.MonkeyPatch) -> None:
    """A delay ends by the time of the present leader, which may be ahead of the leader that stored the
    delay."""
    patch.setattr(ClusterTime, "timer_ahead_ms", ClusterTime.ahead_ms)


def all_expire_at_once(patch: pytest.MonkeyPatch) -> None:
    """A leader logs all failed and expired records in one turn, without a budget."""
    patch.setattr(Budget, "__bool__", lambda budget: True)
    patch.setattr(Holdings, "overdue", property(lambda holdings: False))


def group_of_a_topic_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    """A subscription that was checked before its topic was removed is not checked again when it is
    applied."""
    group = Ledger._group

    def unchecked(ledger: Ledger, entry: Entry, payload: payloads.GroupChange) -> outcomes.Outcome:
        outcome = group(ledger, entry, payload)
        if outcome.error != "unknown_topic":
            return outcome
        zombie = records.GroupState(entry.index, payload.topic_id, payload.name, payload.config)
        ledger.groups[zombie.id], ledger.group_ids[zombie.topic_id, zombie.name] = zombie, zombie.id
        ledger.state.put(records.key(b"G", zombie.id), records.encode(zombie))
        return outcomes.DONE

    patch.setattr(Ledger, "_group", unchecked)


def removal_not_carried_on(patch: pytest.MonkeyPatch) -> None:
    """A new leader of the meta shard forgets the topics that the leader before it had begun to remove."""
    lead = TopicRegister.lead

    def forgetful(register: TopicRegister) -> None:
        installing = register._cluster.installing
        register._cluster.installing = {name: row for name, row in installing.items() if not row.deleted}
        lead(register)
        register._cluster.installing = installing

    patch.setattr(TopicRegister, "lead", forgetful)


def tail_without_bound(patch: pytest.MonkeyPatch) -> None:
    """A leader accepts publishes without a bound, when the disks of its followers are far behind."""
    patch.setattr(Desk, "crowded", property(lambda desk: False))


def disks_are_slow(patch: pytest.MonkeyPatch) -> None:
    """Slow down all disks but one, for 3 of each 4 seconds."""

    def commit_ms(faults: Faults, node: Node) -> int:
        slow = not faults.world.calm and node.name != "a.1" and faults.world.now % 4_000 > 1_000
        return faults.dice.choice((100, 400, 1_200)) if slow else faults.dice.randrange(1, 4)

    patch.setattr(Faults, "commit_ms", commit_ms)


def acks_believed(patch: pytest.MonkeyPatch) -> None:
    """A leader accepts an ack without checking that the consumer got the record."""
    patch.setattr(Settlement, "_not_repeated", lambda settlement, view, consumer, parts: [])


def snapshot_read_at_once(patch: pytest.MonkeyPatch) -> None:
    read = snapshot.Spool.read
    patch.setattr(snapshot.Spool, "read", lambda spool, rows_max: read(spool, 2**31))


def letters_at_once(patch: pytest.MonkeyPatch) -> None:
    """A replay or a purge is one entry, even of very many dead letters."""
    piece = LetterJob.piece

    def whole(job: LetterJob, cursor: Any) -> Any:
        with pytest.MonkeyPatch.context() as limit:
            limit.setattr(limits, "LETTERS_PER_TURN", 2**31)
            return piece(job, cursor)

    patch.setattr(LetterJob, "piece", whole)


def leadership_to_who_cannot_store(patch: pytest.MonkeyPatch) -> None:
    """A copy that answers counts as one that keeps up, even if its disk is full. Leadership moves to it
    without a trial, and again at once when that has failed."""

    def judge(progress: Progress, saved: int, now_ms: int) -> None:
        progress.synced &= now_ms < progress.heard_ms + limits.ELECTION_MS

    def hand_over(reconfiguration: Reconfiguration, name: str, now_ms: int) -> None:
        reconfiguration._peers.hand_over(name)

    patch.setattr(Progress, "judge", judge)
    patch.setattr(Reconfiguration, "_try_out", hand_over)
    patch.setattr(Reconfiguration, "_doubt", lambda reconfiguration, name, now_ms: None)


def who_should_lead_has_a_full_disk(patch: pytest.MonkeyPatch) -> None:
    """Crash the preferred leader of the first probe's shard once all is healed, and let it return and keep
    up. When leadership is about to move back to it, fill its disk: it refuses new log entries, and nothing
    else."""
    core, goes_on, rest, fails = World.core, Probe.goes_on, World._rest, Faults.commit_fails
    filled: dict[World, str] = {}

    def whole(world: World) -> list[Node]:
        core(world)
        world.full = True
        return [node for node in world.nodes.values() if not node.dead]

    def begin(probe: Probe) -> None:
        world = probe.world
        if world.shards > 1 and world not in filled:
            node = world.nodes[sorted(world.nodes)[probe.shard]]
            filled[world] = ""
            node.crash()
            world.at(500, node.start)
            world.at(600, fill, world, node, probe.shard)
        goes_on(probe)

    def fill(world: World, node: Node, shard: int) -> None:
        leader = world.leader(shard)
        led = leader.shard_of(shard) if leader is not None else None
        kept_up = led.reconfiguration._kept_up if led is not None else None
        since_ms = kept_up[1] if kept_up is not None and kept_up[0] == node.name else None
        if led is None or since_ms is None or led.desk.boot_ms < since_ms + limits.HAND_BACK_MS - 100:
            world.at(10, fill, world, node, shard)
        else:
            filled[world] = node.name

    def refuses(faults: Faults, node: Node) -> bool:
        new = any(before is None for disk in node.disks for _, before in disk.log.journal)
        return (new and filled.get(node.world) == node.name) or fails(faults, node)

    def freed(world: World) -> None:
        filled.pop(world, None)
        rest(world)

    patch.setattr(World, "core", whole)
    patch.setattr(World, "_rest", freed)
    patch.setattr(Probe, "goes_on", begin)
    patch.setattr(Faults, "commit_fails", refuses)


def keys_meet_leaders_that_are_cut_off(patch: pytest.MonkeyPatch) -> None:
    """Give jobs keys only, and publish more of them than the consumers can do. Cut the leader off from the
    other copies every few seconds; its clients still reach it."""

    def strike(faults: Faults) -> None:
        if faults.world.calm:
            return
        if (leader := faults.world.leader()) is not None:
            faults.isolate(leader.name[0], 2_000)
        faults.world.at(faults.dice.randrange(2_300, 3_000), faults.strike)

    patch.setattr(Faults, "strike", strike)
    patch.setattr(Faults, "greet_leader", lambda faults, node, shard: None)
    patch.setattr(jobs, "ASKS", (KEY_HASH,))
    patch.setattr(jobs, "COUNTS", (4, 8))
    patch.setattr(jobs, "BATCHES_MAX", 300)
    patch.setattr(jobs, "WINDOWS", (None,))


def key_freed_when_heard(patch: pytest.MonkeyPatch) -> None:
    """A leader frees a key when it receives the ack, which may never be stored."""
    done = Settlement._finish

    def eager(settlement: Settlement, view: PartitionView, *rest: Any) -> Any:
        for first, end in done(settlement, view, *rest):
            settlement.key_order.release_keys(view, first, end, DONE)
            yield first, end

    patch.setattr(Settlement, "_finish", eager)


def commit_without_sync(patch: pytest.MonkeyPatch) -> None:
    """A commit is not synced: it survives the end of the process, and not the end of the machine."""
    patch.setattr(Disk, "sync", lambda disk: None)


def letters_not_swept(patch: pytest.MonkeyPatch) -> None:
    """Dead letters of a removed group or topic stay, with their batches."""
    bodies = Sweeper._bodies

    def some(sweeper: Sweeper, prefixes: tuple[bytes, ...], *rest: Any) -> int:
        return bodies(sweeper, tuple(each for each in prefixes if each != b"L"), *rest)

    patch.setattr(Sweeper, "_bodies", some)


def kept_batches_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Batches that were kept for a snapshot are not deleted when the snapshot was read."""
    keep_bodies = Ledger.keep_bodies

    def forgetful(ledger: Ledger, keep: bool, swept: bool = False) -> None:
        ledger._kept = ledger._kept if keep else []
        keep_bodies(ledger, keep, swept)

    patch.setattr(Ledger, "keep_bodies", forgetful)


def ids_never_leave(patch: pytest.MonkeyPatch) -> None:
    """Ids that leave the dedup window are still counted."""
    evict = Dedup.evict

    def uncounted(dedup: Dedup, *what: Any) -> int:
        evict(dedup, *what)
        return 0

    patch.setattr(Dedup, "evict", uncounted)


def given_back_to_nobody(patch: pytest.MonkeyPatch) -> None:
    """Records that a consumer gave back, or held when it ended, wait until the next leader delivers them."""
    patch.setattr(Holdings, "give_back", lambda holdings, view, first, end, tried: None)


def deliveries_are_attempts(patch: pytest.MonkeyPatch) -> None:
    """Each delivery counts as an attempt, even if the consumer did not begin with the record."""
    patch.setattr(tries, "after", lambda attempt, started: 2 * attempt)


def retries_of_another_leader(patch: pytest.MonkeyPatch) -> None:
    """A new leader does not look for records that wait for a retry, until another record fails."""
    reopen = Dispatch._reopen

    def forgetful(dispatch: Dispatch, view: PartitionView, *clocks: int) -> Any:
        sessions = reopen(dispatch, view, *clocks)
        dispatch.readback.set_retry_deadline(view, None)
        return sessions

    patch.setattr(Dispatch, "_reopen", forgetful)


def release_drops_the_rest(patch: pytest.MonkeyPatch) -> None:
    """When some records of a batch are due, the others of the batch are dropped."""
    release = ScheduledRecords.release

    def greedy(schedule: ScheduledRecords, row: ReleaseRow, *rest: int) -> Slice | None:
        part, found = release(schedule, row, *rest), schedule.get(row.partition, row.index, row.end)
        if part is not None and found is not None:
            schedule._drop(row.partition, row.index, *found)
        return part

    patch.setattr(ScheduledRecords, "release", greedy)


def failures_close_their_keys(patch: pytest.MonkeyPatch) -> None:
    """A key that a failed record blocks stays blocked when that record is done."""
    patch.setattr(Keys, "done", lambda keys, key_hash, offset: None)


def busy_keys_use_credit(patch: pytest.MonkeyPatch) -> None:
    """A consumer gets as many records of one key as it has credit for."""
    patch.setattr(Subscription, "runs", UNBOUNDED)


def loans_are_kept(patch: pytest.MonkeyPatch) -> None:
    """A leader answers that it gives credit back, and still uses that credit."""
    recall = Dispatch.recall

    def kept(dispatch: Dispatch, subscription: Subscription) -> tuple[int, int]:
        records, size = recall(dispatch, subscription)
        dispatch.grant_credit(subscription, records, size)
        return records, size

    patch.setattr(Dispatch, "recall", kept)


def starts_are_not_heard(patch: pytest.MonkeyPatch) -> None:
    """A leader forgets which records user code has begun with."""
    patch.setattr(Settlement, "start", lambda settlement, subscription, ranges: None)


def everybody_plans(patch: pytest.MonkeyPatch) -> None:
    """Give each run a client that sets schedules."""
    patch.setattr(world, "PLANS_SHARE", 1.0)


def everybody_claims(patch: pytest.MonkeyPatch) -> None:
    """Give each run a client that publishes under unique names."""
    patch.setattr(world, "NAMES_SHARE", 1.0)


def names_of_due_records_are_free(patch: pytest.MonkeyPatch) -> None:
    """A record with an offset holds no unique name."""
    waiting = Ledger.waiting

    def scheduled(ledger: Ledger, partition: int, index: int, numbers: Sequence[int]) -> set[int]:
        found = waiting(ledger, partition, index, numbers)
        return {number for number in found if ledger.offset_of(partition, index, number) is None}

    patch.setattr(Ledger, "waiting", scheduled)


def replaced_records_stay(patch: pytest.MonkeyPatch) -> None:
    """A record is stored beside the one that it replaces."""
    patch.setattr(Partitions, "_make_way", lambda partitions, entry, partition, place: -1)


def done_records_hold_their_names(patch: pytest.MonkeyPatch) -> None:
    """A record keeps its unique name when it is done."""
    patch.setattr(Ledger, "waiting", lambda ledger, partition, index, numbers: set(numbers))


def everybody_cancels(patch: pytest.MonkeyPatch) -> None:
    """Give each run a client that cancels records while a consumer has them."""
    everybody_claims(patch)
    patch.setattr(cancels, "CANCELS_SHARE", 1.0)


def records_are_cancelled_as_leaders_fall(patch: pytest.MonkeyPatch) -> None:
    """Cut leaders off while clients cancel records."""
    everybody_cancels(patch)
    leaders_are_cut_off(patch)


def cancels_last_as_long_as_their_leader(patch: pytest.MonkeyPatch) -> None:
    """A cancel takes the record from its consumer, and is not stored: the next leader delivers it again."""
    void = Partitions.void

    def taken(partitions: Partitions, entry: Entry, payload: payloads.Void) -> outcomes.Outcome:
        if payload.offset < 0 or payload.publish:
            return void(partitions, entry, payload)
        return outcomes.Voided()

    patch.setattr(Partitions, "void", taken)


def cancels_are_confirmed_unstored(patch: pytest.MonkeyPatch) -> None:
    """A leader confirms a cancel before it is stored."""
    propose = MendRequests._propose

    def eager(
        room: MendRequests, request: Request, kind: int, payload: bytes, answer: Any, body: bytes = b""
    ) -> None:
        if kind != log.VOID:
            propose(room, request, kind, payload, answer, body)
            return
        room._desk.propose(kind, payload)
        room._desk.reply(request, answer)

    patch.setattr(MendRequests, "_propose", eager)


def everybody_joins(patch: pytest.MonkeyPatch) -> None:
    """Give each run a client that joins jobs."""
    patch.setattr(world, "JOINS_SHARE", 1.0)


def jobs_are_joined_as_leaders_fall(patch: pytest.MonkeyPatch) -> None:
    """Cut leaders off while clients join jobs."""
    everybody_joins(patch)
    leaders_are_cut_off(patch)


def joined_records_stay_on_disk(patch: pytest.MonkeyPatch) -> None:
    """The rows of a join stay on disk after its publish, so a copy that restarts publishes it again."""
    patch.setattr(Joins, "_remove", lambda joins, name: joins._pop(name))


def joins_count_one_end_more(patch: pytest.MonkeyPatch) -> None:
    """A leader publishes the record of a join while one of its parts has not ended."""
    patch.setattr(OpenJoin, "is_over", property(lambda join: len(join.ends) >= join.row.count - 1))


def running_parts_have_ended(patch: pytest.MonkeyPatch) -> None:
    """The leader of a part answers that it has succeeded when a consumer gets it."""
    info = JobRequests._info

    def hasty(room: JobRequests, message: AskJob) -> JobInfo:
        found = info(room, message)
        if message.wait_ms or found.state != "running":
            return found
        return msgspec.structs.replace(found, state="succeeded")

    patch.setattr(JobRequests, "_info", hasty)


def joins_end_with_their_leader(patch: pytest.MonkeyPatch) -> None:
    """A new leader ignores the joins that exist."""
    patch.setattr(JoinRequests, "lead", lambda room: None)


def ticks_are_early(patch: pytest.MonkeyPatch) -> None:
    """A leader stores the record of a tick up to half a second before it."""
    due_ticks = ticks.due_ticks
    patch.setattr(
        schedules,
        "due_ticks",
        lambda calendar, schedule, after_ms, now_ms: due_ticks(calendar, schedule, after_ms, now_ms + 500),
    )


def removed_schedules_go_on(patch: pytest.MonkeyPatch) -> None:
    """A leader confirms the removal of a schedule, and keeps the schedule."""
    patch.setattr(Timetable, "_remove", lambda timetable, name: outcomes.Counted(1))


def schedules_end_with_their_leader(patch: pytest.MonkeyPatch) -> None:
    """A new leader ignores the schedules that exist."""
    patch.setattr(ScheduleRequests, "lead", lambda requests: None)


def schedules_outlive_their_topic(patch: pytest.MonkeyPatch) -> None:
    """A leader looks up a due schedule that was removed with its topic, and fails."""
    log_ticks = ScheduleRequests._log_ticks

    def looked_up(requests: ScheduleRequests, name: ScheduleName, ticks_max: int) -> int:
        return log_ticks(requests, name, ticks_max) if requests._rows[name] else 0

    patch.setattr(ScheduleRequests, "_log_ticks", looked_up)


def everybody_has_results(patch: pytest.MonkeyPatch) -> None:
    """Let consumers send results with their acks in each run."""
    patch.setattr(world, "RESULTS_SHARE", 1.0)


def jobs_are_asked_for_as_their_acks_come(patch: pytest.MonkeyPatch) -> None:
    """Cut leaders off with acks that no other copy has, and let clients ask for the state of these jobs."""
    everybody_has_results(patch)
    leaders_are_cut_off(patch)
    choose = results.Asker.choose

    def newest(asker: results.Asker) -> int:
        for row in reversed(asker.world.history.asked[-10:]):
            if row.partition == asker.partition and row.with_results:
                return row.first
        return choose(asker)

    patch.setattr(results.Asker, "choose", newest)
    patch.setattr(results, "WAITS_MS", (0,))


def everybody_reports(patch: pytest.MonkeyPatch) -> None:
    """Let consumers report their progress in each run."""
    everybody_has_results(patch)
    patch.setattr(world, "PROGRESS_SHARE", 1.0)


def first_reports_stay(patch: pytest.MonkeyPatch) -> None:
    """A copy keeps the first report of a record, and drops later ones."""
    report = Results.report

    def first(results: Results, entry: Entry, payload: payloads.ProgressReports) -> outcomes.Outcome:
        group_id = payload.group_id
        rows = [row for row in payload.rows if results.progress(row.partition, row.offset, group_id) is None]
        return report(results, entry, payloads.ProgressReports(group_id, rows))

    patch.setattr(Results, "report", first)


def reports_outlive_their_jobs(patch: pytest.MonkeyPatch) -> None:
    """A leader takes reports of records that their consumer has acked, and the copies store them."""
    report = Results.report

    def late(results: Results, entry: Entry, payload: payloads.ProgressReports) -> outcomes.Outcome:
        with pytest.MonkeyPatch.context() as each:
            each.setattr(Results, "_open_attempt", lambda *_: 1)
            return report(results, entry, payload)

    patch.setattr(Results, "report", late)
    patch.setattr(Settlement, "holds", lambda *_: True)


def results_without_acks(patch: pytest.MonkeyPatch) -> None:
    """The result of a lost ack is stored."""
    put = Results._put

    def ack(results: Results, entry: Entry, payload: payloads.AckWithResults) -> outcomes.Counted:
        outcome = results._groups.ack(entry, payload.ack)
        for result in payload.results:
            put(results, entry, payload.ack, result, 1)
        return outcome

    patch.setattr(Results, "ack", ack)


def acks_without_results(patch: pytest.MonkeyPatch) -> None:
    """Of the results in an entry, the first one is stored."""
    acked = Results.ack

    def ack(results: Results, entry: Entry, payload: payloads.AckWithResults) -> outcomes.Counted:
        return acked(results, entry, payloads.AckWithResults(payload.ack, payload.results[:1]))

    patch.setattr(Results, "ack", ack)


def ends_before_they_are_stored(patch: pytest.MonkeyPatch) -> None:
    """A leader says that a job has succeeded when its ack comes, before it is stored."""
    answer = JobRequests._info

    def info(requests: JobRequests, message: AskJob) -> JobInfo:
        found = answer(requests, message)
        for acks in requests._explaining._dispatch.settlement._acking.values():
            for each in acks:
                for result in each.results:
                    if (result.partition, result.offset) == (found.ref.partition, found.ref.offset):
                        return msgspec.structs.replace(found, state="succeeded", value=result.value)
        return found

    patch.setattr(JobRequests, "_info", info)


def idle_members_are_passed_over(patch: pytest.MonkeyPatch) -> None:
    """A leader never asks a busy member to give records back for an idle one."""
    patch.setattr(dispatch, "uneven", lambda group, holds, boot_ms: ([], False))


def starts_make_room_twice(patch: pytest.MonkeyPatch) -> None:
    """A record makes room for another one when it starts, and again when it is acked."""
    count = OwnedLeases.count

    def twice(owned: OwnedLeases, lease: Lease, records: int) -> None:
        count(owned, lease, records)
        if lease.started and records < 0:
            owned.unstarted += records

    patch.setattr(OwnedLeases, "count", twice)


def bounds_never_shrink(patch: pytest.MonkeyPatch) -> None:
    """A member that was fast and has become slow may still hold as many records as before."""
    adapt = Prefetch.adapt

    def grow(prefetch: Prefetch, finished: int, boot_ms: int) -> None:
        before = prefetch.most
        adapt(prefetch, finished, boot_ms)
        prefetch.most = max(before, prefetch.most)

    patch.setattr(Prefetch, "adapt", grow)


def windows_are_small(patch: pytest.MonkeyPatch) -> None:
    """Give jobs keys only, and groups a small window, so that records that wait for their key are parked on
    disk."""
    patch.setattr(jobs, "ASKS", (KEY_HASH,))
    patch.setattr(jobs, "WINDOWS", (4,))


def parked_behind_a_free_key(patch: pytest.MonkeyPatch) -> None:
    """When a key becomes free, its records that wait on disk are not delivered, only those in memory."""
    unblock_key = KeyOrder.unblock_key

    def here(key_order: KeyOrder, view: PartitionView, key_hash: int) -> None:
        draining = dict(view.draining)
        unblock_key(key_order, view, key_hash)
        view.draining = draining

    patch.setattr(KeyOrder, "unblock_key", here)


def members_outlive_their_sessions(patch: pytest.MonkeyPatch) -> None:
    """A silent session gives back its records, and stays a member of its groups."""

    def end_leases(dispatch: Dispatch, session: bytes, silent: bool) -> None:
        dispatch.holdings.end_session(session, "")

    patch.setattr(Dispatch, "end_session", end_leases)


def clones_are_believed(patch: pytest.MonkeyPatch) -> None:
    """A clone that claims to be a node gets the row of that node, even if the node still answers
    elsewhere."""
    patch.setattr(Roster, "_stays", lambda roster, known, member: False)


def sequences_swapped(patch: pytest.MonkeyPatch) -> None:
    """When two batches are applied in one pass, each producer gets the sequence of the other one."""
    spoke, apply = Producers.spoke, Shard._apply
    waiting: dict[Producers, list[tuple[Any, ...]]] = {}

    def note(producers: Producers, *what: Any) -> None:
        waiting.setdefault(producers, []).append(what)

    def swapped(shard: Shard, end: int) -> None:
        """`note` was called with (partition, producer, sequence, place, time)."""
        producers, known = shard.ledger.producers, list(shard.desk.unapplied)
        apply(shard, end)
        rows = waiting.pop(producers, [])
        if len(known) > 1 and len(rows) == 2 and rows[0][1] != rows[1][1]:
            rows = [(*rows[0][:2], *rows[1][2:]), (*rows[1][:2], *rows[0][2:])]
        for row in rows:
            spoke(producers, *row)

    patch.setattr(Producers, "spoke", note)
    patch.setattr(Shard, "_apply", swapped)


def refused_as_its_neighbour_was_confirmed(patch: pytest.MonkeyPatch) -> None:
    """A batch that was refused gets the confirm of the batch before it."""
    confirm = Desk.confirm
    before: dict[Desk, Any] = {}

    def alike(desk: Desk, asker: Asker, index: int, outcome: Any) -> None:
        if outcome.error:
            outcome = before.get(desk, outcome)
        else:
            before[desk] = outcome
        confirm(desk, asker, index, outcome)

    patch.setattr(Desk, "confirm", alike)


def leaders_confirm_when_they_resign(patch: pytest.MonkeyPatch) -> None:
    """A leader that resigns confirms the batches that it has written and that are not committed."""
    resign = Shard._resign

    def eager(shard: Shard) -> None:
        desk = shard.desk
        publishes, entries = desk.pending.publishes, {entry.index: entry for entry in desk.unapplied}
        for index in publishes.keys() & entries.keys():
            partition = log.parse_publish(entries[index].payload)[0]
            if (state := shard.ledger.partitions.get(partition)) is not None:
                stored = outcomes.Published(partition=partition, offset=state.next, added=1)
                desk.confirm(publishes.pop(index), index, stored)
        resign(shard)

    patch.setattr(Shard, "_resign", eager)


def requests_meet_faults(patch: pytest.MonkeyPatch) -> None:
    """Raise a fault of the node at the end of one request or batch in fifty."""
    serve, publish = Leader.serve, PublishRequests.publish

    def falls(desk: Desk, request: Request) -> None:
        if request.origin and crc32(b"%d %d" % (desk.last, request.request_id)) % 50 == 0:
            raise MeantFault

    def serve_and_fall(leader: Leader, request: Request) -> None:
        serve(leader, request)
        falls(leader._desk, request)

    def publish_and_fall(room: PublishRequests, request: Request) -> None:
        publish(room, request)
        falls(room._desk, request)

    patch.setattr(Leader, "serve", serve_and_fall)
    patch.setattr(PublishRequests, "publish", publish_and_fall)


def answered_twice_after_a_fault(patch: pytest.MonkeyPatch) -> None:
    """When a fault is contained, the request is refused, and the answer that it already has is sent too."""
    patch.setattr(Answers, "withdraw", lambda *told: None)


def high_priorities_starve(patch: pytest.MonkeyPatch) -> None:
    """A leader delivers the lowest priority first."""

    def lowest(method: Callable[..., Any]) -> Callable[..., Any]:
        def called(index: FlowIndex, *args: Any) -> Any:
            kept = index.levels
            low = next((at for at, level in enumerate(kept) if level.turns), 0)
            index.levels = [level if at == low else Level() for at, level in enumerate(kept)]
            found = method(index, *args)
            index.levels = kept
            return found

        return called

    patch.setattr(FlowIndex, "head", lowest(FlowIndex.head))
    patch.setattr(FlowIndex, "take", lowest(FlowIndex.take))


def deficits_are_kept(patch: pytest.MonkeyPatch) -> None:
    """A flow that becomes empty keeps its deficit, and gets more records when it has some again."""
    close, open_slot = Level.close, Level.open
    kept: dict[int, int] = {}

    def keeps(level: Level, slot: int) -> None:
        flow = level.flows[slot]
        kept[flow] = max(0, level.deficits[slot]) + jobs.WEIGHTS["ada"]
        close(level, slot)

    def opens(level: Level, flow: int) -> int:
        slot = open_slot(level, flow)
        level.deficits[slot] = kept.pop(flow, 0)
        return slot

    patch.setattr(Level, "close", keeps)
    patch.setattr(Level, "open", opens)


def turns_never_end(patch: pytest.MonkeyPatch) -> None:
    """The turn of a flow ends only when it has no more records."""
    drop = FlowIndex.drop

    def stays(index: FlowIndex, run: FlowRun, end: int, spent: int = 0) -> None:
        drop(index, run, end, 0)

    def takes(index: FlowIndex, most: int, together: bool) -> Any:
        level = index.top
        if level is not None:
            level.deficits[level.turns[0]] = most
        return take(index, most, together)

    take = FlowIndex.take
    patch.setattr(FlowIndex, "drop", stays)
    patch.setattr(FlowIndex, "take", takes)


def slots_leak_at_a_takeover(patch: pytest.MonkeyPatch) -> None:
    """A new leader does not count the records that consumers hold."""
    reopen = Dispatch._reopen

    def forgets(dispatch: Dispatch, view: PartitionView, boot_ms: int, timer_ms: int) -> Any:
        slots, view.window.slots = view.window.slots, None
        found = reopen(dispatch, view, boot_ms, timer_ms)
        view.window.slots = slots
        return found

    patch.setattr(Dispatch, "_reopen", forgets)


def leases_outlive_leaders(patch: pytest.MonkeyPatch) -> None:
    """Make leases long, and limit the records of each flow in flight."""
    patch.setattr(jobs, "LIMITS", ({"flow_concurrency": 2, "lease_ms": 30_000},))


def rates_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A delivery is not subtracted from the token bucket of its flow."""
    patch.setattr(FlowLimits, "delivered", lambda limits_, flow, count, now_ms: None)


def batches_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A publish counts as one record for the backlog of its flow, even if its batch has many."""
    require_room = FlowBacklogs.require_room

    def alone(room: FlowBacklogs, partition: int, group_ids: list[int], counts: Any, name_of: Any) -> None:
        require_room(room, partition, group_ids, dict.fromkeys(counts, 1), name_of)

    patch.setattr(FlowBacklogs, "require_room", alone)


def one_flow_floods(patch: pytest.MonkeyPatch) -> None:
    """Put all records into one flow, whose backlog is bounded."""
    patch.setattr(jobs, "LIMITS", ({"flow_backlog": 16, "rate": Rate(10, 1_000, 5)},))
    patch.setattr(jobs, "FLOWS", ("ada",))


def parts_are_raised_at_once(patch: pytest.MonkeyPatch) -> None:
    """The divider raises the part of a leader before another one confirms that its part is lower."""
    hear = LimitDivision.hear

    def forgets(division: LimitDivision, use: LimitUse) -> Any:
        found = hear(division, use)
        for of in division._of.values():
            of.part = of.sent or of.part
        return found

    patch.setattr(LimitDivision, "hear", forgets)


def limits_are_divided(patch: pytest.MonkeyPatch) -> None:
    """Give each cluster a group whose limits are divided."""
    patch.setattr(divided, "SHARE", 1.0)


def pauses_end_with_their_leader(patch: pytest.MonkeyPatch) -> None:
    """A new leader does not pause the flows that its ledger has as paused."""
    patch.setattr(FlowPauses, "restore", lambda pauses, view: None)


def pauses_are_long(patch: pytest.MonkeyPatch) -> None:
    """Let consumers pause flows for 20 s."""
    patch.setattr(clients, "PAUSE_MS", 20_000)
    patch.setattr(jobs, "LIMITS", ({"flow_concurrency": 4},))
    patch.setattr(jobs, "COUNTS", (4,))


def old_records_starve(patch: pytest.MonkeyPatch) -> None:
    """The highest priority always comes first, even if a lower one waits longer than `age_after`."""
    patch.setattr(FlowIndex, "_lift", lambda index, leader_ms: NONE)


def low_priorities_wait(patch: pytest.MonkeyPatch) -> None:
    """Give records two priorities, and let them wait for the rate of their group."""
    patch.setattr(jobs, "LIMITS", ({"age_after_ms": 50, "rate": Rate(50, 1_000, 5)},))
    patch.setattr(jobs, "COUNTS", (4,))
    patch.setattr(jobs, "PRIORITIES", (9, 9, 9, 0))


PLANTED: dict[str, Planted] = {
    planted.plant.__name__: planted
    for planted in (
        Planted(confirm_before_fsync, "P1"),
        Planted(confirm_on_leader_only, "I4"),
        Planted(vote_not_stored, "I7"),
        Planted(term_reset_on_restart, "I7"),
        Planted(compare_index_only, "I4", under=leaders_fall_at_once, kinds=("trio",)),
        Planted(quorum_of_the_visible, "P1"),
        Planted(old_term_by_count, "I4", adversary=True, kinds=("five",)),
        Planted(reborn_replica_votes, "I4", kinds=("trio",)),
        Planted(cut_to_commit, "P17"),
        Planted(push_before_commit, "P5", under=leaders_are_cut_off),
        Planted(acked_before_commit, "P7", under=leaders_are_cut_off),
        Planted(snapshot_without_producers, "P17"),
        Planted(lease_not_checked, "P9", under=leaders_are_cut_off),
        Planted(wall_clock_in_apply, "P17"),
        Planted(reader_drops_last_batch, "P1"),
        Planted(quorums_that_do_not_meet, "I3", under=leaders_are_cut_off, kinds=("grow",)),
        Planted(memory_ahead_of_disk, "P21"),
        Planted(apply_reads_outside, "P17"),
        Planted(commit_ahead_of_own_disk, "P1"),
        Planted(handed_out_when_over, "P12"),
        Planted(living_records_hide_expired_ones, "P12"),
        Planted(early, "P11"),
        Planted(ids_forgotten, "P6"),
        Planted(ids_leave_before_their_records_are_due, "P6", under=ids_meet_again),
        Planted(two_at_once, "P10", modes=("exclusive", "key_ordered")),
        Planted(one_attempt_too_many, "P13"),
        Planted(at_most_once_is_forgotten, "P8", modes=("at most once",)),
        Planted(routes_not_asked, "P16", modes=("routes",)),
        Planted(names_not_unique, "P18", kinds=STEERED),
        Planted(one_wall_clock, "I11"),
        Planted(first_clock_heard, "I11"),
        Planted(delays_go_by_leader_time, "I16", under=some_nodes_are_far_away),
        Planted(all_expire_at_once, "I12", kinds=SHARDED),
        Planted(group_of_a_topic_that_is_gone, "P21", kinds=SHARDED),
        Planted(removal_not_carried_on, "P18", kinds=SHARDED),
        Planted(tail_without_bound, "I13", under=disks_are_slow, kinds=SHARDED),
        Planted(acks_believed, "P22"),
        Planted(snapshot_read_at_once, "I12", kinds=("trio", "roster")),
        Planted(letters_at_once, "I12", kinds=SHARDED),
        Planted(leadership_to_who_cannot_store, "L5", under=who_should_lead_has_a_full_disk, kinds=SHARDED),
        Planted(
            key_freed_when_heard, "P10", under=keys_meet_leaders_that_are_cut_off, modes=("key_ordered",)
        ),
        Planted(commit_without_sync, "P1"),
        Planted(letters_not_swept, "P14", kinds=SHARDED),
        Planted(kept_batches_forgotten, "P14"),
        Planted(ids_never_leave, "P14", kinds=SHARDED),
        Planted(given_back_to_nobody, "L6"),
        Planted(deliveries_are_attempts, "P13"),
        Planted(retries_of_another_leader, "L6", modes=("together",)),
        Planted(release_drops_the_rest, "L6"),
        Planted(failures_close_their_keys, "L6", modes=("key_ordered",)),
        Planted(busy_keys_use_credit, "P10", modes=("key_ordered",)),
        Planted(parked_behind_a_free_key, "L6", under=windows_are_small, modes=("key_ordered",)),
        Planted(loans_are_kept, "P23"),
        Planted(starts_are_not_heard, "P13"),
        Planted(idle_members_are_passed_over, "I17"),
        Planted(starts_make_room_twice, "I18"),
        Planted(bounds_never_shrink, "I18"),
        Planted(members_outlive_their_sessions, "I14"),
        Planted(clones_are_believed, "I15", kinds=STEERED),
        Planted(sequences_swapped, "P6"),
        Planted(refused_as_its_neighbour_was_confirmed, "P6"),
        Planted(names_of_due_records_are_free, "P27", under=everybody_claims),
        Planted(replaced_records_stay, "P27", under=everybody_claims),
        Planted(done_records_hold_their_names, "P27", under=everybody_claims),
        Planted(cancels_last_as_long_as_their_leader, "P28", under=everybody_cancels),
        Planted(cancels_are_confirmed_unstored, "P28", under=records_are_cancelled_as_leaders_fall),
        Planted(joined_records_stay_on_disk, "P30", under=everybody_joins),
        Planted(joins_count_one_end_more, "P30", under=everybody_joins),
        Planted(running_parts_have_ended, "P30", under=everybody_joins),
        Planted(joins_end_with_their_leader, "P30", under=jobs_are_joined_as_leaders_fall),
        Planted(ticks_are_early, "P24", under=everybody_plans),
        Planted(removed_schedules_go_on, "P24", under=everybody_plans),
        Planted(schedules_end_with_their_leader, "P24", under=everybody_plans),
        Planted(schedules_outlive_their_topic, "P21", under=everybody_plans),
        Planted(results_without_acks, "P26", under=everybody_has_results),
        Planted(acks_without_results, "P26", under=everybody_has_results),
        Planted(ends_before_they_are_stored, "P26", under=jobs_are_asked_for_as_their_acks_come),
        Planted(first_reports_stay, "P29", under=everybody_reports),
        Planted(reports_outlive_their_jobs, "P29", under=everybody_reports),
        Planted(leaders_confirm_when_they_resign, "P1", under=leaders_are_cut_off),
        Planted(answered_twice_after_a_fault, "P25", under=requests_meet_faults),
        Planted(high_priorities_starve, "I19", modes=("fair",)),
        Planted(deficits_are_kept, "I20", modes=("fair",)),
        Planted(turns_never_end, "I20", modes=("fair",)),
        Planted(slots_leak_at_a_takeover, "I21", under=leases_outlive_leaders, modes=("fair",)),
        Planted(rates_are_not_counted, "I22", modes=("fair",)),
        Planted(batches_are_not_counted, "I23", under=one_flow_floods, modes=("fair",)),
        Planted(pauses_end_with_their_leader, "I25", under=pauses_are_long, modes=("fair",)),
        Planted(parts_are_raised_at_once, "I26", under=limits_are_divided, kinds=SHARDED),
        Planted(old_records_starve, "I24", under=low_priorities_wait, modes=("fair",)),
    )
}
