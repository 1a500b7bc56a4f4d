"""One copy of a shard among its others: append, snapshot, reconfiguration, placement."""

from gossipq.core.copies import shipment
from gossipq.core.copies.backups import OpenPoint
from gossipq.core.copies.mail import Mail
from gossipq.core.copies.peers import Peers
from gossipq.core.copies.placement import Target, plan, topic_shards
from gossipq.core.copies.reconfiguration import Reconfiguration
from gossipq.core.copies.snapshot import open_ledger

__all__ = [
    "Mail",
    "OpenPoint",
    "Peers",
    "Reconfiguration",
    "Target",
    "open_ledger",
    "plan",
    "shipment",
    "topic_shards",
]
