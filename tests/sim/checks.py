"""The checkers: each a property of the test plan over a recorded history, blind to the simulator and to the
core.

`job_checks` has P8, P10 to P13 and P16: at most once, exclusive groups, due times, expiry, dead letters,
routes. `accounts` has another part of P14: whether the rows of one copy agree with each other. P19 was
dropped, and P20 needs sockets.

`node` and `world` check P21 and I1 to I26 while a run goes on, because they need the state of the core. At
the end of a run `world` checks L2 to L6: a new publish is confirmed (L2, L5), messages do not multiply (L3),
copies are in their places (L4), and each record that waits in a group reaches a consumer (L6).
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import accumulate

from gossipq.types import META_SHARD, topic_id_of
from sim.cancels import CANCEL_CHECKS
from sim.history import LOOSE, RIVAL, Copy, History, Pushed
from sim.job_checks import JOB_CHECKS
from sim.joining import JOIN_CHECKS
from sim.names import NAME_CHECKS
from sim.plans import PLAN_CHECKS
from sim.progress import PROGRESS_CHECKS
from sim.results import RESULT_CHECKS

Check = Callable[[History], Iterator[str]]


def no_lost_confirm(history: History) -> Iterator[str]:
    """P1: every confirmed record is on every full copy, at its offset, with its bytes, until every group has
    acked it."""
    for copy in history.copies:
        for (partition, group), cursor in copy.cursors.items():
            if copy.firsts[partition] > cursor["cursor"] and partition in history.shard_of:
                yield (
                    f"P1 {copy.name} removed {copy.firsts[partition]} of {partition}, group {group} is at "
                    f"{cursor['cursor']}"
                )
        for row in history.confirmed:
            if history.shard_of.get(row.partition, 0) != copy.shard:
                continue
            kept, first = copy.records.get(row.partition, {}), copy.firsts.get(row.partition, 0)
            for offset, value in enumerate(row.values, row.offset):
                if offset >= first and kept.get(offset) != value:
                    yield (
                        f"P1 {value!r} was confirmed at {offset} and {copy.name} has {kept.get(offset)!r} "
                        "there"
                    )


def nothing_ages_early(history: History) -> Iterator[str]:
    """P1: in a run that is shorter than retention, no record is removed by its age, even if clocks are
    wrong."""
    for copy in history.copies:
        for partition, first in copy.firsts.items():
            if (
                first
                and history.retention_ms > history.end_ms
                and partition in {row.partition for row in history.confirmed}
            ):
                yield (
                    f"P1 {copy.name} removed {first} records of {partition}, which are kept for "
                    f"{history.retention_ms} ms"
                )


def removes_what_was_acked(history: History) -> Iterator[str]:
    """P1: retention removes no record that a group still needs. Each group needs the records from its
    creation on. The common topic has no bound of size and is not purged, which could remove such records."""
    for copy in history.copies:
        for (partition, group), row in copy.cursors.items():
            if row["removed"] and partition in history.shard_of:
                yield f"P1 {copy.name} removed {row['removed']} of {partition} that {group} had not acked"


def no_phantom(history: History) -> Iterator[str]:
    """P2: each record that a copy has or a consumer got was published by a client."""
    for copy in history.copies:
        for records in copy.records.values():
            for offset, value in records.items():
                if value is not None and value not in history.attempted:
                    yield f"P2 {copy.name} has {value!r} at {offset}, which nobody published"
    for row in history.pushed:
        if not history.attempted.issuperset(row.values):
            yield f"P2 {row.values} was delivered and never published"


def one_value_per_offset(history: History) -> Iterator[str]:
    """P3: all readers see the same record at an offset, at all times. P5: a record that was read stays on all
    copies."""
    known: dict[tuple[int, int], bytes] = {}
    for row in [*history.pushed, *history.seen]:
        for offset, value in enumerate(row.values, row.offset):
            if known.setdefault((row.partition, offset), value) != value:
                yield f"P3 offset {offset} was read as {known[row.partition, offset]!r} and as {value!r}"
    for (partition, offset), value in known.items():
        for copy in history.copies_of(partition) if partition in history.shard_of else ():
            found = copy.records.get(partition, {}).get(offset)
            if found != value and offset >= copy.firsts.get(partition, 0):
                yield f"P5 {value!r} was read at {offset}; {copy.name} has {found!r} there"


def order_is_kept(history: History) -> Iterator[str]:
    """P4: the records of a producer lie in the order of their sequences; readers get offsets without gaps."""
    for copy in history.copies:
        for partition, records in copy.records.items():
            at = {value: offset for offset, value in records.items() if value is not None}
            last: dict[bytes, tuple[int, int]] = {}
            for (producer, sequence), values in sorted(history.attempts.items()):
                offsets = [at[value] for value in values if value in at]
                if not offsets or offsets[0] == copy.firsts[partition]:
                    continue
                if offsets != list(range(offsets[0], offsets[0] + len(values))):
                    yield (
                        f"P4 batch {sequence} of {producer!r} lies at {offsets} in {partition} of {copy.name}"
                    )
                if offsets[0] <= last.get(producer, (0, -1))[1]:
                    yield f"P4 batch {sequence} of {producer!r} lies before batch {last[producer][0]}"
                last[producer] = sequence, offsets[-1]
    position: dict[tuple[str, int], int] = {}
    for row in history.seen:
        name = row.reader, row.partition
        if row.offset != position.setdefault(name, row.offset):
            yield f"P4 {row.reader} got offset {row.offset} where {position[name]} comes next"
        position[name] = row.offset + len(row.values)


def stored_once(history: History) -> Iterator[str]:
    """P6: a batch is stored once, however often a client sent it. Batches without a producer (LOOSE) are left
    out: a leader cannot recognise them, and stores each copy that arrives."""
    places: dict[tuple[bytes, int], int] = {}
    for row in history.confirmed:
        name = row.producer, row.sequence
        if places.setdefault(name, row.offset) != row.offset:
            yield (
                f"P6 batch {row.sequence} of {row.producer!r} was confirmed at {places[name]} and at "
                f"{row.offset}"
            )
    for copy in history.copies:
        for records in copy.records.values():
            values = [value for value in records.values() if value is not None and LOOSE not in value]
            if len(set(values)) < len(values):
                twice = next(value for value in values if values.count(value) > 1)
                yield f"P6 {copy.name} has {twice!r} more than once"


def acked_stays_acked(history: History) -> Iterator[str]:
    """P7: when a consumer has heard that its ack is stored, no leader delivers the record again to the
    group."""
    pushed = defaultdict[tuple[str, int], list[Pushed]](list)
    for row in history.pushed:
        pushed[row.group, row.partition].append(row)
    for ack in history.acks:
        for row in pushed.get((ack.group, ack.partition), ()):
            if (
                row.time_ms > ack.time_ms
                and row.offset < ack.end
                and ack.first < row.offset + len(row.values)
            ):
                yield (
                    f"P7 {row.offset}..{row.offset + len(row.values)} was delivered at {row.time_ms}, "
                    f"acked at {ack.time_ms}"
                )


def had_before_acked(history: History) -> Iterator[str]:
    """P22: only records that were delivered to a group are acked for it. A new leader cannot know which older
    records the leader before it delivered, and accepts their acks. So this checks records that got their
    offset in the term in which they were acked."""
    fresh = {
        (row.partition, offset): row.fresh_term
        for row in history.confirmed
        for offset in range(row.offset, row.offset + len(row.values))
        if row.fresh_term
    }
    had: dict[tuple[str, int, int], int] = {}  # when first
    for row in history.pushed:
        for offset in range(row.offset, row.offset + len(row.values)):
            had.setdefault((row.group, row.partition, offset), row.time_ms)
    starts = {name: row["start"] for copy in history.copies for name, row in copy.cursors.items()}
    for ack in history.acks:
        begin = max(ack.first, starts.get((ack.partition, ack.group), 0))  # what lies before is done for it
        for offset in range(begin, ack.end):
            new = fresh.get((ack.partition, offset), 0) == ack.term
            if new and had.get((ack.group, ack.partition, offset), ack.time_ms + 1) > ack.time_ms:
                yield f"P22 {offset} was acked at {ack.time_ms}, and nobody in {ack.group} had it"


def one_holder(history: History) -> Iterator[str]:
    """P9: only the leader of the newest term delivers. In one term, the attempts of a record do not fall, and
    a consumer gets a record only when the lease of the consumer before it has ended."""
    last: dict[tuple[int, str, int], tuple[int, int, str, int]] = {}
    for row in history.pushed:
        if row.newest_term > row.term:
            yield (
                f"P9 term {row.term} delivered at {row.time_ms}, when term {row.newest_term} was led already"
            )
        for offset in range(row.offset, row.offset + len(row.values)) if row.consumer else ():
            before = last.get((row.partition, row.group, offset))
            last[row.partition, row.group, offset] = (
                row.term,
                row.attempt,
                row.consumer,
                row.time_ms + row.lease_ms,
            )
            if before is None or before[0] != row.term:
                continue
            if row.attempt < before[1]:
                yield (
                    f"P9 {offset} was delivered as attempt {row.attempt} after {before[1]} in term {row.term}"
                )
            freed = any(
                r.consumer == before[2]
                and r.first <= offset < r.end
                and r.partition == row.partition
                and r.time_ms <= row.time_ms
                for r in history.released
            )
            if row.consumer != before[2] and row.time_ms < before[3] and not freed:
                yield (
                    f"P9 {offset} went to {row.consumer} at {row.time_ms}; {before[2]} had it until "
                    f"{before[3]}"
                )


def conserved(history: History) -> Iterator[str]:
    """P14: the counters of a group account for every record of a partition. P15: each record that a consumer
    heard to be acked is counted, below the cursor or above it."""
    for copy in history.copies:
        for (partition, group), row in copy.cursors.items():
            done = row["cursor"] + row["passed"] - row["start"]
            if done != row["acked"] + row["removed"] + row["elsewhere"]:
                yield f"P14 group {group} of {partition} on {copy.name} does not add up: {row}"
            if min(row["acked"], row["removed"], row["elsewhere"]) < 0:
                yield f"P14 group {group} of {partition} on {copy.name} counts less than none: {row}"
            if row["published"] != len(copy.records.get(partition, {})) + row["first"]:
                yield f"P14 partition {partition} on {copy.name} counts {row['published']} records"
        acked = {
            (ack.partition, ack.group, offset) for ack in history.acks for offset in range(ack.first, ack.end)
        }
        for (partition, group), row in copy.cursors.items():
            told = sum(1 for place in acked if place[:2] == (partition, group) and place[2] >= row["start"])
            if row["acked"] + row["removed"] < told:
                yield (
                    f"P15 {copy.name} counts {row['acked']} acked of {partition}, consumers were told of more"
                )


def copies_agree(history: History) -> Iterator[str]:
    """P17: copies of a shard have the same entry at each index, and the same state after the same entry. Also
    yields the faults that `node` and `world` found during the run."""
    yield from history.broken
    for shard in sorted({copy.shard for copy in history.copies}):
        yield from _copies_agree([copy for copy in history.copies if copy.shard == shard])


def _copies_agree(copies: list[Copy]) -> Iterator[str]:
    chains: dict[int, tuple[str, bytes]] = {}
    digests: dict[int, Copy] = {}
    for copy in copies:
        for index, chain in copy.chains.items():
            name, other = chains.setdefault(index, (copy.name, chain))
            if other != chain:
                yield f"P17 entry {index} differs between {name} and {copy.name}"
        twin = digests.setdefault(copy.applied, copy)
        if twin.digest != copy.digest:
            yield f"P17 the state after {copy.applied} differs between {twin.name} and {copy.name}"
    if len(digests) > 1:
        yield f"P17 copies stand at {sorted(digests)} when all is quiet"


def topics_are_linear(history: History) -> Iterator[str]:
    """P18: a topic has one id from its creation to its removal. The id of a removed topic is never used
    again: no leader names it, no consumer gets its records, and no copy keeps rows of it."""
    gone: dict[int, int] = {}
    for row in sorted(history.topics, key=lambda row: row.time_ms):
        if row.topic_id < 0:
            gone.setdefault(-row.topic_id, row.time_ms)
        elif row.topic_id in gone and gone[row.topic_id] < row.asked_ms:
            yield f"P18 topic {row.name} with id {row.topic_id} is back after its end at {gone[row.topic_id]}"
    for used in history.used:
        if used.asked_ms > gone.get(used.topic_id, used.asked_ms):
            ended_ms = gone[used.topic_id]
            yield f"P18 {used.what} of topic {used.topic_id} at {used.time_ms}, ended at {ended_ms}"
    for row in history.pushed:
        ended_ms = gone.get(topic_id_of(row.partition), row.time_ms)
        if row.time_ms > ended_ms:
            yield f"P18 {row.values} were delivered at {row.time_ms}, and their topic ended at {ended_ms}"
    for copy in history.copies:
        for name, topic_id in copy.topics.items():
            if topic_id in gone:
                yield f"P18 {copy.name} still knows {name} with id {topic_id}"
        for topic_id in gone.keys() & copy.grouped:
            yield f"P18 {copy.name} still has a group of topic {topic_id}, which ended"
        for partition in copy.records:
            if topic_id_of(partition) in gone:
                yield f"P18 {copy.name} still has partition {partition} of a topic that ended"
    last: dict[str, int] = {}
    for row in history.topics:
        last[row.name] = row.topic_id
    for copy in [copy for copy in history.copies if copy.shard == META_SHARD]:
        for name, topic_id in last.items():
            if topic_id > 0 and not name.startswith(RIVAL) and copy.topics.get(name) != topic_id:
                yield f"P18 {copy.name} lost topic {name} with id {topic_id}"


def roster_is_linear(history: History) -> Iterator[str]:
    """P18: an answer has no older version of the roster than any answer that came before the request. One
    version has one content. Two members never share a name, an address or their data. A change may be
    confirmed late, with the roster of that change."""
    known: dict[int, tuple[tuple[str, str, str, str], ...]] = {}
    said = sorted(history.rosters, key=lambda row: row.time_ms)
    times, newest = [row.time_ms for row in said], [0, *accumulate((row.version for row in said), max)]
    for row in said:
        before = newest[bisect_left(times, row.asked_ms)]
        if row.version < before:
            yield (
                f"P18 the roster was said to be of version {row.version} at {row.time_ms}, and of version "
                f"{before} before that was asked at {row.asked_ms}"
            )
        if known.setdefault(row.version, row.rows) != row.rows:
            yield f"P18 version {row.version} of the roster was {known[row.version]} and is {row.rows}"
    for rows in [*known.values(), *(copy.members for copy in history.copies)]:
        for column in range(3):
            if len({row[column] for row in rows}) < len(rows):
                yield f"P18 two members share a name, an address or their data: {rows}"


CHECKS: list[Check] = [
    no_lost_confirm,
    nothing_ages_early,
    removes_what_was_acked,
    no_phantom,
    one_value_per_offset,
    order_is_kept,
    stored_once,
    acked_stays_acked,
    had_before_acked,
    one_holder,
    conserved,
    copies_agree,
    topics_are_linear,
    roster_is_linear,
    *JOB_CHECKS,
    *PLAN_CHECKS,
    *NAME_CHECKS,
    *PROGRESS_CHECKS,
    *RESULT_CHECKS,
    *CANCEL_CHECKS,
    *JOIN_CHECKS,
]


def failures(history: History) -> list[str]:
    return [text for check in CHECKS for text in check(history)]
