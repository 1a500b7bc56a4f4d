"""Every error the client can raise, as exit code, text and JSON."""

import errno
import json
import os
import re
import signal
import subprocess
import sys

import click
import pytest

from gossipq import errors
from gossipq_cli import failures
from gossipq_cli.commands.cluster import _change
from gossipq_cli.main import main
from gossipq_client.io.contexts import UnknownContext
from gossipq_ops.inputs import place_of

CODES = {
    errors.NotFound: 4,
    errors.UnknownTopic: 4,
    errors.OffsetOutOfRange: 4,
    errors.UnknownRecord: 4,
    errors.TopicExists: 5,
    errors.WrongState: 5,
    errors.NotUnique: 5,
    errors.BadName: 2,
    errors.BadRequest: 2,
    errors.TooLarge: 6,
    errors.TopicFull: 6,
    errors.FlowFull: 6,
    errors.LeaseLost: 6,
    errors.SchemaMismatch: 6,
    errors.Refused: 6,
    errors.Busy: 75,
    errors.StoreFull: 75,
    errors.NotLeader: 75,
    errors.OutOfSequence: 75,
    errors.NotConfirmed: 75,
    errors.NoReply: 75,
    errors.Backpressure: 75,
    errors.Unreachable: 69,
    errors.NoQuorum: 75,
    errors.TurnedAway: 69,
    errors.StillJoining: 75,
    errors.NotAdmitted: 6,
    errors.Forbidden: 6,
    errors.NoSession: 2,
    errors.NoSubscription: 2,
    errors.WrongShard: 4,
    errors.Internal: 6,
    errors.ConfigError: 78,
    UnknownContext: 78,
}
FAILED = 1  #: every other one


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("Error writing bytes. Detail: [errno 28] No space"),
    ],
)
def test_a_full_disk_says_what_to_do(error: OSError) -> None:
    told = failures.explain(error)
    assert "No space" in told.message
    assert "free space where the output goes" in told.hint


def test_who_wants_to_make_a_group_hears_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["group", "create", "orders", "g"]) == failures.USAGE
    assert "gossipq sub TOPIC -g GROUP" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["user add ada", "user rotate ada", "cluster invite", "init"])
def test_what_expires_lasts_for_a_while(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--expires", "0s"]) == failures.USAGE
    assert "0 is over at once" in capsys.readouterr().err


def test_a_token_that_is_not_taken_is_a_refusal() -> None:
    error = errors.TurnedAway("ada:7700: this token is not taken")
    error.why = errors.Forbidden.code
    assert failures.explain(error).exit_code == failures.REFUSED


@pytest.mark.parametrize("text", ["replace_ms=abc", "copies=2", "nope=1"])
def test_an_option_that_cannot_be_is_told_by_its_own_words(text: str) -> None:
    with pytest.raises(errors.ConfigError) as refused:
        _change(text)
    assert text in refused.value.message
    assert "environment" not in refused.value.message


def test_a_bare_negative_number_is_no_place() -> None:
    with pytest.raises(ValueError, match="write -1s for 1 seconds ago"):
        place_of("-1")
    assert place_of("17") == 17


def every(kind: type[errors.GossipqError]) -> set[type[errors.GossipqError]]:
    return {kind}.union(*map(every, kind.__subclasses__()))


KINDS = [kind for kind in every(errors.GossipqError) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", sorted(KINDS, key=lambda kind: kind.__name__))
def test_exit_code(kind: type[errors.GossipqError], capsys: pytest.CaptureFixture[str]) -> None:
    assert failures.report(kind("what happened", "what to do"), []) == CODES.get(kind, FAILED)
    assert capsys.readouterr() == ("", "error: what happened\n hint: what to do\n")


def test_an_error_without_hint_gets_the_usual_one(capsys: pytest.CaptureFixture[str]) -> None:
    failures.report(errors.Unreachable("no node answered"), [])
    assert "`gossipq node`" in capsys.readouterr().err


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    failures.report(errors.UnknownTopic("no topic x", "make it"), [], output="json")
    expected = {"error": {"code": "unknown_topic", "message": "no topic x", "hint": "make it"}}
    assert json.loads(capsys.readouterr().err) == expected


def test_what_was_typed_and_is_no_utf8_is_told_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    failures.report(errors.UnknownTopic("no topic \udcff"), [], output="json")
    assert json.loads(capsys.readouterr().err)["error"]["message"] == "no topic \udcff"


def test_nobody_writes_escapes_through_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    failures.report(errors.UnknownTopic("no topic \x1b[2J", "\u202eit"), [])
    assert capsys.readouterr().err == "error: no topic \\x1b[2J\n hint: \\u202eit\n"


STRUCK = """
import os, signal, sys

class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.{heard})
sys.meta_path.insert(0, Strike())
sys.argv = ["gossipq", "--version"]
from gossipq_cli.entry import run
run()
"""


@pytest.mark.parametrize(("heard", "code"), [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)])
def test_an_interrupt_while_the_command_line_is_imported_is_silent(heard: str, code: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", STRUCK.format(heard=heard)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert (ran.returncode, ran.stderr) == (code, "")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_interrupted_is_silent(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert failures.report(error, []) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (FileNotFoundError(2, "No such file or directory", "f"), 4, "error: f: no such file"),
        (PermissionError(13, "Permission denied", "f"), 1, "error: f: Permission denied"),
        (TimeoutError(), 75, "error: timed out"),
        (ValueError("odd"), 1, "error: ValueError: odd"),
    ],
)
def test_system_errors(error: Exception, code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert failures.report(error, []) == code
    err = capsys.readouterr().err
    assert err.startswith(text)
    assert "Traceback" not in err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    failures.report(ValueError("odd"), ["--debug"])
    assert re.match(r"ValueError: odd\nerror: ", capsys.readouterr().err)


def test_exit_codes_are_all_explained() -> None:
    assert {FAILED, *CODES.values()} <= set(failures.EXIT_CODES)


def test_closed_standard_streams_are_no_error() -> None:
    """As a daemon may start programs: it was an AttributeError of None, and connections took their place."""
    program = (
        "import os; [os.close(n) for n in range(3)]; os.execv({0!r}, [{0!r}, '-m', 'gossipq_cli', *{1!r}])"
    )
    for words, code in (
        (["--version"], 0),
        (["store", "info", "--data", "nowhere"], 1),
        (["top", "--once"], 69),
    ):
        command = [sys.executable, "-c", program.format(sys.executable, ["-s", "tcp://127.0.0.1:9", *words])]
        assert subprocess.run(command, check=False, timeout=60).returncode == code


@pytest.mark.parametrize(
    ("hint", "aimed"),
    [
        ("`gossipq topic ls` lists topics", "`gossipq -s ada:7900 topic ls` lists topics"),
        ("gossipq status; gossipq top", "gossipq -s ada:7900 status; gossipq -s ada:7900 top"),
        ("start one with `gossipq node`", "start one with `gossipq node`"),
        ("`gossipq -s tcp://HOST:7700 status`", "`gossipq -s tcp://HOST:7700 status`"),
        ("`gossipq sub --help` shows what it takes", "`gossipq sub --help` shows what it takes"),
        ("gossipq cluster door --save FILE, on its host", "gossipq cluster door --save FILE, on its host"),
        ("wait", "wait"),
    ],
)
def test_commands_in_a_hint_ask_the_server_that_was_asked(hint: str, aimed: str) -> None:
    assert failures.aimed(hint, ["ada:7900"]) == aimed
    assert failures.aimed(hint, []) == hint
