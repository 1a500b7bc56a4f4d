"""Connections to other processes of the cluster, from the dialling side. Each side proves once
that it knows the secret.

GREET asks, CHALLENGE answers and shows that the other knows the secret, PROVE shows that this side
does. Until then messages wait. A link is bound to the connection on which the CHALLENGE came. When
that connection ends, another process may listen at the address, so the next connection begins with
GREET again. A process that has started again and does not know a connection sends an empty
CHALLENGE. In both cases the last messages are sent again, since they may be lost.
"""

import os
from collections import deque

from gossipq.messages import Challenge
from gossipq.peer_messages import Greet, Prove
from gossipq.types import Origin
from gossipq.wire import proofs
from gossipq.wire.frames import encode
from gossipq_node.actors.prover import Random
from gossipq_node.ports import Frames, Mailbox

WAITING_MAX = 64  #: bundles that wait for a connection; the oldest are dropped
WAITING_BYTES_MAX = 4 << 20
AGAIN_MAX = 8  #: bundles that are sent again
AGAIN_BYTES_MAX = 64 << 10  #: bytes of each of them
ANOTHER_SECRET = "does not know the secret of this cluster: give both nodes the same --secret-file"


class _Link:
    __slots__ = ("bytes", "connection", "last", "nonce", "to", "waiting")

    def __init__(self, to: str, nonce: bytes) -> None:
        self.to, self.nonce = to, nonce
        self.connection: Origin | None = None  # on which the other side has proven itself
        self.waiting: deque[Frames] = deque()
        self.last: deque[Frames] = deque(maxlen=AGAIN_MAX)
        self.bytes = 0

    def wait(self, mail: Frames) -> None:
        self.waiting.append(mail)
        self.bytes += len(mail[0]) + len(mail[1])
        while len(self.waiting) > 1 and (len(self.waiting) > WAITING_MAX or self.bytes > WAITING_BYTES_MAX):
            control, frame = self.waiting.popleft()
            self.bytes -= len(control) + len(frame)


class Links:
    def __init__(
        self, me: str, cluster: bytes, token: bytes, mailbox: Mailbox, random: Random = os.urandom
    ) -> None:
        self._me = me
        self._cluster = cluster
        self._token = token
        self._mailbox = mailbox
        self._random = random
        self._links: dict[str, _Link] = {}

    def send(self, endpoint: str, to: str, control: bytes, frame: bytes) -> None:
        """To the process of the copy `to` at that address: at once, or when both have proven that they know
        the secret."""
        connection, link, mail = self.connection(endpoint, to), self._links[endpoint], (control, frame)
        if connection is None:
            link.wait(mail)
            return
        if len(control) + len(frame) <= AGAIN_BYTES_MAX:
            link.last.append(mail)
        self._mailbox.reply(connection, control, frame)

    def connection(self, endpoint: str, to: str) -> Origin | None:
        """The connection to the process of the copy `to` at that address, if both have proven that they know
        the secret; else None, and the address is greeted."""
        link = self._links.get(endpoint)
        if link is None or link.to != to:
            link = self._links[endpoint] = self._new(to)
        elif link.connection is not None and not self._mailbox.stands(link.connection):
            link = self._renew(endpoint, link)
        if link.connection is None:
            self._greet(endpoint, link)
        return link.connection

    def _new(self, to: str) -> _Link:
        return _Link(to, self._random(proofs.NONCE_BYTES))

    def _renew(self, endpoint: str, link: _Link) -> _Link:
        self._links[endpoint] = again = self._new(link.to)
        for mail in link.last:
            again.wait(mail)
        return again

    def _greet(self, endpoint: str, link: _Link) -> None:
        self._mailbox.send(endpoint, encode(Greet(self._cluster, self._me, link.to, link.nonce)))

    def challenged(self, origin: Origin, said: Challenge) -> str:
        """Checks an answer from an address that was dialled. Returns the error, or
        "" if the answer is right.
        """
        endpoint = self._mailbox.answerer(origin)
        link = self._links.get(endpoint)
        if link is None:
            return ""
        if not said.nonce:
            if link.connection == origin:
                self._greet(endpoint, self._renew(endpoint, link))
            return ""
        if link.connection is not None:
            return ""  # it was greeted more than once
        parts = (link.nonce, said.nonce, self._me, link.to)
        if said.sender != link.to or not proofs.answered(self._token, link.nonce, self._me, said):
            return ANOTHER_SECRET
        proof = proofs.proof(self._token, proofs.PROVE, *parts)
        self._mailbox.reply(origin, encode(Prove(self._me, link.nonce, proof)))
        link.connection, waiting = origin, list(link.waiting)
        link.waiting.clear()
        for control, frame in waiting:
            self.send(endpoint, link.to, control, frame)
        return ""
