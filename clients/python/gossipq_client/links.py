"""Connections and who leads what: greetings, pings, routes, and the way a message takes to its shard.

Pure: the driver reports `connected`, `disconnected` and `tick`, opens what `actions` names and sends what lies in `out`.
A lane is one greeted way to a worker: straight to it, or through the home frontdoor under one shard number. Each greeting has a
number of its own; who keeps something open at a leader compares that number and starts over when it has changed.
"""

from gossipq import limits
from gossipq.messages import Bye, Hello, Ping, Welcome
from gossipq.types import NODE_SHARD, Now
from gossipq.values import Message, Route
from gossipq.wire import frames

FALLBACK_MS = limits.SECOND_MS  #: a leader that is not reached for so long is spoken to through the frontdoor
HELLO_AGAIN_MS = limits.SECOND_MS
SILENCE_MS = 3 * limits.PING_MS  #: a connection with no sign of life for so long is opened anew


class Lane:
    """One greeted way. `greeting` is 0 until WELCOME came."""

    __slots__ = ("asked_ms", "endpoint", "greeting", "heard_ms", "id", "ping_ms", "pinged_ms", "shard", "window_bytes")

    def __init__(self, lane_id: int, endpoint: str, shard: int, now_ms: int) -> None:
        self.id, self.endpoint, self.shard = lane_id, endpoint, shard
        self.greeting = 0
        self.asked_ms = self.heard_ms = self.pinged_ms = now_ms
        self.ping_ms = limits.PING_MS
        self.window_bytes = limits.PUBLISH_WINDOW_BYTES


