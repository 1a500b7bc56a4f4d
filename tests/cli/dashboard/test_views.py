"""Every view as text, at every size, from a recorded cluster; and with the oddest names."""

import re
from collections.abc import Iterator
from types import ModuleType

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from cli.dashboard.states import working
from gossipq import limits
from gossipq_cli.dashboard import keys
from gossipq_cli.dashboard.frame import BAD, OLD, WARN, header, plain, screen
from gossipq_cli.dashboard.state import JOBS, VIEWS, Board, Fault, Menu, Prompt, Ui
from gossipq_cli.dashboard.table import Sorting
from gossipq_cli.dashboard.views import view_of
from gossipq_ops import rows
from gossipq_ops.history import History
from gossipq_ops.questions import (
    Failed,
    Open,
    Opened,
    Page,
    Record,
    Records,
    Runs,
    Stands,
    Subject,
    Work,
)
from gossipq_ops.verbs import NAMES as KINDS
from gossipq_ops.verbs import name_of

SIZES = ((60, 20), (80, 24), (120, 40), (250, 80))
PLACES = {name: Ui(view=name) for name in VIEWS} | {
    "a node": Ui(view="nodes", path=("node-a",)),
    "a shard": Ui(view="nodes", path=("node-a", "1")),
    "a client": Ui(view="clients", path=("0a8f11ab",)),
    "a topic": Ui(view="topics", path=("orders",)),
    "a group": Ui(view="groups", path=("orders", "billing")),
    "jobs": Ui(view="groups", path=("orders", "billing", JOBS)),
    "a schedule": Ui(view="groups", path=("orders", "billing", JOBS, "nightly")),
    "messages of a partition": Ui(view="messages", topic="orders", partition=3),
    "a search": Ui(view="messages", topic="orders", find="EUR"),
    "a record": Ui(view="messages", topic="orders", path=("orders/3/88120",)),
    "help": Ui(help=True),
    "a menu": Ui(view="groups", menu=Menu(Subject("group", ("orders", "billing")))),
    "a question": Ui(
        prompt=Prompt("confirm", "4 dead letters would be ready for billing again. " * 4 + "y/n")
    ),
    "a prompt": Ui(prompt=Prompt("filter", "filter:", "bill")),
    "ascii": Ui(graph="ascii"),
    "braille": Ui(graph="braille"),
}


def shown(board: Board, ui: Ui, width: int, height: int) -> str:
    """The screen as text, when it is as large as it was asked to be and obeys nobody."""
    lines = screen(board, ui, width, height)
    assert len(lines) == height
    for line in lines:
        assert cell_len(line.plain) == width, line.plain
        assert line.plain.isprintable(), line.plain
    return "\n".join(line.plain for line in lines)


def test_jobs_are_shown_with_their_progress_errors_and_schedules(board: Board) -> None:
    text = shown(board, PLACES["jobs"], 120, 40)
    for said in ("orders/3/7", "slow", "25%", "page 4 of 10", "in 5.0s", "2 of 70", "nightly", "in 60s"):
        assert said in text, said
    board.keep(Work("orders", "billing"), Failed("no topic orders"))
    assert "no topic orders" in shown(board, PLACES["jobs"], 80, 24)
    board.keep(Work("orders", "shipping"), Failed("of another group"))
    assert "asking ..." in shown(board, PLACES["jobs"], 80, 24)


def test_the_last_hour_of_a_schedule_is_drawn_to_scale(board: Board) -> None:
    ui = msgspec.structs.replace(PLACES["a schedule"], graph="ascii")
    lines = shown(board, ui, 150, 40).splitlines()
    bars = [match[0] for line in lines if (match := re.search(r"[.#-]{60,}", line))]
    assert len(bars) == 3, "older ones are left out"
    width = len(bars[0])
    for bar, (waited, ran, right) in zip(bars, ((3, 3, 0), (0, 15, 15), (0, 0, 45)), strict=True):
        assert abs(bar.count("-") - width * waited / 60) <= 1
        assert abs(bar.count("#") - width * ran / 60) <= 1
        assert abs(len(bar) - len(bar.rstrip(".")) - width * right / 60) <= 1


def cut_numbers(text: str) -> list[str]:
    return re.findall(r"(?<!\S)[-+]?\d[\d.,]*[kMGTPsmhd%]*…", text)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("place", PLACES)
def test_fits_and_cuts_no_number(board: Board, place: str, size: tuple[int, int]) -> None:
    assert cut_numbers(shown(board, PLACES[place], *size)) == []


