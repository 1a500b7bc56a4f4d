"""Rows of nodes, for `status` and `cluster`."""

from typing import Any

from gossipq_cli.output import Column, counter
from gossipq_ops import clusters

NODE_COLUMNS = [
    Column("name", title="node"),
    Column("kind"),
    Column("state"),
    *map(counter, ("leads", "follows", "learns", "workers")),
    Column("version"),
    Column("endpoint"),
]


def node_row(view: clusters.ClusterView, node: clusters.NodeView) -> dict[str, Any]:
    """Return the row. `state` is that of the roster, or "away" if the node does not answer."""
    member, roles = node.member, clusters.roles_of(node.member.copy, view.copies)
    away = node.status is None and member.state != "lost"
    return {
        "name": member.name,
        "kind": "witness" if member.witness else "full",
        "state": "away" if away else member.state,
        "leads": len(roles.get("leader", ())),
        "follows": len(roles.get("follower", ())) + len(roles.get("witness", ())),
        "learns": len(roles.get("learner", ())),
        "workers": member.workers,
        "version": member.version,
        "endpoint": member.endpoint,
        "copy": member.copy,
    }


def node_rows(view: clusters.ClusterView) -> list[dict[str, Any]]:
    return [node_row(view, node) for node in view.nodes]
