"""Pages of the console as text: what each says in each state of a cluster, what none may contain. Pure."""

import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from cli.dashboard.states import STATES, working
from gossipq.errors import Unreachable
from gossipq.messages import StatusReply
from gossipq.times import time_of
from gossipq.values import Member
from gossipq_cli.commands.gateway import console
from gossipq_cli.options import Choices
from gossipq_client.values import Credentials
from gossipq_gateway.console import charts, pages, views
from gossipq_gateway.console.console import PAGES, PLAIN, RESOURCES
from gossipq_ops.history import History
from gossipq_ops.questions import (
    Act,
    Dead,
    Failed,
    Opened,
    Record,
    Records,
    Standing,
    Stands,
    Subject,
    Taken,
)
from gossipq_ops.rows import (
    Alarm,
    Client,
    Group,
    Growth,
    Node,
    Partition,
    Snapshot,
    Subscription,
    Topic,
)
from gossipq_ops.verbs import VERBS, verbs_of

EVIL = "<script>alert(1)</script>\"'&"
KNOWN = [name for name, made in STATES.items() if made().history.count]
VOID = {"meta", "link", "input", "rect", "path", "circle", "br", "option"}


class Checked(HTMLParser):
    """Raises where a page is not well formed, has a style or script in it, or a field without a label."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"
        assert len(self.ids) == len(set(self.ids)), "an id stands twice"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert "style" not in given
        assert not any(name.startswith("on") for name in given)
        assert tag != "style"
        assert tag != "script" or given.get("src", "").startswith("/console/static/")  # type: ignore[union-attr]
        assert not (given.get("href") or "/").startswith("javascript:")
        if "id" in given:
            self.ids.append(str(given["id"]))
        if tag in ("input", "textarea") and given.get("type") != "hidden":
            assert "label" in self.open or given.get("aria-label"), f"no label: {given}"
        if tag == "svg":
            assert given.get("role") == "img"
            assert given.get("aria-label")
        if tag == "form":
            assert given.get("method") in ("get", "post")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open, f"</{tag}> without a beginning"
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()


def context(h: History, name: str = "overview", **more: Any) -> dict[str, Any]:
    return {
        "head": views.head(h, h.now.time_ms),
        "here": name,
        "title": name,
        "user": "ada",
        "signed_in": True,
        "seal": "abc",
        "back": "/console/",
        "live_path": "",
        "version": "0.2.0",
        "allowed": lambda kind, names: verbs_of(Subject(kind, tuple(names))),
        **more,
    }


def words(text: str) -> str:
    """Without its marks."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))


def filled(name: str = "orders", said: str = "fine") -> History:
    """With one of each thing, all of them called `name`."""
    history = History()
    for step in range(1, 6):
        group = {"topic": name, "group": name, "partition": 0}
        history.add(
            Snapshot(
                time_ms=1_795_219_200_000 + 1_000 * step,
                cluster=name,
                state="healthy",
                shards_total=1,
                shards_led=1,
                nodes=[Node(name=name, endpoint="tcp://a:1", config={"node.name": name})],
                topics=[Topic(name=name, config={"ttl": said})],
                partitions=[
                    Partition(topic=name, partition=0, shard=0, next=90 * step, scheduled=2, published=90)
                ],
                groups=[Group(**group, ready=10 * step, acked=80 * step, dead=3, consumers=1)],  # type: ignore[arg-type]
                clients=[
                    Client(session="0a0b", client=name, subscriptions=[Subscription(topic=name, group=name)])
                ],
                alarms=[Alarm(name="lag", text=said, command=said)],
                growth_minutes=[Growth(time_ms=60_000 * at, published=at) for at in range(5)],
            )
        )
    return history


