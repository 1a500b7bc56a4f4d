"""A view of the cluster, made of the STATUS of each member. Pure."""

from collections.abc import Iterable
from typing import NamedTuple

from gossipq import limits
from gossipq.health import VOTERS, Health, of_cluster
from gossipq.messages import StatusReply
from gossipq.values import CopyStats, Lead, Member


class NodeView(NamedTuple):
    member: Member
    status: StatusReply | None  #: None: it does not answer


class ClusterView(NamedTuple):
    asked: StatusReply  #: of the node that named the others
    nodes: list[NodeView]  #: ordered by name

    @property
    def members(self) -> list[Member]:
        return [node.member for node in self.nodes]

    @property
    def copies(self) -> list[CopyStats]:
        """The copies of all shards, as the newest leader of each sees them."""
        rows = [row for node in self.nodes if node.status for row in node.status.copies]
        terms: dict[int, int] = {}
        for row in rows:
            terms[row.shard] = max(row.term, terms.get(row.shard, 0))
        return [row for row in rows if row.term == terms[row.shard]]

    @property
    def leads(self) -> dict[int, Lead]:
        return {row.shard: Lead(row.shard, row.term, row.copy) for row in self.copies if row.role == "leader"}

    def name_of(self, copy: str) -> str:
        return next((member.name for member in self.members if member.copy == copy), copy[:8])


def votes(view: ClusterView, copy: str) -> int:
    """Return on how many shards this copy votes and answers."""
    return sum(
        row.copy == copy and row.role in VOTERS and row.silent_ms < limits.SILENT_COPY_MS
        for row in view.copies
    )


def health(view: ClusterView, nodes: int = 0) -> Health:
    """Judge the cluster by the answers of all nodes. `nodes` is the number that must answer."""
    answers = {node.member.copy: node.status for node in view.nodes}
    return of_cluster(view.asked, answers, view.copies, nodes)


def unhealthy(view: ClusterView, nodes: int = 0) -> str:
    """Return why the cluster is not healthy, for people; "" if all is well.

    Healthy: every shard has a leader, every copy is in sync, and `nodes` nodes answer.
    """
    return health(view, nodes).text


def roles_of(copy: str, rows: Iterable[CopyStats]) -> dict[str, list[int]]:
    """Return role -> shards of a copy."""
    found: dict[str, list[int]] = {}
    for row in sorted(rows, key=lambda row: row.shard):
        if row.copy == copy:
            found.setdefault(row.role, []).append(row.shard)
    return found
