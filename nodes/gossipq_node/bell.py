"""Publishes alarms: raised and cleared alarms become records of `_alarms`, for any consumer.

The thread runs beside the frontdoor's loop, and is a client of its own node while it has records to
publish. After a restart it reads the topic, so that alarms which are over get cleared. A topic is used
because it is replicated, retained and replayable.
"""

import logging
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from gossipq import alarms
from gossipq.clock import Clock
from gossipq.core.requests import key_of
from gossipq.errors import GossipqError
from gossipq.values import Alarm
from gossipq.wire import ownership
from gossipq_node.actors.board import Board
from gossipq_node.actors.frontdoor import SERVING

if TYPE_CHECKING:
    from gossipq_client import Client

LOOK_S = 1.0  #: interval between two looks at the board
AGAIN_S = 5.0  #: pause after the node did not accept a record
ASK_S = 5.0
END_S = 0.5  #: at the end, for a running call: a draining node may never answer it
IDLE_LOOKS = 60  #: the connection is closed after this many looks without changes
RAISED, CLEARED = "raised", "cleared"

log = logging.getLogger(__name__)

Key = tuple[str, str, str]


class Rung(msgspec.Struct, frozen=True):
    """Value of a record in `_alarms`, as JSON."""

    event: str  #: "raised" or "cleared"
    name: str  #: explained by `gossipq help alarm-NAME`
    severity: str
    node: str
    subject: str
    text: str
    command: str
    since_ms: int  #: unix, when it was raised
    time_ms: int  #: unix, of this event


class Bell:
    def __init__(self, board: Board, node: str, endpoint: str, clock: Clock, token: bytes = b"") -> None:
        """`token` proves to workers that this client is a node."""
        self._board, self._node, self._endpoint, self._clock = board, node, endpoint, clock
        self._token = token
        #: alarms of this node in the topic; None: not read yet
        self._rung: dict[Key, Alarm] | None = None
        self._client: Client | None = None
        self._idle = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gossipq-alarms", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join(END_S)
        # otherwise it is reading from a cluster that does not answer, and ends with this process
        if not self._thread.is_alive():
            self._hang_up()

    def _run(self) -> None:
        pause_s = LOOK_S
        while not self._ends.wait(pause_s):
            pause_s = LOOK_S
            try:
                self.look()
            except GossipqError as error:
                log.debug("an alarm could not be told: %s", error)
                self._hang_up()
                pause_s = AGAIN_S
            except Exception as error:  # a fault here must not end the node
                log.exception("alarms are not told: %s", error)
                return

    def look(self) -> None:
        """Publish the changes since the last call. Raises GossipqError: they are tried again."""
        facts = self._board.facts
        serving = [worker.state in SERVING for worker in facts.status.workers] if facts else []
        if facts is None or not any(serving):
            return
        if self._rung is None:
            self._rung = self._recall()
        raised = {key_of(alarm): alarm for alarm in facts.alarms}
        rung = self._rung
        news = [(RAISED, key, alarm) for key, alarm in raised.items() if key not in rung]
        if all(serving):  # a missing worker does not report its alarms
            news += [(CLEARED, key, alarm) for key, alarm in rung.items() if key not in raised]
        for event, key, alarm in news:
            self._tell(event, alarm)
            if event == RAISED:
                rung[key] = alarm
            else:
                del rung[key]
        self._idle = 0 if news else self._idle + 1
        if self._idle >= IDLE_LOOKS:
            self._hang_up()

    def _connected(self) -> "Client":
        if self._client is None:
            from gossipq_client import Client

            token = self._token
            # a new key each time: with the old one, new sequences would look like repeats
            key = ownership.key_of_node(token, os.urandom(ownership.NONCE_BYTES)) if token else b""
            client = Client([self._endpoint], "gossipq-alarms", ASK_S, key)
            self._client = client.__enter__()  # connects
        return self._client

    def _hang_up(self) -> None:
        if self._client is not None:
            with suppress(GossipqError):
                self._client.close(flush=False)
            self._client = None

    def _recall(self) -> dict[Key, Alarm]:
        """Read which alarms this node has raised and not cleared, from its own records."""
        mq, rung = self._connected(), dict[Key, Alarm]()
        if mq.topics(alarms.TOPIC):
            for record in mq.read(alarms.TOPIC):
                try:
                    said = msgspec.json.decode(record.value, type=Rung)
                except msgspec.DecodeError:
                    continue  # a record of another program
                alarm = Alarm(
                    said.name, said.severity, said.node, said.subject, said.text, said.command, said.since_ms
                )
                if said.node == self._node and said.event == RAISED:
                    rung[key_of(alarm)] = alarm
                elif said.node == self._node:
                    rung.pop(key_of(alarm), None)
        self._idle = IDLE_LOOKS
        return rung

    def _tell(self, event: str, alarm: Alarm) -> None:
        mq = self._connected()
        mq.create_topic(alarms.TOPIC, if_not_exists=True)
        time_ms = self._clock.now().wall_ms
        rung = Rung(event=event, time_ms=time_ms, **msgspec.structs.asdict(alarm))
        mq.publish(
            alarms.TOPIC,
            msgspec.json.encode(rung),
            key="/".join(key_of(alarm)),
            route=f"{alarm.severity}.{alarm.name}",
            id="/".join((event, str(alarm.since_ms), *key_of(alarm))),
            timeout=ASK_S,
        )
        log.warning("alarm %s: %s: %s", event, alarm.name, alarm.text)
