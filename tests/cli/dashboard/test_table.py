"""Tables and boxes keep their width; what is in short supply is given up in order."""

from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from gossipq_cli.dashboard.table import (
    Column,
    Sorting,
    arranged,
    beside,
    box,
    fit,
    flowed,
    sortable,
    table,
    wrapped,
)

Row = tuple[str, int]
COLUMNS: list[Column[Row]] = [
    Column("name", lambda row: row[0], least=6, sort=lambda row: row[0]),
    Column("records", lambda row: f"{row[1]:,}", right=True, sort=lambda row: row[1]),
    Column("bytes", lambda row: f"{row[1]}B", right=True, leave=2),
    Column("line", draw=lambda row, width: "x" * width, least=4, leave=1, grow=8),
]
ROWS = [("orders", 1_234_567), ("a-very-long-name-of-a-topic", 8)]


def texts(width: int, height: int = 9, **more: object) -> list[str]:
    return [line.plain for line in table(COLUMNS, ROWS, width, height, **more).lines]


def test_all_of_it_when_there_is_room() -> None:
    assert texts(64) == [
        "name                           records     bytes  line          ",
        "orders                       1,234,567  1234567B  xxxxxxxx      ",
        "a-very-long-name-of-a-topic          8        8B  xxxxxxxx      ",
    ]


def test_names_are_cut_first_then_columns_leave_and_no_number_is_cut() -> None:
    assert texts(30) == [
        "name     records    bytes line",
        "orders 1,234,567 1234567B xxxx",
        "a-ver…         8       8B xxxx",
    ]
    assert texts(25) == [
        "name         records line",
        "orders     1,234,567 xxxx",
        "a-very-lo…         8 xxxx",
    ]
    assert texts(17) == ["name      records", "orders  1,234,567", "a-very…         8"]


def test_the_pointer_and_the_sort_mark() -> None:
    lines = texts(40, at=1, sorting=Sorting("records", True))
    assert "records▾" in lines[0]
    assert lines[2].startswith("▸ ")
    assert lines[1].startswith("  orders")


def test_no_rows() -> None:
    assert texts(20)[0].startswith("name")
    found = table(COLUMNS, [], 30, 5, empty="no topic yet")
    assert found.lines[1].plain == "no topic yet".ljust(30)


def test_the_pointed_row_is_in_sight() -> None:
    rows = [(f"t{number}", number) for number in range(100)]
    laid = table(COLUMNS, rows, 40, 11, at=70)
    assert (laid.first, laid.seen) == (65, 10)
    assert any(line.plain.startswith("▸ t70") for line in laid.lines)


def test_sorting() -> None:
    assert sortable(COLUMNS) == ["name", "records"]
    assert arranged(COLUMNS, ROWS, Sorting("records", False))[0][1] == 8
    assert arranged(COLUMNS, ROWS, Sorting("", False)) == ROWS


@given(
    st.lists(st.tuples(st.text(max_size=40), st.integers(0, 2**40)), max_size=8),
    st.integers(1, 120),
    st.integers(1, 12),
    st.integers(-1, 7),
)
def test_a_table_has_its_width(rows: list[Row], width: int, height: int, at: int) -> None:
    laid = table(COLUMNS, rows, width, height, at=min(at, len(rows) - 1))
    assert len(laid.lines) <= max(height, 2)
    for line in laid.lines:
        assert cell_len(line.plain) == width
        assert line.plain.isprintable()


@given(
    st.lists(st.tuples(st.text(max_size=40), st.integers(0, 2**40)), min_size=1, max_size=8),
    st.integers(40, 120),
)
def test_numbers_stand_whole(rows: list[Row], width: int) -> None:
    lines = [line.plain for line in table(COLUMNS, rows, width, 20).lines[1:]]
    for (_, number), line in zip(rows, lines, strict=True):
        assert f" {number:,}" in line


@given(
    st.text(),
    st.text(),
    st.lists(st.text(), max_size=5),
    st.integers(4, 90),
    st.integers(2, 12),
    st.booleans(),
)
def test_a_box_has_its_size(
    title: str, foot: str, lines: list[str], width: int, height: int, bare: bool
) -> None:
    found = box(
        title,
        [Text("".join(char for char in line if char.isprintable())) for line in lines],
        width,
        height,
        foot,
        bare=bare,
    )
    assert len(found) == height
    assert {cell_len(line.plain) for line in found} == {width}


def test_a_box() -> None:
    assert [line.plain for line in box("nodes", [Text("a")], 20, 3, "1/3")] == [
        "╭─ nodes ──────────╮",
        "│ a                │",
        "╰──────────── 1/3 ─╯",
    ]
    left, right = box("", [], 6, 2), box("", [], 5, 2)
    assert [line.plain for line in beside(left, right)] == ["╭────╮╭───╮", "╰────╯╰───╯"]


def test_fit_counts_wide_letters() -> None:
    assert fit(Text("注文"), 3).plain == "注…"
    assert fit(Text("12"), 4, right=True).plain == "  12"


@given(st.text(max_size=200), st.integers(2, 40))
@example("   ", 2)
def test_wrapped_text_keeps_its_width_and_its_letters(text: str, width: int) -> None:
    lines = [line.plain for line in wrapped(text, width)]
    assert all(cell_len(line) <= width for line in lines)
    from gossipq.texts import printable

    assert "".join("".join(lines).split()) == "".join(printable(text).split())


def test_flowed() -> None:
    assert [line.plain for line in flowed([Text("ab"), Text("cd"), Text("efg")], 6)] == ["ab  cd", "efg"]
