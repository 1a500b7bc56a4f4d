"""Publishes the audit: requests noted by this node's processes become records of `_audit`.

The thread runs beside the frontdoor's loop, and is a client of its own node while it has records to
publish. Rows still waiting when the node stops are lost.
"""

import logging
import os
import threading

import msgspec

from gossipq.errors import GossipqError
from gossipq.wire import ownership
from gossipq_node.actors.board import Board

TOPIC = "_audit"
RETENTION = "90d"
LOOK_S = 1.0
AGAIN_S = 5.0  #: pause after the node did not accept a row
ASK_S = 5.0
END_S = 0.5

log = logging.getLogger(__name__)


class Noted(msgspec.Struct, frozen=True):
    """Value of a record in `_audit`, as JSON."""

    time_ms: int
    node: str
    user: str
    address: str
    verb: str
    target: str
    outcome: str


class Scribe:
    def __init__(self, board: Board, node: str, endpoint: str, token: bytes) -> None:
        """`token` proves to workers that this client is a node."""
        self._board, self._node, self._endpoint = board, node, endpoint
        self._token = token
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gossipq-audit", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        pause_s = LOOK_S
        while not self._ends.wait(pause_s):
            pause_s = LOOK_S
            try:
                if self._board.audit:
                    self.write()
            except GossipqError as error:
                log.debug("the audit could not be written: %s", error)
                pause_s = AGAIN_S
            except Exception as error:  # a fault here must not end the node
                log.exception("the audit is not written: %s", error)
                return

    def write(self) -> None:
        """Publish all waiting rows. Raises GossipqError: unstored rows keep waiting."""
        from gossipq_client import Client

        rows = self._board.audit
        # a new key each time: with the old one, new sequences would look like repeats
        key = ownership.key_of_node(self._token, os.urandom(ownership.NONCE_BYTES))
        with Client([self._endpoint], "gossipq-audit", ASK_S, key) as mq:
            mq.create_topic(TOPIC, if_not_exists=True, retention=RETENTION)
            while rows and not self._ends.is_set():
                row = rows[0]
                value = msgspec.json.encode(Noted(node=self._node, **msgspec.structs.asdict(row)))
                mq.publish(TOPIC, value, route=row.outcome, timeout=ASK_S)
                rows.popleft()
