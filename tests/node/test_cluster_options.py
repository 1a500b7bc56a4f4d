"""Options of [cluster] on real nodes: one that says otherwise does not start, a change reaches all, what
needs what is said."""

import json
from collections.abc import Callable

import pytest

from gossipq_cli.main import main
from gossipq_client import connect
from hosts import Host
from waiting import until

STARTS_S = 120.0  #: for several starts of a node
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
@pytest.mark.timeout(600)
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

    until(bob_runs_with_them, STARTS_S)
    until(lambda: bob.names() == ["ada", "bob"])

    def differ() -> list[tuple[str, ...]]:
        """While a node does not answer, its rows are left out."""
        code, told = gossipq("cluster", "config", "diff", "-o", "json")
        rows = json.loads(told) if told else []
        assert code or not rows
        return [(row["node"], row["key"], row["runs_with"], row["cluster"]) for row in rows]

    of_ada = ("ada", "cluster.auto_create", "true", "false")
    until(lambda: of_ada in differ())

    def bob_starts_with_them() -> bool:
        if not bob_runs_with_them():
            return False
        with connect(bob.endpoint) as mq:
            running = {row.key: row.value for row in mq.admin.running_config()}
        return running["cluster.auto_create"] == "false"

    copy = bob.manifest().voter
    until(lambda: any(row.shard == 0 and row.copy == copy and not row.behind for row in ada.status().copies))
    until(bob_starts_with_them, STARTS_S)
    until(lambda: differ() == [of_ada])
    code, _ = gossipq("cluster", "config", "set", "shards=8")
    assert code == 5
    code, _ = gossipq("cluster", "config", "set", "replace=8")
    assert code == 78
