"""Forms of an answer."""

import pytest

from gossipq_cli.options import Choices
from gossipq_cli.output import Column, Output, counter, size, span

ROWS = [{"topic": "orders", "records": 1234567}, {"topic": "b", "records": 0}]
COLUMNS = [Column("topic"), counter("records")]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("table", "topic     records\norders  1,234,567\nb               0\n"),
        ("json", '[{"topic":"orders","records":1234567},{"topic":"b","records":0}]\n'),
        ("jsonl", '{"topic":"orders","records":1234567}\n{"topic":"b","records":0}\n'),
        ("names", "orders\nb\n"),
    ],
)
def test_rows(form: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Output(Choices(output=form)).rows(COLUMNS, ROWS)
    assert capsys.readouterr() == (text, "")


@pytest.mark.parametrize(("form", "text"), [("table", ""), ("json", "[]\n"), ("jsonl", ""), ("names", "")])
def test_no_rows(form: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Output(Choices(output=form)).rows(COLUMNS, [])
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("table", "a  1\nbb 2\n".replace("a  1", "a   1").replace("bb 2", "bb  2")),
        ("json", '{"a":1,"bb":2}\n'),
        ("names", "me\n"),
    ],
)
def test_one(form: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Output(Choices(output=form)).one({"a": 1, "bb": 2}, name="me")
    assert capsys.readouterr().out == text


def test_a_terminal_gets_borders(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossipq_cli.output.is_terminal", lambda stream: True)
    Output(Choices()).rows(COLUMNS, [{"topic": "[red]x", "records": 1}])
    out = capsys.readouterr().out
    assert out.startswith("╭")
    assert "[red]x" in out


def test_remarks_go_to_stderr_and_quiet_keeps_them(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Choices()).say("hm")
    Output(Choices(quiet=True)).say("hm")
    Output(Choices()).detail("more")
    Output(Choices(verbose=True)).detail("more")
    assert capsys.readouterr() == ("", "hm\nmore\n")


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (1 << 50, "1024.0 TiB")]
)
def test_size(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value_ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_500, "1.5s"),
        (60_000, "1m"),
        (5_400_000, "1h30m"),
        (604_800_000, "7d"),
        (90_061_000, "1d1h"),
    ],
)
def test_span(value_ms: int, text: str) -> None:
    assert span(value_ms) == text