def every_page(h: History, name: str, said: str) -> dict[str, str]:
    """Each page about the things of `filled`."""
    growth = ((), h.growth_minutes)
    stand = Standing([(0, "no_credit", said, said)], [Dead("rejected", said, 3, 5, f"{name}/0/1")])
    stands, steps = [Stands(name, "acked", said, said)], [Taken(5, said)]
    opened = Opened(f"{name}/0/1", [("key", said)], said.encode(), 9, stands, steps, [said])
    letter = {
        "ref": f"{name}/0/1",
        "partition": 0,
        "offset": 1,
        "count": 1,
        "time": time_of(5),
        "failures": 1,
    }
    letters = [SimpleNamespace(**letter, reason=said, error=said)]
    found = Records([Record(f"{name}/0/1", name, 0, 1, 5, said.encode(), said.encode(), 9)], 1, 1, True)
    work, ticks = working(h.now.time_ms, name, name, name, said)
    asked = dict.fromkeys(("topic", "partition", "text", "key", "from", "to"), said)
    group = views.group(h, name, name)
    topic = views.topic(h, name, growth)
    assert group is not None
    assert topic is not None
    more: dict[str, dict[str, Any]] = {
        "topics": views.topics(h, ""),
        "topic": topic,
        "groups": views.groups(h, ""),
        "group": group | {"stand": stand, "whys": [([0], "idle", said, said)], "dead_of": [name, name]},
        "clients": views.clients(h, ""),
        "messages": {"asked": asked, "names": [name], "found": found, "searched": False, "back_next": 50},
        "message": {"found": opened, "shown": said},
        "jobs": views.jobs(h, name, name, work),
        "jobs unchosen": views.jobs(h, "", "", None),
        "jobs refused": views.jobs(h, name, name, Failed(said, said)),
        "schedule": views.schedule(h, name, name, name, ticks),
        "schedule refused": views.schedule(h, name, name, name, Failed(said, said)),
        "missing": {"said": Failed(said, said)},
    }
    more |= {each: view(h) for each, view in PLAIN.items()}
    more["dead"] |= {"dead_of": [name, name], "stand": stand, "letters": letters}
    for kind, verbs in VERBS.items():
        for verb in verbs:
            act = Act(verb.name, Subject(kind, (name, name, said, said)), said)
            more[f"act {kind} {verb.name}"] = {
                "verb": verb,
                "act": act,
                "command": said,
                "said": Failed(said, said),
                "question": said,
                "done": False,
                "asks": bool(verb.asks),
                "sure": True,
                "old": said,
            }
    return {each: pages.page(each.split()[0], **context(h, each, **shown)) for each, shown in more.items()}


@pytest.mark.parametrize("state", KNOWN)
def test_every_state_has_its_word_on_the_overview(state: str) -> None:
    board = STATES[state]()
    h = board.history
    now_ms = h.now.time_ms + board.age_ms
    text = pages.page("overview", **context(h) | {"head": views.head(h, now_ms)} | views.overview(h))
    Checked(text)
    assert views.head(h, now_ms).state == ("stale" if board.age_ms else h.now.state)
    assert f">{views.head(h, now_ms).state}</span>" in text.replace("</i>", ">", 1).replace("\n", "")
    if state != "healthy" and not board.age_ms:
        assert views.head(h, now_ms).tone in ("warn", "bad")
    for finding in h.now.findings[:3]:
        assert finding in words(text)


def test_every_page_is_well_formed_and_says_what_there_is() -> None:
    h = filled()
    made = every_page(h, "orders", "fine")
    assert set(PAGES) <= made.keys()
    for name, text in made.items():
        Checked(text)
        assert "orders" in words(text), name


def test_nothing_that_anybody_writes_becomes_a_mark() -> None:
    for name, text in every_page(filled(EVIL, EVIL), EVIL, EVIL).items():
        Checked(text)
        assert "<script>" not in text, name
        assert "alert(1)" in text, f"{name} shows nothing of it"


def test_a_name_that_turns_the_text_around_is_shown_as_what_it_is() -> None:
    """Consumers and reasons may have any characters, even invisible ones."""
    odd = "\x1b[31mada\u202e"
    steps = [Taken(5, "acked", consumer=odd, reason=odd)]
    opened = Opened("orders/0/1", [("key", odd)], b"", 0, [Stands("g", "acked", odd, "")], steps, [odd])
    text = pages.page("message", **context(filled(), "message", found=opened, shown=""))
    text += pages.page(
        "clients", **context(filled(), "clients", clients=[Client(session="0a", client=odd)], like="", more=0)
    )
    assert not {"\x1b", "\u202e"} & set(text)
    assert "\\x1b[31mada\\u202e" in text


def test_the_live_part_stands_in_the_page_as_it_comes_later() -> None:
    h = filled()
    shown = context(h) | views.overview(h)
    part = pages.live("overview", **shown)
    assert len(part) > 1_000
    assert part.strip() in pages.page("overview", **shown)
    assert pages.live("messages", **shown) == ""


def test_the_jobs_of_a_group_are_shown_with_what_can_be_done_to_them() -> None:
    h = filled()
    work, _ = working(h.now.time_ms, "orders", "orders", "orders", "page 4 of 10")
    text = pages.page("jobs", **context(h, "jobs") | views.jobs(h, "orders", "orders", work))
    assert 'value="0.25"' in text
    for said in ("slow", "25% page 4 of 10", "in 5.0s", "2 of 70", "only the first records", "retrying"):
        assert said in words(text), said
    for verb in (
        "retry orders/3/7",
        "cancel orders/3/7",
        "replay orders orders 1f0c9a2e",
        "run-now orders orders",
    ):
        assert f'aria-label="{verb}' in text, verb


