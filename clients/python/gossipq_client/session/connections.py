"""Connections and the lanes on them: greetings, pings, silence.

Pure: the driver reports `connected`, `disconnected` and `tick`, opens what `actions` names and sends what
lies in `out`. A lane is one greeted path: to a worker, through the home frontdoor under one shard
number, or to a frontdoor. Each greeting has a number of its own. A subscription or call that is open at a
leader compares that number, and starts over when it has changed.
"""

from itertools import count as counted

from msgspec import structs

from gossipq import limits
from gossipq.messages import Bye, Hello, Ping
from gossipq.types import NODE_SHARD, Now, ShardId
from gossipq.values import Message
from gossipq.wire import frames
from gossipq_client.values import NO_CREDENTIALS, Credentials

HELLO_AGAIN_MS = limits.SECOND_MS
SUSPECT_MS = 750  #: a node that does not answer a ping for this long may be dead
SILENCE_MS = 3 * limits.PING_MS  #: a connection that is silent for this long is opened again
ANSWER_MS = 100  #: usual time until an answer
TOGETHER_MS = (
    limits.PING_MS // 2
)  #: a lane that is due within this time is pinged now, so that all pings join one wake-up
TICK_MS = 250  #: interval of checks of pings, silence and fallbacks, while a connection is in trouble

SIGNS = (Hello, Ping)  #: messages that a client sends by itself; they do not count as use
#: (greeting, term) under which a leader knows a subscription: it forgets them with its term
Standing = tuple[int, int]
NOWHERE: Standing = (0, 0)


class Lane:
    """One greeted path. `greeting` is 0 until WELCOME arrives."""

    __slots__ = (
        "asked_ms",
        "away",
        "endpoint",
        "first_used_ms",
        "greeting",
        "heard_ms",
        "id",
        "leaderless",
        "ping_ms",
        "pinged_ms",
        "reached",
        "shard",
        "unanswered_ms",
        "used_ms",
        "window_bytes",
    )

    def __init__(self, lane_id: int, endpoint: str, shard: int, now_ms: int) -> None:
        self.id, self.endpoint, self.shard = lane_id, endpoint, shard
        self.greeting = 0
        self.reached = False  #: it was greeted once
        self.asked_ms = self.heard_ms = self.pinged_ms = self.used_ms = now_ms
        self.first_used_ms = now_ms  #: since its last sign of life
        self.unanswered_ms: int | None = (
            None  #: when the first PING or HELLO since the last sign of life left
        )
        self.ping_ms = limits.PING_MS
        self.window_bytes = limits.PUBLISH_WINDOW_BYTES
        #: shards that cannot elect a leader, as this node sees it, and the nodes that they need
        self.leaderless: frozenset[ShardId] = frozenset()
        self.away: list[str] = []

    def hear(self, now_ms: int) -> None:
        self.heard_ms, self.unanswered_ms = now_ms, None

    def ask(self, now_ms: int) -> None:
        self.pinged_ms = now_ms
        if self.unanswered_ms is None:
            self.unanswered_ms = now_ms

    def silent(self, now_ms: int) -> bool:
        return self.unanswered_ms is not None and now_ms - self.unanswered_ms >= SUSPECT_MS

    def use(self, now_ms: int) -> None:
        if self.used_ms <= self.heard_ms:
            self.first_used_ms = now_ms
        self.used_ms = now_ms

    def ping_due_ms(self) -> int:
        """Return when to send the next ping. A lane in use that is quiet gets twice as many, except right
        after its first use, whose answer may be on its way."""
        due_ms = self.pinged_ms + self.ping_ms
        quiet_ms = max(self.heard_ms, self.pinged_ms) + self.ping_ms // 2
        early_ms = max(quiet_ms, self.first_used_ms + ANSWER_MS)
        return min(due_ms, early_ms) if early_ms - self.used_ms < SILENCE_MS else due_ms

    def due_ms(self) -> int:
        """Return when `tick` has work for a greeted lane."""
        if self.unanswered_ms is None:
            return self.ping_due_ms()
        return min(self.ping_due_ms(), self.unanswered_ms + SUSPECT_MS)


