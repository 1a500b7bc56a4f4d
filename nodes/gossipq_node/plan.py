"""The wanted placement of a cluster beside the present one, for `gossipq
cluster rebalance --plan`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gossipq.core.copies import plan
from gossipq.values import CopyStats, Lead, Member

VOTERS = ("leader", "follower", "witness")  #: roles of copies that vote


class ShardPlan(NamedTuple):
    shard: int
    leader: str  #: names of nodes; "" = unknown
    leads_then: str
    voters: list[str]
    voters_then: list[str]

    @property
    def moves(self) -> bool:
        return self.leader != self.leads_then or set(self.voters) != set(self.voters_then)


def shard_plans(
    members: Sequence[Member], shards: int, copies: int, leads: Mapping[int, Lead], stats: Iterable[CopyStats]
) -> list[ShardPlan]:
    """Return a row for each shard. `stats` are those of the leaders."""
    names = {member.copy: member.name for member in members}
    targets = plan(members, shards, copies)
    voters: dict[int, list[str]] = {}
    for row in stats:
        if row.role in VOTERS:
            voters.setdefault(row.shard, []).append(names.get(row.copy, row.copy))
    plans = []
    for shard in range(shards):
        lead, target = leads.get(shard), targets.get(shard)
        wanted = [names[copy] for copy in target.voters] if target else []
        leader = names.get(lead.copy, "") if lead else ""
        plans.append(
            ShardPlan(shard, leader, wanted[0] if wanted else "", sorted(voters.get(shard, [])), wanted)
        )
    return plans
