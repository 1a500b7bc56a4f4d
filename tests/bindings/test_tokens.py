"""Each language sends a token to a closed cluster, and is refused without one.
Languages that can encrypt do so.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bindings.languages import Language, languages
from conftest import RunningNode
from gossipq_cli.conformance.driver import Driver, publication
from gossipq_cli.main import main
from gossipq_client import connect
from ports import settled_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


ENCRYPT = ("c", "javascript", "go")


class Closed(NamedTuple):
    server: str
    token: str
    door: str


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    """A closed cluster of one node, and the token of its admin."""
    home: Path = tmp_path_factory.mktemp("tokens")
    running = RunningNode(home / "data", "--mode", "standalone", "--workers", "2", "--encrypt", "always")
    running.port = settled_port(doors=True)
    running.endpoint = f"tcp://127.0.0.1:{running.port}"
    running.start()
    with connect(running.endpoint) as mq:
        door = mq.admin.status().door.hex()
    saved = home / "admin.token"
    line = ["-s", running.endpoint, "cluster", "close", "--save", str(saved)]
    assert main([*line, "--secret-file", str(running.data / "secret")]) == 0
    yield Closed(running.endpoint, saved.read_text().split()[0], f"door_{door}")
    running.stop()


@pytest.mark.parametrize("language", languages(), ids=lambda language: language.name)
def test_a_closed_cluster(language: Language, closed: Closed) -> None:
    if language.missing:
        pytest.skip(language.missing)
    topic = f"closed-{language.name}"
    with Driver(language.command) as driver:
        driver.ask("connect", servers=[closed.server])
        said = driver.refused(**publication(topic, {"value": b"x"}), timeout_ms=5_000)
        assert said == "forbidden"
        driver.ask("connect", servers=[closed.server], token=closed.token)
        driver.publish(topic, {"value": b"one"})
        driver.ask("subscribe", topic=topic, group="g")
        record = driver.next(30.0)
        assert record is not None
        assert record.value == b"one"
        driver.ack(record)
        driver.ask("close")


@pytest.mark.parametrize(
    "language", [each for each in languages() if each.name in ENCRYPT], ids=lambda each: each.name
)
def test_what_is_said_is_encrypted(language: Language, closed: Closed) -> None:
    """Messages are encrypted for the owner of that port's key; another port gets none."""
    if language.missing:
        pytest.skip(language.missing)
    keys = {"token": closed.token, "door": closed.door}
    with Driver(language.command) as driver:
        driver.ask("connect", servers=[closed.server], **keys)
        driver.publish("encrypted", {"value": b"one"})
        driver.ask("connect", servers=[closed.server], **(keys | {"door": "door_" + "ab" * 32}))
        assert driver.refused(**publication("encrypted", {"value": b"x"}), timeout_ms=2_000)
        driver.ask("close")