def test_the_last_hour_of_a_schedule_is_drawn_to_scale() -> None:
    h = filled()
    _, ticks = working(h.now.time_ms, "orders", "orders", "orders", "fine")
    found = views.schedule(h, "orders", "orders", "orders", ticks)
    assert [row.run.state for row in found["runs"]] == ["running", "failed", "skipped"], (
        "older ones are left out"
    )
    running, failed, skipped = (row.strip for row in found["runs"])
    assert (running.begin, running.run, running.end) == (540.0, 570.0, 600.0)
    assert (failed.begin, failed.end) == (300.0, 450.0)
    assert (skipped.begin, skipped.end) == (150.0, 152.0)
    assert found["runs"][1].took_ms == 900_000


def test_a_user_sees_only_verbs_that_are_allowed() -> None:
    h = filled()
    shown = context(h, "nodes") | views.nodes(h)
    assert "drain" in pages.page("nodes", **shown)
    assert "drain" not in pages.page("nodes", **shown | {"allowed": lambda kind, names: ()})


def test_no_rate_is_told_before_there_are_two_counts() -> None:
    h = History()
    h.add(filled().now)
    (row,) = views.groups(h, "")["groups"]
    assert row.word == "measuring"
    group = views.group(h, "orders", "orders")
    assert group is not None
    assert group["foreseen"] == ["50 records behind", "measuring"]
    assert "/s" not in words(pages.part("top", **context(h)))


def test_old_counts_are_said_to_be_old() -> None:
    h = filled()
    assert views.head(h, h.now.time_ms + 42_000).state == "stale"
    assert "counted 42s ago" in words(pages.part("top", head=views.head(h, h.now.time_ms + 42_000)))


def test_curves_stay_within_their_box() -> None:
    found = charts.curve([0.0, 5.0, 10.0], "x", 100, 20, room=5)
    assert found.line == "M50 20 75 12 100 4"
    assert charts.curve([], "x").line == ""
    assert charts.curve([0.0, 0.0], "x").top == 0
    made = charts.bars([1.0, 0.0, 4.0], ["a", "b", "c"], "x", 30, 24)
    assert [bar.height for bar in made.bars] == [5.0, 0.0, 20.0]


def contrast(one: str, other: str) -> float:
    """As WCAG 2 counts it."""

    def light(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_what_is_read_has_a_contrast_of_four_and_a_half(scheme: str) -> None:
    sheet = RESOURCES.joinpath("static", "console.css").read_text("utf-8")
    parts = sheet.split("@media (prefers-color-scheme: light)")
    found = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", parts[0]))
    if scheme == "light":
        found |= dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", parts[1].partition("* {")[0]))
    for ink in ("ink", "soft", "link", "good", "warn", "bad", "old"):
        for ground in ("ground", "plane", "raised"):
            assert contrast(found[ink], found[ground]) >= 4.5, (ink, ground)
    assert contrast(found["press-ink"], found["press"]) >= 4.5
    assert contrast("#ffffff", found["harm"]) >= 4.5


@pytest.mark.parametrize(
    ("given", "asked"),
    [([], "tcp://127.0.0.1:7700"), (["ada:7801", "bob:7802"], "tcp://ada:7801")],
)
def test_the_console_asks_the_node_of_this_machine_unless_it_is_told(
    given: list[str], asked: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GOSSIPQ_SERVER", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("gossipq_gateway.console.Console", lambda connect, server, means: server)
    assert console(Choices(servers=given)) == asked  # type: ignore[comparison-overlap]


def test_the_console_has_the_key_of_the_doors_of_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `top`: the node of this host tells it. Else they were shown as silent."""
    door, bob = b"d" * 32, "tcp://10.0.0.2:7700"
    members = [Member("b.1", "bob", bob, 1, encrypts=True)]
    asked = StatusReply("ada", "gossipq", b"", "0", "static", 0, 1, 1, [], [], members=members, door=door)
    home, shown = MagicMock(), list[tuple[str, object]]()
    home.__enter__.return_value.admin.raw.status.side_effect = [asked, Unreachable("ada is away")]

    def connected(server: str, **given: object) -> MagicMock:
        shown.append((server, given["credentials"]))
        return home

    monkeypatch.setattr("gossipq_client.connect", connected)
    monkeypatch.setattr("gossipq_gateway.console.Console", lambda connect, server, means: connect)
    connect: Any = console(Choices(servers=["tcp://127.0.0.1:7700"]))
    for _ in range(2):
        connect(bob, b"t" * 32)
    assert shown == [("tcp://127.0.0.1:7700", b"t" * 32), (bob, Credentials(b"t" * 32, door=door))] * 2
