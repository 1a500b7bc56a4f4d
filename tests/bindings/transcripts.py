"""Conversations of real clients with a node, frame by frame, as tests/vectors/transcripts.json has them.

PYTHONPATH=.:nodes:clients/python:clients/terminal:tests python -m bindings.transcripts    records them anew
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from bindings.languages import languages
from conftest import HOME, RunningNode
from gossipq.messages import Ping, Pong
from gossipq_cli.conformance.between import Frames, Tap, standing, without_routes
from gossipq_cli.conformance.driver import Driver
from gossipq_client import connect

FILE = HOME / "tests" / "vectors" / "transcripts.json"
FLAGS = ("--mode", "standalone", "--workers", "1", "--name", "node-1")
CLIENTS = {"mini": "minimal", "columns": "c"}
ABOUT = (
    "Conversations with the frontdoor of a fresh node of one worker, which forwards: rows of [who speaks, "
    "hex of each frame], client or node. PING and PONG are left out. mini: clients/minimal.py; columns: "
    "clients/c, which is told of no leader that it can reach. Who sends the client's frames to a node whose "
    "next topic has the same id gets the node's, but for names, endpoints, terms and times."
)
LAST_BEFORE = 20  #: id of the newest topic when a conversation begins: a node makes some of its own


def prepare(server: str) -> None:
    """Topics, until the next one has a certain id. Made by publishing: one entry of the register each."""
    with connect(server) as mq:
        for number in range(LAST_BEFORE):
            name = f"filler-{number}"
            mq.publish(name, b"")
            (made,) = (topic for topic in mq.topics(name) if topic.name == name)
            if made.id >= LAST_BEFORE:
                return


class Recorder(Tap):
    def __init__(self, server: str) -> None:
        super().__init__(server, without_routes)
        self.rows: list[list[str]] = []

    def _hear(self, name: bytes, said: Frames) -> None:
        self._note("client", said)
        super()._hear(name, said)

    def _answer(self, name: bytes, said: Frames) -> None:
        self._note("node", said)
        super()._answer(name, said)

    def _note(self, who: str, said: Frames) -> None:
        if said[0][3] not in (Ping.verb, Pong.verb):
            self.rows.append([who, *(frame.hex() for frame in said)])


def recorded(command: str) -> list[list[str]]:
    """Messages of a client in both directions: two records are consumed;
    the first one fails once.
    """
    with tempfile.TemporaryDirectory() as home, RunningNode(Path(home) / "data", *FLAGS) as node:
        prepare(node.endpoint)
        with standing(Recorder(node.endpoint)) as tap, Driver(command) as driver:
            driver.ask("connect", servers=[tap.endpoint])
            _converse(driver)
            return tap.rows


def _converse(driver: Driver) -> None:
    records: list[dict[str, Any]] = [
        {"value": b"one coffee", "key": b"ada", "headers": {"table": b"7"}},
        {"value": "thé".encode(), "id": b"o-17"},
    ]
    for record in records:
        driver.publish("orders", record)
    driver.publish("orders", records[1])
    driver.ask("subscribe", topic="orders", group="kitchen")
    first = driver.next(10.0)
    assert first is not None
    driver.nack(first, "no milk")
    for _ in records:
        record = driver.next(10.0)
        assert record is not None
        driver.ack(record)


def main() -> None:
    commands = {language.name: language.command for language in languages()}
    found = [{"level": level, "rows": recorded(commands[name])} for level, name in CLIENTS.items()]
    FILE.write_text(json.dumps({"about": ABOUT, "transcripts": found}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
