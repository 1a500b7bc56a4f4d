"""Exception rows: records that failed in the same way share one, whatever lies between them, and
each record is found by its offset.
"""

import os
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gossipq.core.ledger import acks as acks_module
from gossipq.core.ledger import exceptions as exceptions_module
from gossipq.core.ledger import records
from gossipq.core.ledger.acks import AckRows, page_of
from gossipq.core.ledger.exceptions import Exceptions, decode_exception
from gossipq.core.ledger.records import AckRow, ExceptionRow
from gossipq.core.storage.tables import MemoryTable

OFFSETS = 60
EXAMPLES = int(os.environ.get("GOSSIPQ_SEEDS", "40"))


def ranges_of(offsets):
    """Sorted offsets as ranges."""
    found = []
    for at in sorted(offsets):
        if found and found[-1][1] == at:
            found[-1] = found[-1][0], at + 1
        else:
            found.append((at, at + 1))
    return found


def row_of(offsets, due_ms):
    """A row of these offsets; each record's own offset is ten larger."""
    ranges = ranges_of(offsets)
    several = ranges if len(ranges) > 1 else []
    return ranges[0][0], ExceptionRow(ranges[-1][1], due_ms, 1, 1, 7, ranges[0][0] + 10, ranges=several)


def told(found):
    assert not found.row.ranges, "readers see runs"
    return {
        at: (found.row.due_ms, found.row.record + at - found.first)
        for at in range(found.first, found.row.end)
    }


def check(exceptions, table, said):
    expected = {at: (due_ms, at + 10) for at, due_ms in said.items()}
    assert {k: v for found in exceptions.scan() for k, v in told(found).items()} == expected
    firsts = [found.first for found in exceptions.scan()]
    for at in range(OFFSETS):
        found = exceptions.at(at)
        assert (None if found is None else told(found).get(at)) == expected.get(at)
        behind = [found.first for found in exceptions.scan(at)]
        assert behind == [first for first in firsts if first >= at]
        within = [k for found in exceptions.within(at, at + 9) for k in told(found)]
        assert within == [k for k in sorted(said) if at <= k < at + 9]
    stored = [
        (records.U64.unpack_from(key, 17)[0], decode_exception(row)) for key, row in table.scan(b"V", b"W")
    ]
    for (_, row), (first, _) in pairwise(stored):
        assert row.end <= first, "rows do not reach into one another"
    index = {records.U64X2.unpack_from(key, 17) for key, _ in table.scan(b"Y", b"Z")}
    assert index == {(row.due_ms, first) for first, row in stored}
    assert exceptions.due((0, 0), 2**62, 10**6) == sorted(index)


@given(st.integers(0, 2**32))
@settings(max_examples=EXAMPLES, deadline=None)
def test_each_record_is_found_in_whatever_row_it_lies(seed):
    random, table, said = Random(seed), MemoryTable(), {}
    exceptions = Exceptions(table, 2, 1)
    for step in range(30):
        some = {at for at in range(*sorted(random.sample(range(OFFSETS + 1), 2))) if random.random() < 0.5}
        fresh, there = some - said.keys(), some & said.keys()
        what = random.randrange(4)
        if what == 0 and fresh:
            exceptions.put(*row_of(fresh, step))
            said |= dict.fromkeys(fresh, step)
        elif what == 1 and some:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(exceptions_module, "NEAR", random.choice([0, 1, 8]))
                taken = exceptions.take_all(ranges_of(some))
            assert {
                at for found in taken for run in exceptions.pieces(found, 0, OFFSETS) for at in told(run)
            } == there
            said = {at: due_ms for at, due_ms in said.items() if at not in some}
        elif what == 2 and some:
            first, end = min(some), max(some) + 1
            taken = exceptions.take(first, end)
            assert {at for found in taken for at in told(found)} == {at for at in said if first <= at < end}
            said = {at: due_ms for at, due_ms in said.items() if not first <= at < end}
        elif what == 3 and there and (whole := exceptions.row_at(min(there))) is not None:
            exceptions.change(whole, structs.replace(whole.row, due_ms=step))
            for run in exceptions.pieces(whole, 0, OFFSETS):
                said |= dict.fromkeys(told(run), step)
        check(exceptions, table, said)


@given(st.integers(0, 2**32))
@settings(max_examples=EXAMPLES, deadline=None)
def test_acks_of_what_failed_before_are_put_into_the_gaps(seed):
    """Pages with gaps, one after the other, and later acks of the records in the gaps."""
    random, table, said = Random(seed), MemoryTable(), {}
    acks, at, left = AckRows(table, 2, 1), 0, []
    for index in range(6):
        runs = []
        for _ in range(random.randrange(1, 12)):
            end = at + random.randrange(1, 4)
            if random.random() < 0.4:
                left += [(first, first + 1) for first in range(at, end)]
            else:
                runs.append((at, AckRow(end, random.randrange(1_000), random.choice(["ada", "bob"]), index)))
            at = end
        if runs:
            acks.put(runs[0][0], page_of(runs))
            said |= dict(runs)
    while left:
        some = sorted(random.sample(left, random.randrange(1, len(left) + 1)))
        left = [each for each in left if each not in some]
        runs = [(first, AckRow(end, random.randrange(1_000), "eve", 9)) for first, end in some]
        before = len(list(table.scan(b"A", b"B")))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(acks_module, "FILLED_RUNS", random.choice([4, 512]))
            more = acks.fill(runs)
        assert len(list(table.scan(b"A", b"B"))) == before + more
        said |= dict(runs)
        assert dict(acks.within(0, at)) == said
        for offset in range(at):
            before = max((each for each in said if each <= offset), default=None)
            assert acks.last(offset) == (None if before is None else (before, said[before]))


def test_what_failed_together_and_is_acked_one_by_one_does_not_grow_a_page_without_end():
    """Between two acked records, a page has a gap of many open ones. Each ack in the gap would
    write the whole page again.
    """
    count, table = 3_000, MemoryTable()
    acks = AckRows(table, 2, 1)
    acks.put(0, page_of([(0, AckRow(1, 5, "ada", 1)), (count, AckRow(count + 1, 5, "ada", 1))]))
    written = sum(acks.fill([(at, AckRow(at + 1, 5, "ada", at))]) for at in range(1, count))
    assert written == len(list(table.scan(b"A", b"B"))) - 1
    assert max(len(row) for _, row in table.scan(b"A", b"B")) < 8 * acks_module.FILLED_RUNS
    assert acks.cover(0, count + 1)
    assert [at for at, _ in acks.within(0, count + 1)] == list(range(count + 1))
