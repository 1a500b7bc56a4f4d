"""Keys: what bytes mean, and what the user has chosen after each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gossipq_cli.dashboard import keys
from gossipq_cli.dashboard.commands import FORMS, parse
from gossipq_cli.dashboard.frame import screen
from gossipq_cli.dashboard.state import JOBS, VIEWS, Board, Ui, wanted
from gossipq_cli.dashboard.views import view_of
from gossipq_ops.actions import ACTIONS
from gossipq_ops.questions import (
    Act,
    Done,
    Failed,
    Find,
    Open,
    Page,
    Runs,
    Stand,
    Subject,
    Try,
    Work,
    of_record,
)
from gossipq_ops.verbs import NAMES, VERBS, command_of, name_of, question_of, undo_of, verbs_of


def press(board: Board, ui: Ui, *pressed: str) -> Ui:
    for key in pressed:
        ui = keys.step(ui, key, board, 10).ui
    return ui


def shown(ui: Ui, board: Board, width: int = 80, height: int = 24) -> str:
    return "\n".join(line.plain for line in screen(board, ui, width, height))


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
        (b"\x1b[1;5Cx", ["x"]),
        (b"\x1b[200~x\r\ny\x00\x1b[A\x1b[201~q", ["paste:x y[A", "q"]),
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


def test_a_paste_whose_end_does_not_come_is_given_up() -> None:
    decoder = keys.Decoder()
    assert decoder.feed(b"\x1b[200~xy") == decoder.flush() == []
    for _ in range(keys.PASTE_QUIET):
        decoder.flush()
    assert decoder.feed(b"q") == ["q"]


def test_what_is_pasted_is_text_and_no_keys(board: Board) -> None:
    """Of a message: x would ask to remove it, and y be the yes."""
    ui = Ui(view="messages", topic="orders", path=("orders/0/17",))
    stepped = keys.step(ui, "paste:xy", board)
    assert (stepped.deeds, stepped.ui.prompt) == ([], None)
    asked = press(board, ui, "x", "paste:y")
    assert asked.prompt is not None, "the question still stands"
    assert press(board, ui, ":", "paste:why orders/0/3", "!").prompt.text == "why orders/0/3!"  # type: ignore[union-attr]


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
        assert (
            len(key) == 1
            or key.startswith(keys.TEXT)
            or key in {*keys.ESCAPES.values(), *keys.CONTROLS.values(), "esc"}
        )


# --- views and lists


def test_numbers_and_arrows_choose_views(board: Board) -> None:
    for number, view in enumerate(VIEWS, 1):
        assert press(board, Ui(), str(number)).view == view
    assert press(board, Ui(), "tab").view == "nodes"
    assert press(board, Ui(), "left").view == "growth"


def test_the_jobs_of_a_group_are_opened_and_left(board: Board) -> None:
    ui = press(board, Ui(view="groups", path=("orders", "billing")), "J")
    assert ui.path == ("orders", "billing", JOBS)
    assert wanted(ui, 20) == Work("orders", "billing")
    assert press(board, typed(board, Ui(), ":jobs orders billing"), "enter").path == ui.path
    assert press(board, ui, "enter").path == ("orders/3/7",), "the record of the job that runs"
    error = press(board, ui, "o")
    assert press(board, error, "enter").path == ("orders/3/9",), "the newest record of an error"
    schedule = press(board, error, "o", "enter")
    assert wanted(schedule, 20) == Runs("orders", "billing", "nightly")
    assert press(board, schedule, "enter").path == ("orders/3/6",), "the record of the last tick"
    assert press(board, schedule, "esc").path == ui.path
    assert press(board, ui, "esc").path == ("orders", "billing")
    assert press(board, Ui(view="nodes"), "J") == Ui(view="nodes")
    rows = Ui(view="groups")
    assert press(board, rows, "J").path[2:] == (JOBS,)


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
    assert press(board, typed(board, Ui(), "/clickstream"), "enter", "o", "enter").path == ("clickstream",)


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


def test_a_recording_is_wound_and_played_faster(board: Board) -> None:
    assert keys.step(Ui(), "[", board).deeds == [], "what runs now has no other time"
    assert press(board, typed(board, Ui(), ":at 00:01"), "enter").bad
    board.recorded = True
    assert keys.step(Ui(), "[", board).deeds == [keys.Seek(by_ms=-60_000)]
    assert keys.step(Ui(), ".", board).deeds == [keys.Seek(1)]
    assert press(board, Ui(), "+", "+").speed == 5.0
    assert press(board, Ui(), "-", "-", "-").speed == 0.5
    assert press(board, typed(board, Ui(), ":speed 10"), "enter").speed == 10.0
    assert press(board, typed(board, Ui(), ":speed 1000"), "enter").bad
    at = keys.step(typed(board, Ui(), ":at 00:01:05"), "enter", board).deeds
    assert at == [keys.Seek(to_ms=1_795_219_265_000)]
    day = keys.step(typed(board, Ui(), ":at 2026-11-21T02:00+02:00"), "enter", board).deeds
    assert day == [keys.Seek(to_ms=1_795_219_200_000)]
    assert press(board, typed(board, Ui(), ":at noon"), "enter").bad


# --- verbs on a record

OPEN = Ui(view="messages", topic="orders", path=("orders/3/88120",))


def test_removing_asks_first(board: Board) -> None:
    ui = press(board, OPEN, "x")
    assert ui.prompt is not None
    assert ui.prompt.label == "remove orders/3/88120 for every group? y/n"
    assert "remove orders/3/88120 for every group? y/n" in shown(ui, board)
    assert keys.step(ui, "n", board).deeds == []
    assert keys.step(ui, "esc", board).deeds == []
    assert keys.step(ui, "enter", board).deeds == [], "only y is a yes"
    assert keys.step(ui, "y", board).deeds == [Act("rm", of_record("orders/3/88120"))]


def test_replay_proposes_a_group_and_asks(board: Board) -> None:
    ui = press(board, OPEN, "r")
    assert ui.prompt is not None
    assert ui.prompt.text == "billing"
    ui = press(board, ui, "enter")
    assert keys.step(ui, "y", board).deeds == [Act("requeue", of_record("orders/3/88120"), "billing")]


def test_edit_begins_with_the_value(board: Board) -> None:
    ui = press(board, OPEN, "e")
    assert ui.prompt is not None
    assert ui.prompt.text == '{"id":9917,"sum":12.5,"cur":"EUR"}'
    ui = press(board, typed(board, press(board, ui, "kill"), "new"), "enter")
    assert keys.step(ui, "y", board).deeds == [Act("edit", of_record("orders/3/88120"), "new")]
    assert press(board, press(board, OPEN, "e", "kill"), "enter").notice == "not done"


def test_reschedule_and_cancel(board: Board) -> None:
    ui = press(board, typed(board, press(board, OPEN, "d"), "5m"), "enter")
    assert keys.step(ui, "y", board).deeds == [Act("reschedule", of_record("orders/3/88120"), "5m")]
    assert keys.step(press(board, OPEN, "c"), "y", board).deeds == [
        Act("cancel", of_record("orders/3/88120"))
    ]


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
        ("topcs", "no command or name topcs; did you mean topics?"),
        ("xyzzy", "no command or name xyzzy; ? lists them"),
        ("ordres", "no command or name ordres; did you mean orders?"),
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
    assert keys.step(ui, "y", board).deeds == [Act("requeue", of_record("orders/0/17"), "billing")]
    assert keys.step(typed(board, Ui(), ":svg x.svg"), "enter", board).deeds == [keys.Save("x.svg")]
    assert keys.step(typed(board, Ui(), ":q"), "enter", board).deeds == [keys.Quit()]


def test_every_command_is_in_the_help() -> None:
    from gossipq_cli.dashboard.frame import HELP

    told = HELP + "node help pause graph"
    assert [name for name in FORMS if name not in told] == []


@given(st.text(max_size=40))
def test_any_command_is_survived(line: str) -> None:
    command = parse(line)
    assert command.trouble or command.changes is None or isinstance(command.changes, dict)


ALL_KEYS = [
    *"1234567jkgGmtspSPbwh?/:+-qxrecdyn0éaou ",
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


# --- the menu of verbs


def test_every_row_has_verbs_or_says_so(board: Board) -> None:
    """Wherever the pointer goes: a subject that the table knows, with as many names as it has there."""
    pages = [Ui(view=view) for view in VIEWS] + [
        Ui(view="nodes", path=("node-a",)),
        Ui(view="nodes", path=("node-a", "1")),
        Ui(view="topics", path=("orders",)),
        Ui(view="groups", path=("orders", "billing")),
        Ui(view="groups", path=("orders", "billing", JOBS)),
        Ui(view="groups", path=("orders", "billing", JOBS, "nightly")),
        Ui(view="clients", path=(board.history.now.clients[0].session,)),
        Ui(view="messages", topic="orders", partition=3),
        OPEN,
    ]
    for ui in pages:
        view = view_of(ui)
        for key in view.keys(board, ui):
            subject = view.subject(board, ui, key)
            if subject is None:
                assert ui.view == "growth" or key.startswith("alarms"), "what names nothing that is there"
            else:
                assert len(subject.names) == len(NAMES[subject.kind])
                assert verbs_of(subject)


def test_what_is_chosen_is_tried_then_asked_then_done(board: Board) -> None:
    ui = press(board, Ui(view="groups", path=("orders", "billing")), "a")
    assert ui.menu is not None
    assert "replay" in shown(ui, board)
    assert "gossipq dlq replay orders -g billing" in shown(ui, board, 120, 40)
    stepped = keys.step(ui, "r", board)
    act = Act("replay", Subject("group", ("orders", "billing")))
    assert stepped.deeds == [Try(act)]
    assert "asking what it would do" in shown(stepped.ui, board)
    ui = keys.answered(stepped.ui, Try(act), Done("4 dead letters would be ready for billing again"))
    assert ui.prompt is not None
    assert ui.prompt.label == "4 dead letters would be ready for billing again. replay billing on orders? y/n"
    assert keys.step(ui, "y", board).deeds == [act]
    assert keys.step(ui, "enter", board).deeds == [], "only y is a yes"
    done = keys.answered(replace(ui, prompt=None), act, Done("4 dead letters made ready for billing again"))
    assert (done.notice, done.bad) == ("4 dead letters made ready for billing again", False)


def test_what_cannot_be_is_told_instead_of_asked(board: Board) -> None:
    ui = typed(board, press(board, Ui(view="groups", path=("orders", "billing")), "a", "s"), "first")
    stepped = keys.step(ui, "enter", board)
    (tried,) = stepped.deeds
    assert tried == Try(Act("seek", Subject("group", ("orders", "billing")), "first"))
    ui = keys.answered(stepped.ui, tried, Failed("it has 3 consumers", "stop them"))
    assert (ui.prompt, ui.notice, ui.bad) == (None, "it has 3 consumers  stop them", True)


def test_an_answer_that_nobody_waits_for_asks_nothing(board: Board) -> None:
    stepped = keys.step(press(board, Ui(view="nodes"), "a"), "d", board)
    (tried,) = stepped.deeds
    ui = press(board, stepped.ui, "x", "esc")
    assert ui.notice == "not done"
    assert keys.answered(ui, tried, Done("all would move")).prompt is None
    other = press(board, ui, "a", "u")
    assert keys.answered(other, tried, Done("all would move")).prompt == other.prompt, "of another verb"


def test_a_question_that_nobody_can_see_is_not_answered(board: Board) -> None:
    """The terminal became too small while it was asked."""
    ui = press(board, OPEN, "x")
    hidden = keys.step(ui, "y", board, seen=False)
    assert hidden == keys.Stepped(ui, [])
    assert keys.step(hidden.ui, "y", board).deeds == [Act("rm", of_record("orders/3/88120"))]
    assert keys.step(ui, "q", board, seen=False).deeds == [keys.Quit()], "as it says there"


def test_what_only_shows_is_told_at_once(board: Board) -> None:
    stepped = keys.step(press(board, Ui(view="nodes"), "a"), "b", board)
    ui = keys.answered(stepped.ui, stepped.deeds[0], Done("every shard is where it should be"))
    assert (ui.prompt, ui.notice) == (None, "every shard is where it should be")


def test_the_menu_goes_by_arrows_and_by_letters(board: Board) -> None:
    ui = press(board, Ui(view="nodes"), "a", "down", "down", "down", "up")
    assert ui.menu is not None
    assert ui.menu.at == 1
    assert keys.step(ui, "enter", board).deeds == [Try(Act("undrain", Subject("node", ("node-a",))))]
    assert press(board, ui, "esc").menu is None
    assert press(board, ui, "z").notice == "no verb has the key z"
    board.recorded = True
    assert press(board, Ui(view="nodes"), "a").notice == "a recording cannot be changed"


def test_dead_letters_consumers_and_partitions_are_one_walk(board: Board) -> None:
    page = Ui(view="groups", path=("orders", "billing"))
    dead = press(board, page, "o")
    assert view_of(dead).subject(board, dead, dead.look.chosen) == Subject(
        "dead", ("orders", "billing", "failures", "no such customer")
    )
    assert press(board, dead, "enter").path == ("orders/0/17",)
    consumer = press(board, dead, "o")
    session = board.history.now.clients[0].session
    assert press(board, consumer, "enter").path == (session,)
    assert press(board, consumer, "a", "k").prompt.text == "30s"
    assert press(board, consumer, "o").look.chosen == "partitions\t0", "and around"
    assert press(board, page, "end", "home", "down").look.chosen == "partitions\t1"


def test_an_alarm_opens_what_it_is_about(board: Board) -> None:
    ui = press(board, Ui(), "enter")
    assert (ui.view, ui.path) == ("nodes", ("node-a",)), "the worst is on top, of the node that raised it"
    assert "node-c is away" in ui.notice
    ui = press(board, typed(board, Ui(), "/fraud"), "enter", "enter")
    assert (ui.view, ui.path) == ("groups", ("clickstream", "fraud"))
    assert "records behind" in ui.notice
    assert press(board, typed(board, Ui(), "/fraud"), "enter", "a").menu.subject == Subject(
        "group", ("clickstream", "fraud")
    )


def test_a_shard_opens_and_leads_to_its_partitions(board: Board) -> None:
    ui = press(board, Ui(view="nodes", path=("node-a",)), "enter")
    assert ui.path == ("node-a", "0")
    assert "led by node-a" in shown(ui, board)
    found = press(board, ui, "enter")
    assert (found.view, found.topic, found.partition) == ("messages", "orders", 0)
    assert press(board, ui, "esc").path == ("node-a",)


@pytest.mark.parametrize(
    ("line", "view", "path"),
    [
        ("clickstream", "topics", ("clickstream",)),
        ("click", "", ()),
        ("fraud", "groups", ("clickstream", "fraud")),
        ("payments ledger", "groups", ("payments", "ledger")),
        ("node-b", "nodes", ("node-b",)),
        ("orders-api-4", "clients", ("128b2dc4",)),
        ("pay", "", ()),
        ("led", "groups", ("payments", "ledger")),
    ],
)
def test_names_are_jumped_to(board: Board, line: str, view: str, path: tuple[str, ...]) -> None:
    ui = press(board, typed(board, Ui(), ":" + line), "enter")
    if view:
        assert (ui.view, ui.path) == (view, path)
    else:
        assert "names begin with" in ui.notice


def test_tab_completes_names(board: Board) -> None:
    ui = press(board, typed(board, Ui(), ":clicks"), "tab")
    assert ui.prompt is not None
    assert ui.prompt.text == "clickstream"
    assert press(board, typed(board, Ui(), ":xyz"), "tab").prompt.text == "xyz"


def test_each_verb_has_a_deed_and_keys_are_not_given_twice() -> None:
    named = {(kind, verb.name) for kind, verbs in VERBS.items() for verb in verbs}
    assert named == ACTIONS.keys()
    shows = {(kind, verb.name) for kind, verbs in VERBS.items() for verb in verbs if verb.shows}
    assert shows == {("node", "rebalance")}
    assert VERBS.keys() == NAMES.keys()
    for kind, verbs in VERBS.items():
        assert len({verb.key for verb in verbs}) == len(verbs)
        for verb in verbs:
            subject = Subject(kind, tuple("abcd"[: len(NAMES[kind])]))
            assert command_of(verb, subject).startswith("gossipq ")
            assert name_of(subject)
            assert question_of(Act(verb.name, subject, "x")) or not verb.question
            undo = undo_of(Act(verb.name, subject))
            assert undo is None or undo_of(undo) == Act(verb.name, subject)


def test_what_was_done_names_its_undo(board: Board) -> None:
    pause = Act("pause", Subject("group", ("orders", "billing")))
    done = keys.answered(Ui(), pause, Done("billing on orders is paused", undo_of(pause)))
    assert done.notice == "billing on orders is paused; undo: gossipq group resume orders billing"
