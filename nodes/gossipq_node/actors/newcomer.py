"""A node without a cluster: it joins the cluster that answers, or founds one together
with other waiting nodes.

Joining: the node sends HELLO to every address it knows, and WELCOME names the cluster. Then it
sends JOIN to the leader of the meta shard, again and again if necessary.

Founding by `expect` nodes: each waiting node sends WAITING to the others. As soon as enough
nodes wait, the one with the lowest name is to found. Each node pledges itself to one
founder, for ever, and announces this only when it is on its disk. The node that has the
pledges of all founds the cluster. A node that finds a cluster joins it despite any pledge,
so that no second cluster is founded.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from gossipq import __version__, limits
from gossipq.endpoints import Endpoint, endpoint
from gossipq.errors import (
    BadRequest,
    ConfigError,
    GossipqError,
    NotLeader,
    ProtocolError,
    StillJoining,
    from_code,
)
from gossipq.messages import (
    Bye,
    Challenge,
    Entrust,
    Entrusted,
    Hello,
    Join,
    Members,
    Pong,
    RefusedMessage,
    Welcome,
)
from gossipq.peer_messages import Append, Waiting
from gossipq.types import META_SHARD, NODE_SHARD, Now
from gossipq.values import AccessTable, Member, Message
from gossipq.wire import proofs
from gossipq.wire.frames import Header, decode, encode
from gossipq_node.actors.prover import Prover
from gossipq_node.ports import Incoming, Mailbox

SAY_MS = 250  #: time between two WAITING messages to the other nodes
GREET_MS = 1_000  #: time between two greetings of an address that may belong to the cluster
JOIN_MS = 1_000  #: time for an answer to JOIN; then another node is asked
GONE_MS = 10_000  #: after this time without any answer, a cluster counts as gone
REMEMBERED = 1_024  #: requests that may still be answered
SILENT_MS = 2_000  #: a waiting node that was silent for this time no longer counts
#: time until a refusal is final; the previous owner of this name or address counts as alive for 5 s
PATIENCE_MS = 6_500
FOUNDER = "."  #: marks a pledge to a copy; a pledge to a cluster is without it
#: bounds of the addresses learned from others, and of remembered nodes that do not count
FOREIGN = 64
STRANGE_SHOWN = 3  #: how many of these one line shows
NAME_CHARS = 80  #: characters shown of a name that any sender may choose

#: cluster uuid, or proofs.FOUNDING -> proof that this node knows the secret
Token = Callable[[bytes], bytes]


class Newcoming(msgspec.Struct, frozen=True, kw_only=True):
    member: Member  #: the node's row in the roster if it gets in
    session: bytes
    workers: int  #: workers of `member`, unless the cluster has fewer shards
    shards: int  #: number that the cluster must have; 0 accepts any
    expect: int  #: number of nodes that found together; 0 or 1: only joins
    #: `expect` is not given: it is the number of named addresses, its own included
    named: bool = False
    peers: tuple[str, ...]  #: addresses to try
    insisted: dict[str, str]  #: options of [cluster] that the cluster must have
    options: dict[str, str]  #: all [cluster] options, for nodes that found together
    founding: bytes  #: token to use until a cluster exists
    pledge: str = ""  #: from an earlier start
    invite: bytes = b""  #: token of an invitation, in place of the secret


class Founds(NamedTuple):
    """All agreed that this node founds the cluster."""


class Joined(NamedTuple):
    """The node is in the roster."""

    cluster: bytes
    name: str
    shards: int
    member: Member
    version: int
    members: list[Member]
    former: tuple[bytes, ...]  #: earlier identities of this cluster, before recoveries
    options: dict[str, str]  #: [cluster] options of the cluster
    access: AccessTable | None = None  #: the cluster's users and roles
    secret: bytes = b""  #: the secret of its nodes, for an invited node


class _Target(NamedTuple):
    """A node that is asked to let this one in."""

    cluster: bytes
    shards: int
    address: str


class Newcomer:
    def __init__(
        self,
        settings: Newcoming,
        mailbox: Mailbox,
        token: Token,
        pledge: Callable[[str], None],
        found: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`pledge` stores a pledge before it is announced; `found` names further addresses."""
        self._settings = settings
        self._mailbox = mailbox
        self._token = token
        self._store = pledge
        self._found = found
        self._me = settings.member
        self._pledge = settings.pledge
        #: copy -> its last WAITING and when it came
        self._others: dict[str, tuple[Waiting, int]] = {}
        self._strange: dict[str, str] = {}  #: address -> why that node does not count
        self._learned: list[str] = []  #: addresses that other nodes named
        self._clusters: dict[bytes, dict[str, Welcome]] = {}  #: cluster -> address -> its answer
        #: number of the last request; others cannot guess it
        self._request = int.from_bytes(settings.session[:6])
        self._greeted: dict[int, str] = {}  #: request -> address; answers may be slow
        self._met_ms: dict[bytes, int] = {}  #: when nodes of each cluster last answered
        self._met = False  #: a cluster exists, so this node founds none
        self._prover = Prover(settings.member.copy, settings.founding)
        #: address of a waiting node -> its nonce, for proving this node's messages
        self._nonces: dict[str, bytes] = {}
        #: request -> the node that was asked to let this one in
        self._asked: dict[int, _Target] = {}
        self._last: _Target | None = None
        self._next_target = ""  #: where a leader is said to be
        self._refusal: GossipqError | None = None
        self._refused_ms = 0  #: since when the refusal has been the same
        self._entered: Joined | None = None  #: complete except for the secret
        self._say_ms = self._greet_ms = self._ask_ms = 0
        self.outcome: Founds | Joined | None = None
        self.failure: GossipqError | None = None

    def next_deadline_ms(self) -> int | None:
        due_ms = [self._greet_ms]
        if self._founds:
            due_ms.append(self._say_ms)
        if self._clusters:
            due_ms.append(self._ask_ms)
        return min(due_ms)

    @property
    def _founds(self) -> bool:
        """True while the founder of the cluster is still open."""
        return self._settings.expect > 1 and not self._met

    @property
    def done(self) -> bool:
        return self.outcome is not None or self.failure is not None

    # --- a turn ---------------------------------------------------------------------------------------------

    def turn(self, arrived: list[Incoming], now: Now) -> None:
        for message in arrived:
            try:
                self._hear(message, now.boot_ms)
            except ProtocolError:
                continue  # the sender does not speak the protocol
        if self.done:
            return
        self._others = {copy: row for copy, row in self._others.items() if now.boot_ms - row[1] < SILENT_MS}
        for cluster in [cluster for cluster, at_ms in self._met_ms.items() if now.boot_ms - at_ms >= GONE_MS]:
            del self._met_ms[cluster], self._clusters[cluster]
        if now.boot_ms >= self._greet_ms:
            self._greet_ms = now.boot_ms + GREET_MS
            self._greeted |= {self._greet(address, NODE_SHARD): address for address in self._addresses()}
            _forget_oldest(self._greeted)
        if self._clusters and now.boot_ms >= self._ask_ms:
            self._ask_ms = now.boot_ms + JOIN_MS
            self._ask()
        if self._founds:
            self._agree(now.boot_ms)

    def _hear(self, message: Incoming, now_ms: int) -> None:
        header, said = decode(message.control)
        if isinstance(said, Waiting):
            self._hear_waiting(said, message, now_ms)
        elif isinstance(said, Welcome):
            self._hear_welcome(said, self._greeted.get(header.request_id, ""), now_ms)
        elif isinstance(said, Challenge) and not header.request_id:
            self._nonces[self._mailbox.answerer(message.origin)] = said.nonce
        elif isinstance(said, Members | RefusedMessage | Challenge | Entrusted):
            target = self._asked.get(header.request_id)
            if target is None:
                return
            self._last = None
            if isinstance(said, Challenge):
                self._prove(said, target, now_ms)
            elif isinstance(said, Members):
                self._enter(said, target)
            elif isinstance(said, Entrusted):
                self._entrusted(said)
            else:
                self._hear_refusal(said, now_ms)
        elif said.verb < Append.verb and not isinstance(said, Bye | Pong):
            self._turn_away(message, header)

    def _turn_away(self, message: Incoming, header: Header) -> None:
        """Tells clients that this node is not part of a cluster yet."""
        text = f"node {self._me.name} belongs to no cluster yet: {self.waiting_for()}"
        refusal = RefusedMessage(StillJoining.code, text, "the log of the node has the details", GREET_MS)
        self._mailbox.reply(message.origin, encode(refusal, header.shard, header.request_id))

    # --- addresses ------------------------------------------------------------------------------------------

    def _addresses(self) -> list[str]:
        """The addresses to try. The node's own may be among them: if a node answers
        there, it is another one.
        """
        return list(dict.fromkeys((*self._settings.peers, *self._found(), *self._learned)))

    def _learn(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            if len(self._learned) < FOREIGN and address not in self._learned and _good(address):
                self._learned.append(address)

    # --- joining --------------------------------------------------------------------------------------------

    def _hear_welcome(self, said: Welcome, address: str, now_ms: int) -> None:
        if not address or len(said.cluster) != 16:
            return
        new = said.cluster not in self._clusters
        self._clusters.setdefault(said.cluster, {})[address] = said
        self._met, self._met_ms[said.cluster] = True, now_ms
        self._learn(said.nodes)
        if new:
            self._ask_ms = 0

    def _ask(self) -> None:
        """Sends JOIN to the leader of the meta shard, if it is known; each attempt
        goes through another node.
        """
        cluster = self._cluster()
        if cluster is None:
            return
        doors = self._clusters[cluster]
        welcome = next(reversed(doors.values()))
        if self._settings.shards and self._settings.shards != welcome.shards:
            self._fail(
                f"cluster.shards = {self._settings.shards}, and the cluster has {welcome.shards}",
                "leave it out here",
            )
            return
        if not self._pledge:
            self._pledge_to(cluster.hex())
        leads = [route.endpoint for route in welcome.routes if route.shard == META_SHARD and route.endpoint]
        doorways = list(doors)
        at = self._request % len(doorways)
        address, self._next_target = self._next_target or next(iter(leads), doorways[at]), ""
        if self._last is not None and self._last.address == address:
            address = doorways[at]  # it has not answered yet
        self._ask_at(_Target(cluster, welcome.shards, address))

    def _cluster(self) -> bytes | None:
        """The cluster to join. None if none has answered, if several have, or if it is not the one
        that this node has begun to join.
        """
        if self._pledge and FOUNDER not in self._pledge:
            begun = bytes.fromhex(self._pledge)
            return begun if begun in self._clusters else None
        return next(iter(self._clusters)) if len(self._clusters) == 1 else None

    def _greet(self, address: str, shard: int) -> int:
        self._request += 1
        hello = Hello(self._settings.session, f"node {self._me.name}", __version__)
        self._send(address, hello, shard, self._request)
        return self._request

    def _ask_at(self, target: _Target) -> None:
        self._greet(target.address, META_SHARD)
        self._say_join(self._join(target), target)

    def _join(self, target: _Target) -> Join:
        member = msgspec.structs.replace(self._me, workers=min(self._settings.workers, target.shards))
        settings = self._settings
        return Join(
            member=member,
            cluster=target.cluster,
            proof=b"",
            options=settings.insisted,
            nonce=settings.session,
            invite=settings.invite,
        )

    def _say_join(self, join: Join | Entrust, target: _Target) -> None:
        self._request += 1
        self._asked[self._request] = self._last = target
        _forget_oldest(self._asked)
        self._send(target.address, join, META_SHARD, self._request)

    def _prove(self, said: Challenge, target: _Target, now_ms: int) -> None:
        """The cluster has proven that it knows the secret, so this node proves it, too. If a proof
        fails, it is unknown which side has the wrong secret.
        """
        token = self._token(target.cluster)
        if token and proofs.answered(token, self._settings.session, self._me.copy, said):
            self._say_join(proofs.proven(token, said.nonce, self._join(target)), target)
        else:
            text = f"the node at {target.address} and this one do not have the same secret"
            hint = (
                "give both the same --secret-file; without one a node has its own, in its directory: "
                "DIR/secret"
            )
            self._hear_refusal(RefusedMessage(BadRequest.code, text, hint), now_ms)

    def _enter(self, said: Members, target: _Target) -> None:
        """Finishes joining if the roster has this node; else it is too early."""
        mine = next((member for member in said.members if member.copy == self._me.copy), None)
        if mine is not None:
            doors = self._clusters.get(target.cluster, {}).values()
            former = tuple(dict.fromkeys(cluster for door in doors for cluster in door.former))
            entered = Joined(
                cluster=target.cluster,
                name=said.cluster_name,
                shards=target.shards,
                member=mine,
                version=said.version,
                members=said.members,
                former=former,
                options=said.options,
                access=said.access,
            )
            if self._settings.invite:
                self._entered = entered
                self._say_join(Entrust(self._settings.invite, self._me.copy), target)
            else:
                self.outcome = entered

    def _entrusted(self, said: Entrusted) -> None:
        """Stores the secret that an invited node gets."""
        if self._entered is not None:
            self.outcome = self._entered._replace(secret=said.secret)

    def _hear_refusal(self, said: RefusedMessage, now_ms: int) -> None:
        error = from_code(said.code, said.message, said.hint, said.retry_after_ms)
        if isinstance(error, NotLeader):
            if said.endpoint:
                self._next_target, self._ask_ms = said.endpoint, 0
            return
        if error.retryable:
            self._ask_ms = now_ms + max(SAY_MS, said.retry_after_ms)
        if self._refusal is None or self._refusal.message != error.message:
            self._refusal, self._refused_ms = error, now_ms
        if not error.retryable and now_ms - self._refused_ms >= PATIENCE_MS:
            self._fail(f"the cluster does not take this node in: {error.message}", error.hint)

    def _fail(self, message: str, hint: str) -> None:
        self.failure = ConfigError(message, hint)
        if self._pledge in {cluster.hex() for cluster in self._clusters}:
            self._pledge_to("")  # the refusal is final

    # --- founding -------------------------------------------------------------------------------------------

    def _hear_waiting(self, said: Waiting, message: Incoming, now_ms: int) -> None:
        address = said.member.endpoint[: limits.NAME_BYTES_MAX]
        self._strange.pop(address, None)
        if said.member.copy == self._me.copy:
            return
        challenge = self._prover.asked(message.origin, said)
        if challenge is not None:
            # so that its next message can carry a proof
            self._mailbox.reply(message.origin, encode(challenge, NODE_SHARD))
            if not said.proof:
                return
        knows = challenge is None
        if knows:
            self._learn((said.member.endpoint,))
        if wrong := self._wrong(said) if knows else _another_secret(said):
            if len(self._strange) < FOREIGN:
                self._strange[address] = wrong
        elif len(self._others) < limits.MEMBERS_MAX:
            self._learn(said.known)
            self._others[said.member.copy] = said, now_ms

    def _wrong(self, said: Waiting) -> str:
        """Why this node cannot found a cluster together with that one, which knows
        the secret; "" if it can.
        """
        mine, name = self._settings.options | {"cluster.expect": str(self._settings.expect)}, said.member.name
        theirs = said.options | {"cluster.expect": str(said.expect)}
        for key, text in mine.items():
            if theirs.get(key) != text:
                return (
                    f"{name} has {key} = {theirs.get(key)}, and here it is {text}: give all nodes the "
                    "same cluster.toml"
                )
        if name == self._me.name:
            return f"{said.member.endpoint} has the same name, {name}: give one of them another with --name"
        return ""

    def _agree(self, now_ms: int) -> None:
        waiting = {self._me.copy, *self._others}
        everybody = {self._me.endpoint, *self._addresses()}
        # a majority, so no other group can found
        enough = len(waiting) >= max(self._settings.expect, len(everybody) // 2 + 1)
        if not self._pledge and enough:
            self._pledge_to(min(waiting))
        pledges = {self._pledge, *(row.pledge for row, _ in self._others.values())}
        if pledges == {self._me.copy} and enough:
            self.outcome = Founds()
            return
        if now_ms >= self._say_ms:
            self._say_ms = now_ms + SAY_MS
            endpoints = [row.member.endpoint for row, _ in self._others.values()]
            settings = self._settings
            word = Waiting(
                member=self._me,
                expect=settings.expect,
                pledge=self._pledge,
                options=settings.options,
                proof=b"",
                known=endpoints,
            )
            for address in self._addresses():
                nonce = self._nonces.get(address)
                proven = (
                    proofs.proven(settings.founding, nonce, word) if nonce and settings.founding else word
                )
                self._send(address, proven, NODE_SHARD)

    def _pledge_to(self, what: str) -> None:
        """Stores a pledge before it is announced."""
        if what != self._pledge:
            self._store(what)
            self._pledge = what

    # --- words ----------------------------------------------------------------------------------------------

    def waiting_for(self) -> str:
        """Describes for people what this node waits for."""
        if self._refusal is not None and not isinstance(self._refusal, NotLeader):
            return f"the cluster does not take it in yet: {self._refusal.message}"
        if len(self._clusters) > 1:
            names = ", ".join(
                f"{next(iter(doors))} of {cluster.hex()[:8]}" for cluster, doors in self._clusters.items()
            )
            return (
                f"waiting, for nodes of different clusters answer: {names}; leave out the addresses of "
                "all but one"
            )
        if self._clusters and self._cluster() is None:
            return (
                f"waiting for the cluster that it has begun to join, {self._pledge[:8]}; another one answers"
            )
        if self._clusters:
            return "waiting for the leader of the cluster's meta shard"
        if self._met:
            return "waiting for the cluster that answered before; none of its nodes does now"
        strange = "".join(f"; {text}" for text in sorted(self._strange.values())[:STRANGE_SHOWN])
        expect = self._settings.expect
        if expect <= 1 or (self._settings.named and not self._others):
            return f"waiting for a node of the cluster; none answers at {self._asked_addresses()}{strange}"
        names = ", ".join(sorted([self._me.name, *(row.member.name for row, _ in self._others.values())]))
        if self._pledge and self._pledge != self._me.copy:
            if self._pledge not in self._others:
                return (
                    f"waiting for the node that was agreed to found the cluster ({self._pledge[:8]}); if its "
                    "disk is gone for "
                    "good, and no node of the cluster has ever been ready, empty the data directories of "
                    f"all{strange}"
                )
            return f"waiting for {self._others[self._pledge][0].member.name} to found the cluster{strange}"
        return (
            f"waiting for {expect} nodes to found the cluster, {1 + len(self._others)} of them are here: "
            f"{names}{strange}"
        )

    def _asked_addresses(self) -> str:
        others = [address for address in self._addresses() if address != self._me.endpoint]
        return ", ".join(others) or "any address: nobody was found yet"

    def _send(self, address: str, message: Message, shard: int, request_id: int = 0) -> None:
        self._mailbox.send(address, encode(message, shard, request_id))


def _another_secret(said: Waiting) -> str:
    """The warning for a node with another secret, whose identity is unproven."""
    return f"{said.member.name[:NAME_CHARS]!r} has another secret: give all nodes the same --secret-file"


def _forget_oldest(requests: dict[int, Any]) -> None:
    for request in sorted(requests)[:-REMEMBERED]:
        del requests[request]


def _good(address: str) -> bool:
    try:
        return isinstance(endpoint(address), Endpoint)
    except ConfigError:
        return False
