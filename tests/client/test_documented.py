"""Documentation that users see in the client: each public name, its
options, their units, its errors.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest

import gossipq_client
from gossipq import errors
from gossipq_client import aio, embedded, lake, testing
from gossipq_client.api.sync import GroupHandle
from gossipq_client.io import ConnectOptions, connecting
from gossipq_client.operations import ScheduleOptions, schedule_of
from gossipq_client.session import ConsumeOptions, FetchOptions, ReadOptions, joining, reading
from gossipq_client.values import (
    GroupPolicy,
    ListOptions,
    PublishOptions,
    TopicPolicy,
    group_options,
    list_options,
    publish_options,
    topic_options,
)
from gossipq_client.values.terms import WHILE_CONFIRMED

DOORS = (gossipq_client, aio, embedded, lake, testing)
UNITS = re.compile(r"\bseconds\b|\bms\b|milliseconds|\"\d+\w\"|-10m|\b\d+ h\b")
INTERNAL = {"Place", "Share"}  #: classes of public modules that no program needs
SPAN_WORDS = ("Duration", "timedelta", "_ms")


def ours(found: Any) -> bool:
    return str(getattr(found, "__module__", "")).startswith("gossipq_client")


def public_names() -> Iterator[tuple[str, Any]]:
    for door in DOORS:
        for name in getattr(door, "__all__", [each for each in vars(door) if not each.startswith("_")]):
            found = getattr(door, name)
            if ours(found):
                yield f"{door.__name__}.{name}", found


def members() -> Iterator[tuple[str, Any]]:
    """Public classes and functions of the doors, and the methods and properties of the classes."""
    seen = set()
    for name, found in public_names():
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield name, found
        if inspect.isclass(found) and not issubclass(found, BaseException):
            for each in dir(found):
                member = inspect.getattr_static(found, each)
                code = getattr(member, "fget", None) or getattr(member, "__func__", member)
                if inspect.isfunction(code) and ours(code) and not each.startswith("_"):
                    yield f"{name}.{each}", getattr(member, "__func__", member)


MEMBERS = dict(members())
CALLS = {name: found for name, found in MEMBERS.items() if inspect.isfunction(found)}


def test_every_public_name_has_a_docstring() -> None:
    assert len(CALLS) > 200
    assert [name for name, found in MEMBERS.items() if not (inspect.getdoc(found) or "").strip()] == []


OFFERED = ("aio", "embedded", "lake", "metrics", "middleware", "testing", "traces")


def test_programs_find_each_name_of_the_client_under_gossipq() -> None:
    """The guide names gossipq.middleware.Compression, and only MessageLog was there."""
    for name in OFFERED:
        theirs = importlib.import_module(f"gossipq_client.{name}")
        classes = [(each, found) for each, found in vars(theirs).items() if inspect.isclass(found)]
        made = [each for each, found in classes if found.__module__ == theirs.__name__]
        wanted = {*getattr(theirs, "__all__", made)} - INTERNAL
        assert wanted <= {*importlib.import_module(f"gossipq.{name}").__all__}


def test_durations_have_their_unit() -> None:
    """A function with a duration names its unit, unless the parameter's name does."""

    def unnamed(function: Callable[..., Any]) -> list[str]:
        durations = [
            each.name
            for each in inspect.signature(function).parameters.values()
            if any(word in str(each.annotation) for word in SPAN_WORDS) or each.annotation is float
        ]
        return [each for each in durations if not each.endswith(("_s", "_ms", "seconds"))]

    wrong = [
        name for name, each in CALLS.items() if unnamed(each) and not UNITS.search(inspect.getdoc(each) or "")
    ]
    assert wrong == []


def test_errors_are_named() -> None:
    """A function that raises a named error says so in its own docstring or in its class's."""
    common = {"AssertionError", "NotImplementedError", "StopIteration"}

    def raised(function: Callable[..., Any]) -> set[str]:
        found = re.findall(r"\braise (?!engine|self|named)([A-Z]\w+)", inspect.getsource(function))
        return set(found) - common

    def is_told(error: str, text: str) -> bool:
        """By its name, or by that of a parent that programs catch."""
        kinds = getattr(errors, error, Exception).__mro__
        return error in text or any(kind.__name__ in text for kind in kinds[1:-3])

    untold = [
        f"{name} raises {error}"
        for name, each in CALLS.items()
        for error in raised(each)
        if not is_told(error, f"{inspect.getdoc(each)} {_owner_text(name)}")
    ]
    assert untold == []


def _owner_text(name: str) -> str:
    owner = MEMBERS.get(name.rpartition(".")[0])
    return inspect.getdoc(owner) or "" if owner is not None else ""


def options_of(function: Callable[..., Any]) -> type | None:
    """The TypedDict that a function unpacks."""
    for each in inspect.signature(function).parameters.values():
        if each.kind is each.VAR_KEYWORD and get_args(each.annotation):
            kind: type = get_args(each.annotation)[0]
            return kind
    return None


