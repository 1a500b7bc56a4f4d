"""Runs `gossipq` lines in this process: exit code, stdout, stderr. Against a node, or against a client that
only notes."""

import inspect
import io
import sys
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import pytest

from gossipq_cli.main import main
from gossipq_client import Admin, Client
from gossipq_client.api.sync import DeadLettersHandle, GroupHandle, RecordHandle, Records, TopicHandle

names = (f"topic-{number}" for number in count())


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def gossipq(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """gossipq("topic", "ls", stdin=b"..."); nothing is a terminal."""

    def run(*argv: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main(argv)
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return next(names)


@pytest.fixture
def ask(shared_node, gossipq):
    """gossipq with the server of the shared node."""

    def run(*argv: str, stdin: bytes = b"") -> Ran:
        return gossipq("-s", shared_node.endpoint, *argv, stdin=stdin)

    return run


HANDLES = {
    "topic": TopicHandle,
    "group": GroupHandle,
    "dead": DeadLettersHandle,
    "record": RecordHandle,
    "read": Records,
}


class NotingClient:
    """Takes the calls that the real client takes, notes them, and gives (or raises) the answers a test has
    laid out. `admin` and each handle are others, with the same notes. A verb of a handle has both names, and
    the arguments of both calls: ("group.pause", ("orders", "billing"), {})."""

    def __init__(self, kind: type = Client) -> None:
        self.kind, self.named = kind, ""
        self.args: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}
        self.answers: dict[str, Any] = {"topic.schema": None}
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __enter__(self) -> "NotingClient":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def close(self, flush: bool = True) -> None:
        self.calls.append(("close", (), {"flush": flush}))

    @property
    def admin(self) -> "NotingClient":
        found = NotingClient(Admin)
        found.answers, found.calls = self.answers, self.calls
        return found

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real = inspect.signature(getattr(self.kind, name))

        def call(*args: Any, **options: Any) -> Any:
            real.bind(self, *args, **options)
            if name in HANDLES and name not in self.answers:
                handle = NotingClient(HANDLES[name])
                handle.named, handle.args, handle.options = f"{name}.", args, options
                handle.answers, handle.calls = self.answers, self.calls
                return handle
            args, options = (*self.args, *args), self.options | options
            self.calls.append((self.named + name, args, options))
            answer = self.answers[self.named + name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*args, **options) if callable(answer) else answer

        return call

    def called(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, options) for called, args, options in self.calls if called == name]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> NotingClient:
    """Takes the place of a node for every command."""
    noting = NotingClient()
    monkeypatch.setattr("gossipq_cli.ask.connect", lambda choices: noting)
    return noting