def test_a_cut_number_is_caught() -> None:
    assert cut_numbers("orders 74.8… 12…  next… +3…") == ["74.8…", "12…", "+3…"]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_nothing_known_yet(size: tuple[int, int]) -> None:
    board = Board()
    for view in VIEWS:
        assert "asking ..." in shown(board, Ui(view=view), *size)
    board.fault = Fault("no node answers at tcp://127.0.0.1:7700", "start one: gossipq node")
    text = shown(board, Ui(), *size)
    assert "no node answers at tcp://127.0.0.1:7700" in text
    assert "gossipq node" in text


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_an_empty_cluster(size: tuple[int, int]) -> None:
    board = Board()
    board.history.add(rows.Snapshot(time_ms=1_000, nodes=[rows.Node(name="a")], shards_total=1, shards_led=1))
    for ui in PLACES.values():
        shown(board, ui, *size)


@pytest.mark.parametrize("size", [(20, 5), (59, 20), (60, 19), (1, 1), (8, 3)])
def test_a_terminal_that_is_too_small(board: Board, size: tuple[int, int]) -> None:
    text = shown(board, Ui(), *size).replace("\n", " ")
    if size == (20, 5):
        assert re.sub(" +", " ", text).strip() == "20x5 is too small: gossipq top needs 60x20. q quits"


# --- what is seen


