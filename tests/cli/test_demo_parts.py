"""The accounting of the demo, its input and its ports."""

import shlex
import socket
from pathlib import Path

from gossipq_cli.commands.demo import next_commands
from gossipq_cli.demo import source, stage
from gossipq_cli.demo.account import Account, checksums, pack_run, unpack_runs

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
    for name, text in (("b.py", "x\ny"), ("pkg/a.py", "z\n"), ("empty.py", ""), ("n.txt", "n"), ("site-packages/s.py", "s")):
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
