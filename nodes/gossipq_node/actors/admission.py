"""After each start a node asks its cluster whether it is still a member with these settings.

The node may be wrong about that. It may have been removed while it was away, its cluster may have
been recovered from another disk, or its [cluster] options may differ.

A drained node keeps asking, and so does one that hears no other node. This may be the
only way to learn that it was removed: it keeps no copy any more, or the encrypted ports
of the others are closed to it.

The node greets every node of its roster and sends JOIN to the leader of the meta shard, each until
it gets an answer. Request numbers cannot be guessed, so answers come only from these addresses.
"""

import logging
from collections.abc import Iterable

from gossipq import __version__
from gossipq.errors import NoSession, NotAdmitted, NotLeader, ProtocolError, WrongState
from gossipq.messages import Bye, Challenge, Hello, Join, Members, RefusedMessage, Welcome
from gossipq.types import META_SHARD, NODE_SHARD, Now
from gossipq.values import Member, Message
from gossipq.wire import proofs
from gossipq.wire.frames import decode, encode
from gossipq_node.ports import Incoming, Mailbox
from gossipq_node.settings import FrontdoorSettings

ASK_MS = 1_000  #: time between two requests to a node that has not answered
#: a node that restarts at another address counts as alive at the old one for 5 s
PATIENCE_MS = 6_500
DOUBT_MS = 3_000  #: time for an answer that names the leader of the meta shard
LEAVING_MS = 10_000  #: time between two answers to a node that is drained or hears no other one
REMEMBERED = 256  #: requests that may still be answered

log = logging.getLogger(__name__)


