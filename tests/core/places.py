"""Where the records of one group in one partition are: each in exactly one place, and memory, its indexes,
rows and counters all say the same. Each check takes a leader's view, and raises AssertionError."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import msgspec

from gossipq.core.delivery import Dispatch, PartitionView
from gossipq.core.delivery.consumers import EXCLUSIVE
from gossipq.core.delivery.window import Lease, MovingRecords, ReadyRecords, RecordState, WaitingRecords
from gossipq.core.ledger import Cursor, Ledger, key_of, records
from gossipq.core.ledger.exceptions import decode_exception, ranges_of
from gossipq.core.shard import Shard
from gossipq.core.storage import log, payloads
from gossipq.core.storage.tables import Table
from gossipq.types import Offset, SessionId
from gossipq.values import GroupConfig

NEVER = 2**63
DRIFT_MS = 100  #: of leader time against boot time, while a leader takes hundreds of turns


def offsets(ranges: Iterable[tuple[Offset, Offset, object]]) -> Iterator[Offset]:
    for first, end, _ in ranges:
        yield from range(first, end)


def reopened(shard: Shard) -> Dispatch:
    """The same by a leader that knows only what is on disk."""
    dispatch = Dispatch(shard.ledger, GroupConfig())
    dispatch.rebuild(shard.desk.boot_ms, shard.desk.leader_ms, shard.desk.timer_ms)
    return dispatch


def held_or_moving(view: PartitionView) -> list[tuple[Offset, Offset, RecordState]]:
    """Records that a consumer has, or that an entry on its way changes."""
    return [each for each in view.window.overlap(0, NEVER) if isinstance(each[2], (Lease, MovingRecords))]


def returned(view: PartitionView) -> set[Offset]:
    """What waits in memory, also for its route or key."""
    return {at for ranges in (view.window.ready, *view.window.lanes.values()) for at in offsets(ranges)}


def fresh(view: PartitionView, end: Offset) -> set[Offset]:
    """What is open, and has no row."""
    cursor = view.cursor
    return {at for low, high in cursor.fresh(cursor.state.start, end) for at in range(low, high)}


def waiting(cursor: Cursor) -> set[Offset]:
    """What has a row: it failed, or waits on disk."""
    return {at for found in cursor.exceptions.scan() for at in range(found.first, found.end)}


def on_the_way_to_disk(shard: Shard) -> set[Offset]:
    """What is to be parked, and is not yet."""
    found = list(shard.dispatch.selector.parking.values())
    decode = msgspec.msgpack.Decoder(payloads.Park).decode
    found += [decode(entry.payload).rows for entry in shard.desk.unapplied if entry.kind == log.PARK]
    return {at for rows in found for row in rows for at in range(row.first, row.end)}


# --- one place for each -----------------------------------------------------------------------------------


def one_for_each(ledger: Ledger, view: PartitionView, applied: bool = True) -> None:
    """Memory says where a record is that the ledger has as open or waiting; it adds no state. Each is in one
    place at most, each open one in exactly one, unless an entry that moves it is not `applied`."""
    end = ledger.partitions[view.partition].next
    states = set(offsets(view.window.overlap(0, NEVER)))
    new = {at for low, high in view.window.new(view.window.next, end) for at in range(low, high)}
    opened = fresh(view, end)
    assert not states & new, f"new, and in a state: {states & new}"
    indexes_follow(view)
    if applied:
        lost = {at for at in opened - states - new if not ledger.is_void(view.partition, at)}
        assert not lost, f"nobody would ever get {lost}"
        done = {at for at in states - opened - waiting(view.cursor) if not ledger.is_void(view.partition, at)}
        assert not done, f"in memory, and done on disk: {done}"


def indexes_follow(view: PartitionView) -> None:
    """The indexes of a window say what its states say."""
    ready, lanes, leased = dict[Offset, int](), dict[Offset, tuple[bytes, int]](), 0
    for first, end, state in view.window.overlap(0, NEVER):
        if isinstance(state, ReadyRecords):
            ready |= dict.fromkeys(range(first, end), state.tries)
        elif isinstance(state, WaitingRecords):
            lanes |= dict.fromkeys(range(first, end), (state.lane, state.tries))
        elif isinstance(state, Lease):
            leased += end - first
    assert ready == {at: tried for low, high, tried in view.window.ready for at in range(low, high)}
    assert lanes == {
        at: (lane, tried)
        for lane, ranges in view.window.lanes.items()
        for low, high, tried in ranges
        for at in range(low, high)
    }
    assert view.window.in_flight == leased


def leases_are_kept(dispatch: Dispatch, view: PartitionView) -> None:
    """Each lease counts what it holds, has a time when it ends, and is known to its session; none holds
    nothing."""
    held: Counter[Lease] = Counter()
    for first, end, lease in view.window.leases():
        held[lease] += end - first
        assert lease.first <= first < end <= lease.end, f"{first} to {end} are not of their lease"
    for lease, count in held.items():
        assert lease.open == count, f"a lease counts {lease.open} and holds {count}"
        assert lease in dispatch.holdings._deadlines, "a lease that never ends"
    known = {
        lease
        for numbers in dispatch.holdings._by_session.values()
        for leases in numbers.values()
        for lease in leases
        if lease.view is view
    }
    assert known == held.keys(), "leases that their session does not know, or that hold nothing"


# --- keys -------------------------------------------------------------------------------------------------


def keys_are_kept(dispatch: Dispatch, view: PartitionView, took_runs: Collection[SessionId]) -> None:
    """Keys are closed by what is in flight, by what failed and by what waits on disk, each of it, and by
    nothing else. A session holds one record of a key, unless it `took_runs`."""
    if view.keys is None:
        return
    first = dispatch._ledger.partitions[view.partition].first
    leased = {
        at: key_hash
        for low, high, _ in view.window.leases()
        for at, key_hash in dispatch.key_order.hashes(view, low, high)
        if at >= first
    }
    held = {at: key_hash for at, key_hash in view.keys._held.items() if key_hash}
    in_flight = {at: key_hash for at, key_hash in held.items() if at >= first}
    assert in_flight == leased, f"keys of what is in flight: {in_flight}, and of leases: {leased}"
    assert Counter(held.values()) == +view.keys._counts, "counts of keys"
    singles_of = {member.session for member in view.group.members.values() if not member.key_runs}
    singles_of -= set(took_runs)
    singles = Counter(
        (lease.session, key_hash)
        for low, high, lease in view.window.leases()
        if lease.session in singles_of
        for _, key_hash in dispatch.key_order.hashes(view, low, high)
        if key_hash
    )
    assert max(singles.values(), default=0) <= 1, f"several of a key: {singles}"
    rows_close_their_keys(dispatch, view)
    taken = set(offsets(held_or_moving(view))) | waiting(view.cursor)
    for key_hash, failed in view.keys._failed.items():
        done = {at for at in failed - taken if at >= first}
        assert not done, f"key {key_hash} is closed by {done}, which do not wait"


def rows_close_their_keys(dispatch: Dispatch, view: PartitionView) -> None:
    assert view.keys is not None
    here = set(offsets(view.window.overlap(0, NEVER)))
    for found in view.cursor.exceptions.scan():
        lane = found.row.lane
        for at, key_hash in dispatch.key_order.hashes(view, found.first, found.end):
            if at in here:
                continue
            if key_of(lane):
                known = view.keys.on_disk.get(key_hash, NEVER) <= at or lane in view.draining
                assert known, f"{at} is parked, and its key {key_hash} does not know"
            elif not lane:
                assert at in view.keys._failed.get(key_hash, ()), f"{at} failed, and its key is open"


def free_keys_go_on(dispatch: Dispatch, view: PartitionView) -> None:
    """What waits in memory or on disk for a key that is free is on its way."""
    if view.keys is None:
        return
    hashes = dispatch.key_order.hashes
    coming = {key_hash for low, high, _ in view.window.ready for _, key_hash in hashes(view, low, high)}
    coming |= {key_of(lane) for lane in view.draining}
    coming |= view.window.lanes.opened.keys()
    for key_hash, lane in view.window.lanes.of_keys.items():
        first = min(lane.starts[0], view.keys.on_disk.get(key_hash, NEVER))
        stuck = key_hash not in coming and view.keys.opens(key_hash, first)
        assert not stuck, f"{lane.starts[0]} waits for key {key_hash}, which is free"
    for key_hash, first in view.keys.on_disk.items():
        behind = key_hash in coming or key_hash in view.window.lanes.of_keys
        stuck = not behind and view.keys.opens(key_hash, first)
        assert not stuck, f"what is parked from {first} on waits for key {key_hash}, which is free"


def who_could_take_is_told(dispatch: Dispatch, view: PartitionView) -> None:
    """Who has no credit hears that there is something, and who has some has it."""
    group = view.group
    if group.state.config.paused or not dispatch.offers(view):
        return
    first = list(group.members)[: 1 if group.state.config.mode == EXCLUSIVE else None]
    untold = [name for name in first if name in group.unready]
    assert not untold, f"nobody told {untold} that something waits"
    idle = [name for name in first if name in group.lenders and group.members[name].matches is None]
    assert not idle, f"{idle} have credit, and something waits"


# --- rows -------------------------------------------------------------------------------------------------


def rows_add_up(table: Table, cursor: Cursor) -> None:
    """Rows of a group do not reach into one another nor into what is open, each has its index row, and
    counters say what rows say."""
    partition, group_id = cursor.state.partition, cursor.state.group_id
    name = records.row_key(b"V", partition, group_id)
    indexed, counts, last = set(), Counter[bool](), 0
    for key, row in table.scan(name, records.after(name)):
        exception = decode_exception(row)
        first = records.U64.unpack_from(key, len(name))[0]
        assert last <= first < exception.end, f"rows reach into one another at {first}"
        last = exception.end
        ranges = exception.ranges or [(first, exception.end)]
        assert (ranges[0][0], ranges[-1][1]) == (first, exception.end), f"ranges of the row at {first}"
        indexed.add(cursor.exceptions._index_key(first, exception))
        for low, high in ranges:
            counts[bool(exception.lane)] += high - low
            assert not cursor.fresh(low, high), f"{low} to {high} have a row, and are open too"
    names = [records.row_key(prefix, partition, group_id) for prefix in (b"Y", b"U")]
    found = {key for each in names for key, _ in table.scan(each, records.after(each))}
    assert found == indexed, f"index rows: {found ^ indexed}"
    counted = cursor.state.parked, cursor.state.retrying, cursor.state.dead
    dead = sum(found.total for found in cursor.dead.scan())
    assert counted == (counts[True], counts[False], dead), "counts of what is parked, retrying and dead"
    assert cursor.unaccounted() == 0


def acks_are_apart(cursor: Cursor, end: Offset) -> None:
    last = 0
    for first, row in cursor.acks.within(0, end):
        assert last <= first, f"rows of acks reach into one another at {first}"
        last = row.end


# --- a quiet shard ----------------------------------------------------------------------------------------


def memory_is_as_reopened(shard: Shard, view: PartitionView, anew: PartitionView) -> None:
    """Nothing is under way and all is logged: another leader would have the same leases and attempts."""
    states = [state for _, _, state in view.window.overlap(0, NEVER)]
    assert not [state for state in states if isinstance(state, MovingRecords)], (
        "moving, and no entry is on its way"
    )
    assert not view.unlogged, "leases that are not logged"
    held, same = held_as(view), held_as(anew)
    soon_ms = shard.desk.boot_ms + DRIFT_MS
    ending = {at for each in (held, same) for at, lease in each.items() if lease[0] <= soon_ms}
    who, again = ({at: lease[1:] for at, lease in each.items() if at not in ending} for each in (held, same))
    assert who == again, "leases, and what they are from disk"
    for at in who:
        deadline_ms = held[at][0]
        assert abs(deadline_ms - same[at][0]) <= DRIFT_MS, f"the lease of {at} ends at another time from disk"
    known = attempts_of(view)
    rows = view.cursor.exceptions.scan()
    from_disk = {
        at: 2 * found.row.attempts + found.row.handed_out
        for found in rows
        for at in range(found.first, found.end)
    }
    from_disk |= attempts_of(anew)
    for at, attempts in known.items():
        assert attempts == from_disk.get(at, 0) or shard.ledger.is_void(view.partition, at), (
            f"{at} had {attempts} tries, and {from_disk.get(at, 0)} from disk"
        )


def held_as(view: PartitionView) -> dict[Offset, tuple[int, bytes, int, bool, str]]:
    return {
        at: (lease.deadline_ms, lease.session, lease.attempt, lease.started, lease.consumer)
        for first, end, lease in view.window.leases()
        for at in range(first, end)
    }


def attempts_of(view: PartitionView) -> dict[Offset, int]:
    return {
        at: attempts
        for ranges in (view.window.ready, *view.window.lanes.values())
        for first, end, attempts in ranges
        for at in range(first, end)
    }


def rows_are_looked_for(view: PartitionView) -> None:
    """What waits on disk alone comes back: what failed when it is due, what is parked when somebody takes its
    route, or its key is free."""
    here = set(offsets(view.window.overlap(0, NEVER)))
    for found in view.cursor.exceptions.scan():
        lane = found.row.lane
        if here.intersection(at for low, high in ranges_of(found) for at in range(low, high)):
            continue
        if not lane:
            looked = view.due_ms is not None and found.row.due_ms >= view.since[0]
            assert looked, f"{found.first} is due at {found.row.due_ms}, and nobody looks"
        elif lane not in view.draining and view.waking is None:
            wanted = view.keys is None if key_of(lane) else view.group.takes(lane[1:])
            assert not wanted, f"{found.first} waits in {lane!r}, which somebody takes, and nobody looks"


def disk_is_as_memory(ledger: Ledger, kept: Ledger, cursor: Cursor) -> None:
    """A ledger opened from the tables, `kept`, says what the ledger in memory says."""
    same = kept.cursors[cursor.state.partition][cursor.state.group_id]
    assert list(same.passed) == list(cursor.passed), "what has passed, in memory and on disk"
    assert list(same.holds) == list(cursor.holds), "holds, in memory and on disk"
    assert same.state == cursor.state, "the cursor, in memory and on disk"
    assert kept.partitions == ledger.partitions, "partitions, in memory and on disk"
