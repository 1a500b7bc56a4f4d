"""How long a publish waits for room: by clocks that are handed in."""

import pytest

from gossipq.values import TopicConfig, TopicInfo
from gossipq_client.session.packer import WINDOW_BATCHES, Topic, Writer
from gossipq_client.session.patience import Patience
from gossipq_client.values import WHILE_CONFIRMED

NOW_MS, TIMEOUT_S = 1_000_000, 10.0


class Freed:
    """The part of publishing that patience looks at."""

    def __init__(self) -> None:
        self.last_ms = 0

    def freed_ms(self, writer: Writer) -> int:
        return writer.freed_ms if writer.full else self.last_ms


@pytest.fixture
def writer() -> Writer:
    return Topic(TopicInfo(7, "orders", 1, TopicConfig(), [1]), b"p" * 16).writers[0]


def patience(freed: Freed, writer: Writer, wait_s: float | None) -> Patience:
    return Patience(freed, writer, wait_s, TIMEOUT_S, NOW_MS)  # type: ignore[arg-type]


def test_what_was_said_counts_whatever_is_confirmed(writer: Writer) -> None:
    freed = Freed()
    waiting = patience(freed, writer, 3.0)
    freed.last_ms = NOW_MS + 2_000
    assert waiting.left_s(NOW_MS) == 3.0
    assert waiting.left_s(NOW_MS + 2_500) == 0.5
    assert waiting.silent_s == 0


def test_none_waits_for_ever(writer: Writer) -> None:
    assert patience(Freed(), writer, None).left_s(NOW_MS + 10**9) is None


def test_unsaid_it_lasts_while_confirms_come(writer: Writer) -> None:
    freed = Freed()
    waiting = patience(freed, writer, WHILE_CONFIRMED)
    assert waiting.left_s(NOW_MS) == TIMEOUT_S
    freed.last_ms = NOW_MS + 9_000
    assert waiting.left_s(NOW_MS + 10_000) == TIMEOUT_S - 1
    assert waiting.left_s(NOW_MS + 19_000) == 0
    assert waiting.silent_s == TIMEOUT_S


def test_confirms_of_others_do_not_count_for_a_partition_that_is_full_itself(writer: Writer) -> None:
    freed = Freed()
    writer.flights.extend([None] * WINDOW_BATCHES)  # type: ignore[list-item]
    waiting = patience(freed, writer, WHILE_CONFIRMED)
    freed.last_ms = NOW_MS + 9_000
    assert waiting.left_s(NOW_MS + 10_000) == 0
    writer.freed_ms = NOW_MS + 5_000
    assert waiting.left_s(NOW_MS + 10_000) == TIMEOUT_S - 5
