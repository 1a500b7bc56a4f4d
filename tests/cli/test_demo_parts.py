"""The accounting of the demo, its input and its ports."""

import shlex
import socket
from pathlib import Path

import pytest

from gossipq_cli.commands.demo import next_commands
from gossipq_cli.demo import source, stage
from gossipq_cli.demo.account import Account, checksums, pack_run, unpack_runs
from gossipq_cli.demo.takeover import Takeover
from gossipq_cli.options import Choices
from gossipq_ops.rows import Node, Snapshot

LINES = [b"import this", b"", b"import this"]


def booked() -> Account:
    """Three records published and confirmed in partition 2, from offset 5."""
    account = Account()
    account.published = len(LINES)
    account.confirm(2, 5, checksums(LINES))
    return account


def test_reports_survive_the_pipe() -> None:
    report = pack_run(2, 5, checksums(LINES)) + pack_run(0, 2**40, checksums([b"x"]))
    assert unpack_runs(report) == [(2, 5, checksums(LINES)), (0, 2**40, checksums([b"x"]))]
    assert unpack_runs(b"") == []


def test_all_there() -> None:
    account = booked()
    account.deliver(2, 5, checksums(LINES))
    assert account.complete
    assert (account.lost, account.duplicated) == (0, 0)


def test_a_redelivered_record_is_counted_and_no_fault() -> None:
    account = booked()
    account.deliver(2, 5, checksums(LINES))
    account.deliver(2, 6, checksums(LINES[1:]))
    assert account.complete
    assert account.duplicated == 2


def test_missing_foreign_and_damaged_records_are_seen() -> None:
    account = booked()
    account.deliver(2, 5, checksums(LINES[:2]))
    assert (account.lost, account.complete) == (1, False)
    account.deliver(2, 7, checksums([b"another"]))
    assert (account.lost, account.complete) == (1, False)
    account.deliver(2, 7, checksums(LINES[2:]))
    assert account.damaged == 1
    account.deliver(1, 0, checksums([b"x"]))
    assert account.strangers == 1


def test_a_takeover_is_measured_by_what_only_others_can_have_confirmed() -> None:
    takeover = Takeover(range(11), [0, 2], published=40, now_s=100.0)
    takeover.confirmed(39, 0, 100.1)
    takeover.confirmed(40, 1, 100.2)
    assert not takeover.over
    takeover.confirmed(41, 0, 101.5)
    takeover.confirmed(42, 2, 101.9)
    takeover.confirmed(43, 2, 109.0)
    assert takeover.over
    assert (takeover.ms_max, len(takeover.shards)) == (1_900, 11)


def test_a_takeover_ends_with_the_last_confirm() -> None:
    takeover = Takeover([3], [0, 1], published=1, now_s=0.0)
    takeover.confirmed(1, 0, 1.0)
    takeover.end()
    assert (takeover.over, takeover.ms_max) == (True, 1_000)


def test_an_offset_given_out_twice_is_damage() -> None:
    account = booked()
    account.confirm(2, 7, checksums([b"x"]))
    assert account.damaged == 1


def test_unconfirmed_is_not_complete() -> None:
    account = booked()
    account.published += 1
    account.deliver(2, 5, checksums(LINES))
    assert not account.complete


def test_source_reads_python_files_only(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "site-packages").mkdir()
    for name, text in (
        ("b.py", "x\ny"),
        ("pkg/a.py", "z\n"),
        ("empty.py", ""),
        ("n.txt", "n"),
        ("site-packages/s.py", "s"),
    ):
        (tmp_path / name).write_text(text)
    assert list(source.lines_of(tmp_path)) == [(b"b.py", [b"x", b"y"]), (b"pkg/a.py", [b"z"])]


def test_the_library_has_real_input() -> None:
    assert (source.library() / "os.py").is_file()


def test_free_port_leaves_room_for_the_workers() -> None:
    port = stage.free_port(2)
    for step in (0, 1, 2, 40, 41, 42):
        with socket.socket() as held:
            held.bind(("127.0.0.1", port + step))


def test_next_commands_paste() -> None:
    lines = [shlex.split(line) for line in next_commands()]
    assert {line[0] for line in lines} == {lines[0][0]}
    assert [line[1] for line in lines] == ["node", "pub", "sub"]
    assert lines[1][3] == "first message"


class FakeTerminal:
    """As large as it is said to be; keeps what was written."""

    def __init__(self, columns: int, lines: int) -> None:
        self._size, self.written = (columns, lines), ""

    def size(self) -> tuple[int, int]:
        return self._size

    def write(self, text: str) -> None:
        self.written += text


@pytest.mark.parametrize("size", [(60, 27), (80, 31), (200, 70)])
def test_the_demo_draws_the_overview_and_how_far_it_is(size: tuple[int, int]) -> None:
    from gossipq_cli.demo.overview import Overview

    terminal = FakeTerminal(*size)
    drawn = Overview(terminal, 1_000, None)
    drawn.news.put(
        Snapshot(time_ms=1_000, cluster="shop", nodes=[Node(name="demo")], shards_total=1, shards_led=1)
    )
    drawn.say("half way: kill -9 17 (consumer-2)")
    drawn.draw()
    for words in ("shop ● ", "demo: every line", "published", "0 of 1,000", "half way: kill -9 17"):
        assert words in terminal.written
    terminal.written = ""
    drawn.draw()
    assert terminal.written == "", "nothing has changed"
    drawn.show(500, 400, 300)
    drawn.anew()
    drawn.draw()
    assert "400 of 1,000" in terminal.written
    assert terminal.written.count("\x1b[2J") == 1
    assert f"\x1b[{size[1]};1H" in terminal.written
    assert f"\x1b[{size[1] + 1};1H" not in terminal.written


def test_a_small_terminal_and_a_pipe_get_no_overview(monkeypatch: pytest.MonkeyPatch) -> None:
    from gossipq_cli.demo import screen

    monkeypatch.setattr(screen, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    assert screen._has_room(Choices())
    assert not screen._has_room(Choices(output="json"))
    monkeypatch.setenv("LINES", "24")
    assert not screen._has_room(Choices())
    monkeypatch.setattr(screen, "is_terminal", lambda stream: False)
    monkeypatch.setenv("LINES", "40")
    assert not screen._has_room(Choices())
