"""`gossipq outbox`: each verb against a node in this process."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gossipq.outbox import Outbox
from gossipq_cli.main import main
from gossipq_client import testing
from gossipq_outbox.databases import opened


@pytest.fixture(scope="module")
def broker() -> Iterator[testing.Broker]:
    with testing.Broker() as broker:
        yield broker


@pytest.fixture
def run(broker: testing.Broker, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["-s", broker.endpoint, "outbox", *words])
        return (code, *capsys.readouterr())

    return run


def test_the_life_of_an_outbox(run: Callable[..., Any], broker: testing.Broker, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    code, _, err = run("ls", "--database", url)
    assert (code, "no such table" in err, "gossipq outbox create" in err) == (1, True, True)
    assert run("create", "--database", url)[0] == 0
    with closing(opened(url)) as connection:
        Outbox().publish(connection, "orders", "one")
        connection.execute("insert into gossipq_outbox (topic, value, options) values ('orders', '2', '[]')")
        connection.commit()
    assert len(json.loads(run("ls", "--database", url, "-o", "json")[1])) == 2
    code, _, err = run("relay", "--database", url, "--once")
    assert (code, "1 row published, 1 refused" in err) == (0, True)
    (left,) = json.loads(run("ls", "--database", url, "-o", "json")[1])
    assert "no JSON object" in left["refused"]
    assert run("retry", "--database", url)[1] == "1 row handed to the relay\n"
    with broker.connect() as mq:
        assert [msg.value for msg in mq.read("orders")] == [b"one"]


def test_a_wrong_url_is_an_error_of_the_command_line(run: Callable[..., Any]) -> None:
    code, out, err = run("relay", "--database", "mysql://db/shop")
    assert (code, out, "names no database" in err) == (78, "", True)