class Admission:
    def __init__(self, settings: FrontdoorSettings, mailbox: Mailbox, now: Now) -> None:
        self._settings, self._mailbox = settings, mailbox
        self._request = int.from_bytes(settings.session[:6])  #: number of the last request
        self._asked: dict[int, str] = {}  #: request -> address
        self._heard: set[str] = set()  #: addresses that have answered a greeting
        self._leader = ""  #: where the leader of the meta shard is said to be
        self._due_ms = now.boot_ms
        self._join_ms = now.boot_ms  # JOIN is not repeated before this time
        self._done = not settings.session  #: the meta leader accepts this node as it is
        self._asked_ms = now.boot_ms  # when it was asked anew
        self._said = ""  # the reason of the last refusal
        self._doubted_ms = now.boot_ms + DOUBT_MS if settings.doubted else 0
        self._led = False  # an answer named the leader of the meta shard
        self._elsewhere_ms: int | None = None  # since when another node is said to be this one
        # Options that the cluster must have. They count at a start: an operator may change them later, and a
        # running node that still insisted would be refused and end.
        self._insisted = settings.insisted
        self.refusal: NotAdmitted | None = None

    def next_deadline_ms(self, members: Iterable[Member]) -> int | None:
        return self._due_ms if self._open(members) else None

    def vouched(self, now: Now) -> bool:
        """True if the node may be ready: the leader does not report
        another node with this identity.

        A `doubted` directory, which may be a copy, also needs the answer of the meta
        leader. If no answer names a leader for DOUBT_MS, the whole cluster is starting,
        and the node stops waiting.
        """
        if self._done:
            return True
        if self._elsewhere_ms is not None or now.boot_ms < self._doubted_ms:
            return False
        return not (self._doubted_ms and self._led)

    def again(self) -> None:
        """Asks again, because others report that this node was removed."""
        self._heard.clear()
        self._done = not self._settings.session

    def turn(self, members: Iterable[Member], now: Now, alone: bool = False) -> None:
        """`members` are the known nodes of the cluster. `alone`: this node has heard
        none of the others for long.
        """
        if now.boot_ms < self._due_ms:
            return
        members, copy = list(members), self._settings.member.copy
        if all(member.copy == copy for member in members):
            self._insisted = {}  # in a cluster of one node its own file decides
        leaving = any(member.copy == copy and member.state == "leaving" for member in members)
        if (leaving or alone) and now.boot_ms >= self._asked_ms + LEAVING_MS:
            self._asked_ms = now.boot_ms
            self.again()
        if addresses := self._open(members):
            self._due_ms = now.boot_ms + ASK_MS
            for address in addresses:
                self._ask(address, self._hello(), NODE_SHARD)
            if self._leader and not self._done:
                self._join_ms = now.boot_ms + ASK_MS
                self._ask(self._leader, self._hello(), META_SHARD)
                self._ask(self._leader, self._join(), META_SHARD)
                self._leader = ""  # the next greeting will name the leader again

    def _open(self, members: Iterable[Member]) -> list[str]:
        """Addresses to greet: those that have not answered, and all others until a
        leader has accepted this node.
        """
        if not self._settings.session or self.refusal is not None:
            return []
        mine = self._settings.member
        others = [member.endpoint for member in members if member.copy != mine.copy]
        return [address for address in others if not self._done or address not in self._heard]

    def _hello(self) -> Hello:
        return Hello(self._settings.session, f"node {self._settings.node}", __version__)

    def _join(self) -> Join:
        settings = self._settings
        return Join(settings.member, settings.cluster, b"", self._insisted, settings.session)

    def _ask(self, address: str, message: Message, shard: int) -> None:
        self._request += 1
        self._asked[self._request] = address
        for old in sorted(self._asked)[:-REMEMBERED]:
            del self._asked[old]
        self._mailbox.send(address, encode(message, shard, self._request))

    def hears(self, request_id: int, message: Incoming, now: Now) -> bool:
        """Handles an answer to one of its requests; returns False for other
        messages. Raises ProtocolError.
        """
        address = self._asked.pop(request_id, None)
        if address is None:
            return False
        header, said = decode(message.control)
        if isinstance(said, Welcome) and header.shard == NODE_SHARD:
            self._welcome(said, address, now)
        elif isinstance(said, Challenge):
            self._prove(said, address)
        elif isinstance(said, Members):
            self._settled(address)
        elif isinstance(said, RefusedMessage):
            self._refused(said, address, now)
        elif not isinstance(said, Welcome):
            raise ProtocolError(f"verb {said.verb} answers neither HELLO nor JOIN")
        return True

    def _welcome(self, said: Welcome, address: str, now: Now) -> None:
        mine = self._settings.cluster
        self._heard.add(address)
        if said.cluster != mine and mine in said.former:
            text = (
                f"cluster {mine.hex()[:8]} was recovered as {said.cluster.hex()[:8]} without this node, "
                f"see {said.node}"
            )
            hint = (
                "what it has may contradict what was confirmed since: start it with an empty --data, and "
                "it joins"
            )
            self.refusal = NotAdmitted(f"{text} at {address}", hint)
        elif said.cluster != mine:
            log.warning(
                "at %s, where a node of this cluster was, answers %s of another one", address, said.node
            )
        else:
            leads = (route.endpoint for route in said.routes if route.shard == META_SHARD and route.endpoint)
            self._lead(next(leads, ""), now)

    def _lead(self, address: str, now: Now) -> None:
        self._led |= bool(address)
        if address and not self._done and not self._leader:
            self._leader, self._due_ms = address, max(now.boot_ms, self._join_ms)

    def _prove(self, said: Challenge, address: str) -> None:
        """Proves to the leader of the meta shard that this node knows the secret, after
        the leader has proven it.
        """
        settings = self._settings
        if not proofs.answered(settings.token, settings.session, settings.member.copy, said):
            log.warning(
                "at %s, where a node of this cluster was, answers one that does not know its secret", address
            )
            return
        self._ask(address, proofs.proven(settings.token, said.nonce, self._join()), META_SHARD)

    def _refused(self, said: RefusedMessage, address: str, now: Now) -> None:
        if said.code == NotAdmitted.code or (said.code == WrongState.code and self._is_elsewhere(now)):
            self.refusal = NotAdmitted(said.message, said.hint)
        elif said.code == NotLeader.code:
            self._lead(said.endpoint, now)
        elif said.code == NoSession.code:
            pass  # the other process restarted or was replaced; this node greets and asks again
        elif said.hint and said.message != self._said:  # more than a busy process
            self._said = said.message
            log.warning("the cluster does not take this node as it is yet: %s; %s", said.message, said.hint)

    def _is_elsewhere(self, now: Now) -> bool:
        """True if the leader has reported for PATIENCE_MS that another node has this identity."""
        if self._elsewhere_ms is None:
            self._elsewhere_ms = now.boot_ms
        return now.boot_ms >= self._elsewhere_ms + PATIENCE_MS

    def _settled(self, address: str) -> None:
        self._done, self._elsewhere_ms = True, None
        self._insisted = {}
        self._mailbox.send(address, encode(Bye(), META_SHARD))
