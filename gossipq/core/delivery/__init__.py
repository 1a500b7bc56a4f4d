"""Decides which consumer gets which records next: consumers, credit, leases and failures. Volatile;
reads the ledger and never changes it.
"""

from gossipq.core.delivery.attempts import expiry_times
from gossipq.core.delivery.consumers import (
    EXCLUSIVE,
    MODES,
    Group,
    Part,
    PartitionView,
    Place,
    Subscription,
    place_of,
)
from gossipq.core.delivery.dispatch import MOVES, Delivery, Dispatch
from gossipq.core.delivery.flow_limits import check_limits
from gossipq.core.delivery.flows import AGED_SHARE, check_order
from gossipq.core.delivery.holdings import EXPIRED, Waiter
from gossipq.core.delivery.limit_division import NOTHING as NOTHING_HELD
from gossipq.core.delivery.limit_division import LimitDivision, LimitPart, LimitUse, Pair, PartTold
from gossipq.core.delivery.outbox import Outbox
from gossipq.core.delivery.policy import NOTHING, NUMBER_MAX, Policy, alarm_lag, check_policy, ruling, within
from gossipq.core.delivery.routes import check_patterns
from gossipq.core.delivery.settlement import apart
from gossipq.core.delivery.window import Lease, MovingRecords, WaitingRecords

__all__ = [
    "AGED_SHARE",
    "EXCLUSIVE",
    "EXPIRED",
    "MODES",
    "MOVES",
    "NOTHING",
    "NOTHING_HELD",
    "NUMBER_MAX",
    "Delivery",
    "Dispatch",
    "Group",
    "Lease",
    "LimitDivision",
    "LimitPart",
    "LimitUse",
    "MovingRecords",
    "Outbox",
    "Pair",
    "Part",
    "PartTold",
    "PartitionView",
    "Place",
    "Policy",
    "Subscription",
    "Waiter",
    "WaitingRecords",
    "alarm_lag",
    "apart",
    "check_limits",
    "check_order",
    "check_patterns",
    "check_policy",
    "expiry_times",
    "place_of",
    "ruling",
    "within",
]
