"""Connections to other processes of the cluster, as who dials them: each side proves once that it knows the
secret.

GREET asks, CHALLENGE answers and shows that the other knows the secret, PROVE shows that this side does; what
is to be said waits that long. Who is dialled and has forgotten the connection, since it or the connection
started again, sends an empty CHALLENGE: then it is greeted anew, and what was said last is said again.
"""

import os
from collections import deque

from gossipq.messages import Challenge
from gossipq.peer_messages import Greet, Prove
from gossipq.values import Message
from gossipq.wire import proofs
from gossipq.wire.frames import encode
from gossipq_node.actors.prover import Random
from gossipq_node.ports import Mailbox

WAITING_MAX = 64  #: bundles that wait for a connection; older ones are old news
WAITING_BYTES_MAX = 4 << 20
AGAIN_MAX = 8  #: bundles that are said again
AGAIN_BYTES_MAX = 64 << 10  #: of each
ANOTHER_SECRET = "does not know the secret of this cluster: give both nodes the same --secret-file"

Mail = tuple[bytes, bytes]  #: control, frame


class _Link:
    __slots__ = ("bytes", "last", "nonce", "open", "to", "waiting")

    def __init__(self, to: str, nonce: bytes) -> None:
        self.to, self.nonce, self.open = to, nonce, False
        self.waiting: deque[Mail] = deque()
        self.last: deque[Mail] = deque(maxlen=AGAIN_MAX)
        self.bytes = 0

    def wait(self, mail: Mail) -> None:
        self.waiting.append(mail)
        self.bytes += len(mail[0]) + len(mail[1])
        while len(self.waiting) > 1 and (len(self.waiting) > WAITING_MAX or self.bytes > WAITING_BYTES_MAX):
            control, frame = self.waiting.popleft()
            self.bytes -= len(control) + len(frame)


class Links:
    def __init__(
        self, me: str, cluster: bytes, token: bytes, mailbox: Mailbox, random: Random = os.urandom
    ) -> None:
        self._me, self._cluster, self._token, self._mailbox, self._random = (
            me,
            cluster,
            token,
            mailbox,
            random,
        )
        self._links: dict[str, _Link] = {}

    def send(self, endpoint: str, to: str, control: bytes, frame: bytes) -> None:
        """To the process of the copy `to` at that address: at once, or when both have proven that they know
        the secret."""
        link, mail = self._links.get(endpoint), (control, frame)
        if link is None or link.to != to:
            link = self._links[endpoint] = self._new(to)
        if not link.open:
            link.wait(mail)
            self._say(endpoint, Greet(self._cluster, self._me, to, link.nonce))
            return
        if len(control) + len(frame) <= AGAIN_BYTES_MAX:
            link.last.append(mail)
        if not self._mailbox.send(endpoint, control, frame):
            self._links[endpoint] = self._new(to)  # the next connection is another one

    def _new(self, to: str) -> _Link:
        return _Link(to, self._random(proofs.NONCE_BYTES))

    def challenged(self, endpoint: str, said: Challenge) -> str:
        """An answer from an address that was written to. What is wrong with it, "" when nothing is."""
        link = self._links.get(endpoint)
        if link is None:
            return ""
        if not said.nonce:
            if link.open:
                self._links[endpoint] = again = self._new(link.to)
                for mail in link.last:
                    again.wait(mail)
                self._say(endpoint, Greet(self._cluster, self._me, link.to, again.nonce))
            return ""
        if link.open:
            return ""  # it was greeted more than once
        parts = (link.nonce, said.nonce, self._me, link.to)
        if said.sender != link.to or not proofs.answered(self._token, link.nonce, self._me, said):
            return ANOTHER_SECRET
        self._say(endpoint, Prove(self._me, link.nonce, proofs.proof(self._token, proofs.PROVE, *parts)))
        link.open, waiting = True, list(link.waiting)
        link.waiting.clear()
        for control, frame in waiting:
            self.send(endpoint, link.to, control, frame)
        return ""

    def _say(self, endpoint: str, message: Message) -> None:
        self._mailbox.send(endpoint, encode(message))
