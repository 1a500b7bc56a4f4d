"""Three closed nodes with encryption, under load: takeovers, new keys of each node, a revoked user
and a revoked node. No confirmed record is lost, no permitted client is refused, and a revoked one
is served for at most a second.
"""

import time
from pathlib import Path

import pytest

from e2e.closed import CUT_S, LOOK_S, TOPIC, Load, Roll, rows, running, stored
from gossipq_cli.main import main
from waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]


def test_takeovers_keys_users_and_nodes_under_load(tmp_path: Path) -> None:
    with running(Roll(tmp_path)) as roll:
        _test(roll, tmp_path)


def _test(roll: Roll, tmp_path: Path) -> None:
    ada, bob, cat = roll.hosts
    secret = str(roll.secret)
    files = {name: tmp_path / f"{name}.credentials" for name in ("admin", "writer", "victim")}

    def types(*line: str) -> None:
        assert main(["-s", ada.endpoint, "--credentials", str(files["admin"]), "--yes", *line]) == 0, line

    close = ("cluster", "close", "--save", str(files["admin"]), "--secret-file", secret)
    assert main(["-s", ada.endpoint, *close]) == 0
    types("user", "role", "add", "writes")
    types("user", "role", "grant", "writes", TOPIC, "publish", "read")
    for name in ("writer", "victim"):
        types("user", "add", name, "--role", "writes", "--save", str(files[name]))
        assert "door_" in files[name].read_text()
    loads = [Load(name, roll.servers, files[name]) for name in ("writer", "victim")]
    writer, victim = loads
    try:
        for load in loads:
            load.start()
        until(lambda: all(len(load.confirmed) > 50 for load in loads))

        keys = {row.name: row.key for row in rows(ada, files["admin"])}
        for host in (bob, cat, ada):  # a roll, by SIGKILL: each takes its next key
            host.kill()
            roll.start(host)
            host.ready()
            writer.goes_on()
        until(
            lambda: all(row.key != keys[row.name] for row in rows(ada, files["admin"]) if row.name != "ada")
        )

        types("user", "rm", "victim")
        cut_s = time.monotonic() + CUT_S
        writer.goes_on()
        until(lambda: victim.error is not None or time.monotonic() > cut_s + LOOK_S)
        assert victim.last_s < cut_s, f"it was served {victim.last_s - cut_s:.3f} s too long"

        cat.kill()
        until(lambda: main(["-s", ada.endpoint, "--credentials", str(files["admin"]), "--yes",
                            "cluster", "rm", "cat", "--force", "--secret-file", secret]) == 0)  # fmt: skip
        roll.start(cat)
        assert cat.ended() == 78
        assert "taken off this cluster" in cat.said
        writer.goes_on()
    finally:
        for load in loads:
            load.end()
    assert writer.error is None, "it was allowed all the time"
    seen = stored(ada, files["writer"])
    confirmed = [value for load in loads for value in load.confirmed]
    assert set(confirmed) <= set(seen), "0 confirmed lost"
    assert len(seen) == len(set(seen))
