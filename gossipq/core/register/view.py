"""What a process knows of its cluster: the roster, and who leads what. A fold over what others say; newer
words win.

Nothing here decides: voters are in the logs, terms fence. A view that is old costs a detour, never a record.
"""

from collections.abc import Iterable

from msgspec import structs

from gossipq import limits
from gossipq.endpoints import endpoint
from gossipq.types import Index, ShardId
from gossipq.values import Lead, Member, Route

ENTRIES_BEHIND_MAX = 2**20  #: of the meta shard, that an honest copy has to catch up with


class ClusterView:
    def __init__(self, me: Member, version: int = 0, members: Iterable[Member] = ()) -> None:
        """`me` is how this node is now, whatever the roster says of it yet."""
        self._me = me
        self.version = version  #: log index that the roster is of
        self.roster = {member.copy: member for member in members}  #: as it is stored
        self.leads: dict[ShardId, Lead] = {}
        #: made of these leads and that roster
        self._routes: tuple[dict[ShardId, Lead], dict[str, Member], list[Route]] = ({}, {}, [])
        self._doubt: tuple[Index, int] | None = None  # the own copy of the meta shard is older: where, since
        self._refused = 0, 0  # from which version on rosters of others are not taken, and until when

    def learn(self, version: int, members: Iterable[Member], now_ms: int | None = None) -> bool:
        """The roster as somebody has it; whether that was new. Without `now_ms` it is what the own copy of
        the meta shard has: that is so."""
        if version <= self.version or (now_ms is not None and version >= self.given_up(now_ms) > 0):
            return False
        self.version, self.roster = version, {member.copy: member for member in members}
        return True

    def given_up(self, now_ms: int) -> int:
        """The version that was given up a while ago; 0: none was."""
        version, until_ms = self._refused
        return version if now_ms < until_ms else 0

    def doubt(self, version: int, members: Iterable[Member], applied: Index, now_ms: int) -> bool:
        """What the own copy of the meta shard has, with its log applied so far. A newer roster that it does
        not get is none: anybody can have said it, if no secret is asked for. Whether it was given up."""
        rows = list(members)
        mine = not version or self._me.copy in (member.copy for member in rows)
        if version >= self.version or not mine:  # of one that joined, the own copy begins without itself
            self._doubt = None
            return False
        catching_up = applied < self.version <= applied + ENTRIES_BEHIND_MAX
        if self._doubt is None or (catching_up and applied > self._doubt[0]):
            self._doubt = applied, now_ms
        if now_ms < self._doubt[1] + limits.ROSTER_DOUBT_MS:
            return False
        self.give_up(version, rows, now_ms)
        return True

    def give_up(self, version: int, members: Iterable[Member], now_ms: int) -> None:
        """The roster is an older one again, and who leads what is heard anew."""
        self._refused, self._doubt = (self.version, now_ms + limits.ROSTER_REFUSED_MS), None
        self.version, self.roster = version, {member.copy: member for member in members}
        self.leads = {}

    @property
    def members(self) -> dict[str, Member]:
        """The roster, with this node's own row as it will be."""
        known = self.roster.get(self._me.copy)
        if known is None and self.version:
            return self.roster  # not on it, or not any more
        return self.roster | {
            self._me.copy: structs.replace(self._me, state=known.state) if known else self._me
        }

    def keys_of(self, copy: str) -> frozenset[bytes]:
        """By which it comes in at encrypted doors."""
        known = self.members.get(copy)
        mine = self._me.keys if copy == self._me.copy else frozenset[bytes]()
        return mine | (known.keys if known is not None else frozenset())

    def follow(self, leads: Iterable[Lead]) -> bool:
        """Who leads what, as somebody sees it; whether some of that was new."""
        newer = {
            lead.shard: lead
            for lead in leads
            if 0 < lead.term - self.term(lead.shard) <= limits.TERM_LEAP_MAX  # as copies do
        }
        self.leads = self.leads | newer  # another dict: who looks at what has changed has the old one
        return bool(newer)

    def term(self, shard: ShardId) -> int:
        lead = self.leads.get(shard)
        return lead.term if lead else 0

    # --- addresses ------------------------------------------------------------------------------------------

    def frontdoor(self, copy: str) -> str:
        """Where the frontdoor of a node answers other nodes; "" when the node is not known."""
        return self._at(copy, limits.FRONTDOOR_PEER_PORT_STEP)

    def peer(self, copy: str, shard: ShardId) -> str:
        """Where the worker that keeps a copy of `shard` answers other nodes; "" when the node is not
        known."""
        return self._at(copy, limits.PEER_PORT_STEP, shard)

    def leader(self, shard: ShardId) -> str:
        """The name of the copy that leads; "" when nobody is known to."""
        lead = self.leads.get(shard)
        return lead.copy if lead else ""

    def route(self, shard: ShardId) -> Route:
        """Where the leader of `shard` answers clients; with an empty endpoint when nobody is known to
        lead."""
        return Route(shard, self.term(shard), self._at(self.leader(shard), limits.CLIENT_PORT_STEP, shard))

    def routes(self) -> list[Route]:
        """Of all shards whose leader is known; made anew when something has changed."""
        leads, roster, routes = self._routes
        if leads is not self.leads or roster is not self.roster:
            routes = [route for route in map(self.route, sorted(self.leads)) if route.endpoint]
            self._routes = self.leads, self.roster, routes
        return list(routes)

    def nodes(self) -> list[str]:
        """Frontdoors, as clients reach them."""
        return [member.endpoint for member in self.members.values() if member.state != "lost"]

    def _at(self, copy: str, step: int, shard: ShardId = 0) -> str:
        member = self._me if copy == self._me.copy else self.roster.get(copy)
        return endpoint(member.endpoint).step(step + shard % member.workers) if member else ""
