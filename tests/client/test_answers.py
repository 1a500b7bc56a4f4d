"""The answers of the cluster as applications get them: no wire structs, aware datetimes, all fields."""

import inspect
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import gossipq.answers
from gossipq import aio, messages, values
from gossipq.times import known_time, time_of, unix_ms_of
from gossipq.values import Rate
from gossipq_client import Client, answers
from gossipq_client.answers import conversion, plain_of, value_of
from gossipq_client.api import aio as aio_api
from gossipq_client.api import sync
from gossipq_client.api.aio.schedules import Schedules as AioSchedules
from gossipq_client.api.sync.schedules import Schedules
from gossipq_client.values.policies import rate_of

#: what the cluster answers, and what becomes of it
PAIRS: list[tuple[type[msgspec.Struct], type]] = [
    (values.TopicConfig, answers.TopicSettings),
    (values.TopicInfo, answers.TopicDetails),
    (values.GroupConfig, answers.GroupSettings),
    (values.PartitionStats, answers.PartitionCounters),
    (values.GroupStats, answers.GroupCounters),
    (values.FlowRow, answers.FlowCounters),
    (values.SoughtRow, answers.SoughtPosition),
    (values.Standing, answers.Standing),
    (values.TraceEvent, answers.Step),
    (values.WorkerStats, answers.WorkerStatus),
    (values.Route, answers.ShardRoute),
    (values.Member, answers.ClusterMember),
    (values.Lead, answers.ShardLeader),
    (values.CopyStats, answers.CopyStatus),
    (values.GossipEvent, answers.ClusterEvent),
    (messages.StatusReply, answers.NodeStatus),
    (values.Alarm, answers.NodeAlarm),
    (values.ConfigRow, answers.ConfigOption),
    (values.GrowthRow, answers.GrowthCounters),
    (values.Consuming, answers.Consumption),
    (values.ClientRow, answers.ClientSession),
    (values.Rule, answers.AccessRule),
    (values.Role, answers.Role),
    (values.Credential, answers.TokenDigest),
    (values.User, answers.User),
    (values.Invite, answers.Invitation),
    (values.AccessTable, answers.Access),
    (messages.Identity, answers.ClientIdentity),
]


@pytest.mark.parametrize(("struct", "kind"), PAIRS, ids=lambda each: each.__name__)
def test_an_answer_has_each_field_of_its_struct(struct: type[msgspec.Struct], kind: type) -> None:
    """A field that is appended to the struct is missing here until the answer has it."""
    sources = [source for _, source, _ in conversion._readers(kind)]
    assert sorted(sources) == sorted(struct.__struct_fields__)


@pytest.mark.parametrize("kind", [kind for _, kind in PAIRS], ids=lambda each: each.__name__)
def test_an_answer_says_no_milliseconds(kind: type) -> None:
    assert not [each.name for each in fields(kind) if each.name.endswith(("_ms", "_s"))]


def test_times_and_durations_of_a_struct() -> None:
    standing = value_of(answers.Standing, values.Standing("g", "acked", "", time_ms=1_500))
    assert standing.time == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert value_of(answers.Standing, values.Standing("g", "ready", "")).time is None
    config = values.TopicConfig(ttl_ms=90_000, backoff_ms=[1_000, 60_000], virtual=["a"])
    topic = value_of(answers.TopicDetails, values.TopicInfo(7, "t", 1, config, [3]))
    assert (topic.config.ttl, topic.config.lease) == (timedelta(seconds=90), None)
    assert topic.config.backoff == (timedelta(seconds=1), timedelta(minutes=1))
    assert (topic.config.virtual, topic.shards) == (("a",), (3,))
    assert plain_of(topic) == {
        "id": 7,
        "name": "t",
        "version": 1,
        "shards": [3],
        "config": {name: getattr(config, name) for name in config.__struct_fields__},
    }


