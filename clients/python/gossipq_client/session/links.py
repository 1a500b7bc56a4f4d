"""Finds the connection to the leader of a shard, and finds the leader again when it is gone.

The home is one node of the cluster; when it is silent, another one becomes the home. While a leader
is silent, out of reach or unknown, the home and a few other nodes (scouts) are asked for routes.
"""

from gossipq import limits
from gossipq.errors import Forbidden, GossipqError
from gossipq.messages import Welcome
from gossipq.types import NODE_SHARD, Now, ShardId
from gossipq.values import Route
from gossipq_client.session.connections import (
    HELLO_AGAIN_MS,
    SUSPECT_MS,
    TICK_MS,
    Connections,
    Lane,
    Standing,
)
from gossipq_client.session.leaders import Leaders
from gossipq_client.values import NO_CREDENTIALS, Credentials

#: after this time a leader that was never reached is reached through the frontdoor; at once if its
#: address accepts no connections
FALLBACK_MS = limits.SECOND_MS
ROUTES_MS = 5 * limits.SECOND_MS  #: routes are renewed this often, even if all works
SEEK_MS = 50  #: least time between two rounds of asking for routes
#: a hand-over takes no longer: after its first sign routes are asked for at this interval
HURRY_MS = 300
#: after seeking for this long, requests are HELLO_AGAIN_MS apart
SEEK_LONG_MS = 10 * limits.SECOND_MS
#: after this time a shard without a possible leader is not waited for
IN_VAIN_MS = limits.SECOND_MS
SCOUTS = 2  #: nodes that are asked beside the home
REST_MS = 10 * limits.SECOND_MS  #: unused scouts are dropped after this time


