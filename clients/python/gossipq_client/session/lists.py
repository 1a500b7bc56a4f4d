"""A list of records made into flights: those of one partition together, in the order of the list or of their
due times.

A batch costs a node the same for 64 records as for 500. So short lists of plain values join the open batch,
as single records do (`writer_to_merge`).
"""

from array import array
from collections.abc import Sequence
from itertools import groupby

from gossipq import limits
from gossipq_client.session.packer import Topic, Writer
from gossipq_client.session.publisher import Publishing
from gossipq_client.session.receipts import Listed
from gossipq_client.values import NOTHING, Many, Terms


def plan(publishing: Publishing, topic: Topic, values: list[bytes], many: Many) -> Listed:
    """Flights that `Publishing.take` sends. Records with the same key stay in order, unless their due times
    say otherwise."""
    if not values:
        return Listed([])
    each, ids, names = many.terms, many.ids, many.names
    due = isinstance(each, Terms) and each.due_ms > 0
    single = ids is not None or names is not None or isinstance(each, list) or due
    choosers, sole = many.choosers, _sole(topic, many)
    if choosers is None and not isinstance(each, list):
        sole = topic.writer(None, many.partition)
    if sole is not None:
        terms = each if isinstance(each, list) or each is None else [each] * len(values)
        flights = publishing.batches(
            sole, values, None, many.headers, many.route, many.level, terms, ids, names, many.unique
        )
        return Listed(flights, None, single)
    flights = []
    order = array("q", bytes(8 * len(values)))
    placed = 0
    for writer, keyed, rows in _groups(topic, many, choosers or [None] * len(values)):
        flights += publishing.batches(
            writer,
            [values[at] for at in rows],
            [many.keys[at] or b"" for at in rows] if keyed and many.keys else None,
            many.headers,
            many.route,
            many.level,
            [each[at] for at in rows]
            if isinstance(each, list)
            else None
            if each is None
            else [each] * len(rows),
            None if ids is None else [ids[at] for at in rows],
            None if names is None else [names[at] for at in rows],
            many.unique,
        )
        for place, at in enumerate(rows, placed):
            order[at] = place
        placed += len(rows)
    return Listed(flights, order, single)


def writer_to_merge(topic: Topic, values: list[bytes], size: int, many: Many) -> Writer | None:
    """The partition in which a list of `size` bytes in all may share a batch with its neighbours; None: it
    gets batches of its own, also where a full topic may refuse one and have room for the other. Raises
    BadRequest for a partition that the topic lacks."""
    named = many.ids is not None or many.names is not None
    plain = many.keys is None and many.terms is None and not named and not many.headers
    fits = 0 < len(values) < limits.BATCH_RECORDS_MAX and size < limits.BATCH_BYTES_MAX
    refuses = topic.info.config.bytes_max and topic.info.config.overflow == "refuse"
    if not plain or not fits or refuses or (many.level or topic.level) == "none":
        return None
    return topic.writer(None, many.partition)


def _sole(topic: Topic, many: Many) -> Writer | None:
    """The partition of all records, when they can share batches in the order of the list: none has a key or
    is scheduled."""
    if many.partition is None and len(topic.writers) > 1:
        return None
    asked = many.terms if isinstance(many.terms, list) else [many.terms or NOTHING]
    if many.keys is not None or any(terms.due_ms for terms in asked):
        return None
    return topic.writer(None, many.partition)


def _groups(
    topic: Topic, many: Many, choosers: Sequence[bytes | None]
) -> list[tuple[Writer, bool, list[int]]]:
    """(partition, keyed or not, records) whose records may share batches.

    Scheduled records of a partition are sorted by due time, so that each batch of them has a narrow span of
    time.
    """
    rows: dict[tuple[Writer, bool], list[int]] = {}
    dues = [terms.due_ms for terms in many.terms] if isinstance(many.terms, list) else None
    one_due = isinstance(many.terms, Terms) and many.terms.due_ms > 0
    for at, chooser in enumerate(choosers):
        scheduled = dues[at] > 0 if dues is not None else one_due
        rows.setdefault((topic.writer(chooser, many.partition), scheduled), []).append(at)
    keyed = [key is not None for key in many.keys] if many.keys is not None else [False] * len(choosers)
    found = []
    for (writer, scheduled), records in rows.items():
        if scheduled and dues is not None:
            records.sort(key=dues.__getitem__)
            records.sort(key=keyed.__getitem__)  # keeps the order of those that are alike
        found += [(writer, is_keyed, list(run)) for is_keyed, run in groupby(records, keyed.__getitem__)]
    return found