def told_by(function: Callable[..., Any]) -> str:
    """A docstring, and those of the verbs that it names."""
    found, ahead = dict[Callable[..., Any], str](), [function]
    while ahead:
        each = ahead.pop()
        found[each] = text = inspect.getdoc(each) or ""
        for name in re.findall(r"`(?:mq\.)?(\w+)`", text):
            verb = getattr(gossipq_client.Client, name, getattr(gossipq_client, name, None))
            ahead += [verb] if inspect.isfunction(verb) and verb not in found else []
    return "\n".join(found.values())


def parameters(checker: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """The parameters of a function, and the keys of a TypedDict that it unpacks: without one is None."""
    unpacked = options_of(checker)
    for each in inspect.signature(checker).parameters.values():
        if each.kind is not each.VAR_KEYWORD:
            yield each
        elif unpacked is not None:
            for name, kind in unpacked.__annotations__.items():
                yield inspect.Parameter(name, each.KEYWORD_ONLY, default=None, annotation=kind)


def test_no_option_hides() -> None:
    """`help()` shows each, or names the verb that has the same."""
    unpacking = {name: (each, kind) for name, each in CALLS.items() if (kind := options_of(each)) is not None}
    assert len(unpacking) > 20
    hidden = [
        f"{name}({option}=)"
        for name, (each, kind) in unpacking.items()
        for option in kind.__annotations__
        if not re.search(rf"\b{option}[=,:]", told_by(each))
    ]
    assert hidden == []


CONSUMING = (ConsumeOptions, FetchOptions)
JOINING = {"topics", "group"}.union(*(options.__annotations__ for options in CONSUMING))


@pytest.mark.parametrize(
    ("options", "checker", "beside"),
    [
        (PublishOptions, publish_options, {"now"}),
        (ListOptions, list_options, {"now", "count"}),
        (TopicPolicy, topic_options, {"partitions"}),
        (GroupPolicy, group_options, set()),
        *((options, joining, JOINING - set(options.__annotations__)) for options in CONSUMING),
        (ReadOptions, reading, {"topics", "start"}),
    ],
)
def test_what_is_described_is_what_is_checked(
    options: type, checker: Callable[..., Any], beside: set[str]
) -> None:
    found = {each.name: each.annotation for each in parameters(checker)}
    assert {name: kind for name, kind in found.items() if name not in beside} == options.__annotations__


@pytest.mark.parametrize(
    ("verb", "options", "checker"),
    [
        (aio.Client.publish, PublishOptions, publish_options),
        (gossipq_client.Client.publish, PublishOptions, publish_options),
        (gossipq_client.Client.post, PublishOptions, publish_options),
        (gossipq_client.Client.publish_many, ListOptions, list_options),
        (gossipq_client.Client.consume, ConsumeOptions, joining),
        (gossipq_client.Client.read, ReadOptions, reading),
        (gossipq_client.Client.create_topic, TopicPolicy, topic_options),
        (GroupHandle.configure, GroupPolicy, group_options),
        (gossipq_client.Client.schedule, ScheduleOptions, schedule_of),
        (gossipq_client.connect, ConnectOptions, connecting),
        (aio.connect, ConnectOptions, connecting),
    ],
)
def test_help_shows_each_option_with_its_default(
    verb: Callable[..., Any], options: type, checker: Callable[..., Any]
) -> None:
    told = told_by(verb)
    for each in parameters(checker):
        if each.name in options.__annotations__ and each.kind is each.KEYWORD_ONLY:
            default = "..." if each.default is WHILE_CONFIRMED else repr(each.default).replace("'", '"')
            assert f"{each.name}={default}" in told, each.name


def public_errors() -> list[type[errors.GossipqError]]:
    found = [getattr(gossipq_client, name) for name in gossipq_client.__all__]
    return [kind for kind in found if isinstance(kind, type) and issubclass(kind, errors.GossipqError)]


def test_programs_need_twelve_error_classes() -> None:
    assert len(public_errors()) == 12
    parents = {kind.__name__: kind.__bases__[1] for kind in public_errors() if len(kind.__bases__) > 1}
    assert parents == {
        "BadRequest": ValueError,
        "Forbidden": PermissionError,
        "NoReply": TimeoutError,
        "NotConfirmed": TimeoutError,
        "NotFound": LookupError,
        "Unreachable": ConnectionError,
    }
    for kind in public_errors():
        error = errors.from_code(kind.code, "failed", "do this", 5, 7)
        assert (type(error), str(error), error.hint, error.args) == (kind, "failed", "do this", ("failed",))
        assert (error.retry_after_ms, error.detail) == (5, 7)
        assert error.__notes__ == ["hint: do this"]


def test_docstrings_name_public_errors() -> None:
    """A program can import what a docstring says that a verb raises."""
    hidden = {kind.__name__ for kind in errors._BY_CODE.values()} - {*gossipq_client.__all__}
    of_nodes = {"Internal", "ExportError", "TornExport", "ExportVersion", "DataLoss", "StoreError"}
    named = re.compile(rf"\b({'|'.join(sorted(hidden - of_nodes))})\b")
    found = {
        f"{name}: {word}"
        for name, each in MEMBERS.items()
        for word in named.findall(inspect.getdoc(each) or "")
    }
    assert found == set()