class Connections:
    def __init__(
        self,
        session: bytes,
        name: str,
        version: str,
        now: Now,
        key: bytes = b"",
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self.session = session
        self.now_ms, self.wall_ms = now.boot_ms, now.wall_ms  #: as the driver reported last
        hello = Hello(session, name, version, user=credentials.act_for, key=key)
        self._hello, self._credentials = hello, credentials
        self.next_id = counted(1).__next__
        self.stirred_ms = -1  #: when pings last got no answer
        self._begin()

    def _begin(self) -> None:
        """Begin without connections."""
        self.out: list[tuple[str, list[bytes | bytearray]]] = []
        self.actions: list[tuple[str, str]] = []  #: ("open" | "reopen" | "close", endpoint)
        self._up: dict[str, bool] = {}
        self._since_ms: dict[str, int] = {}  #: when the endpoint last went up or down, or was requested
        self._missed: set[str] = set()  #: endpoints that refuse connections now
        self._lanes: dict[int, Lane] = {}
        self._direct: dict[str, Lane] = {}  #: by endpoint: lanes straight to a worker
        #: when all lanes are checked; None: each lane tells its own deadline
        self._look_ms: int | None = None

    def send(
        self, lane: Lane, message: Message, shard: int, request_id: int = 0, body: bytes | bytearray = b""
    ) -> None:
        """Send a message on a lane. All messages but greetings and pings count as use of the lane."""
        if type(message) not in SIGNS:
            lane.use(self.now_ms)
        control = frames.encode(message, shard, request_id)
        self.out.append((lane.endpoint, [control, body] if body else [control]))

    def _look_soon(self) -> None:
        """Check all lanes soon, because one is in trouble."""
        if self._look_ms is None:
            self._look_ms = self.now_ms + TICK_MS

    def connected(self, endpoint: str) -> None:
        self._look_soon()
        if endpoint in self._up:
            self._up[endpoint], self._since_ms[endpoint] = True, self.now_ms
            self._missed.discard(endpoint)
            for lane in self._on(endpoint):
                self._greet(lane)

    def disconnected(self, endpoint: str) -> None:
        self._look_soon()
        if self._up.get(endpoint):
            self._up[endpoint], self._since_ms[endpoint] = False, self.now_ms
        for lane in self._on(endpoint):
            lane.greeting, lane.unanswered_ms = 0, None

    def quiet(self) -> set[str]:
        """Return endpoints on which a ping or HELLO has no answer for SUSPECT_MS."""
        asked = [lane for lane in self._lanes.values() if lane.unanswered_ms is not None]
        return {lane.endpoint for lane in asked if lane.silent(self.now_ms)} if asked else set()

    def moving(self, endpoint: str) -> None:
        """Note that a large message is being sent, so its answer is late: the connection is kept. Other
        nodes are still asked for the leader."""
        for lane in self._on(endpoint):
            lane.heard_ms = self.now_ms

    def not_greeted(self, endpoint: str, shard: ShardId) -> None:
        """Send HELLO again, because the node has forgotten this session."""
        self._look_soon()
        for lane in self._on(endpoint):
            if lane.greeting and (lane.shard == shard or not self._by_shard(lane)):
                lane.greeting = 0
                self._greet(lane)

    def show(self, credentials: Credentials) -> None:
        """Use other credentials for the next greetings."""
        self._credentials = credentials

    def bye(self) -> None:
        """End the session at every node that knows it."""
        for lane in self._lanes.values():
            if lane.greeting:
                self.send(lane, Bye(), lane.shard)

    def _by_shard(self, lane: Lane) -> bool:
        """Whether other lanes on the same connection lead to other processes."""
        return lane is not self._direct.get(lane.endpoint)

    # --- lanes

    def _make(self, endpoint: str, shard: int) -> Lane:
        lane = Lane(self.next_id(), endpoint, shard, self.now_ms)
        self._lanes[lane.id] = lane
        self._look_soon()
        if endpoint not in self._up:
            self._up[endpoint] = False
            self._since_ms[endpoint] = self.now_ms
            self.actions.append(("open", endpoint))
        elif self._up[endpoint]:
            self._greet(lane)
        return lane

    def _drop(self, lane: Lane) -> None:
        """Its connection goes with the last lane that used it."""
        del self._lanes[lane.id]
        if not self._on(lane.endpoint):
            del self._up[lane.endpoint], self._since_ms[lane.endpoint]
            self._missed.discard(lane.endpoint)
            self.actions.append(("close", lane.endpoint))

    def _on(self, endpoint: str) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.endpoint == endpoint]

    def _greet(self, lane: Lane) -> None:
        lane.asked_ms = self.now_ms
        lane.ask(self.now_ms)
        token = self._credentials.at(lane.endpoint) if self._credentials.token else b""
        hello = structs.replace(self._hello, auth=token) if token else self._hello
        self.send(lane, hello, lane.shard, lane.id)

    def _keep_alive(self) -> None:
        """Pings, greetings that were not answered, connections that say nothing any more. Ways are pinged
        together, so that whoever waits wakes once for all."""
        pinging = any(lane.greeting and lane.ping_due_ms() <= self.now_ms for lane in self._lanes.values())
        ping_ms = self.now_ms + (TOGETHER_MS if pinging else 0)
        if pinging and all(self.now_ms - lane.heard_ms >= TICK_MS for lane in self._lanes.values()):
            self.stirred_ms = self.now_ms
        for lane in list(self._lanes.values()):
            if not self._up[lane.endpoint]:
                continue
            if (
                self.now_ms - lane.heard_ms >= SILENCE_MS
                and self.now_ms - self._since_ms[lane.endpoint] >= SILENCE_MS
            ):
                self._revive(lane)
            elif not lane.greeting:
                if self.now_ms - lane.asked_ms >= HELLO_AGAIN_MS:
                    self._greet(lane)
            elif lane.ping_due_ms() <= ping_ms:
                lane.ask(self.now_ms)
                self.send(lane, Ping(), lane.shard, lane.id)

    def _revive(self, lane: Lane) -> None:
        if lane.shard != NODE_SHARD and self._by_shard(lane):
            lane.greeting = 0
            lane.hear(self.now_ms)
            self._greet(lane)
            return
        self.actions.append(("reopen", lane.endpoint))
        self.disconnected(lane.endpoint)