class Links:
    def __init__(self, addresses: list[str], session: bytes, name: str, version: str, now: Now) -> None:
        self.addresses, self.session = addresses, session
        self.now_ms, self.wall_ms = now  #: as the driver said last
        self.out: list[tuple[str, list[bytes | bytearray]]] = []
        self.actions: list[tuple[str, str]] = []  #: ("open" | "reopen" | "close", endpoint)
        self.routes: dict[int, Route] = {}
        self.greetings = 0
        self.cluster = b""
        self._hello = Hello(session, name, version)
        self._ids = 0
        self._turn = 0
        self._up: dict[str, bool] = {}
        self._since_ms: dict[str, int] = {}  #: when the endpoint last went up or down, or was asked for
        self._lanes: dict[int, Lane] = {}
        self._direct: dict[str, Lane] = {}
        self._forwarded: dict[int, Lane] = {}
        self.home = self._make(addresses[0], NODE_SHARD)

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def _make(self, endpoint: str, shard: int) -> Lane:
        lane = Lane(self.next_id(), endpoint, shard, self.now_ms)
        self._lanes[lane.id] = lane
        if endpoint not in self._up:
            self._up[endpoint] = False
            self._since_ms[endpoint] = self.now_ms
            self.actions.append(("open", endpoint))
        elif self._up[endpoint]:
            self._greet(lane)
        return lane

    # --- the way to a shard

    def lane(self, shard: int) -> Lane | None:
        """The open way to the leader of `shard`, or None for now."""
        if shard == NODE_SHARD:
            return self.home if self.home.greeting else None
        route = self.routes.get(shard)
        if route is not None:
            lane = self._direct.get(route.endpoint)
            if lane is None:
                lane = self._direct[route.endpoint] = self._make(route.endpoint, shard)
            if lane.greeting:
                return lane
            if self.now_ms - self._since_ms[route.endpoint] < FALLBACK_MS:
                return None
        if not self.home.greeting:
            return None
        forwarded = self._forwarded.get(shard)
        if forwarded is None:
            forwarded = self._forwarded[shard] = self._make(self.home.endpoint, shard)
        return forwarded if forwarded.greeting else None

    def send(self, lane: Lane, message: Message, shard: int, request_id: int = 0, body: bytes | bytearray = b"") -> None:
        control = frames.encode(message, shard, request_id)
        self.out.append((lane.endpoint, [control, body] if body else [control]))

    def learn(self, route: Route) -> None:
        """A leader's address; an older term never replaces a newer one."""
        known = self.routes.get(route.shard)
        if route.endpoint and (known is None or route.term >= known.term):
            self.routes[route.shard] = route

    def term(self, shard: int) -> int:
        route = self.routes.get(shard)
        return route.term if route else 0

    # --- what happens to connections

    def connected(self, endpoint: str) -> None:
        if endpoint in self._up:
            self._up[endpoint], self._since_ms[endpoint] = True, self.now_ms
            for lane in self._on(endpoint):
                self._greet(lane)

    def disconnected(self, endpoint: str) -> None:
        if self._up.get(endpoint):
            self._up[endpoint], self._since_ms[endpoint] = False, self.now_ms
        for lane in self._on(endpoint):
            lane.greeting = 0

    def welcomed(self, lane_id: int, welcome: Welcome) -> bool:
        """True when a lane opened that was not open before."""
        lane = self._lanes.get(lane_id)
        if lane is None:
            return False
        self.cluster = welcome.cluster
        lane.window_bytes, lane.ping_ms = welcome.window_bytes, welcome.ping_ms
        for route in welcome.routes:
            self.learn(route)
        self.heard(lane)
        if lane.greeting:
            return False
        self.greetings += 1
        lane.greeting = self.greetings
        if lane.shard != NODE_SHARD and lane is self._direct.get(lane.endpoint):
            self._retire_forwarded(lane.endpoint)
        return True

    def alive(self, endpoint: str, lane_id: int) -> None:
        """A sign of life: a PONG names its lane, anything else speaks for the connection itself."""
        lane = self._lanes.get(lane_id) or self._direct.get(endpoint)
        if lane is None and endpoint == self.home.endpoint:
            lane = self.home
        if lane is not None and lane.endpoint == endpoint:
            lane.heard_ms = self.now_ms

    def heard(self, lane: Lane) -> None:
        lane.heard_ms = self.now_ms

    def not_greeted(self, endpoint: str, shard: int) -> None:
        """The other side has forgotten this session: says HELLO again there."""
        for lane in self._on(endpoint):
            if lane.greeting and (lane.shard == shard or lane is self._direct.get(endpoint)):
                lane.greeting = 0
                self._greet(lane)

    def tick(self) -> None:
        for lane in list(self._lanes.values()):
            if not self._up[lane.endpoint]:
                continue
            if self.now_ms - lane.heard_ms >= SILENCE_MS and self.now_ms - self._since_ms[lane.endpoint] >= SILENCE_MS:
                self._revive(lane)
            elif not lane.greeting:
                if self.now_ms - lane.asked_ms >= HELLO_AGAIN_MS:
                    self._greet(lane)
            elif self.now_ms - lane.pinged_ms >= lane.ping_ms:
                lane.pinged_ms = self.now_ms
                self.send(lane, Ping(), lane.shard, lane.id)
        self._seek()

    def bye(self) -> None:
        """Ends the session at every node that knows it."""
        for lane in self._lanes.values():
            if lane.greeting:
                self.send(lane, Bye(), lane.shard)

    def _on(self, endpoint: str) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.endpoint == endpoint]

    def _greet(self, lane: Lane) -> None:
        lane.asked_ms = lane.pinged_ms = self.now_ms
        self.send(lane, self._hello, lane.shard, lane.id)

    def _revive(self, lane: Lane) -> None:
        if lane.shard != NODE_SHARD and lane is self._forwarded.get(lane.shard):
            lane.greeting = 0
            lane.heard_ms = self.now_ms
            self._greet(lane)
            return
        self.actions.append(("reopen", lane.endpoint))
        self.disconnected(lane.endpoint)

    def _seek(self) -> None:
        """Another address when the home node is gone; fresh routes while a leader is not reached."""
        home = self.home
        if not home.greeting:
            waited_ms = self.now_ms - max(self._since_ms[home.endpoint], home.asked_ms)
            if len(self.addresses) > 1 and waited_ms >= FALLBACK_MS:
                self._move_home()
        elif self.now_ms - home.asked_ms >= HELLO_AGAIN_MS and any(not lane.greeting for lane in self._direct.values()):
            self._greet(home)

    def _move_home(self) -> None:
        old = self.home
        for lane in [old, *self._forwarded.values()]:
            del self._lanes[lane.id]
        self._forwarded.clear()
        if not self._on(old.endpoint):
            del self._up[old.endpoint], self._since_ms[old.endpoint]
            self.actions.append(("close", old.endpoint))
        self._turn += 1
        self.home = self._make(self.addresses[self._turn % len(self.addresses)], NODE_SHARD)

    def _retire_forwarded(self, endpoint: str) -> None:
        for shard, lane in list(self._forwarded.items()):
            route = self.routes.get(shard)
            if route is not None and route.endpoint == endpoint:
                del self._forwarded[shard], self._lanes[lane.id]
