"""`gossipq schedule`: each verb against a real node."""

import json

import pytest

pytestmark = pytest.mark.e2e


def test_the_life_of_a_schedule(ask, topic: str) -> None:
    ran = ask("schedule", "add", topic, "nightly", "x", "--cron", "0 7 * * mon-fri", "--tz", "Europe/Berlin")
    assert ran.out.startswith(f"schedule nightly of {topic} is set; next: ")
    again = ask(
        "schedule", "add", topic, "nightly", "x", "--cron", "0 7 * * mon-fri", "--tz", "Europe/Berlin"
    )
    assert again.out.startswith(f"schedule nightly of {topic} is the same already")
    (row,) = json.loads(ask("schedule", "list", topic, "-o", "json").out)
    assert (row["name"], row["when"], row["ticks"]) == ("nightly", "0 7 * * mon-fri Europe/Berlin", 0)
    assert len(row["next_ms"]) == 5
    assert ask("schedule", "pause", topic, "nightly").out == (
        f"schedule nightly of {topic} is paused; undo: gossipq schedule resume {topic} nightly\n"
    )
    assert json.loads(ask("schedule", "show", topic, "nightly", "-o", "json").out)["next_ms"] == []
    assert "goes on; next: " in ask("schedule", "resume", topic, "nightly").out
    assert ask("schedule", "run-now", topic, "nightly", "-o", "names").out == f"{topic}/0/0\n"
    assert ask("sub", topic, "--from", "first", "--exit-at-end").out == "x\n"
    assert "Europe/Berlin" in ask("schedule", "show", topic, "nightly").out
    assert ask("schedule", "remove", topic, "nightly", "other").out == f"1 schedule of {topic} removed\n"
    assert json.loads(ask("schedule", "list", topic, "-o", "json").out) == []


@pytest.mark.parametrize(
    "line",
    [
        ("nightly",),
        ("nightly", "x", "--cron", "61 * * * *"),
        ("nightly", "x"),
        ("nightly", "x", "--every", "1s", "--from", "tomorrow"),
    ],
)
def test_a_schedule_without_ticks_is_refused(ask, topic: str, line: tuple[str, ...]) -> None:
    ran = ask("schedule", "add", topic, *line)
    assert ran.code != 0
    assert ran.err.startswith("error: ")
