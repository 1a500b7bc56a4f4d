"""The error tree. Each class has a wire code; `from_code` turns a REFUSED message back into its
exact class.

    GossipqError
    +-- ProtocolError            a frame or batch that breaks PROTOCOL.md (the peer's fault)
    |   +-- WrongVersion, UnknownVerb, BadBatch
    +-- Refused                  certainly not stored; the text says how to change the request
    |   +-- NotFound             the topic, record or offset does not exist
    |   |   +-- UnknownTopic, UnknownRecord, OffsetOutOfRange
    |   |   +-- WrongShard       the topic exists, but its partition is in another shard
    |   +-- TopicExists, WrongState
    |   +-- TopicFull
    |   |   +-- FlowFull         a flow has as many records waiting as its group allows
    |   +-- NotUnique            another record has the unique name, and conflict="error"
    |   +-- BadRequest           the request itself is wrong, at any time
    |   |   +-- BadName, TooLarge
    |   |   +-- SchemaMismatch   a value does not fit its topic's schema, or a schema its predecessor
    |   |   +-- NoSession        send HELLO on this connection (again)
    |   |   +-- NoSubscription   send SUBSCRIBE (again); `detail` is the unknown number
    |   +-- LeaseLost            another consumer holds the record, or it is acked or dead
    |   +-- Forbidden            the user lacks the permission, or the token is not valid
    |   +-- NotAdmitted          the node is not in the cluster, or not with these options; it stops
    |   +-- Busy                 try again after `retry_after_ms`
    |   |   +-- StoreFull, StillJoining
    |   +-- Internal             a fault of the node: nothing was stored; the node's log has details
    |   +-- OutOfSequence        a batch is missing before this one; `expected` is its sequence
    +-- NotConfirmed             no answer arrived: the record may be stored
    +-- NotLeader                another node leads; if a leader resigned, the request may be done
    +-- Backpressure             the publish window stayed full for the time given by wait=
    +-- NoReply                  a request was not answered in time
    +-- JobFailed                a job failed, was cancelled, or expired; `job` tells more
    +-- Unreachable              no node answered
    |   +-- NoQuorum             a node answered, but most copies of the shard are unreachable
    |   +-- TurnedAway           a node answered, but refuses this client; the text says why
    +-- ConfigError              cluster.toml, a flag or the environment is wrong
    |   +-- NoPlace              a configured address is in use or does not exist yet; retry can help
    +-- StoreError               a data directory cannot be used
    |   +-- OutOfMemory          the directory is good, but memory is exhausted
    +-- CorruptLog               a shard's log differs from the one written: no votes, no leadership
    +-- UnknownKind              a log entry of a later version: the shard stops until an upgrade
    +-- ExportError              an export cannot be written or read as asked
    |   +-- TornExport           its files differ from its manifests
    |   +-- ExportVersion        a later version wrote it
    |   +-- DataLoss             retention removed records before they were exported
    +-- ClientClosed
    |   +-- ForkedClient         the client belongs to the parent process

A program needs twelve of them, which are in `gossipq`: GossipqError, Refused, BadRequest, NotFound,
Forbidden, LeaseLost, Backpressure, NotConfirmed, NoReply, JobFailed, Unreachable, ClientClosed.
Some have a parent of Python besides: NotConfirmed and NoReply are a TimeoutError, Unreachable is a
ConnectionError, BadRequest and ConfigError are a ValueError, NotFound is a LookupError, Forbidden is a
PermissionError. `code` names the exact class.

`Refused.retryable` is True if the same request can succeed later.
"""

from typing import Any, ClassVar

from gossipq.texts import printable


class GossipqError(Exception):
    """Base of all errors. `hint` is the next step, as a command that can be pasted where
    possible.
    """

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "", hint: str = "", retry_after_ms: int = 0, detail: int = 0) -> None:
        super().__init__(message)
        if hint:
            self.add_note(f"hint: {hint}")  # shown in tracebacks
        self.message = message
        self.hint = hint
        self.retry_after_ms = retry_after_ms
        self.detail = detail
        #: ids of the copies that were stored, for a publish to a virtual topic
        self.ids: tuple[str, ...] = ()


def missing_extra(package: str | None, extra: str) -> GossipqError:
    """Say that `package` is not installed, and which extra of gossipq installs it."""
    return GossipqError(f"{package} is not installed", hint=f'pip install "gossipq[{extra}]"')


