"""The sync client and its asyncio twin: written once, and the same for callers."""

import importlib.util
import inspect
from difflib import SequenceMatcher
from pathlib import Path
from types import ModuleType

import pytest

import gossipq_client
from gossipq_client import aio
from gossipq_client.api import aio as aio_api
from gossipq_client.api import sync
from gossipq_client.api.aio import consumer as aio_consumer
from gossipq_client.api.sync import consumer

MAKER = Path(__file__).resolve().parents[2] / "clients" / "python" / "make_twins.py"
BY_HAND = ("driver", "runner", "client")
PAIRS = {
    "Client": (gossipq_client.Client, aio.Client),
    "Admin": (sync.Admin, aio_api.Admin),
    "DeadLettersHandle": (sync.DeadLettersHandle, aio_api.DeadLettersHandle),
    "GroupHandle": (sync.GroupHandle, aio_api.GroupHandle),
    "RawAnswers": (sync.RawAnswers, aio_api.RawAnswers),
    "RecordHandle": (sync.RecordHandle, aio_api.RecordHandle),
    "Records": (sync.Records, aio_api.Records),
    "TopicHandle": (sync.TopicHandle, aio_api.TopicHandle),
    "Message": (consumer.Message, aio_consumer.Message),
    "Subscription": (consumer.Subscription, aio_consumer.Subscription),
}


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_twins", MAKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", maker().NAMES)
def test_a_sync_module_is_what_is_made_of_its_twin(name: str) -> None:
    makes = maker()
    assert (makes.ROOM / "sync" / f"{name}.py").read_text() == makes.twin(
        makes.ROOM / "aio" / f"{name}.py"
    ), f"run {MAKER.name}"


@pytest.mark.parametrize("name", BY_HAND)
def test_what_is_written_by_hand_twice_has_nothing_in_common(name: str) -> None:
    """No six lines in a row that are the same in both, but for imports."""
    ours, twin = (
        [
            line.strip()
            for line in (maker().ROOM / dress / f"{name}.py").read_text().splitlines()
            if line.strip() and not line.startswith(("import ", "from "))
        ]
        for dress in ("sync", "aio")
    )
    blocks = SequenceMatcher(None, ours, twin, autojunk=False).get_matching_blocks()
    assert [ours[block.a : block.a + block.size] for block in blocks if block.size >= 6] == []


def test_these_are_all_pairs() -> None:
    room = maker().ROOM
    pairs = {path.stem for path in (room / "aio").glob("*.py")} & {
        path.stem for path in (room / "sync").glob("*.py")
    }
    assert pairs == {*maker().NAMES, *BY_HAND, "__init__"}


def public(kind: type) -> dict[str, list[str]]:
    """Methods and how they are called: names, kinds and defaults of their parameters."""
    found = {}
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if not name.startswith("_") and inspect.isfunction(member):
            parameters = inspect.signature(member).parameters.values()
            found["close" if name == "aclose" else name] = [
                f"{each.kind.name} {each.name} = {each.default!r}" for each in parameters
            ]
    return found


@pytest.mark.parametrize("name", PAIRS)
def test_they_are_called_alike(name: str) -> None:
    ours, twin = (public(kind) for kind in PAIRS[name])
    assert ours.keys() == twin.keys()
    different = {
        each: (ours[each], twin[each]) for each in ours.keys() & twin.keys() if ours[each] != twin[each]
    }
    assert different == {}


def test_a_client_has_few_names() -> None:
    """Only names that applications need. Operators use `mq.admin` and handles, and internals are hidden."""
    assert sorted(name for name in dir(gossipq_client.Client) if not name.startswith("_")) == [
        *(
            "ack",
            "ack_soon",
            "add_middleware",
            "admin",
            "cancel",
            "close",
            "consume",
            "consumer",
            "create_topic",
            "dead",
        ),
        *(
            "fetch",
            "fetcher",
            "flush",
            "follow",
            "group",
            "include",
            "job",
            "join",
            "on_shutdown",
            "on_startup",
            "post",
            "post_many",
            "publish",
            "publish_many",
            "read",
            "ready",
            "record",
            "request",
            "result",
            "run",
            "schedule",
            "schedules",
            "schema",
            "stop",
        ),
        *("subscribe", "topic", "topics"),
    ]
