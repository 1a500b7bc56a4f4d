"""A cluster of simulated nodes, for a client's behaviour during changes of
leaders. No sockets, no clock.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from gossipq.messages import (
    Ack,
    Acked,
    Confirm,
    Extend,
    Hello,
    Nack,
    Ping,
    Pong,
    Publish,
    RefusedMessage,
    Status,
    StatusReply,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Welcome,
)
from gossipq.types import NODE_SHARD, Now
from gossipq.values import Message, Route, TopicConfig, TopicInfo
from gossipq.wire import frames
from gossipq.wire.batch import check
from gossipq_client.session.packer import Topic
from gossipq_client.session.session import Session

SHARD, STEP_MS = 3, 25


def frontdoor(name: str) -> str:
    return f"tcp://{name}:1"


def worker(name: str) -> str:
    return f"tcp://{name}:2"


class Node:
    def __init__(self, name: str) -> None:
        self.name = name
        self.alive, self.frozen = True, False
        self.leads = 0  #: the term in which it leads the shard, as it believes
        self.knows: tuple[str, int] | None = None  #: (leader, term), as its frontdoor and its worker say
        self.mail: list[tuple[str, list[bytes]]] = []  #: arrived while it was frozen
        self.unanswered: list[int] = []  #: requests: stored and not confirmed, or not stored


class World:
    """One shard that the nodes lead in turn, and a client that knows the first of them."""

    def __init__(self, names: Sequence[str] = ("a", "b", "c"), knows: Iterable[str] = ("a",)) -> None:
        self.nodes = {name: Node(name) for name in names}
        self.now_ms = 0
        self.log: list[tuple[bytes, int]] = []  #: what is committed: (producer, sequence)
        self.seen: list[tuple[str, Message]] = []  #: received messages with their receivers
        self.acked: list[tuple[str, Ack]] = []
        self.subscribed: dict[str, list[Subscribe]] = defaultdict(list)  #: by node, of its present leadership
        self.loses_confirms = False
        self.term = 0  #: of the newest leader
        self.tells_subscribers = True  #: a leader that goes does so
        #: until an answer arrives; those of one connection keep their order
        self.lag_ms: Callable[[], int] = lambda: 0
        #: by endpoint: (when it arrives, message)
        self._on_way: dict[str, list[tuple[int, list[bytes]]]] = defaultdict(list)
        self.session = Session(
            [frontdoor(name) for name in knows], b"s" * 16, "test", "0", lambda: b"p" * 16, Now(0, 0)
        )
        self._wanted: set[str] = set()
        self._up: set[str] = set()

    # --- what happens to nodes

    def elect(self, name: str, term: int, known_to: Iterable[str] | None = None) -> None:
        node = self.nodes[name]
        for other in self.nodes.values():
            self.resign(other)
        node.leads = self.term = term
        for other in self.nodes if known_to is None else known_to:
            if not self.nodes[other].frozen:
                self.nodes[other].knows = name, term

    def resign(self, node: Node) -> None:
        """The node learns that it leads no more, and tells waiting clients that their
        requests' fate is unknown.
        """
        if node.frozen or not node.alive:
            return
        node.leads = 0
        requests, node.unanswered = node.unanswered, []
        for request_id in requests:
            self.tell(worker(node.name), RefusedMessage("not_leader", "may be stored"), SHARD, request_id)
        if self.subscribed[node.name] and self.tells_subscribers:
            self.tell(worker(node.name), RefusedMessage("not_leader", "led elsewhere"), SHARD)
        self.subscribed[node.name].clear()

    def kill(self, name: str) -> None:
        self.nodes[name].alive = False
        self.nodes[name].unanswered.clear()
        for endpoint in (frontdoor(name), worker(name)):
            if endpoint in self._up:
                self._drop(endpoint)
                self.session.disconnected(endpoint)

    def freeze(self, name: str) -> None:
        self.nodes[name].frozen = True

    def thaw(self, name: str) -> None:
        node = self.nodes[name]
        node.frozen = False
        mail, node.mail = node.mail, []
        for endpoint, message in mail:
            self._serve(node, endpoint, message)

    # --- time

    def run(self, ms: int) -> None:
        for _ in range(ms // STEP_MS):
            self.now_ms += STEP_MS
            self.session.advance(Now(self.now_ms, self.now_ms))
            self._arrive()
            self.session.tick()
            self.session.consuming.flush()
            self.exchange()

    def exchange(self) -> None:
        links = self.session.links
        while links.actions or links.out:
            actions, links.actions = links.actions, []
            for action, endpoint in actions:
                if action != "open":
                    self._wanted.discard(endpoint)
                    self._drop(endpoint)
                if action != "close":
                    self._wanted.add(endpoint)
            self._connect()
            out, links.out = links.out, []
            for endpoint, message in out:
                if endpoint in self._up:
                    node = self._node(endpoint)
                    raw = [bytes(frame) for frame in message]
                    if node.frozen:
                        node.mail.append((endpoint, raw))
                    else:
                        self._serve(node, endpoint, raw)
        self._connect()

    def _drop(self, endpoint: str) -> None:
        self._up.discard(endpoint)
        self._on_way.pop(endpoint, None)

    def _connect(self) -> None:
        for endpoint in sorted(self._wanted - self._up):
            node = self._node(endpoint)
            if node.alive and not node.frozen:
                self._up.add(endpoint)
                self.session.connected(endpoint)

    def _node(self, endpoint: str) -> Node:
        return self.nodes[endpoint[len("tcp://") : -2]]

    # --- what nodes do

    def _serve(self, node: Node, endpoint: str, message: list[bytes]) -> None:
        header, request = frames.decode(message[0])
        self.seen.append((node.name, request))
        answer = self._answer(node, header, request, message)
        if answer is not None:
            told = isinstance(answer, Hello | Welcome | Pong | StatusReply)
            term = 0 if told else node.leads or (node.knows or ("", 0))[1]
            request_id = 0 if isinstance(answer, Confirm) else header.request_id
            self.tell(endpoint, answer, header.shard, request_id, term)

    def tell(
        self,
        endpoint: str,
        message: Message,
        shard: int = SHARD,
        request_id: int = 0,
        term: int = 0,
        *bodies: bytes,
    ) -> None:
        if endpoint not in self._up:
            return
        raw, on_way = [frames.encode(message, shard, request_id, term), *bodies], self._on_way[endpoint]
        arrives_ms = max(self.now_ms + self.lag_ms(), on_way[-1][0] if on_way else 0)
        if arrives_ms > self.now_ms:
            on_way.append((arrives_ms, raw))
        else:
            self.session.arrived(endpoint, raw)

    def _arrive(self) -> None:
        for endpoint, on_way in list(self._on_way.items()):
            while on_way and on_way[0][0] <= self.now_ms and endpoint in self._up:
                self.session.arrived(endpoint, on_way.pop(0)[1])

    def _answer(
        self, node: Node, header: frames.Header, request: Message, message: list[bytes]
    ) -> Message | None:
        if isinstance(request, Hello):
            routes = [Route(SHARD, node.knows[1], worker(node.knows[0]))] if node.knows else []
            return Welcome(
                node.name, b"c" * 16, "0", 1 << 20, 5_000, 1_000, routes, 8, [*map(frontdoor, self.nodes)]
            )
        if isinstance(request, Ping):
            return Pong()
        if isinstance(request, Status):
            return StatusReply(node.name, "c", b"c" * 16, "0", "static", 0, 8, 8, [], [])
        if header.shard == NODE_SHARD:
            return None
        if not node.leads:
            known = node.knows
            better = worker(known[0]) if known and known[0] != node.name else ""
            return RefusedMessage("not_leader", "led elsewhere", endpoint=better)
        return self._lead(node, header, request, message)

    def _lead(
        self, node: Node, header: frames.Header, request: Message, message: list[bytes]
    ) -> Message | None:
        if node.leads < self.term:  # others lead, and it does not know: nothing is committed any more
            node.unanswered += [header.request_id] if header.request_id else []
            return None
        match request:
            case Publish():
                info = check(message[1])
                key, offset = (info.producer, info.sequence), len(self.log)
                last = max(
                    (sequence for producer, sequence in self.log if producer == info.producer), default=0
                )
                if key not in self.log and info.sequence != last + 1:
                    return RefusedMessage("out_of_sequence", "a gap", detail=last + 1)
                known = key in self.log
                if not known:
                    self.log.append(key)
                if self.loses_confirms:
                    node.unanswered.append(header.request_id)
                    return None
                return Confirm([(header.request_id, self.log.index(key) if known else offset, 2, known)])
            case Subscribe():
                self.subscribed[node.name].append(request)
                return Subscribed(request.subscription, 30_000, [], mode="shared")
            case Ack() | Nack() | Extend():
                if request.subscription not in [each.subscription for each in self.subscribed[node.name]]:
                    return RefusedMessage(
                        "bad_request", f"no subscription {request.subscription} in this session"
                    )
                if isinstance(request, Ack):
                    self.acked.append((node.name, request))
                return Acked()
            case Unsubscribe():
                return Acked()
        return None

    # --- what the client does

    def topic(self) -> Topic:
        self.exchange()
        return self.session.publishing.learn(TopicInfo(7, "t", 1, TopicConfig(), [SHARD]))

    def got(self, kind: type[Message], name: str = "") -> list[Message]:
        return [message for who, message in self.seen if isinstance(message, kind) and name in ("", who)]
