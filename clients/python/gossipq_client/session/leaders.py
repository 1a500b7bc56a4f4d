"""The leaders of shards, as far as this client knows. Pure.

A higher term wins. Within one term a shard has one leader, so what is known of it changes only when
it turns out to be wrong.
"""

from collections.abc import Collection

from gossipq.types import ShardId
from gossipq.values import Route

PAUSE_MS = 50  #: first pause before a shard without a leader is asked again;
PAUSE_MS_MAX = 200  #: and after twice as much each time, up to this


class Leaders:
    def __init__(self) -> None:
        self.routes: dict[ShardId, Route] = {}
        self.moved = False  #: something has to go another way than before; who sends it sets this back
        #: shards that are not asked for a moment: (until when, how long it was)
        self.shut: dict[ShardId, tuple[int, int]] = {}

    def workers(self, leaderless: Collection[ShardId] = ()) -> dict[str, ShardId]:
        """Endpoints of workers that lead a shard, each with a shard to address it by. Shards in
        `leaderless` come last: the worker led them once, and no leader answers for them.
        """
        routes = sorted(self.routes.items(), key=lambda item: item[0] not in leaderless)  # the last one holds
        return {route.endpoint: shard for shard, route in routes}

    def term(self, shard: ShardId) -> int:
        route = self.routes.get(shard)
        return route.term if route else 0

    def learn(self, route: Route, works: bool = True) -> None:
        """Somebody's word on a leader. `works`: what is known of the same term is in use."""
        known = self.routes.get(route.shard)
        if not route.endpoint or route == known:
            return
        if known is None or route.term > known.term or (route.term == known.term and not works):
            self._go(route)

    def heard(self, shard: ShardId, term: int, endpoint: str) -> None:
        """The leader itself spoke, in this term."""
        self.shut.pop(shard, None)
        if term > self.term(shard):
            self._go(Route(shard, term, endpoint))

    def refused(self, shard: ShardId, term: int, sender: str, better: str, now_ms: int) -> bool:
        """`sender` was asked and does not lead; it may know who does, in which term. True when the shard is
        shut for a moment: nothing better is known, or nothing newer, so that two nodes that name each other
        are not asked in a circle."""
        known = self.routes.get(shard)
        if better and (known is None or term > known.term):
            self._go(Route(shard, term, better))
            return False
        if known is not None and better and known.endpoint == sender != better:
            self._go(Route(shard, known.term, better))
        until_ms, pause_ms = self.shut.get(shard, (0, 0))
        if now_ms >= until_ms:
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX) or PAUSE_MS
            self.shut[shard] = now_ms + pause_ms, pause_ms
        return True

    def _go(self, route: Route) -> None:
        known = self.routes.get(route.shard)
        self.routes[route.shard] = route
        self.moved = True
        if known is None or route.term > known.term:
            self.shut.pop(route.shard, None)

    def is_shut(self, shard: ShardId, now_ms: int) -> bool:
        return now_ms < self.shut.get(shard, (0, 0))[0]

    def deadline_ms(self, now_ms: int) -> int | None:
        """When the next shard is open again."""
        return min((until_ms for until_ms, _ in self.shut.values() if until_ms > now_ms), default=None)

    def endpoints(self) -> set[str]:
        return {route.endpoint for route in self.routes.values()}
