from gossipq.core.storage.deadlines import Deadlines


def test_what_is_due_comes_earliest_first():
    deadlines = Deadlines()
    for key, at_ms in (("c", 30), ("a", 10), ("b", 20)):
        deadlines.set(key, at_ms)
    assert deadlines.next() == 10
    assert deadlines.expire(20) == ["a", "b"]
    assert deadlines.next() == 30


def test_a_moved_deadline_counts_once_and_a_cancelled_one_never():
    deadlines = Deadlines()
    deadlines.set("a", 10)
    deadlines.set("a", 50)
    deadlines.set("b", 20)
    deadlines.cancel("b")
    assert deadlines.expire(40) == []
    assert deadlines.expire(50) == ["a"]
    assert deadlines.next() is None


def test_memory_goes_with_live_keys_not_with_changes():
    deadlines = Deadlines()
    for at_ms in range(10_000):
        deadlines.set("only", at_ms)
    assert len(deadlines) == 1
    assert len(deadlines._heap) < 100
