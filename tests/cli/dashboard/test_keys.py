"""Keys: what bytes mean, and what the user has chosen after each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossipq_cli.dashboard import keys
from gossipq_cli.dashboard.asked import Act, Find, Open, Page, Stand
from gossipq_cli.dashboard.commands import FORMS, parse
from gossipq_cli.dashboard.frame import screen
from gossipq_cli.dashboard.state import VIEWS, Board, Ui, wanted


def press(board: Board, ui: Ui, *pressed: str) -> Ui:
    for key in pressed:
        ui = keys.step(ui, key, board, 10).ui
    return ui


def typed(board: Board, ui: Ui, text: str) -> Ui:
    return press(board, ui, *text)


# --- bytes


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1bOB\x1b[5~\x1b[H", ["up", "down", "pgup", "home"]),
        (b"\r\n\t\x7f\x15", ["enter", "enter", "tab", "backspace", "kill"]),
        ("é注👍".encode(), ["é", "注", "👍"]),
        (b"\x1b[200~x\x1b[1;5C", ["x"]),
        (b"\xff\xfe\x00\x01q", ["q"]),
        (b"\x1b\x1b[A", ["esc", "up"]),
        (b"\x1bx", ["esc", "x"]),
    ],
)
def test_bytes_to_keys(data: bytes, found: list[str]) -> None:
    assert keys.Decoder().feed(data) == found


def test_a_lone_escape_is_one_when_nothing_follows() -> None:
    decoder = keys.Decoder()
    assert decoder.feed(b"\x1b") == []
    assert decoder.waiting
    assert decoder.flush() == ["esc"]
    assert not decoder.waiting
    assert decoder.flush() == []


@given(
    st.lists(
        st.sampled_from([b"q", b"\x1b[A", b"\x1b[6~", "é".encode(), "👍".encode(), b"\r", b"\x1bOB"]),
        max_size=12,
    ),
    st.data(),
)
def test_pieces_make_no_difference(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    decoder, found = keys.Decoder(), []
    for first, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found += decoder.feed(whole[first:end])
    assert found == keys.Decoder().feed(whole)


@given(st.binary(max_size=60))
def test_any_bytes_are_survived(data: bytes) -> None:
    decoder = keys.Decoder()
    for key in [*decoder.feed(data), *decoder.flush()]:
        assert len(key) == 1 or key in {*keys.ESCAPES.values(), *keys.CONTROLS.values(), "esc"}


# --- views and lists


def test_numbers_and_arrows_choose_views(board: Board) -> None:
    for number, view in enumerate(VIEWS, 1):
        assert press(board, Ui(), str(number)).view == view
    assert press(board, Ui(), "tab").view == "nodes"
    assert press(board, Ui(), "left").view == "growth"


def test_walking_stays_on_the_row_and_inside_the_list(board: Board) -> None:
    ui = press(board, Ui(view="topics"), "down", "down")
    assert ui.look.chosen == "orders"
    assert press(board, ui, "S").look.chosen == "orders", "the pointer goes where its row goes"
    assert press(board, ui, "end").look.chosen == "payments"
    assert press(board, ui, "end", "down", "j").look.chosen == "payments"
    assert press(board, ui, "home", "up", "pgup").look.chosen == "audit"


def test_opening_and_coming_back(board: Board) -> None:
    ui = press(board, Ui(view="topics"), "down", "enter")
    assert (ui.view, ui.path) == ("topics", ("clickstream",))
    assert press(board, ui, "esc").path == ()
    group = press(board, Ui(view="groups"), "enter")
    assert group.path == ("clickstream", "fraud"), "the one with most backlog is on top"
    assert wanted(group, 20) == Stand("clickstream", "fraud")
    assert press(board, Ui(view="nodes"), "enter").path == ("node-a",)
    assert press(board, Ui(), "enter").path == ("clickstream",)


def test_from_a_topic_to_its_messages_to_one_of_them(board: Board) -> None:
    ui = press(board, Ui(view="topics"), "down", "down", "m")
    assert (ui.view, ui.topic, ui.partition) == ("messages", "orders", -1)
    assert wanted(ui, 20) == Page("orders", -1, 0, 20)
    ui = press(board, Ui(view="topics", path=("orders",)), "end", "m")
    assert wanted(ui, 20) == Page("orders", 3, 0, 20)
    ui = press(board, ui, "enter")
    assert ui.path == ("orders/3/88149",), "at the tail the newest is pointed at"
    assert wanted(ui, 20) == Open("orders/3/88149")
    assert press(board, ui, "esc", "esc").topic == ""


def test_older_messages_and_back_to_the_tail(board: Board) -> None:
    ui = press(board, Ui(view="messages", topic="orders", partition=3), "home", "pgup")
    assert (ui.tail, ui.back) == (False, 10)
    assert wanted(ui, 10) == Page("orders", 3, 10, 10)
    ui = press(board, ui, "end", "pgdn")
    assert (ui.tail, ui.back) == (True, 0)
    assert press(board, ui, "t").tail is False
    assert press(board, ui, "t", "t").tail is True


def test_a_filter_works_while_it_is_typed(board: Board) -> None:
    ui = typed(board, Ui(view="topics"), "/dlq")
    assert ui.look.filter == "dlq"
    assert press(board, ui, "enter").prompt is None
    assert press(board, ui, "enter").look.filter == "dlq"
    assert press(board, ui, "esc").look.filter == ""
    assert press(board, ui, "enter", "esc").look.filter == ""
    assert press(board, ui, "backspace").look.filter == "dl"
    assert press(board, ui, "kill", "backspace").prompt is None


def test_q_in_a_prompt_is_a_letter(board: Board) -> None:
    stepped = keys.step(typed(board, Ui(view="topics"), "/"), "q", board)
    assert stepped.deeds == []
    assert stepped.ui.look.filter == "q"


def test_a_search_in_the_messages_of_a_topic(board: Board) -> None:
    ui = press(board, typed(board, Ui(view="messages", topic="orders"), "/EUR"), "enter")
    assert wanted(ui, 20) == Find("orders", "EUR")
    assert press(board, ui, "esc").find == ""


def test_sorting_goes_round(board: Board) -> None:
    ui, seen = Ui(view="groups"), []
    for _ in range(4):
        ui = press(board, ui, "s")
        assert ui.look.sorting is not None
        seen.append(ui.look.sorting.title)
    assert seen == ["done/s", "ready", "fly", "retry"]
    assert press(board, Ui(view="groups"), "S").look.sorting == ("lag", False)


def test_pause_rate_help_quit(board: Board) -> None:
    assert press(board, Ui(), "p").paused
    assert not press(board, Ui(), "p", "p").paused
    assert press(board, Ui(), "+").every_s == 2.0
    assert press(board, Ui(), "-", "-", "-").every_s == 0.5
    assert press(board, Ui(), "?").help
    assert not press(board, Ui(), "?", "x").help
    assert keys.step(Ui(), "q", board).deeds == [keys.Quit()]
    assert keys.step(Ui(help=True), "q", board).deeds == [keys.Quit()]
    assert press(board, Ui(help=True), "down", "down", "up").help_at == 1
    assert press(board, Ui(help=True), "end", "home").help_at == 0
    assert press(board, Ui(help=True, help_at=3), "pgup").help_at == 0
    assert press(board, Ui(help=True), "pgdn", "x", "?").help_at == 0
    assert keys.step(Ui(), "w", board).deeds == [keys.Save("")]
    assert keys.step(Ui(), "redraw", board).deeds == [keys.Redraw()]


# --- verbs on a record

OPEN = Ui(view="messages", topic="orders", path=("orders/3/88120",))


def test_removing_asks_first(board: Board) -> None:
    ui = press(board, OPEN, "x")
    assert ui.prompt is not None
    assert ui.prompt.label == "remove orders/3/88120 for every group? y/n"
    assert keys.step(ui, "n", board).deeds == []
    assert keys.step(ui, "esc", board).deeds == []
    assert keys.step(ui, "enter", board).deeds == [], "only y is a yes"
    assert keys.step(ui, "y", board).deeds == [Act("rm", "orders/3/88120")]


def test_replay_proposes_a_group_and_asks(board: Board) -> None:
    ui = press(board, OPEN, "r")
    assert ui.prompt is not None
    assert ui.prompt.text == "billing"
    ui = press(board, ui, "enter")
    assert keys.step(ui, "y", board).deeds == [Act("requeue", "orders/3/88120", "billing")]


def test_edit_begins_with_the_value(board: Board) -> None:
    ui = press(board, OPEN, "e")
    assert ui.prompt is not None
    assert ui.prompt.text == '{"id":9917,"sum":12.5,"cur":"EUR"}'
    ui = press(board, typed(board, press(board, ui, "kill"), "new"), "enter")
    assert keys.step(ui, "y", board).deeds == [Act("edit", "orders/3/88120", "new")]
    assert press(board, press(board, OPEN, "e", "kill"), "enter").notice == "not done"


def test_reschedule_and_cancel(board: Board) -> None:
    ui = press(board, typed(board, press(board, OPEN, "d"), "5m"), "enter")
    assert keys.step(ui, "y", board).deeds == [Act("reschedule", "orders/3/88120", "5m")]
    assert keys.step(press(board, OPEN, "c"), "y", board).deeds == [Act("cancel", "orders/3/88120")]


def test_what_is_no_line_of_text_is_not_edited_here(board: Board) -> None:
    opened = board.answers[Open("orders/3/88120")]
    board.keep(Open("orders/3/88120"), opened._replace(value=b"\xff\x00", size=2))
    ui = press(board, OPEN, "e")
    assert ui.prompt is None
    assert "gossipq msg edit orders/3/88120 -" in ui.notice


def test_a_recording_is_not_changed(board: Board) -> None:
    board.recorded = True
    assert press(board, OPEN, "x").prompt is None
    ui = press(board, typed(board, Ui(), ":rm orders/0/1"), "enter")
    assert (ui.notice, ui.prompt) == ("a recording cannot be changed", None)


# --- commands


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("topics", {"view": "topics", "path": ()}),
        ("topic orders", {"view": "topics", "path": ("orders",)}),
        ("group orders billing", {"view": "groups", "path": ("orders", "billing")}),
        ("node node-a", {"view": "nodes", "path": ("node-a",)}),
        ("why orders/0/17", {"view": "messages", "topic": "orders", "path": ("orders/0/17",)}),
        ("rate 2", {"every_s": 2.0}),
        ("graph ascii", {"graph": "ascii"}),
        ("pause", {"paused": True}),
    ],
)
def test_commands(board: Board, line: str, changes: dict[str, object]) -> None:
    ui = press(board, typed(board, Ui(), ":" + line), "enter")
    assert {name: getattr(ui, name) for name in changes} == changes
    assert ui.prompt is None


def test_messages_and_find(board: Board) -> None:
    ui = press(board, typed(board, Ui(), ":messages orders/3"), "enter")
    assert wanted(ui, 5) == Page("orders", 3, 0, 5)
    ui = press(board, typed(board, Ui(), ":find orders 17 apples"), "enter")
    assert wanted(ui, 5) == Find("orders", "17 apples")


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ("topcs", "no command topcs; did you mean topics?"),
        ("xyzzy", "no command xyzzy; ? lists them"),
        ("group orders", "write group TOPIC GROUP"),
        ("rate fast", "write rate SECONDS"),
        ("rate 0.01", "write rate SECONDS"),
        ("messages orders/x", "write messages [TOPIC[/PARTITION]]"),
        ("why orders", "write why REF"),
        ("rm", "write rm REF"),
        ("rm a/0/1 b/0/1", "write rm REF"),
        ("replay a/0/1", "write replay REF GROUP"),
    ],
)
def test_wrong_commands_say_how_they_are_written(board: Board, line: str, trouble: str) -> None:
    ui = press(board, typed(board, Ui(), ":" + line), "enter")
    assert (ui.notice, ui.bad) == (trouble, True)


def test_commands_that_do_something_ask_first(board: Board) -> None:
    ui = press(board, typed(board, Ui(), ":replay orders/0/17 billing"), "enter")
    assert keys.step(ui, "y", board).deeds == [Act("requeue", "orders/0/17", "billing")]
    assert keys.step(typed(board, Ui(), ":svg x.svg"), "enter", board).deeds == [keys.Save("x.svg")]
    assert keys.step(typed(board, Ui(), ":q"), "enter", board).deeds == [keys.Quit()]


def test_every_command_is_in_the_help() -> None:
    from gossipq_cli.dashboard.frame import HELP

    told = HELP.replace("topics, nodes, ...", "node help pause graph messages TOPIC[/P]")
    assert [name for name in FORMS if name not in told] == []


@given(st.text(max_size=40))
def test_any_command_is_survived(line: str) -> None:
    command = parse(line)
    assert command.trouble or command.changes is None or isinstance(command.changes, dict)


ALL_KEYS = [
    *"1234567jkgGmtspSPbwh?/:+-qxrecdyn0é ",
    "up",
    "down",
    "pgup",
    "pgdn",
    "home",
    "end",
    "enter",
    "esc",
    "tab",
    "left",
    "backspace",
]


@given(st.lists(st.sampled_from(ALL_KEYS), max_size=60))
def test_no_keys_lead_where_nothing_can_be_drawn(snapshots, pressed: list[str]) -> None:
    from gossipq_cli.dashboard.still import recorded

    board, ui = recorded(snapshots[-2:]), Ui()
    for key in pressed:
        ui = keys.step(ui, key, board, 10).ui
    assert len(screen(board, ui, 80, 24)) == 24
