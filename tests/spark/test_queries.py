"""How tests run streams on a busy machine."""

import pytest

from spark.queries import STARTS_MAX, STARVED, run_out


class Query:
    """Fails a few times, then ends."""

    def __init__(self, errors: list[str]) -> None:
        self.errors, self.started, self.stopped = errors, 0, 0
        self.recentProgress = [{"numInputRows": 5}, {"numInputRows": 0}]

    def start(self) -> "Query":
        self.started += 1
        return self

    def awaitTermination(self, patience_s: float) -> bool:
        if self.errors:
            raise RuntimeError(self.errors.pop())
        return True

    def stop(self) -> None:
        self.stopped += 1


def test_a_query_that_got_no_process_is_started_again() -> None:
    query = Query([f"[X] {STARVED}."] * 3)
    assert run_out(query.start, 1.0) == [5] * 4
    assert query.started == query.stopped == 4


@pytest.mark.parametrize("errors", [["rows are wrong"], [STARVED] * STARTS_MAX])
def test_every_other_error_is_told(errors: list[str]) -> None:
    query = Query(errors)
    with pytest.raises(RuntimeError):
        run_out(query.start, 1.0)
    assert query.started == query.stopped
