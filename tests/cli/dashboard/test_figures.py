"""Numbers in few columns; pictures of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossipq_ops.figures import (
    GRAPHS,
    axed,
    bar,
    chart,
    graph_of,
    micros,
    short,
    size,
    span,
    spark,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.04, "0.0"),
        (2.5, "2.5"),
        (83.2, "83"),
        (999, "999"),
        (999.6, "1.0k"),
        (1_000, "1.0k"),
        (74_840, "74.8k"),
        (99_960, "100k"),
        (102_000, "102k"),
        (999_600, "1.0M"),
        (3_400_000_000_000_000, "3.4P"),
        (-3.5, "-3.5"),
    ],
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


@given(st.integers(0, 2**63) | st.floats(0, 2**63))
def test_short_is_short(value: float) -> None:
    assert len(short(value)) <= 5
    assert len(size(int(value))) <= 5
    assert len(span(value)) <= 4


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0B"), (1_000, "1.0K"), (1_536, "1.5K"), (118 << 20, "118M"), (5 << 30, "5.0G"), (2**63, "lots")],
)
def test_size(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value_ms", "text"),
    [
        (-5, "0.0s"),
        (400, "0.4s"),
        (38_000, "38s"),
        (99_600, "2m"),
        (5_400_000, "90m"),
        (7_200_000, "2h"),
        (172_800_000, "2d"),
    ],
)
def test_span(value_ms: int, text: str) -> None:
    assert span(value_ms) == text


def test_micros() -> None:
    assert [micros(value) for value in (0, 400, 9_949, 38_000, 1_200_000)] == [
        "0.0ms",
        "0.4ms",
        "9.9ms",
        "38ms",
        "1.2s",
    ]


def test_spark_shows_the_newest_on_the_right_and_what_is_there_at_all() -> None:
    assert spark([0, 1, 4, 8], 6) == "   ▁▄█"
    assert spark([5, 5, 0, 0.001, 8], 3) == " ▁█"
    assert spark([], 3) == "   "
    assert spark([0, 4, 8], 3, "ascii") == " =@"
    assert spark([8, 8, 0, 4], 2, "braille") == "⣿⢠"


def test_a_chart_has_its_top_line_on_top() -> None:
    assert chart([1, 2, 4], 4, 2) == ["   █", " ▄██"]
    assert chart([1, 2], 0, 2) == ["", ""]


@given(
    st.lists(st.floats(0, 1e18), max_size=50), st.integers(1, 60), st.integers(1, 8), st.sampled_from(GRAPHS)
)
def test_a_chart_has_its_size(values: list[float], width: int, height: int, graph: str) -> None:
    lines = chart(values, width, height, graph)
    assert [len(line) for line in lines] == [width] * height


@given(st.floats(-1, 2), st.integers(0, 30), st.sampled_from(GRAPHS))
def test_a_bar_has_its_width(share: float, width: int, graph: str) -> None:
    assert len(bar(share, width, graph)) == width


def test_bars() -> None:
    assert [bar(share, 4) for share in (0, 0.5, 0.53, 1)] == ["····", "██··", "██▏·", "████"]
    assert bar(0.5, 4, "ascii") == "##.."


@pytest.mark.parametrize("graph", GRAPHS)
def test_an_axis_names_the_largest_value_and_zero(graph: str) -> None:
    lines = axed([0, 500, 1_200], 40, 4, graph)
    assert {len(line) for line in lines} == {40}
    assert lines[0].startswith(" 1.2k")
    assert lines[3].startswith("    0")
    assert lines[1].startswith("     ")
    assert len(axed([0.4], 40, 2, graph)[0]) == 40
    assert len(axed([], 40, 3, graph)[0]) == 40
    assert axed([0, 0], 40, 2, graph)[0].strip() in ("│", "|"), "nothing has no top"
    (low,) = axed([0, 5], 10, 1, graph)
    assert len(low) == 10, "a line of its own has no axis"


@pytest.mark.parametrize(
    ("environ", "graph"),
    [
        ({"LANG": "en_US.UTF-8", "TERM": "xterm-256color"}, "braille"),
        ({"LC_ALL": "C.UTF-8", "LANG": "C", "TERM": "tmux"}, "braille"),
        ({"LANG": "de_DE.utf8", "TERM": "linux"}, "block"),
        ({"LANG": "C", "TERM": "xterm"}, "ascii"),
        ({"LC_ALL": "POSIX", "LANG": "en_US.UTF-8", "TERM": "xterm"}, "ascii"),
        ({}, "ascii"),
    ],
)
def test_charts_are_made_of_what_the_terminal_has(environ: dict[str, str], graph: str) -> None:
    assert graph_of(environ) == graph