class ProtocolError(GossipqError):
    code = "protocol"


class WrongVersion(ProtocolError):
    code = "wrong_version"


class UnknownVerb(ProtocolError):
    code = "unknown_verb"


class BadBatch(ProtocolError):
    code = "bad_batch"


class Refused(GossipqError):
    """The request was certainly not stored."""

    code = "refused"


class NotFound(Refused, LookupError):
    """The topic, record or offset does not exist."""

    code = "not_found"


class UnknownTopic(NotFound):
    code = "unknown_topic"


class WrongShard(UnknownTopic):
    """The topic exists, but the partition belongs to another shard than the one in the request."""

    code = "wrong_shard"


class TopicExists(Refused):
    code = "topic_exists"


class TopicFull(Refused):
    code = "topic_full"
    retryable = True


class FlowFull(TopicFull):
    """As many records of a flow wait as `flow_backlog` of a group allows."""

    code = "flow_full"


class NotUnique(Refused):
    """Another record has the unique name of this one. Only clients raise it, for conflict="error"."""

    code = "not_unique"
    ref = ""  #: of the record that has the name; "" = it is not known any more


class OffsetOutOfRange(NotFound):
    code = "offset_out_of_range"


class BadRequest(Refused, ValueError):
    """The request itself is wrong, at any time."""

    code = "bad_request"


class BadName(BadRequest):
    code = "bad_name"


class TooLarge(BadRequest):
    code = "too_large"


class NoSession(BadRequest):
    """This connection has no session, or its session has ended: send HELLO first."""

    code = "no_session"


class NoSubscription(BadRequest):
    """The session has no (more) subscription with the number in `detail`."""

    code = "no_subscription"


class SchemaMismatch(BadRequest):
    """A value does not fit its schema. Raised by clients: nodes do not open records."""

    code = "schema_mismatch"


class UnknownRecord(NotFound):
    code = "unknown_record"


class WrongState(Refused):
    """The record is not in the state that the request needs: it is acked, in flight or already
    due.
    """

    code = "wrong_state"


class NotAdmitted(Refused):
    """The cluster does not have this node (any more), or the node was started with other
    options.
    """

    code = "not_admitted"


class Forbidden(Refused, PermissionError):
    """The user lacks a permission. The text names the verb and the topic."""

    code = "forbidden"


class Busy(Refused):
    code = "busy"
    retryable = True


class StoreFull(Busy):
    code = "store_full"


class NotLeader(GossipqError):
    """Another node leads the shard.

    If a leader resigned before it answered, the request may be stored. The next leader knows.
    """

    code = "not_leader"
    retryable = True


class StillJoining(Busy):
    """The node has not joined a cluster yet."""

    code = "joining"


class Internal(Refused):
    """A fault of the node itself while it served the request. Nothing of the request was stored."""

    code = "internal"


class OutOfSequence(Refused):
    """A batch is missing. `expected` is the lowest sequence that the leader has not seen."""

    code = "out_of_sequence"
    retryable = True

    @property
    def expected(self) -> int:
        return self.detail


class NotConfirmed(GossipqError, TimeoutError):
    """The record may be stored: no answer arrived."""

    code = "not_confirmed"


class LeaseLost(Refused):
    code = "lease_lost"
    #: TOPIC/PARTITION/OFFSET of records whose acks were lost, as found by a flush
    refs: tuple[str, ...] = ()


class Backpressure(GossipqError):
    code = "backpressure"
    retryable = True


class NoReply(GossipqError, TimeoutError):
    """The request was not answered in time. It may still be running."""

    code = "no_reply"


class JobFailed(GossipqError):
    """A job ended without a result: it failed, was cancelled, or expired."""

    code = "job_failed"
    #: the job, as `gossipq_client.Job`
    job: Any = None


class Unreachable(GossipqError, ConnectionError):
    code = "unreachable"
    retryable = True


class NoQuorum(Unreachable):
    code = "no_quorum"


class TurnedAway(Unreachable):
    """A node refuses this client. `why` is the code of the refusal."""

    code = "turned_away"
    why = ""


class ConfigError(GossipqError, ValueError):
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


class ForkedClient(ClientClosed):
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
    """Return the error for a code that a peer sent. Unknown codes, of later versions, become
    Refused.
    """
    # a stranger may have written the text
    told = printable(message, "\n\t"), printable(hint, "\n\t")
    return _BY_CODE.get(code, Refused)(*told, retry_after_ms, detail)
