"""A cluster as its nodes tell it: STATUS of each member, put together."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from gossipq import limits
from gossipq.errors import GossipqError
from gossipq.health import VOTERS, Health, of_cluster
from gossipq.messages import StatusReply
from gossipq.values import CopyStats, Lead, Member
from gossipq_cli import ask
from gossipq_cli.options import Choices

ASK_AT_ONCE = 16


class NodeView(NamedTuple):
    member: Member
    status: StatusReply | None  #: None: it does not answer


class ClusterView(NamedTuple):
    asked: StatusReply  #: of the node that named the others
    nodes: list[NodeView]  #: in the order of their names

    @property
    def members(self) -> list[Member]:
        return [node.member for node in self.nodes]

    @property
    def copies(self) -> list[CopyStats]:
        """As the newest leader of each shard sees them."""
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


def look(choices: Choices) -> ClusterView:
    """Asks one node who there is, and then each of them. Raises what asking the first one raises."""
    asked = ask.status(choices)
    return seen(asked, lambda address: ask.status(ask.elsewhere(choices, address, asked)))


def seen(asked: StatusReply, status_at: Callable[[str], StatusReply]) -> ClusterView:
    """What the nodes that `asked` names say, each of them asked at its address."""
    members = sorted(asked.members, key=lambda member: member.name)
    with ThreadPoolExecutor(ASK_AT_ONCE) as pool:
        statuses = pool.map(lambda member: _status_of(status_at, asked, member), members)
        return ClusterView(
            asked, [NodeView(member, status) for member, status in zip(members, statuses, strict=True)]
        )


def _status_of(
    status_at: Callable[[str], StatusReply], asked: StatusReply, member: Member
) -> StatusReply | None:
    if member.copy == asked.copy:
        return asked
    try:
        status = status_at(member.endpoint)
    except GossipqError:
        return None
    return status if status.copy == member.copy else None  # the address may be another's by now


def votes(view: ClusterView, copy: str) -> int:
    """On how many shards this copy votes and answers."""
    return sum(
        row.copy == copy and row.role in VOTERS and row.silent_ms < limits.SILENT_COPY_MS
        for row in view.copies
    )


def health(view: ClusterView, nodes: int = 0) -> Health:
    """How the cluster is, by all that its nodes say; `nodes`: so many must answer."""
    answers = {node.member.copy: node.status for node in view.nodes}
    return of_cluster(view.asked, answers, view.copies, nodes)


def unhealthy(view: ClusterView, nodes: int = 0) -> str:
    """Why not every shard has a leader and every copy keeps up, and `nodes` nodes answer, for people; "" when
    all is well."""
    return health(view, nodes).text


def roles_of(copy: str, rows: Iterable[CopyStats]) -> dict[str, list[int]]:
    """What a copy is -> where: role -> shards."""
    found: dict[str, list[int]] = {}
    for row in sorted(rows, key=lambda row: row.shard):
        if row.copy == copy:
            found.setdefault(row.role, []).append(row.shard)
    return found