class Links(Connections):
    def __init__(
        self,
        addresses: list[str],
        session: bytes,
        name: str,
        version: str,
        now: Now,
        key: bytes = b"",
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        super().__init__(session, name, version, now, key, credentials)
        self.addresses = addresses
        self.nodes: list[str] = []  #: nodes of the cluster, according to its nodes
        self.leaders = Leaders()
        self.greetings = 0
        self.cluster = b""
        #: why the last greeted node refused this client
        self.refusal: GossipqError | None = None
        self._closed: set[str] = set()  #: endpoints that speak another version, or refuse this user
        self._in_vain_ms = self.now_ms  #: since when shards are leaderless
        self._turn = 0  #: position in the list of possible scouts
        self._dial(addresses[0])

    def _dial(self, home: str) -> None:
        """Open the first connection."""
        self._forwarded: dict[ShardId, Lane] = {}
        self._scouts: list[Lane] = []
        self._missed_ms: int | None = None  #: when a connection to a leader was last missing
        self._seeking_ms: int | None = None  #: since when routes are sought
        self._hurry_ms = self.now_ms  #: until when the client is in a hurry
        self._sought_ms = self._routes_ms = self._ticked_ms = self.now_ms
        self.home = self._make(home, NODE_SHARD)

    def restart(self) -> None:
        """All connections were closed at once: open and greet them again."""
        self._begin()
        self.leaders.shut.clear()
        self._dial(self.home.endpoint)

    # --- the way to a shard

    def lane(self, shard: ShardId) -> Lane | None:
        """The open connection to the leader of `shard`, or None for now."""
        if shard == NODE_SHARD:
            return self.home if self.home.greeting else None
        leaders = self.leaders
        route = leaders.routes.get(shard)
        if route is not None and not leaders.shut:
            direct = self._direct.get(route.endpoint)
            if direct is not None and direct.greeting:
                return direct
        lane = None if leaders.is_shut(shard, self.now_ms) else self._way(shard)
        if lane is None:
            self._missed_ms = self.now_ms
            self._look_soon()
        return lane

    def _way(self, shard: ShardId) -> Lane | None:
        route = self.leaders.routes.get(shard)
        if route is not None:
            lane = self._direct.get(route.endpoint)
            if lane is None:
                lane = self._direct[route.endpoint] = self._make(route.endpoint, shard)
            if lane.greeting:
                return lane
            if lane.reached or not self._is_out_of_reach(route.endpoint):
                return None
        if not self.home.greeting:
            return None
        forwarded = self._forwarded.get(shard)
        if forwarded is None:
            forwarded = self._forwarded[shard] = self._make(self.home.endpoint, shard)
        return forwarded if forwarded.greeting else None

    def _is_out_of_reach(self, endpoint: str) -> bool:
        return endpoint in self._missed or self.now_ms - self._since_ms[endpoint] >= FALLBACK_MS

    def missed(self, endpoint: str) -> None:
        """Notes that the endpoint accepts no connections, for example because a node opens that
        port only for its own host.
        """
        lane = self._direct.get(endpoint)
        if endpoint not in self._missed and lane is not None and not lane.reached:
            self._missed.add(endpoint)
            self.leaders.moved = True

    def standing(self, lane: Lane, shard: ShardId) -> Standing:
        """The state under which the leader of `shard` would know a
        subscription sent on this lane now.
        """
        return lane.greeting, self.leaders.term(shard)

    def outdated(self, shard: ShardId, term: int, endpoint: str) -> bool:
        """True if an answer comes from an old leader. A current leader may still
        answer for its earlier terms.
        """
        route = self.leaders.routes.get(shard)
        return route is not None and 0 < term < route.term and route.endpoint != endpoint

    # --- who leads

    def term(self, shard: ShardId) -> int:
        return self.leaders.term(shard)

    def learn(self, route: Route) -> None:
        """Learns a leader's address from another node."""
        known = self.leaders.routes.get(route.shard)
        lane = self._direct.get(known.endpoint) if known else None
        self.leaders.learn(route, lane is not None and lane.greeting > 0)

    def heard(self, shard: ShardId, term: int, endpoint: str) -> bool:
        """Note that a shard's leader answered, and return whether it still leads; see `outdated`.

        An answer through the frontdoor is not noted, since it does not tell where the leader is.
        """
        leaders = self.leaders
        route = leaders.routes.get(shard)
        if route is None or route.term != term or leaders.shut:
            if self.outdated(shard, term, endpoint):
                return False
            if term and endpoint in self._direct:
                leaders.heard(shard, term, endpoint)
        return True

    def not_led(self, shard: ShardId, term: int, sender: str, better: str) -> None:
        """`sender` refused a request because it does not lead the shard."""
        self._look_soon()
        if self.leaders.refused(shard, term, sender, better, self.now_ms):
            self._hurry()
            self.seek()

    def disconnected(self, endpoint: str) -> None:
        super().disconnected(endpoint)
        if endpoint in self._direct:
            self._hurry()

    def _hurry(self) -> None:
        """A leader is gone: if it has handed over, the next one is known in a moment."""
        if self._seeking_ms is None:
            self._hurry_ms = self.now_ms + HURRY_MS

    # --- answers to greetings

    def welcomed(self, lane_id: int, welcome: Welcome) -> bool:
        """Takes a WELCOME. Returns True if it opened a lane."""
        lane = self._lanes.get(lane_id)
        if lane is None or not self._belongs(lane, welcome.cluster):
            return False
        lane.window_bytes, lane.ping_ms = welcome.window_bytes, welcome.ping_ms
        lane.hear(self.now_ms)
        self._routes_ms = self.now_ms
        self.nodes = welcome.nodes or self.nodes
        for route in welcome.routes:
            self.learn(route)
        if lane.shard == NODE_SHARD:
            self._hear_of_leaders(lane, welcome)
        if lane.greeting:
            return False
        self.greetings += 1
        lane.greeting, lane.reached, self.refusal = self.greetings, True, None
        if lane is self._direct.get(lane.endpoint):
            self._retire_forwarded(lane.endpoint)
        return True

    def _hear_of_leaders(self, lane: Lane, welcome: Welcome) -> None:
        if not self.leaderless:
            self._in_vain_ms = self.now_ms
        lane.leaderless = frozenset(welcome.leaderless if welcome.away else ())
        lane.away = welcome.away
        if self.home.leaderless:
            # The home may be cut off alone. So other nodes are asked before a request fails
            self._missed_ms = self.now_ms
            self._look_soon()

    @property
    def leaderless(self) -> frozenset[ShardId]:
        """Shards that cannot elect a leader, according to all nodes that answer this client."""
        found = self.home.leaderless
        for scout in self._scouts if found else ():
            if scout.greeting and not scout.silent(self.now_ms):
                found &= scout.leaderless
        return found

    def in_vain(self, shard: ShardId) -> bool:
        """True if a leader of `shard` was waited for long enough, because the nodes
        say that none is possible.
        """
        return self.now_ms - self._in_vain_ms >= IN_VAIN_MS and shard in self.leaderless

    def _belongs(self, lane: Lane, cluster: bytes) -> bool:
        """Refuses a node of another cluster, unless all known nodes of this cluster are gone."""
        if self.cluster not in (b"", cluster) and any(
            each.greeting for each in self._lanes.values() if each is not lane
        ):
            text = f"{lane.endpoint} belongs to cluster {cluster.hex()}, the others to {self.cluster.hex()}"
            self.refusal = GossipqError(text, hint="name nodes of one cluster only")
            return False
        self.cluster = cluster
        return True

    def misunderstood(self, endpoint: str, error: GossipqError) -> None:
        """Notes an endpoint that answers in another version."""
        self._closed.add(endpoint)
        self.refusal = self.refusal or error

    @property
    def decided(self) -> bool:
        """True if the outcome of connecting is known: a node is greeted, or all named
        nodes refuse this client.
        """
        return self.home.greeting > 0 or self._closed.issuperset(self.addresses)

    def unwelcome(self, lane_id: int, error: GossipqError) -> bool:
        """A HELLO was refused; it is repeated later. Returns False if the request was no HELLO."""
        lane = self._lanes.get(lane_id)
        if lane is not None and not lane.greeting:
            self.refusal = error
            if isinstance(error, Forbidden):
                self._closed.add(lane.endpoint)
        return lane is not None

    def alive(self, endpoint: str, lane_id: int, shard: ShardId = NODE_SHARD) -> None:
        """Notes a sign of life. A PONG names its lane; other messages count for the connection, or
        for the worker behind it.
        """
        lane = self._lanes.get(lane_id) or self._direct.get(endpoint)
        if lane is None and endpoint == self.home.endpoint:
            self.home.hear(self.now_ms)
            lane = self._forwarded.get(shard)
        if lane is not None and lane.endpoint == endpoint:
            lane.heard_ms, lane.unanswered_ms = self.now_ms, None

    # --- what time brings

    def deadline_ms(self) -> int:
        """When `tick` has work to do."""
        open_ms = self.leaders.deadline_ms(self.now_ms) if self.leaders.shut else None
        tick_ms = self._tick_due_ms()
        return tick_ms if open_ms is None else min(open_ms, tick_ms)

    def is_due(self) -> bool:
        """True if `tick` has work to do now."""
        ticks_late = self.now_ms - self._ticked_ms >= TICK_MS or self.now_ms < self._hurry_ms
        return (ticks_late or bool(self.leaders.shut)) and self.now_ms >= self.deadline_ms()

    def _tick_due_ms(self) -> int:
        if self.now_ms < self._hurry_ms:
            return self._ticked_ms + SEEK_MS
        due_ms = self._routes_ms + ROUTES_MS
        for lane in self._lanes.values():
            due_ms = min(due_ms, lane.due_ms())
        return max(self._ticked_ms + TICK_MS, due_ms if self._look_ms is None else min(due_ms, self._look_ms))

    def tick(self) -> None:
        self._ticked_ms, self._look_ms = self.now_ms, None
        self._retire_direct()
        self._mind_home()
        self._look_for_leaders()
        self._keep_alive()
        if self._seeking_ms is not None or self._scouts:
            self._look_soon()

    def _retire_forwarded(self, endpoint: str) -> None:
        for shard, lane in list(self._forwarded.items()):
            route = self.leaders.routes.get(shard)
            if route is not None and route.endpoint == endpoint:
                del self._forwarded[shard]
                self._drop(lane)

    def _retire_direct(self) -> None:
        """Drops connections to workers that lead no shard any more: all their
        messages would be outdated.
        """
        for endpoint in self._direct.keys() - self.leaders.endpoints():
            self._drop(self._direct.pop(endpoint))

    def _mind_home(self) -> None:
        """Chooses another home when this one is gone, silent, or cut off from the other nodes."""
        home, places = self.home, self._places()
        waited_ms = self.now_ms - max(self._since_ms[home.endpoint], home.asked_ms)
        scouts = [lane for lane in self._scouts if lane.greeting and not lane.silent(self.now_ms)]
        scouts.sort(key=lambda lane: len(lane.leaderless))
        is_gone = home.silent(self.now_ms) if home.greeting else waited_ms >= FALLBACK_MS
        is_cut_off = bool(scouts) and len(scouts[0].leaderless) < len(home.leaderless)
        if len(places) == 1 or not (is_gone or is_cut_off):
            return
        for lane in [home, *self._forwarded.values()]:
            self._drop(lane)
        self._forwarded.clear()
        if scouts:
            found = scouts[0]
            self._scouts.remove(found)
            self.home, self.leaders.moved = found, True
        else:
            at = places.index(home.endpoint) if home.endpoint in places else -1
            self.home = self._make(places[(at + 1) % len(places)], NODE_SHARD)

    def _look_for_leaders(self) -> None:
        now_ms = self.now_ms
        lanes = [self.home, *self._direct.values(), *self._forwarded.values()]
        missed = self._missed_ms is not None and now_ms - self._missed_ms < SUSPECT_MS
        if missed or any(not lane.greeting or lane.silent(now_ms) for lane in lanes):
            self._seeking_ms = now_ms if self._seeking_ms is None else self._seeking_ms
            if now_ms - self._seeking_ms < SEEK_LONG_MS or now_ms - self._sought_ms >= HELLO_AGAIN_MS:
                self.seek()
            return
        self._seeking_ms = None
        if now_ms - self._sought_ms >= REST_MS:
            self._choose_scouts(0)
        if now_ms - self._routes_ms >= ROUTES_MS:
            self._routes_ms = now_ms
            self._greet(self.home)

    def seek(self) -> None:
        """Asks the home and a few other nodes for the leaders."""
        if self.now_ms - self._sought_ms < SEEK_MS:
            return
        self._sought_ms = self.now_ms
        self._choose_scouts(SCOUTS)
        for lane in [self.home, *self._scouts]:
            if lane.greeting:
                self._greet(lane)

    def _choose_scouts(self, count: int) -> None:
        """Keeps scouts that answer; the other nodes take turns."""
        for lane in list(self._scouts):
            unreached = not lane.greeting and self.now_ms - lane.heard_ms >= SUSPECT_MS
            if not count or unreached or lane.silent(self.now_ms):
                self._scouts.remove(lane)
                self._drop(lane)
        taken = {self.home.endpoint, *(lane.endpoint for lane in self._scouts)}
        free = [place for place in self._places() if place not in taken]
        for _ in range(min(count - len(self._scouts), len(free))):
            self._turn += 1
            self._scouts.append(self._make(free.pop(self._turn % len(free)), NODE_SHARD))

    def _places(self) -> list[str]:
        """Frontdoors: first those that the user named, then those that the cluster named."""
        return list(dict.fromkeys([*self.addresses, *self.nodes]))
