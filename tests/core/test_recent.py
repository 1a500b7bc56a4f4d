"""A worker's memory for new entries has one bound for all its shards."""

from gossipq.core.storage import Entry, Recent, log


def entry(index: int, size: int) -> Entry:
    return log.seal(log.NO_CHAIN, index, 1, 0, log.PUBLISH, b"", bytes(size), 0)


def test_all_shelves_share_one_bound_and_the_oldest_goes_first() -> None:
    recent = Recent(100)
    first, second = recent.shelf(), recent.shelf()
    first.put(entry(1, 40), 40)
    second.put(entry(1, 40), 40)
    second.put(entry(2, 40), 40)
    assert first.get(1) is None
    assert second.get(1) == entry(1, 40)
    assert recent.bytes == 80


def test_what_is_taken_back_or_written_twice_is_counted_once() -> None:
    recent = Recent(100)
    shelf, other = recent.shelf(), recent.shelf()
    other.put(entry(7, 30), 30)
    for _ in range(9):
        shelf.put(entry(1, 40), 40)
    assert (recent.bytes, shelf.get(1)) == (70, entry(1, 40))
    shelf.pop(1)
    shelf.pop(1)
    assert (recent.bytes, shelf.get(1)) == (30, None)
    shelf.put(entry(1, 40), 40)
    shelf.clear()
    assert (recent.bytes, recent.order) == (30, {(other, 7): 30})
    other.put(entry(8, 101), 101)
    assert (recent.bytes, recent.order) == (0, {}), "more than all of it: it is read from disk"
