"""The roster and the leaders as one process knows them: newer messages replace older ones.

The view does not decide anything: voters are in the logs, and terms fence old leaders. An outdated
view costs a detour, never a record.
"""

from collections.abc import Iterable

from msgspec import structs

from gossipq import limits
from gossipq.endpoints import endpoint
from gossipq.types import Index, ShardId
from gossipq.values import Lead, Member, Route

ENTRIES_BEHIND_MAX = 2**20  #: entries of the meta shard that an honest copy can be behind


class ClusterView:
    def __init__(self, me: Member, version: int = 0, members: Iterable[Member] = ()) -> None:
        """`me` is this node's present row, even if the roster has another."""
        self._me = me
        self.version = version  #: log index of the roster
        self.roster = {member.copy: member for member in members}  #: as stored
        self.leads: dict[ShardId, Lead] = {}
        #: made from these leads and that roster
        self._routes: tuple[dict[ShardId, Lead], dict[str, Member], list[Route]] = ({}, {}, [])
        # where and since when the own copy of the meta shard has been older
        self._doubt: tuple[Index, int] | None = None
        self._refused = 0, 0  # version from which rosters of others are refused, and until when

    def learn(self, version: int, members: Iterable[Member], now_ms: int | None = None) -> bool:
        """Take over a newer roster. Returns whether it was new.

        Without `now_ms` it comes from the own copy of the meta shard, and is certain.
        """
        if version <= self.version or (now_ms is not None and version >= self.given_up(now_ms) > 0):
            return False
        self.version, self.roster = version, {member.copy: member for member in members}
        return True

    def given_up(self, now_ms: int) -> int:
        """Return the roster version that was recently dropped; 0: none."""
        version, until_ms = self._refused
        return version if now_ms < until_ms else 0

    def doubt(self, version: int, members: Iterable[Member], applied: Index, now_ms: int) -> bool:
        """Compare with the roster of the own copy of the meta shard, which has applied `applied`.

        If that copy does not catch up with a newer roster, the roster is dropped: without a secret,
        anybody could have sent it. Returns whether it was dropped.
        """
        rows = list(members)
        mine = not version or self._me.copy in (member.copy for member in rows)
        # a joining node's own copy begins without the node itself
        if version >= self.version or not mine:
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
        """Go back to an older roster, and forget the leaders."""
        self._refused, self._doubt = (self.version, now_ms + limits.ROSTER_REFUSED_MS), None
        self.version, self.roster = version, {member.copy: member for member in members}
        self.leads = {}

    @property
    def members(self) -> dict[str, Member]:
        """The roster, with this node's own row as it will be."""
        known = self.roster.get(self._me.copy)
        if known is None and self.version:
            return self.roster  # not in the roster (any more)
        return self.roster | {
            self._me.copy: structs.replace(self._me, state=known.state) if known else self._me
        }

    def keys_of(self, copy: str) -> frozenset[bytes]:
        """Return the keys with which a node connects to encrypted ports."""
        known = self.members.get(copy)
        mine = self._me.keys if copy == self._me.copy else frozenset[bytes]()
        return mine | (known.keys if known is not None else frozenset())

    def follow(self, leads: Iterable[Lead]) -> bool:
        """Take over newer leaders. Returns whether some were new."""
        newer = {
            lead.shard: lead
            for lead in leads
            # the same bound as in copies
            if 0 < lead.term - self.term(lead.shard) <= limits.TERM_LEAP_MAX
        }
        # a new dict: readers that look for changes have the old one
        self.leads = self.leads | newer
        return bool(newer)

    def term(self, shard: ShardId) -> int:
        lead = self.leads.get(shard)
        return lead.term if lead else 0

    # --- addresses ------------------------------------------------------------------------------------------

    def frontdoor(self, copy: str) -> str:
        """Return the address of a node's frontdoor for other nodes; "" if the node is unknown."""
        return self._at(copy, limits.FRONTDOOR_PEER_PORT_STEP)

    def peer(self, copy: str, shard: ShardId) -> str:
        """Return the address of the worker with a copy of `shard`, for other nodes; "" if
        unknown.
        """
        return self._at(copy, limits.PEER_PORT_STEP, shard)

    def leader(self, shard: ShardId) -> str:
        """Return the name of the leading copy; "" if unknown."""
        lead = self.leads.get(shard)
        return lead.copy if lead else ""

    def route(self, shard: ShardId) -> Route:
        """Return the client address of a shard's leader; the endpoint is empty if it is unknown."""
        return Route(shard, self.term(shard), self._at(self.leader(shard), limits.CLIENT_PORT_STEP, shard))

    def routes(self) -> list[Route]:
        """Routes of all shards with a known leader, cached until something changes."""
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
