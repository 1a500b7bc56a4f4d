"""Effects of a shard in one turn, released when the state that they promise is stored."""

from msgspec import field

from gossipq.core.copies import Mail
from gossipq.core.delivery import Delivery
from gossipq.core.desk import Answers
from gossipq.types import Index, Origin, Term
from gossipq.values import Message


class Effects(Answers, eq=False):
    """All lists are in order of arrival. They may be sent only after the turn's commit."""

    #: where the shard stands: the term that it is in, its newest entry, and the newest that is applied
    term: Term = 0
    last: Index = 0
    applied: Index = 0
    answers: list[Mail] = field(default_factory=list)  #: to other copies of this shard
    deliveries: list[Delivery] = field(default_factory=list)
    notices: list[tuple[Origin, Message]] = field(
        default_factory=list
    )  #: after the deliveries: READY, AT_END
    #: True if only publishes happened: leader, roster and copies are unchanged
    routine: bool = False
