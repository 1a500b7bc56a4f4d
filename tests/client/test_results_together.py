"""Results of neighbours are sent together, and cost no step of Python each."""

import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import RunningNode
from gossipq import limits
from gossipq.errors import BadRequest
from gossipq.values import ResultRun
from gossipq_client import Client, Message, connect
from gossipq_client.session.deliveries import RESULTS_BYTES, _runs_of
from gossipq_client.values import results

KEPT = st.tuples(st.sampled_from([1_000, 60_000]), st.sampled_from(["json", "text"]), st.binary(max_size=3))
FOUND = st.dictionaries(st.integers(0, 40), KEPT, max_size=40)


def told(runs: Iterator[ResultRun]) -> dict[int, tuple[int, str, bytes]]:
    found: dict[int, tuple[int, str, bytes]] = {}
    for run in runs:
        assert run.partition == 7
        assert 0 < len(run.values) <= limits.MOVED_RANGES_MAX
        for offset, value in enumerate(run.values, run.first):
            assert offset not in found, "a result is sent once"
            found[offset] = run.keep_ms, run.kind, value
    return found


@settings(max_examples=150)
@given(FOUND, st.integers(0, 40), st.integers(0, 40))
def test_runs_have_exactly_the_results_of_a_range(
    found: dict[int, tuple[int, str, bytes]], first: int, end: int
) -> None:
    wanted = {offset: kept for offset, kept in found.items() if first <= offset < end}
    assert told(_runs_of(7, found, first, end)) == wanted


def test_equal_results_are_one_run_and_others_are_not() -> None:
    count = 2 * limits.MOVED_RANGES_MAX + 5
    found = dict.fromkeys(range(count), (1000, "json", b"42"))
    assert [len(run.values) for run in _runs_of(7, found, 0, count)] == [1_024, 1_024, 5]
    found[3] = (1_000, "text", b"42")
    assert [run.first for run in _runs_of(7, found, 0, 6)] == [0, 3, 4]
    large = {offset: (1_000, "json", bytes(RESULTS_BYTES // 2)) for offset in range(5)}
    assert [len(run.values) for run in _runs_of(7, large, 0, 5)] == [3, 2], "little more than the bound"


@pytest.fixture
def mq(shared_node: RunningNode) -> Iterator[Client]:
    with connect(shared_node.endpoint) as client:
        yield client


def test_an_ack_with_a_result_costs_one_call_more_than_without(mq: Client, topic: str) -> None:
    """The call that encodes the result. The headers that ask for it are read once in a batch."""
    mq.create_topic(topic, partitions=1, lease="10m")
    mq.publish_many(topic, [b"x"] * 200, keep_result="1h", timeout=30)
    taken: list[Message] = []
    while len(taken) < 200:
        taken += mq.fetch(topic, "works", n=200 - len(taken), wait=5.0)
    calls = Counter[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        calls[frame.f_code.co_name] += event == "call"

    sys.setprofile(note)
    try:
        for message in taken:
            message.ack_soon(42)
    finally:
        sys.setprofile(None)
    assert calls["ack_soon"] == calls["encoded"] == calls["ack_one"] == 200
    assert calls["keep_ms"] <= len({id(message._held) for message in taken})
    assert {"header_bytes", "json_bytes", "ack_with"} & calls.keys() == set()
    mq.flush(None)
    assert mq.result(f"{topic}/0/199", timeout=30) == 42


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (None, ("", b"")),
        (0, ("json", b"0")),
        ({"a": [None]}, ("json", b'{"a":[null]}')),
        ((1, "null"), ("json", b'[1,"null"]')),
        ("é", ("text", "é".encode())),
        (Name("ada"), ("text", b"ada")),
        (memoryview(b"xyz"), ("bytes", b"xyz")),
    ],
)
def test_a_result_has_its_kind(result: object, told: tuple[str, bytes]) -> None:
    assert results.encoded(result) == told


@pytest.mark.parametrize("result", [float("nan"), [1.0, float("inf")], object(), {"x": object()}])
def test_a_result_that_json_cannot_express_is_refused(result: object) -> None:
    with pytest.raises(BadRequest):
        results.encoded(result)
