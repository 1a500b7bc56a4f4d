"""Runs `gossipq` lines in this process: exit code, stdout, stderr. Against a node, or against a client that
only notes."""

import inspect
import io
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from itertools import count
from typing import Any, NamedTuple, get_args

import pytest
from msgspec import Struct

from gossipq.messages import Explained
from gossipq.operator_messages import GroupShown
from gossipq.types import partition_of
from gossipq_cli.main import main
from gossipq_client import Admin, Client
from gossipq_client.answers import group_rules, value_of
from gossipq_client.api.sync import (
    DeadLettersHandle,
    GroupHandle,
    RawAnswers,
    RecordHandle,
    Records,
    TopicHandle,
)
from gossipq_client.values import refs

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


def answered(kind: Any, answer: Any) -> Any:
    """Return what a node answers as the real client returns it: by the annotation of its verb."""
    if isinstance(answer, list) and get_args(kind):
        return [answered(*get_args(kind), each) for each in answer]
    if not isinstance(answer, Struct) or not is_dataclass(kind):
        return answer
    if isinstance(answer, GroupShown):
        return group_rules(answer)
    if isinstance(answer, Explained):
        ref = refs.text_of("orders", answer.ref)
        return value_of(
            kind, answer, ref=ref, partition=partition_of(answer.ref.partition), offset=answer.ref.offset
        )
    return value_of(kind, answer)


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

    @property
    def raw(self) -> "NotingClient":
        found = NotingClient(RawAnswers)
        found.answers, found.calls = self.answers, self.calls
        return found

    def __getattr__(self, name: str) -> Callable[..., Any]:
        real = inspect.signature(getattr(self.kind, name), eval_str=True)

        def call(*args: Any, **options: Any) -> Any:
            bound = real.bind(self, *args, **options)
            for each in real.parameters.values():
                if each.kind is each.VAR_KEYWORD:
                    (kind,) = get_args(each.annotation)
                    assert bound.arguments.get(each.name, {}).keys() <= kind.__annotations__.keys()
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
            answer = answer(*args, **options) if callable(answer) else answer
            return answered(real.return_annotation, answer)

        return call

    def called(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, options) for called, args, options in self.calls if called == name]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> NotingClient:
    """Takes the place of a node for every command."""
    noting = NotingClient()
    monkeypatch.setattr("gossipq_cli.ask.connect", lambda choices: noting)
    return noting
