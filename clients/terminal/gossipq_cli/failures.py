"""Maps errors to one line, a hint and an exit code, for people and scripts."""

import errno
import re
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import click

from gossipq import errors
from gossipq.texts import printable
from gossipq_cli.output import json_text
from gossipq_ops import hints

DONE, FAILED, USAGE, PARTLY, NOT_FOUND, CONFLICT, REFUSED = range(7)
UNREACHABLE, STUCK, TIMED_OUT, BAD_CONFIG, INTERRUPTED = 69, 70, 75, 78, 130

EXIT_CODES = {
    DONE: "done",
    FAILED: "failed, or the answer is no",
    USAGE: "the command line is wrong",
    PARTLY: "partly done",
    NOT_FOUND: "not found",
    CONFLICT: "already exists, or is not in the state for it",
    REFUSED: "refused by a policy or a limit",
    UNREACHABLE: "no node could be reached",
    STUCK: "handlers of `gossipq run` do not end",
    TIMED_OUT: "timed out or busy; try again",
    BAD_CONFIG: "bad configuration",
    INTERRUPTED: "interrupted (Ctrl-C)",
}

#: the first matching class decides
_EXITS: tuple[tuple[type[errors.GossipqError], int], ...] = (
    (errors.NotFound, NOT_FOUND),
    (errors.TopicExists, CONFLICT),
    (errors.WrongState, CONFLICT),
    (errors.NotUnique, CONFLICT),
    (errors.BadName, USAGE),
    (errors.TooLarge, REFUSED),
    (errors.SchemaMismatch, REFUSED),
    (errors.BadRequest, USAGE),
    (errors.TopicFull, REFUSED),
    (errors.Busy, TIMED_OUT),
    (errors.NotLeader, TIMED_OUT),
    (errors.OutOfSequence, TIMED_OUT),
    (errors.Refused, REFUSED),
    (errors.NotConfirmed, TIMED_OUT),
    (errors.NoReply, TIMED_OUT),
    (errors.Backpressure, TIMED_OUT),
    (errors.NoQuorum, TIMED_OUT),
    (errors.Unreachable, UNREACHABLE),
    (errors.NoPlace, FAILED),
    (errors.ConfigError, BAD_CONFIG),
    (errors.GossipqError, FAILED),
)


_NO_NUMBER = re.compile(r"is not a valid integer( range)?$")
#: a command in a hint that asks a cluster; `cluster door` works on that cluster's host only
_ASKS = re.compile(
    r"\bgossipq (?=(?:check|client|cluster|dlq|group|job|msg|peek|pub|status|sub|top|topic|user|why)\b)"
    r"(?!cluster door|\w+(?: \w+)* --help)"
)


class Failure(Exception):
    """An error of the command line itself, with its exit code."""

    def __init__(self, code: str, message: str, hint: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.exit_code = code, message, hint, exit_code


class Told(NamedTuple):
    exit_code: int
    code: str
    message: str
    hint: str


def explain(error: BaseException) -> Told:
    """Return code, message and hint of an error."""
    if isinstance(error, Failure):
        return Told(error.exit_code, error.code, error.message, error.hint)
    if isinstance(error, errors.GossipqError):
        exit_code = next(number for kind, number in _EXITS if isinstance(error, kind))
        if isinstance(error, errors.TurnedAway) and error.why == errors.Forbidden.code:
            exit_code = REFUSED  # the token is refused
        return Told(exit_code, error.code, hints.message_of(error), hints.hint_of(error))
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx else "gossipq"
        text = _NO_NUMBER.sub("is not a whole number", error.format_message().rstrip("."))
        return Told(USAGE, "usage", text, f"`{where} --help` shows what it takes")
    if isinstance(error, click.ClickException):
        return Told(FAILED, "failed", error.format_message(), "")
    if isinstance(error, FileNotFoundError):
        return Told(NOT_FOUND, "not_found", f"{error.filename}: no such file", "")
    if isinstance(error, TimeoutError):
        return Told(TIMED_OUT, "timed_out", str(error) or "timed out", "give it longer: `--timeout 30s`")
    if isinstance(error, OSError):
        text = f"{error.filename or ''}{': ' if error.filename else ''}{error.strerror or error}"
        full = error.errno == errno.ENOSPC or f"[errno {errno.ENOSPC}]" in text
        hint = "free space where the output goes (`df -h` shows the disks), then run it again"
        return Told(FAILED, "system", text, hint if full else "")
    if isinstance(error, UnicodeEncodeError):
        return Told(USAGE, "usage", f"{error.object!r} is no text: {error.reason}", "write it in UTF-8")
    return Told(FAILED, "internal", f"{type(error).__name__}: {error}", "this is a bug; --debug shows where")


def aimed(hint: str, servers: Sequence[str]) -> str:
    """Add the servers of `-s` to the commands in a hint, which would ask others without it."""
    return _ASKS.sub(f"gossipq -s {','.join(servers)} ", hint) if servers else hint


def report(
    error: BaseException,
    argv: Sequence[str],
    output: str = "table",
    debug: bool = False,
    servers: Sequence[str] = (),
) -> int:
    """Print an error on stderr, and return the exit code.

    `argv` decides the format if parsing failed before `-o`. `servers` are those of `-s`.
    """
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        print(error.format_message(), file=sys.stderr)
        return USAGE
    if debug or "--debug" in argv:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return FAILED  # the reader of stdout is gone
    told = explain(error)
    told = told._replace(hint=aimed(told.hint, servers))
    if output in ("json", "jsonl") or _asks_json(argv):
        body = {"error": {"code": told.code, "message": told.message, "hint": told.hint}}
        print(json_text(body), file=sys.stderr)
    else:
        print(printable(f"error: {told.message}", "\n\t"), file=sys.stderr)
        if told.hint:
            print(printable(f" hint: {told.hint}", "\n\t"), file=sys.stderr)
    return told.exit_code


def _asks_json(argv: Sequence[str]) -> bool:
    pairs = zip(argv, [*argv[1:], ""], strict=False)
    return any(
        (a in ("-o", "--output") and b.startswith("json"))
        or a.startswith(("-ojson", "-o=json", "--output=json"))
        for a, b in pairs
    )
