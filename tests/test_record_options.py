"""Each option of a publish is declared once, in gossipq/record_options.py. All surfaces have it, and all
policies."""

import inspect
import re
from typing import Any

import click
import msgspec
import pytest

from conftest import HOME
from gossipq.errors import BadRequest
from gossipq.record_options import RECORD_OPTIONS, RecordOption
from gossipq.types import Now
from gossipq_cli import records
from gossipq_cli.commands import group, topic
from gossipq_cli.commands.pub import command
from gossipq_client import Client
from gossipq_client.operations import JoinOptions, ScheduleOptions
from gossipq_client.values import (
    ConsumePolicy,
    GroupPolicy,
    ListOptions,
    PublishOptions,
    RecordOptions,
    TopicPolicy,
)
from gossipq_client.values.terms import publish_options
from gossipq_gateway.v1 import shapes

#: these are no option of `gossipq pub` of that name: -k, -H, none, and none
BESIDE = {"key", "headers", "partition", "wait"}
TABLE = {option.name: option for option in RECORD_OPTIONS}
OF_EACH = pytest.mark.parametrize("option", RECORD_OPTIONS, ids=list(TABLE))
NUMBERS = [option for option in RECORD_OPTIONS if option.high]


def clock() -> Now:
    return Now(0, 0)


def fields(shape: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(shape)}


def numbers(kind: Any) -> list[msgspec.inspect.IntType]:
    parts = getattr(msgspec.inspect.type_info(kind), "types", ())
    return [part for part in parts if isinstance(part, msgspec.inspect.IntType)]


def choices(kind: Any) -> list[str]:
    parts = getattr(msgspec.inspect.type_info(kind), "types", ())
    return [
        str(each) for part in parts if isinstance(part, msgspec.inspect.LiteralType) for each in part.values
    ]


def test_the_client_has_all() -> None:
    assert set(PublishOptions.__annotations__) == set(TABLE) | BESIDE
    assert {*JoinOptions.__annotations__} == {*RecordOptions.__annotations__, "id"}
    assert {*ScheduleOptions.__annotations__} > {*RecordOptions.__annotations__}


def test_a_list_has_a_plural_for_each_record() -> None:
    own = {name for name in ListOptions.__annotations__ if name not in PublishOptions.__annotations__}
    assert own == {option.plural for option in RECORD_OPTIONS if option.plural} | {"keys"}


@OF_EACH
def test_help_of_publish_has_it(option: RecordOption) -> None:
    text = inspect.getdoc(Client.publish) or ""
    told = re.search(rf"^{option.name}=.*(?:\n    .*)*", text, re.MULTILINE)
    assert told is not None
    assert [choice for choice in option.choices if f'"{choice}"' not in told[0]] == []
    if option.kind == "whole" and option.low == 0:
        assert f"{option.low} to {option.high}" in told[0]


@OF_EACH
def test_the_command_and_its_json_lines_have_it(option: RecordOption) -> None:
    found = {each.name: each for each in command.params if isinstance(each, click.Option)}
    assert found[option.name].help == option.help
    if option.name != "level":
        line = msgspec.json.encode({"value": "v", option.name: {}})
        with pytest.raises(Exception, match=f'"{option.name}": '):
            records.from_json(line, 1)


@pytest.mark.parametrize("shape", [shapes.Record, shapes.Publish])
def test_http_has_all(shape: type[msgspec.Struct]) -> None:
    assert set(TABLE) <= set(fields(shape))


@pytest.mark.parametrize("shape", [shapes.NewJoin, shapes.NewSchedule])
def test_http_has_those_of_a_record_that_is_stored_later(shape: type[msgspec.Struct]) -> None:
    assert set(RecordOptions.__annotations__) <= set(fields(shape))


@OF_EACH
def test_http_has_the_same_bounds_and_names_it(option: RecordOption) -> None:
    kind = fields(shapes.Record)[option.name]
    assert choices(kind) == sorted(option.choices)
    if option.kind == "whole":
        assert [(each.ge, each.le) for each in numbers(kind)] == [(option.low, option.high)]
    assert f"`{option.name}`" in (HOME / "docs" / "reference" / "http.md").read_text("utf-8")


@pytest.mark.parametrize("option", NUMBERS, ids=[option.name for option in NUMBERS])
def test_the_client_refuses_what_is_out_of_bounds(option: RecordOption) -> None:
    unit = 1 if option.kind == "whole" else 1_000
    beside = {"unique": "u"} if option.name == "until" else {}

    def given(number: int) -> dict[str, Any]:
        return {option.name: number / unit if unit > 1 else number, **beside}

    for allowed in (option.low, option.high):
        publish_options(clock, **given(allowed))
    for wrong in (option.low - 1, option.high + unit):
        with pytest.raises(BadRequest, match=option.name):
            publish_options(clock, **given(wrong))


def options_of(verb: click.Command) -> set[str]:
    return {each.name or "" for each in verb.params if isinstance(each, click.Option)}


def test_policies_of_topics_are_the_same_everywhere() -> None:
    said = set(TopicPolicy.__annotations__)
    assert set(fields(shapes.NewTopic)) == said | {"name", "partitions", "if_not_exists"}
    assert said - options_of(topic.command.commands["create"]) == set()
    assert said - options_of(topic.command.commands["set"]) == {"beside"}


def test_policies_of_groups_are_the_same_everywhere() -> None:
    said = set(GroupPolicy.__annotations__)
    assert set(fields(shapes.GroupPolicy)) == said
    assert said - options_of(group.command.commands["set"]) == {"paused"}  # by pause and resume
    assert set(ConsumePolicy.__annotations__) <= set(fields(shapes.Fetch))
