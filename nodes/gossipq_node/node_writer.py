"""Publishes alarms and the audit: a node's news become records of `_alarms` and `_audit`.

The thread runs beside the frontdoor's loop, and is a client of its own node while it has records to
publish. Topics are used because they are replicated, retained and replayable, and any consumer can
read them.
"""

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from gossipq import alarms
from gossipq.clock import Clock
from gossipq.core.requests import key_of
from gossipq.errors import ClientClosed, GossipqError
from gossipq.values import Alarm
from gossipq.wire import ownership
from gossipq_node.actors.board import Board
from gossipq_node.actors.frontdoor import SERVING

if TYPE_CHECKING:
    from gossipq_client import Client

AUDIT_TOPIC = "_audit"
AUDIT_RETENTION = "90d"
LOOK_S = 1.0  #: interval between two looks at the board
AGAIN_S = 5.0  #: pause after the node did not accept a record
ASK_S = 5.0
END_S = 0.5  #: at the end, for a running call: a draining node may never answer it
RAISED, CLEARED = "raised", "cleared"

log = logging.getLogger(__name__)

Key = tuple[str, str, str]


class AlarmEvent(msgspec.Struct, frozen=True):
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


class AuditEntry(msgspec.Struct, frozen=True):
    """Value of a record in `_audit`, as JSON."""

    time_ms: int
    node: str
    user: str
    address: str
    verb: str
    target: str
    outcome: str


class NewsSource(Protocol):
    def publish(self, connect: Callable[[], "Client"]) -> bool:
        """Publish the news since the last call. False: there are none.

        `connect` returns the client of the thread. Raises GossipqError: the rest is tried again.
        """


class NodeWriter:
    def __init__(self, endpoint: str, token: bytes, sources: list[NewsSource]) -> None:
        """`token` proves to workers that this client is a node."""
        self._endpoint = endpoint
        self._token = token
        self._sources = sources
        self._client: Client | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gossipq-writer", daemon=True)

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
            pause_s = LOOK_S if self.write() else AGAIN_S

    def write(self) -> bool:
        """Publish the news of each source. False: a source failed, and will be tried again."""
        accepted, news = True, False
        for source in list(self._sources):
            try:
                news |= source.publish(self._connected)
            except GossipqError as error:
                log.debug("%s could not publish: %s", type(source).__name__, error)
                self._hang_up()
                accepted = False
            except Exception as error:  # a fault here must not end the node, nor the other source
                log.exception("%s does not publish any more: %s", type(source).__name__, error)
                self._sources.remove(source)
        if not news:
            self._hang_up()
        return accepted

    def _connected(self) -> "Client":
        if self._ends.is_set():
            raise ClientClosed("this node stops")
        if self._client is None:
            from gossipq_client import Client
            from gossipq_client.io import Connecting

            token = self._token
            # a new key each time: with the old one, new sequences would look like repeats
            key = ownership.key_of_node(token, os.urandom(ownership.NONCE_BYTES)) if token else b""
            client = Client(Connecting.to(self._endpoint, "gossipq-node", ASK_S, key))
            self._client = client.__enter__()  # connects
        return self._client

    def _hang_up(self) -> None:
        if self._client is not None:
            with suppress(GossipqError):
                self._client.close(flush=False)
            self._client = None


class AlarmSource:
    """Raised and cleared alarms of this node.

    After a restart it reads the topic, so that alarms which are over get cleared.
    """

    def __init__(self, board: Board, node: str, clock: Clock) -> None:
        self._board = board
        self._node = node
        self._clock = clock
        #: alarms of this node in the topic; None: not read yet
        self._raised: dict[Key, Alarm] | None = None

    def publish(self, connect: Callable[[], "Client"]) -> bool:
        facts = self._board.facts
        serving = [worker.state in SERVING for worker in facts.status.workers] if facts else []
        if facts is None or not any(serving):
            return False
        if self._raised is None:
            self._raised = self._recall(connect())
        now, raised = {key_of(alarm): alarm for alarm in facts.alarms}, self._raised
        news = [(RAISED, key, alarm) for key, alarm in now.items() if key not in raised]
        if all(serving):  # a missing worker does not report its alarms
            news += [(CLEARED, key, alarm) for key, alarm in raised.items() if key not in now]
        for event, key, alarm in news:
            self._tell(connect(), event, alarm)
            if event == RAISED:
                raised[key] = alarm
            else:
                del raised[key]
        return bool(news)

    def _recall(self, mq: "Client") -> dict[Key, Alarm]:
        """Read which alarms this node has raised and not cleared, from its own records."""
        raised = dict[Key, Alarm]()
        for record in mq.read(alarms.TOPIC) if mq.topics(alarms.TOPIC) else ():
            try:
                said = msgspec.json.decode(record.value, type=AlarmEvent)
            except msgspec.DecodeError:
                continue  # a record of another program
            alarm = Alarm(
                name=said.name,
                severity=said.severity,
                node=said.node,
                subject=said.subject,
                text=said.text,
                command=said.command,
                since_ms=said.since_ms,
            )
            if said.node == self._node and said.event == RAISED:
                raised[key_of(alarm)] = alarm
            elif said.node == self._node:
                raised.pop(key_of(alarm), None)
        return raised

    def _tell(self, mq: "Client", event: str, alarm: Alarm) -> None:
        mq.create_topic(alarms.TOPIC, if_not_exists=True)
        time_ms = self._clock.now().wall_ms
        said = AlarmEvent(event=event, time_ms=time_ms, **msgspec.structs.asdict(alarm))
        mq.publish(
            alarms.TOPIC,
            msgspec.json.encode(said),
            key="/".join(key_of(alarm)),
            route=f"{alarm.severity}.{alarm.name}",
            id="/".join((event, str(alarm.since_ms), *key_of(alarm))),
            timeout=ASK_S,
        )
        log.warning("alarm %s: %s: %s", event, alarm.name, alarm.text)


class AuditSource:
    """Requests noted by this node's processes. Rows still waiting when the node stops are lost."""

    def __init__(self, board: Board, node: str) -> None:
        self._rows, self._node = board.audit, node

    def publish(self, connect: Callable[[], "Client"]) -> bool:
        rows = self._rows
        if not rows:
            return False
        connect().create_topic(AUDIT_TOPIC, if_not_exists=True, retention=AUDIT_RETENTION)
        while rows:
            row = rows[0]
            value = msgspec.json.encode(AuditEntry(node=self._node, **msgspec.structs.asdict(row)))
            connect().publish(AUDIT_TOPIC, value, route=row.outcome, timeout=ASK_S)
            rows.popleft()
        return True
