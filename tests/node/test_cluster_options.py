"""Options of [cluster] on real nodes: one that says otherwise does not start, a change reaches all, what
needs what is said."""

import json
import time
from collections.abc import Callable

import pytest

from gossipq_cli.main import main
from hosts import Host
from waiting import until

START_S = 10.0  #: until the others have heard what a node runs with
pytestmark = pytest.mark.e2e


def options(at: Host, **said: object) -> tuple[str, str]:
    """Flags for a node whose own file says that."""
    path = at.directory / f"{at.name}.toml"
    path.write_text(
        "\n".join(
            ["[cluster]", "shards = 4", *(f"{key} = {json.dumps(value)}" for key, value in said.items())]
        )
    )
    return "--config", str(path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_who_says_otherwise_is_refused_by_name_also_after_it_was_in(
    host: Callable[[str], Host], capsys: pytest.CaptureFixture[str]
) -> None:
    ada, bob, eve = host("ada"), host("bob"), host("eve")
    ada.start("--mode", "static", *options(ada, replace_ms=600_000)).ready()
    bob.start("--peer", ada.endpoint, *options(bob)).ready()
    until(lambda: ada.names() == bob.names() == ["ada", "bob"])

    def gossipq(*line: str) -> tuple[int, str]:
        capsys.readouterr()
        return main(("-s", ada.endpoint, *line)), capsys.readouterr().out

    until(lambda: gossipq("cluster", "config", "show")[0] == 0)
    shown = {row["key"]: row for row in json.loads(gossipq("cluster", "config", "show", "-o", "json")[1])}
    assert shown["cluster.replace_ms"] == {
        "key": "cluster.replace_ms",
        "value": "600000",
        "changes": "at once",
    }
    assert shown["cluster.shards"]["changes"].startswith("never")
    until(lambda: gossipq("cluster", "config", "diff") == (0, ""))

    eve.start("--peer", ada.endpoint, *options(eve, replace_ms=700_000))
    assert eve.ended() == 78, eve.said
    assert "cluster.replace_ms = 700000 on eve, and 600000 in this cluster" in eve.said
    bob.kill()
    for reason in ("cluster.replace_ms = 700000 on bob, and 600000 in this cluster",):
        bob.log.unlink()
        bob.start(*options(bob, replace_ms=700_000))
        assert bob.ended() == 78, bob.said
        assert f"error: {reason}" in bob.said
        assert (
            "hint: write 600000 there, or leave it out; to change it for all: gossipq cluster config set"
            in bob.said
        )

    # with both of a pair there: without its second voter shard 0 can store no change
    bob.log.unlink()
    bob.start(*options(bob)).ready()
    told = ""

    def changed() -> bool:
        nonlocal told
        code, told = gossipq(
            "cluster", "config", "set", "replace_ms=700000", "auto_create=false", "-o", "json"
        )
        return code == 0

    until(changed)
    assert {row["key"]: row["in_force"] for row in json.loads(told)} == {
        "cluster.replace_ms": "at once",
        "cluster.auto_create": "at the next start of each node",
    }

    def bob_runs_with_them() -> bool:
        """Its copy may not have had them yet when it ended: then the start after this one finds them."""
        assert bob.process is not None
        bob.process.terminate()
        bob.ended()
        bob.log.unlink()
        bob.start(*options(bob, replace_ms=700_000))
        until(lambda: "ready in" in bob.said or bob.process.poll() is not None)
        return bob.process.poll() is None

    until(bob_runs_with_them)
    until(lambda: bob.names() == ["ada", "bob"])
    until(lambda: gossipq("cluster", "config", "diff", "-o", "json")[0] == 1)
    code, out = gossipq("cluster", "config", "diff", "-o", "json")
    rows = [(row["node"], row["key"], row["runs_with"], row["cluster"]) for row in json.loads(out)]
    assert code == 1
    assert ("ada", "cluster.auto_create", "true", "false") in rows

    def differ() -> set[str]:
        told = gossipq("cluster", "config", "diff", "-o", "json")[1]
        return {row["node"] for row in json.loads(told)} if told else set()

    def bob_starts_with_them() -> bool:
        if not bob_runs_with_them():
            return False
        end = time.monotonic() + START_S
        while differ() != {"ada"} and time.monotonic() < end:
            time.sleep(0.2)
        return differ() == {"ada"}

    copy = bob.manifest().voter
    until(lambda: any(row.shard == 0 and row.copy == copy and not row.behind for row in ada.status().copies))
    until(bob_starts_with_them)
    code, out = gossipq("cluster", "config", "set", "shards=8")
    assert code == 5
    code, _ = gossipq("cluster", "config", "set", "replace=8")
    assert code == 78
