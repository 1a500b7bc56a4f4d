"""The means of the verbs on nodes: the status of each node, the secret, and the planned places."""

from typing import TYPE_CHECKING

from gossipq.health import REPLICATED, VOTERS
from gossipq.messages import StatusReply
from gossipq_ops import clusters
from gossipq_ops.actions import Connect, Means
from gossipq_ops.gather import view_of

if TYPE_CHECKING:
    from gossipq_node.plan import ShardPlan


def secret_of(path: str = "") -> bytes:
    """Return the secret of the cluster, which is needed to change its nodes."""
    from gossipq_node import trust

    return trust.known(path)


def means(connect: Connect) -> Means:
    """Return what the verbs of dashboards need. `connect` reaches each node."""

    def status_at(address: str) -> StatusReply:
        with connect(address) as mq:
            return mq.admin.raw.status()

    return Means(lambda asked: view_of(asked, status_at), secret_of, plans_of)


def plans_of(view: clusters.ClusterView, copies: int = 0) -> "list[ShardPlan]":
    """Return the planned placement of each shard. `copies` 0: as many copies as shards have now."""
    from gossipq_node.plan import shard_plans

    rows = view.copies
    most = max((sum(r.shard == row.shard and r.role in VOTERS for r in rows) for row in rows), default=0)
    wanted = copies or max(REPLICATED, most)
    return shard_plans(view.members, view.asked.shards, wanted, view.leads, rows)