@pytest.mark.parametrize("size", SIZES[1:], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_dead_node_is_marked_and_has_no_load(board: Board, size: tuple[int, int]) -> None:
    line = next(
        line
        for line in shown(board, Ui(view="nodes"), *size).splitlines()
        if "node-c  failed" in re.sub(" +", "  ", line)
    )
    assert "✖ node-c" in line
    assert "█" not in line


def test_the_overview_says_what_is_wrong_and_what_helps(board: Board) -> None:
    text = shown(board, Ui(), 120, 40)
    assert "✖ 2/3 nodes" in text
    assert re.search(r"✖ 8 shards are short of a copy: node-c is away +gossipq node, on node-c", text)
    behind = r"▲ group fraud on clickstream is 29,292 records behind; alarm_lag is 500"
    assert re.search(rf"{behind} +gossipq why clickstream --group fraud", text)
    events = shown(board, Ui(view="nodes"), 120, 40)
    assert re.search(r"leader-move +2 shards +node-c -> node-a within 3 s", events)
    assert re.search(r"leader-lost +2 shards +node-c leads no more", events)


def styles_of(line: Text, word: str) -> set[str]:
    at = line.plain.index(word)
    return {str(span.style) for span in line.spans if span.start <= at < span.end}


def test_what_is_broken_is_red(board: Board) -> None:
    line = next(line for line in screen(board, Ui(view="nodes"), 120, 40) if "node-c" in line.plain)
    assert "bold red" in styles_of(line, "node-c")
    assert "bold red" in styles_of(screen(board, Ui(), 120, 40)[0], "✖ 2/3")


def test_topics_with_their_states(board: Board) -> None:
    text = shown(board, Ui(view="topics"), 120, 40)
    assert re.search(r"orders +4 +860 +148k +4.4k +480 +0 +0 +68 +16", text), text


def test_a_topic_names_leaders_followers_and_their_lag(board: Board) -> None:
    text = shown(board, Ui(view="topics", path=("orders",)), 250, 80)
    row = next(line for line in text.splitlines() if re.search(r"│ +2 +2 +node-a +0 +4000", line))
    assert "node-c +960 ✖, node-b +1" in row
    assert re.search(r"│ retention +7d", text)
    assert "in flight 480" in text


def test_groups_with_trend_and_time_left(board: Board) -> None:
    text = shown(board, Ui(view="groups"), 120, 40)
    assert re.search(r"fraud · clickstream +3 +29\.3k.* grows", text)
    assert re.search(r"ledger · payments .* paused", text)


def test_a_group_says_why_once_for_what_is_alike(board: Board) -> None:
    text = shown(board, PLACES["a group"], 120, 40)
    assert "partition 1: no consumer" in text
    assert "gossipq sub orders -g billing" in text
    assert re.search(r"3 +\S+ +failures +no such customer +orders/0/17", text)
    assert "billing-1" in text


def test_a_record_with_why_and_trace(board: Board) -> None:
    text = shown(board, PLACES["a record"], 120, 40)
    for words in (
        '"sum":12.5',
        "billing: dead",
        "it failed 10 times",
        "gossipq dlq replay orders",
        "+9 ms failed",
        "cust-42",
    ):
        assert words in text


def test_growth_marks_joins_and_takeovers(board: Board) -> None:
    text = shown(board, Ui(view="growth"), 120, 40)
    assert re.search(r"│ +\+ +! +\+ +!! │", text)
    assert "11-14 00:00 to 11-21 00:01" in text
    assert "stored bytes  now 130M" in text
    minutes = shown(board, Ui(view="growth").looking(chosen="hours"), 120, 40)
    assert "11-20 22:30 to 11-21 00:01" in minutes


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("stored", [0, 1, 90])
def test_growth_names_its_span_also_when_rows_are_stored(
    board: Board, stored: int, size: tuple[int, int]
) -> None:
    board.history.growth_hours = board.history.growth_hours[-stored:] if stored else []
    board.history.growth_minutes = board.history.growth_minutes[-stored:] if stored else []
    assert "last week, by the hour" in shown(board, Ui(view="growth").looking(chosen="week"), *size)
    minutes = shown(board, Ui(view="growth").looking(chosen="hours"), *size)
    assert "last hours, by the minute" in minutes
    assert "last week" not in minutes
    if stored:
        assert "+join -left !takeover *several" in minutes


def test_growth_opens_by_the_age_of_what_is_stored(board: Board) -> None:
    history = board.history
    assert "last week, by the hour" in shown(board, Ui(view="growth"), 120, 40)
    history.growth_hours = [
        row for row in history.growth_hours if history.now.time_ms - row.time_ms < 2 * limits.HOUR_MS
    ]
    assert "last hours, by the minute" in shown(board, Ui(view="growth"), 120, 40)
    history.growth_hours = history.growth_minutes = []
    assert "last week, by the hour" in shown(board, Ui(view="growth"), 120, 40), "nothing is stored"


def test_growth_of_one_row_begins_before_it_ends_and_ends_now(board: Board) -> None:
    board.history.growth_hours, board.history.growth_minutes = (
        [rows.Growth(time_ms=1_795_222_800_000, published=7)],
        [],
    )
    text = shown(board, Ui(view="growth"), 120, 40)
    assert "11-21 00:00 to 11-21 00:01" in text
    assert "published per hour  so far 7  peak 7" in text
    assert re.search(r"7┤ {102}█{8} │", text)


def test_marks_that_share_a_column_hide_none(board: Board) -> None:
    both = [rows.Growth(time_ms=1_795_222_800_000, joined=True, takeovers=2, voters=3)]
    board.history.growth_hours, board.history.growth_minutes = both, []
    assert re.search(r"│ +\* +│", shown(board, Ui(view="growth"), 120, 40))


def test_the_help_fits_and_scrolls_where_it_does_not(board: Board) -> None:
    whole = shown(board, Ui(help=True), 80, 24)
    assert "1-7 tab" in whole
    assert "gossipq group lag TOPIC." in whole
    assert "…" not in whole
    assert "TOPIC." not in shown(board, Ui(help=True), 60, 20)
    end = shown(board, Ui(help=True, help_at=99), 60, 20)
    assert "TOPIC." in end
    assert re.search(r"↑↓ \d+-(\d+) of \1  esc: back", end)


def test_a_node_shows_its_configuration(board: Board) -> None:
    text = shown(board, PLACES["a node"], 120, 40)
    assert 'cluster.secret  "***"' in text
    assert re.search(r"│ +0 +ready +4000", text)


def test_the_order_of_a_list_and_the_pointer(board: Board) -> None:
    lines = shown(board, Ui(view="topics"), 80, 24).splitlines()[4:9]
    first = [line.replace("▸", " ").split()[1] for line in lines]
    assert first == ["audit", "clickstream", "orders", "orders.dlq", "payments"]
    assert "▸ orders.dlq" in shown(board, Ui(view="topics").looking(chosen="orders.dlq"), 80, 24)
    filtered = shown(board, Ui(view="topics").looking(filter="DLQ"), 80, 24)
    assert "payments" not in filtered
    assert "filter 'DLQ'  1/1" in filtered


def test_a_list_longer_than_the_screen_scrolls() -> None:
    board = Board()
    topics = [rows.Topic(name=f"t-{number:03}", partitions=1) for number in range(200)]
    board.history.add(rows.Snapshot(time_ms=1_000, nodes=[rows.Node(name="a")], topics=topics))
    text = shown(board, Ui(view="topics").looking(chosen="t-150"), 80, 24)
    assert "▸ t-150" in text
    assert "151/200" in text
    assert "t-000" not in text


def test_a_silent_node_is_told(board: Board) -> None:
    board.age_ms, board.fault = (
        3_200,
        Fault("no node answers at tcp://10.0.0.11:7700", "start one: gossipq node"),
    )
    lines = screen(board, Ui(), 120, 40)
    assert "✖ no answer for 3.2s" in lines[0].plain
    assert "no node answers at tcp://10.0.0.11:7700: start one: gossipq node" in lines[-1].plain
    board.age_ms = 1_900
    assert "no answer" not in screen(board, Ui(), 120, 40)[0].plain


def test_what_is_old_is_grey_with_its_age(board: Board) -> None:
    board.age_ms = 42_000
    fresh, old = Ui(), screen(board, Ui(), 120, 40)
    assert "✖ no answer for 42s" in old[0].plain
    for line in old[2:-1]:
        assert line.style == OLD
        assert not line.spans, "no colour of what was"
    board.age_ms = 0
    assert any(line.spans for line in screen(board, fresh, 120, 40)[2:-1])


def test_charts_have_axes_and_say_their_span(board: Board) -> None:
    text = shown(board, Ui(), 120, 40)
    assert re.search(r"│ +[\d.]+k┤", text)
    assert re.search(r"│ +0┤", text)
    assert re.search(r"peak [\d.]+k/s · the last \d+ s", text)
    growth = shown(board, Ui(view="growth"), 120, 40)
    assert re.search(r"130M┤", growth)
    assert "peak" in shown(board, Ui(), 60, 20) or "published" not in shown(board, Ui(), 60, 20)


def test_what_nodes_write_comes_last_however_it_is_sorted(board: Board) -> None:
    now = board.history.now
    noisy = rows.Partition(topic="_audit", partition=0, shard=0, next=10**9, published=10**9)
    group = rows.Group(topic="_audit", group="export", partition=0, ready=10**8)
    later = msgspec.structs.replace(
        now,
        time_ms=now.time_ms + 1_000,
        topics=[rows.Topic(name="_audit"), *now.topics],
        partitions=[noisy, *now.partitions],
        groups=[group, *now.groups],
    )
    board.history.add(later)
    for sorting in (Sorting("records", True), Sorting("in/s", False), Sorting("topic", True)):
        keys = view_of(Ui(view="topics")).keys(board, Ui(view="topics").looking(sorting=sorting))
        assert keys[-1] == "_audit"
    assert view_of(Ui(view="groups")).keys(board, Ui(view="groups"))[-1].startswith("_audit")
    overview = [key for key in view_of(Ui()).keys(board, Ui()) if key.startswith("topics")]
    assert overview[-1].endswith("_audit")


@pytest.mark.parametrize("size", [(80, 24), (60, 20)])
def test_a_small_screen_shows_the_worst_first_and_scrolls_to_the_rest(
    board: Board, size: tuple[int, int]
) -> None:
    now = board.history.now
    told = [
        rows.Alarm(name=f"a-{at}", subject=f"s-{at}", text=f"thing {at} is odd", command=f"gossipq fix {at}")
        for at in range(9)
    ]
    worst = rows.Alarm(name="z", severity="critical", text="all is lost", command="gossipq run-away")
    board.history.add(msgspec.structs.replace(now, time_ms=now.time_ms + 1_000, alarms=[*told, worst]))
    count = len([key for key in view_of(Ui()).keys(board, Ui()) if key.startswith("alarms")])
    text = shown(board, Ui(), *size)
    assert "▸ ✖ " in text
    ui, seen = Ui(), ""
    for _ in range(count):
        seen += shown(board, ui, *size)
        ui = keys.step(ui, "down", board).ui
    for at in range(9):
        assert re.search(rf"▸ ▲ thing {at} is odd", seen)
        assert f"gossipq fix {at}  " in seen, "what helps, whole"
    assert seen.index("all is lost") < seen.index("thing 0 is odd")


def test_nodes_show_commits_and_free_disk(board: Board) -> None:
    now = board.history.now
    nodes = [
        msgspec.structs.replace(node, disk_free_bytes=3 << 30, commit_us=1_870, rss_bytes=-1)
        for node in now.nodes
    ]
    board.history.add(msgspec.structs.replace(now, time_ms=now.time_ms + 1_000, nodes=nodes))
    text = shown(board, Ui(view="nodes"), 120, 40)
    assert re.search(r"free +commit", text)
    assert re.search(r"3\.0G +1\.9ms", text)


def test_an_old_node_says_what_it_cannot_tell(board: Board) -> None:
    old = msgspec.structs.replace(
        board.history.now,
        time_ms=board.history.now.time_ms + 1_000,
        clients=[],
        growth_hours=[],
        growth_minutes=[],
        missing=["clients", "growth"],
    )
    board = Board()
    board.history.add(old)
    assert "does not tell its clients" in shown(board, Ui(view="clients"), 80, 24)
    assert "keeps no growth" in shown(board, Ui(view="growth"), 80, 24)


@pytest.mark.parametrize("view", ["overview", "topics", "groups", "clients", "messages"])
def test_what_no_leader_has_told_is_not_said_to_be_none(board: Board, view: str) -> None:
    now = board.history.now
    untold = msgspec.structs.replace(
        now, topics=[], partitions=[], groups=[], clients=[], alarms=[], missing=["counters"]
    )
    board = Board()
    board.history.add(untold)
    text = shown(board, Ui(view=view), 120, 40)
    assert "not known: a leader does not answer" in text
    assert not re.search(r"no (topic|group|client)|backlog 0", text)


def test_an_error_in_place_of_an_answer(board: Board) -> None:
    board.keep(Page("orders", 3, 0, 20), Failed("no topic orders"))
    assert "no topic orders" in shown(board, PLACES["messages of a partition"], 80, 24)
    board.keep(Open("orders/3/88120"), Failed("offset 88120 has no record yet", "offsets below 17 have one"))
    assert "offsets below 17 have one" in shown(board, PLACES["a record"], 80, 24)


@pytest.mark.parametrize("view", VIEWS)
def test_plain_text_for_pipes(board: Board, view: str) -> None:
    text = plain(board, Ui(view=view), 120, 40)
    assert not set("╭╮╰╯│─") & set(text)
    assert all(line == line.rstrip() and line for line in text.splitlines())


# --- odd names

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40) | st.sampled_from(
    [
        "\x1b[2J\x1b[31m",
        "a\u202eb",
        "注文" * 12,
        "\t\r\n",
        "é\u0301",
        "👩‍👩‍👧",
        "[red]x[/red]",
        "…",
        "\x9b2J",
        "\u200b",
        "─" * 30,
    ]
)
NUMBERS = st.integers(0, 2**63)


