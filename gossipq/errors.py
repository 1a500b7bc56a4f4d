"""The error tree. Each class has a wire code; `from_code` turns a REFUSED message back into its class.

    GossipqError
    +-- ProtocolError            a frame or batch that breaks PROTOCOL.md (the peer's fault)
    |   +-- WrongVersion, UnknownVerb, BadBatch
    +-- Refused                  certainly not stored; the text says what to change
    |   +-- UnknownTopic
    |   |   +-- WrongShard       the topic is there, and this shard has not the partition
    |   +-- TopicExists, BadName, TooLarge, TopicFull, OffsetOutOfRange
    |   +-- BadRequest
    |   |   +-- NoSession        say HELLO on this connection (again)
    |   |   +-- NoSubscription   say SUBSCRIBE (again); `detail` is the number that is not known
    |   +-- SchemaMismatch       a value does not fit its topic's schema, or a schema the one before
    |   +-- Forbidden            this user may not do that; or its token is not taken
    |   +-- NotAdmitted          the cluster does not have this node, or not as it is; the node ends
    |   +-- Busy                 try again after `retry_after_ms`
    |   |   +-- StoreFull, StillJoining
    |   +-- Internal             a fault of the node: nothing of the request is left; the node's log says more
    |   +-- OutOfSequence        a gap before this batch; `expected` is what the leader waits for
    +-- NotConfirmed             may be stored: no answer came
    +-- NotLeader                led elsewhere; what was asked of a leader that resigned may be done
    +-- LeaseLost                the record is in other hands or done
    +-- Backpressure             the publish window stayed full for as long as wait= says
    +-- NoReply                  nobody has answered a request in time
    +-- Unreachable              no node answered
    |   +-- NoQuorum             a node answered, and the shard has no leader: most of its copies are away
    |   +-- TurnedAway           a node answered, and does not speak to this client; the text says why
    +-- ConfigError              cluster.toml, a flag or the environment is wrong
    |   +-- NoPlace              an address in it is taken, or not there yet: another start may have it
    +-- StoreError               a data directory that cannot be used
    |   +-- OutOfMemory          it can, and there is no memory for what is to be done
    +-- CorruptLog               a shard's log is not what was written: it neither votes nor leads
    +-- UnknownKind              a log entry of a later version: the shard stops until the node is upgraded
    +-- ExportError              an export cannot be written or read as asked
    |   +-- TornExport           its files are not what its manifests say
    |   +-- ExportVersion        it was written by a later version
    |   +-- DataLoss             retention removed records before they were exported
    +-- ClientClosed, ForkedClient

Refused.retryable tells whether the same request can succeed later unchanged.
"""

from typing import ClassVar

from gossipq.texts import printable


class GossipqError(Exception):
    """Root of all. `hint` is the next step, ready to paste where that is possible."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "", hint: str = "", retry_after_ms: int = 0, detail: int = 0) -> None:
        super().__init__(message)
        if hint:
            self.add_note(f"hint: {hint}")  # for who reads a traceback
        self.message, self.hint, self.retry_after_ms, self.detail = message, hint, retry_after_ms, detail
        #: of a publish to a virtual topic: by which the copies that are stored are known
        self.ids: tuple[str, ...] = ()


class ProtocolError(GossipqError):
    code = "protocol"


class WrongVersion(ProtocolError):
    code = "wrong_version"


class UnknownVerb(ProtocolError):
    code = "unknown_verb"


class BadBatch(ProtocolError):
    code = "bad_batch"


class Refused(GossipqError):
    """Certainly not stored."""

    code = "refused"


class UnknownTopic(Refused):
    code = "unknown_topic"


class WrongShard(UnknownTopic):
    """The topic is there; its partition lies in another shard than the one that was asked."""

    code = "wrong_shard"


class TopicExists(Refused):
    code = "topic_exists"


class BadName(Refused):
    code = "bad_name"


class TooLarge(Refused):
    code = "too_large"


class TopicFull(Refused):
    code = "topic_full"
    retryable = True


class OffsetOutOfRange(Refused):
    code = "offset_out_of_range"


class BadRequest(Refused):
    code = "bad_request"


class NoSession(BadRequest):
    """This connection was not greeted, or what was greeted has ended: HELLO comes first."""

    code = "no_session"


class NoSubscription(BadRequest):
    """The session has no subscription of that number (any more), which is `detail`."""

    code = "no_subscription"


class SchemaMismatch(Refused):
    """Said by clients: nodes open no record."""

    code = "schema_mismatch"


class UnknownRecord(Refused):
    code = "unknown_record"


class WrongState(Refused):
    """The record is not where the request wants it: acked, in flight, due already."""

    code = "wrong_state"


class NotAdmitted(Refused):
    """The cluster does not have this node (any more), or not with the options that it was started with."""

    code = "not_admitted"


class Forbidden(Refused):
    """The user may not do that; the text names the verb and the topic."""

    code = "forbidden"


class Busy(Refused):
    code = "busy"
    retryable = True


class StoreFull(Busy):
    code = "store_full"


class NotLeader(GossipqError):
    """Led elsewhere. What a leader took and could not answer before it resigned may be stored: the next
    leader knows."""

    code = "not_leader"
    retryable = True


class StillJoining(Busy):
    """The node belongs to no cluster yet."""

    code = "joining"


class Internal(Refused):
    """The node met a fault of its own while it served this request. Nothing of the request is left."""

    code = "internal"


class OutOfSequence(Refused):
    """`expected` is the lowest sequence the leader has not seen."""

    code = "out_of_sequence"
    retryable = True

    @property
    def expected(self) -> int:
        return self.detail


class NotConfirmed(GossipqError):
    """May be stored: the answer did not come."""

    code = "not_confirmed"


class LeaseLost(Refused):
    code = "lease_lost"
    refs: tuple[str, ...] = ()  #: TOPIC/PARTITION/OFFSET of records whose acks a flush found to be lost


class Backpressure(GossipqError):
    code = "backpressure"
    retryable = True


class NoReply(GossipqError):
    """The request may be worked on still."""

    code = "no_reply"


class Unreachable(GossipqError):
    code = "unreachable"
    retryable = True


class NoQuorum(Unreachable):
    code = "no_quorum"


class TurnedAway(Unreachable):
    """`why` is the code of the refusal."""

    code = "turned_away"
    why = ""


class ConfigError(GossipqError):
    code = "config"


class NoPlace(ConfigError):
    code = "no_place"
    retryable = True


class StoreError(GossipqError):
    code = "store"


class OutOfMemory(StoreError):
    code = "out_of_memory"
    HINT: ClassVar[str] = "give the node more memory, or its machine less to do"


class CorruptLog(GossipqError):
    code = "corrupt_log"


class UnknownKind(GossipqError):
    code = "unknown_kind"


class ExportError(GossipqError):
    code = "export"


class TornExport(ExportError):
    code = "torn_export"


class ExportVersion(ExportError):
    code = "export_version"


class DataLoss(ExportError):
    code = "data_loss"


class ClientClosed(GossipqError):
    code = "closed"


class ForkedClient(GossipqError):
    code = "forked"


def _tree(root: type[GossipqError]) -> dict[str, type[GossipqError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


_BY_CODE = _tree(GossipqError)


def from_code(
    code: str, message: str, hint: str = "", retry_after_ms: int = 0, detail: int = 0
) -> GossipqError:
    """The error a peer named; a code of a later version becomes Refused, which is what every refusal is."""
    told = printable(message, "\n\t"), printable(hint, "\n\t")  # a stranger may say so
    return _BY_CODE.get(code, Refused)(*told, retry_after_ms, detail)
