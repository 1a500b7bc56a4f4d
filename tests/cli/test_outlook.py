"""The forecast of `why` for a group, from two looks at its counters."""

import pytest

from gossipq.values import ClientRow, Consuming, GroupStats, PartitionStats
from gossipq_ops.outlook import lines, look, outlook

Pair = tuple[int, int]
Worker = tuple[str, int, int, int, int]


def client(name: str, in_flight: int, acked: int, held_ms: int = 0, topics: str = "orders") -> ClientRow:
    row = Consuming(topics, "billing", 1, 10, 1_000, in_flight, held_ms, acked)
    return ClientRow(name.encode(), name, "0", "n1", 0, 1, 0, 0, 0, 0, 0, [row])


def told(before: Pair, after: Pair, lag: int, *clients: Worker) -> list[str]:
    """(published, acked) at both looks, 2 s apart. Clients: name, in flight, held ms, acked at both."""
    looks = []
    for at, (published, acked) in enumerate((before, after)):
        partition = PartitionStats(1, "orders", 1, 0, 0, published, published, 0, 0)
        other = PartitionStats(2, "others", 1, 0, 0, published, 10 * published, 0, 0)
        group = GroupStats(1, "orders", "billing", 0, lag, 0, acked, 0, len(clients), 0, oldest_ms=30_000)
        rows = [client(name, held, counts[at], ms) for name, held, ms, *counts in clients]
        looks.append(look(2_000 * at, "orders", "billing", [partition, other], [group], rows))
    return lines(outlook(*looks))


@pytest.mark.parametrize(
    ("after", "lag", "clients", "says"),
    [
        (
            (400, 400),
            0,
            [("a", 0, 0, 0, 400)],
            ["200/s in, 200/s done; nothing waits", "a holds 0 records, does 200/s"],
        ),
        (
            (400, 40),
            36_000,
            [("python-9317", 975, 49_000, 0, 40)],
            [
                "200/s in, 20/s done; 36,000 records behind, the oldest for 30 s",
                "will not catch up at this pace: about 11 consumers like these would",
                "python-9317 holds 975 records for up to 49 s, does 20/s",
            ],
        ),
        (
            (0, 400),
            1_000,
            [("a", 10, 5, 0, 390), ("b", 10, 2_000, 0, 10)],
            [
                "0/s in, 200/s done; 1,000 records behind, the oldest for 30 s",
                "caught up in about 5 s",
                "a holds 10 records for up to 5 ms, does 195/s",
                "b holds 10 records for up to 2 s, does 5.0/s, slow",
            ],
        ),
        (
            (140, 136),
            10,
            [("a", 4, 20, 0, 136)],
            [
                "70/s in, 68/s done; 10 records behind, the oldest for 30 s",
                "keeps up",
                "a holds 4 records for up to 20 ms, does 68/s",
            ],
        ),
        (
            (140, 120),
            10,
            [("a", 4, 20, 0, 120)],
            [
                "70/s in, 60/s done; 10 records behind, the oldest for 30 s",
                "will not catch up at this pace: about 2 consumers like these would",
                "a holds 4 records for up to 20 ms, does 60/s",
            ],
        ),
        (
            (3, 0),
            3,
            [],
            [
                "1.5/s in, 0/s done; 3 records behind, the oldest for 30 s",
                "will not catch up: the group has no consumers",
            ],
        ),
    ],
)
def test_it_says_how_it_goes_on(after: Pair, lag: int, clients: list[Worker], says: list[str]) -> None:
    assert told((0, 0), after, lag, *clients) == says
