"""Only what changed is sent; pictures fetch nothing."""

import re
import xml.etree.ElementTree as ET

from rich.cells import cell_len
from rich.text import Text

from gossipq_cli.dashboard.frame import screen
from gossipq_cli.dashboard.painter import BEGIN, END, Painter, in_ascii, svg
from gossipq_cli.dashboard.state import Board, Ui
from gossipq_ops.figures import GRAPHS


def words(picture: str) -> str:
    """What is read in it, whatever the exporter draws around."""
    found = ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")
    return " ".join(" ".join("".join(each.itertext()).split()) for each in found)


def test_the_first_frame_is_all_of_it_and_the_next_what_changed() -> None:
    painter = Painter()
    first = painter.paint([Text("one"), Text("two"), Text("three")])
    assert first == f"{BEGIN}\x1b[2J\x1b[1;1Hone\x1b[2;1Htwo\x1b[3;1Hthree{END}"
    assert painter.paint([Text("one"), Text("two"), Text("three")]) == ""
    assert painter.paint([Text("one"), Text("2"), Text("three")]) == f"{BEGIN}\x1b[2;1H2{END}"


def test_a_changed_style_is_a_change() -> None:
    painter = Painter()
    painter.paint([Text("one")])
    assert "31" in painter.paint([Text("one", "red")])


def test_another_size_and_a_forgotten_screen_are_drawn_anew() -> None:
    painter = Painter()
    painter.paint([Text("one"), Text("two")])
    assert "\x1b[2J" in painter.paint([Text("one")])
    painter.forget()
    assert "one" in painter.paint([Text("one")])


def test_no_colour_leaves_bold_and_reverse(board: Board) -> None:
    text = Painter(None).paint(screen(board, Ui(), 120, 40))
    codes = {code for found in re.findall(r"\x1b\[([\d;]*)m", text) for code in found.split(";")}
    assert codes <= {"", "0", "1", "7"}
    assert "1" in codes


def test_a_terminal_without_unicode_gets_as_many_columns_of_ascii(board: Board) -> None:
    for graph in GRAPHS:
        for line in screen(board, Ui(graph=graph), 120, 40):
            shown = in_ascii(line.plain)
            assert shown.isascii()
            assert len(shown) == cell_len(line.plain)
            assert "?" not in shown or "?" in line.plain, "each character of the dashboard has one for it"
    assert in_ascii("\x1b[1m╭─ 日 ─╮\x1b[0m") == "\x1b[1m+- ?? -+\x1b[0m"


def test_colours_of_each_kind_of_terminal() -> None:
    assert "\x1b[38" in Painter("truecolor").line(Text("x", "#ff8800"))
    assert re.fullmatch(r"\x1b\[[39]\dmx\x1b\[0m", Painter("standard").line(Text("x", "#ff8801")))


def test_a_picture_is_whole_and_fetches_nothing(board: Board) -> None:
    text = svg(screen(board, Ui(), 120, 40), 120, "gossipq top")
    assert "backlog by group" in words(text)
    assert re.findall(r"(?:href|src|url)\W+http\S*", text) == []
    assert "@font-face" not in text


def test_the_pictures_show_what_it_looks_like_now(pictures, scene) -> None:
    """Of a real cluster under a real load, which `make pictures` records anew."""
    page = (pictures.HOME / "docs" / "operate" / "top.md").read_text("utf-8")
    for path, text in pictures.pictures(scene.kept()):
        assert words(path.read_text("utf-8")) == words(text), (
            "python tests/cli/dashboard/pictures.py draws them anew"
        )
        assert f"](../pictures/{path.name})" in page