def odd(names: list[str], number: int, value: bytes) -> Board:
    """A cluster in which everything is called as somebody wanted it to be called, with numbers as large as
    they get."""
    node, topic, group, client, text = names
    fields = {"published": number, "delivered": number, "acked": number}
    snapshot = rows.Snapshot(
        time_ms=number,
        answered_by=node,
        cluster=text,
        mode=text,
        version=text,
        serf=text,
        shards_total=2,
        shards_led=1,
        nodes=[
            rows.Node(
                name=node,
                state="failed",
                detail=text,
                endpoint=text,
                version=text,
                config={text: text},
                **fields,
            ),
            rows.Node(name=topic, store_bytes=number, cpu_ms=50, uptime_ms=number, rtt_us=number, **fields),
        ],
        workers=[rows.Worker(node=node, worker=0, detail=text, commit_us=number, **fields)],
        shards=[
            rows.Shard(shard=0, leader=node, term=number, copies=[rows.Copy(node=node, role="leader")]),
            rows.Shard(
                shard=1,
                state="degraded",
                copies=[rows.Copy(node=node, role="learner", lag=number, reachable=False)],
            ),
        ],
        topics=[rows.Topic(name=topic, config={text: text}), rows.Topic(name=text, virtual=[topic, node])],
        partitions=[
            rows.Partition(topic=topic, partition=0, shard=0, next=number, published=number, bytes=number)
        ],
        groups=[
            rows.Group(topic=topic, group=group, partition=0, ready=number, dead=number, oldest_ms=number)
        ],
        clients=[
            rows.Client(
                session="ab" * 4,
                client=client,
                version=text,
                subscriptions=[rows.Subscription(topic=topic, group=group)],
            )
        ],
        alarms=[rows.Alarm(name=text, text=text, command=text, severity="critical")],
        events=[rows.Event(time_ms=number, kind=text, who=node, text=text)],
        growth_hours=[rows.Growth(time_ms=number, bytes=number, published=number, joined=True)],
        warnings=[text],
    )
    board = Board(History())
    board.history.add(msgspec.structs.replace(snapshot, time_ms=max(1, number - 1_000)))
    board.history.add(snapshot)
    ref = f"{topic}/0/1"
    board.keep(Page(topic, -1, 0, 1), Records([Record(ref, topic, 0, number, number, value, value, number)]))
    work, ticks = working(number, topic, group, text, text)
    board.keep(Work(topic, group), work)
    board.keep(Runs(topic, group, text), ticks)
    stands = [Stands(group, text, text, text, number, 1, 1)]
    board.keep(Open(ref), Opened(ref, [(text, text)], value, len(value), stands, [], [text]))
    return board