def test_a_partition_is_its_number() -> None:
    assert value_of(answers.SoughtPosition, values.SoughtRow(9 << 16 | 3, 1, 2, 0, 1)).partition == 3


@pytest.mark.parametrize(
    "rate", [Rate(), Rate(10), Rate(600, 60_000), Rate(10, 1_000, 20), Rate(1, 61_500), Rate(1, 90_061_000)]
)
def test_a_rate_is_told_as_configure_takes_it(rate: Rate) -> None:
    assert rate_of(conversion.rate_text(rate), "rate") == rate


@pytest.mark.parametrize("unix_ms", [1, 1_767_323_045_678])
def test_times_come_back(unix_ms: int) -> None:
    assert unix_ms_of(time_of(unix_ms)) == unix_ms
    assert time_of(unix_ms).tzinfo is UTC


def test_times_that_no_datetime_can_have() -> None:
    assert (time_of(2**64).year, time_of(-1)) == (9999, datetime(1970, 1, 1, tzinfo=UTC))
    assert (known_time(0), unix_ms_of(None)) == (None, 0)


# --- no struct of the wire leaves the client ----------------------------------------------------------------

ROOMS = [
    *(Client, sync.Admin, sync.DeadLettersHandle, sync.GroupHandle, sync.RecordHandle, sync.TopicHandle),
    *(sync.Message, sync.Subscription, sync.Fetcher, sync.Records, Schedules),
    *(aio.Client, aio_api.Admin, aio_api.DeadLettersHandle, aio_api.GroupHandle, aio_api.RecordHandle),
    *(aio_api.TopicHandle, aio_api.Message, aio_api.Subscription, aio_api.Fetcher, aio_api.Records),
    AioSchedules,
]


def annotated() -> Iterator[tuple[str, Any]]:
    """What each public verb and property of the client takes and returns."""
    for room in ROOMS:
        for name in dir(room):
            member = inspect.getattr_static(room, name)
            code = getattr(member, "fget", None) or getattr(member, "func", member)
            if inspect.isfunction(code) and not name.startswith("_"):
                for where, hint in code.__annotations__.items():
                    if "columns." not in str(hint):  # of pyarrow, which only type checkers import
                        hint = eval(hint, code.__globals__) if isinstance(hint, str) else hint
                        yield f"{room.__module__}.{room.__name__}.{name} {where}", hint


def classes(hint: Any, seen: set[str]) -> Iterator[type]:
    """The classes of a type, and those of the fields of the dataclasses and tuples among them."""
    if repr(hint) in seen:
        return
    seen.add(repr(hint))
    for each in hint if isinstance(hint, list) else get_args(hint):
        yield from classes(each, seen)
    if isinstance(hint, type):
        yield hint
        if is_dataclass(hint) or hasattr(hint, "_fields"):
            for each in get_type_hints(hint).values():
                yield from classes(each, seen)


def is_wire(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct) and kind.__module__.partition(".")[0] == "gossipq"


def test_no_struct_of_the_wire_leaves_the_client() -> None:
    leaks = {
        f"{where}: {kind.__name__}"
        for where, hint in annotated()
        for kind in classes(hint, set())
        if is_wire(kind)
    }
    assert leaks == set()


def test_the_walk_sees_structs_within_values() -> None:
    assert [kind for kind in classes(dict[str, tuple[values.Ref, ...]], set()) if is_wire(kind)] == [
        values.Ref
    ]


def test_each_answer_can_be_imported() -> None:
    """`gossipq.answers` has the class of each value that a verb returns."""
    here = {
        kind.__name__
        for where, hint in annotated()
        for kind in classes(hint, set())
        if is_dataclass(kind)
        and kind.__module__.startswith(("gossipq_client.answers", "gossipq_client.operations"))
    }
    assert here <= set(gossipq.answers.__all__)
    assert all(getattr(gossipq.answers, name) for name in gossipq.answers.__all__)