def places(names: list[str]) -> Iterator[Ui]:
    node, topic, group, _, text = names
    yield from (Ui(view=view, notice=text) for view in VIEWS)
    yield Ui(view="nodes", path=(node,), prompt=Prompt("filter", "filter:", text))
    yield Ui(view="topics", path=(topic,))
    yield Ui(view="groups", path=(topic, group))
    yield Ui(view="groups", path=(topic, group, JOBS))
    yield Ui(view="groups", path=(topic, group, JOBS, text))
    yield Ui(view="messages", topic=topic)
    for kind, called in KINDS.items():
        subject = Subject(kind, tuple((topic, group, text, text)[: len(called)]))
        yield Ui(menu=Menu(subject), prompt=None)
        yield Ui(prompt=Prompt("confirm", f"{text} {name_of(subject)}? y/n"))
    yield Ui(view="messages", topic=topic, path=(f"{topic}/0/1",))


@settings(max_examples=40)
@given(st.lists(NAMES, min_size=5, max_size=5), NUMBERS, st.binary(max_size=300), st.sampled_from(SIZES[:3]))
def test_odd_names_break_no_line(names: list[str], number: int, value: bytes, size: tuple[int, int]) -> None:
    board = odd(names, number, value)
    for ui in places(names):
        shown(board, ui, *size)


# --- each state, as it is drawn


def test_each_state_looks_as_it_is_drawn(states: ModuleType) -> None:
    """At four sizes; whoever changes a screen sees in the difference what becomes of it in each state."""
    kept = {path.stem: path.read_text("utf-8") for path in states.FOLDER.glob("*.txt")}
    assert kept.keys() == states.STATES.keys()
    for name, text in kept.items():
        assert states.drawn(name) == text, f"{name}: python tests/cli/dashboard/states.py draws them anew"


@pytest.mark.parametrize(
    ("state", "word", "says"),
    [
        ("healthy", "", "● 3/3 nodes"),
        ("starting", "starting", "worker-0 of ada is starting"),
        ("joining", "joining", "the node is not in its cluster yet"),
        ("one-away", "degraded", "degraded: cat is away: its copies of 6"),
        ("two-of-three-away", "no quorum", "no quorum: 6 of 6 shards have no leader"),
        ("full-on-one", "full", "full: worker-0 of bob refuses publishes"),
        ("full-on-all", "full", "full: worker-0 of ada refuses publishes"),
        ("paused-worker", "paused", "paused: worker-0 of ada"),
        ("stopped-shard", "stopped", "stopped: shard 3 stopped on"),
        ("unreachable", "unreachable", "no node answers at tcp://ada:7700"),
        ("silent", "no answer for 42s", "no node answers at tcp://ada:7700"),
        ("other-version", "refused", "the node speaks version 3, this client version 2"),
    ],
)
def test_each_state_has_its_word_in_the_header_of_every_size(
    states: ModuleType, state: str, word: str, says: str
) -> None:
    for width, height in states.SIZES:
        text = shown(states.STATES[state](), Ui(), width, height)
        assert word in text.splitlines()[0], (width, height)
        assert says in text, (width, height)
        assert ("●" in text.splitlines()[0]) == (state == "healthy")


def test_the_header_is_red_once_shards_have_had_no_leader_for_a_while() -> None:
    history = History()
    history.add(rows.Snapshot(time_ms=1_000, shards_total=3, shards_led=3, state="healthy"))

    def styles(second: int) -> set[str]:
        history.add(rows.Snapshot(time_ms=1_000 * second, shards_total=3, shards_led=1, state="no quorum"))
        text = header(Board(history), Ui(), 200)
        named = {text.plain[span.start : span.end].strip(): str(span.style) for span in text.spans}
        return {named["no quorum"], named["shards 1/3"]}

    assert styles(3) == {WARN}
    assert styles(7) == {BAD}
