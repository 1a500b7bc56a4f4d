"""The table of verbs: who sends a message, what it needs, and which room serves it. One row a message.

Permissions, rates, rooms and speakers follow from these rows. A test fails for a message without one, and
for a room that does not serve exactly the verbs of its rows.
"""

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from gossipq import export_messages as exports
from gossipq import messages, peer_messages
from gossipq import operator_messages as operators
from gossipq.permissions import ANY, CLUSTER, CREATE, MEND, OBSERVE, OPERATE, PUBLISH, READ, WHOLE
from gossipq.types import topic_id_of
from gossipq.values import Message

#: topics of a request: by id, by name
Targets = tuple[tuple[int, ...], tuple[str, ...]]


class Room(Enum):
    """The part of the broker that serves a verb."""

    SESSION = "the process that the client is connected to"
    WORKER = "a worker, for all shards that it leads"
    FRONTDOOR = "a frontdoor, for its node"
    PUBLISHING = "the leader of a shard: batches"
    CONSUMING = "the leader of a shard: subscriptions and their records"
    MENDING = "the leader of a shard: changes by operators and owners"
    SCHEDULING = "the leader of a shard: schedules, and the records of their ticks"
    JOBS = "the leader of a shard: records as jobs, and their results"
    JOINING = "the leader of a shard: records that wait for jobs"
    WATCHING = "the leader of a shard: ends of jobs, for the leaders of joins"
    EXPLAINING = "the leader of a shard: questions, which change nothing"
    BACKUPS = "the leader of a shard: its state for a backup"
    RECONFIGURATION = "the leader of a shard: its copies"
    INSTALLING = "the leader of a shard: topics that the register told it of"
    LIMITING = "the leader of a shard: its part of the limits of groups"
    REGISTER = "the leader of the meta shard: topics"
    ROSTER = "the leader of the meta shard: nodes, options, users"
    COPIES = "each copy of a shard: messages of the other copies"
    PROCESS = "a process of a node"
    CLIENT = "the client: an answer, or news of its subscriptions"


#: rooms whose requests need a session
SESSION_ROOMS = frozenset(
    (Room.CONSUMING, Room.MENDING, Room.SCHEDULING, Room.JOBS, Room.JOINING, Room.EXPLAINING, Room.BACKUPS)
)
META_ROOMS = frozenset((Room.REGISTER, Room.ROSTER))
#: rooms of a leader for messages of other leaders, which repeat what gets no answer
LEADERS_ROOMS = frozenset((Room.INSTALLING, Room.WATCHING, Room.LIMITING))
#: rooms of the leader of a shard that take one request after the other; PUBLISHING takes batches
LEADER_ROOMS = SESSION_ROOMS | META_ROOMS | {Room.RECONFIGURATION, *LEADERS_ROOMS}


class Need(NamedTuple):
    """The permission that a verb needs, on the topics of the request or on the cluster.

    "" means that a greeted session is enough.
    """

    permission: str
    on: str  #: for people
    targets: Callable[[Any], Targets]


class Verb(NamedTuple):
    """A row of the table."""

    message: type[Message]
    room: Room
    need: Need | None = None  #: of a verb that clients send; None: only nodes send it, or no request
    #: It releases what a node holds, or keeps a session alive: its rate is doubled, it is served while the
    #: client does not read its answers, and it is served without the lease of a leader, because it does not
    #: read the ledger.
    settles: bool = False
    speaker: str = ""  #: the field in which a copy names itself; "": the message has none


def _none(message: Any) -> Targets:
    return (), ()


def _whole(message: Any) -> Targets:
    return (), (WHOLE,)


def _partition(message: Any) -> Targets:
    return (topic_id_of(message.partition),), ()


def _partitions(message: messages.WhyGroup) -> Targets:
    return tuple({topic_id_of(partition) for partition in message.partitions}), ()


def _starts(message: messages.Subscribe) -> Targets:
    return tuple({topic_id_of(start.partition) for start in message.starts}), ()


def _ref(message: Any) -> Targets:
    return (topic_id_of(message.ref.partition),), ()


def _topic_id(message: Any) -> Targets:
    return (message.topic_id,), ()


def _name(message: Any) -> Targets:
    return (), (message.name,)


def _bound(message: messages.BindTopic) -> Targets:
    return (), (message.name, *message.targets)


def _resolved(message: messages.Resolve) -> Targets:
    return (), tuple(name for name in message.names if "*" not in name)


def _counted(message: Any) -> Targets:
    return (), tuple(message.topics)


def _grown(message: operators.Growth) -> Targets:
    return (), tuple(message.topics) or (WHOLE,)


FREE = Need("", "", _none)
SECRET = Need("", "the secret of the cluster", _none)
OWN = Need("", "its own subscription", _none)
OBSERVES = Need(OBSERVE, "the cluster", _whole)
CHANGES_CLUSTER = Need(CLUSTER, "the cluster", _whole)


def _on_topic(permission: str, targets: Callable[[Any], Targets]) -> Need:
    return Need(permission, "the topic", targets)


def _on_topics(permission: str, targets: Callable[[Any], Targets]) -> Need:
    return Need(permission, "the topics", targets)


_ROWS = (
    # requests of clients
    Verb(messages.Hello, Room.SESSION, FREE),
    Verb(messages.Ping, Room.SESSION, FREE, settles=True),
    Verb(messages.Bye, Room.SESSION, FREE, settles=True),
    Verb(messages.WhoAmI, Room.SESSION, FREE),
    Verb(messages.Entrust, Room.SESSION, SECRET),
    Verb(messages.Publish, Room.PUBLISHING, _on_topic(PUBLISH, _partition)),
    Verb(messages.PublishPlain, Room.PUBLISHING, _on_topic(PUBLISH, _partition)),
    Verb(messages.Subscribe, Room.CONSUMING, _on_topics(READ, _starts)),
    Verb(messages.Unsubscribe, Room.CONSUMING, OWN, settles=True),
    Verb(messages.Credit, Room.CONSUMING, OWN, settles=True),
    Verb(messages.Recall, Room.CONSUMING, OWN, settles=True),
    Verb(messages.Ack, Room.CONSUMING, OWN, settles=True),
    Verb(messages.AckResults, Room.CONSUMING, OWN, settles=True),
    Verb(messages.ReportProgress, Room.CONSUMING, OWN, settles=True),
    Verb(messages.AckDelivered, Room.CONSUMING, _on_topic(READ, _partition)),
    Verb(messages.Nack, Room.CONSUMING, OWN, settles=True),
    Verb(messages.Extend, Room.CONSUMING, OWN, settles=True),
    Verb(messages.Started, Room.CONSUMING, OWN, settles=True),
    Verb(messages.Why, Room.EXPLAINING, _on_topic(READ, _ref)),
    Verb(messages.WhyGroup, Room.EXPLAINING, _on_topics(READ, _partitions)),
    Verb(messages.Trace, Room.EXPLAINING, _on_topic(READ, _ref)),
    Verb(messages.Show, Room.EXPLAINING, _on_topic(READ, _ref)),
    Verb(messages.ListDead, Room.EXPLAINING, _on_topic(READ, _partition)),
    Verb(exports.ListAcks, Room.EXPLAINING, _on_topic(READ, _partition)),
    Verb(exports.ListStates, Room.EXPLAINING, _on_topic(READ, _partition)),
    Verb(messages.Cancel, Room.MENDING, _on_topic(MEND, _ref)),
    Verb(messages.Reschedule, Room.MENDING, _on_topic(MEND, _ref)),
    Verb(messages.Edit, Room.MENDING, _on_topic(MEND, _ref)),
    Verb(messages.Requeue, Room.MENDING, _on_topic(MEND, _ref)),
    Verb(messages.ReplayDead, Room.MENDING, _on_topic(MEND, _partition)),
    Verb(messages.PurgeDead, Room.MENDING, _on_topic(MEND, _partition)),
    Verb(messages.SetSchedule, Room.SCHEDULING, _on_topic(PUBLISH, _partition)),
    Verb(messages.DropSchedule, Room.SCHEDULING, _on_topic(PUBLISH, _partition)),
    Verb(messages.RunSchedule, Room.SCHEDULING, _on_topic(PUBLISH, _partition)),
    Verb(messages.ListSchedules, Room.SCHEDULING, _on_topic(READ, _partition)),
    Verb(messages.AskJob, Room.JOBS, _on_topic(READ, _ref)),
    Verb(messages.JoinJobs, Room.JOINING, _on_topic(PUBLISH, _partition)),
    Verb(messages.SetGroup, Room.MENDING, _on_topic(OPERATE, _topic_id)),
    Verb(operators.SeekGroup, Room.MENDING, _on_topic(OPERATE, _topic_id)),
    Verb(operators.DropGroup, Room.MENDING, _on_topic(OPERATE, _topic_id)),
    Verb(operators.ShowGroup, Room.MENDING, _on_topic(READ, _topic_id)),
    Verb(operators.PurgeTopic, Room.MENDING, _on_topic(OPERATE, _partition)),
    Verb(messages.Resolve, Room.REGISTER, _on_topics(ANY, _resolved)),
    Verb(messages.CreateTopic, Room.REGISTER, _on_topic(CREATE, _name)),
    Verb(messages.BindTopic, Room.REGISTER, _on_topics(CREATE, _bound)),
    Verb(messages.DropTopic, Room.REGISTER, _on_topic(OPERATE, _name)),
    Verb(operators.SetTopic, Room.REGISTER, _on_topic(OPERATE, _name)),
    Verb(messages.Join, Room.ROSTER, SECRET),
    Verb(messages.AskMembers, Room.ROSTER, OBSERVES),
    Verb(messages.SetMember, Room.ROSTER, CHANGES_CLUSTER),
    Verb(messages.SetOptions, Room.ROSTER, CHANGES_CLUSTER),
    Verb(messages.AskAccess, Room.ROSTER, CHANGES_CLUSTER),
    Verb(messages.SetAccess, Room.ROSTER, CHANGES_CLUSTER),
    Verb(exports.BackUp, Room.BACKUPS, CHANGES_CLUSTER),
    Verb(messages.Stats, Room.WORKER, _on_topics(ANY, _counted)),
    Verb(operators.Growth, Room.WORKER, _on_topics(OBSERVE, _grown)),
    Verb(operators.ListClients, Room.WORKER, OBSERVES),
    Verb(operators.Kick, Room.WORKER, Need(OPERATE, "the cluster", _whole)),
    Verb(messages.Status, Room.FRONTDOOR, OBSERVES),
    Verb(operators.ListAlarms, Room.FRONTDOOR, OBSERVES),
    Verb(operators.ShowConfig, Room.FRONTDOOR, OBSERVES),
    # messages of nodes
    Verb(peer_messages.Append, Room.COPIES, speaker="leader"),
    Verb(peer_messages.Appended, Room.COPIES, speaker="follower"),
    Verb(peer_messages.VoteRequest, Room.COPIES, speaker="candidate"),
    Verb(peer_messages.Vote, Room.COPIES, speaker="voter"),
    Verb(peer_messages.TimeoutNow, Room.COPIES, speaker="leader"),
    Verb(peer_messages.Snapshot, Room.COPIES, speaker="leader"),
    Verb(peer_messages.Installed, Room.COPIES, speaker="follower"),
    Verb(peer_messages.Stray, Room.COPIES, speaker="copy"),
    Verb(peer_messages.Dismiss, Room.COPIES, speaker="leader"),
    Verb(peer_messages.ChangeVoters, Room.RECONFIGURATION),
    Verb(peer_messages.Transfer, Room.RECONFIGURATION),
    Verb(peer_messages.InstallTopic, Room.INSTALLING),
    Verb(peer_messages.WatchJobs, Room.WATCHING),
    Verb(peer_messages.JobsEnded, Room.WATCHING),
    Verb(peer_messages.TopicInstalled, Room.REGISTER),
    Verb(peer_messages.AskTopic, Room.REGISTER),
    Verb(peer_messages.LimitUsed, Room.LIMITING),
    Verb(peer_messages.LimitTold, Room.LIMITING),
    Verb(peer_messages.Bundle, Room.PROCESS),
    Verb(peer_messages.Greet, Room.PROCESS),
    Verb(peer_messages.Prove, Room.PROCESS),
    Verb(peer_messages.Report, Room.PROCESS),
    Verb(peer_messages.View, Room.PROCESS),
    Verb(peer_messages.Waiting, Room.PROCESS),
    Verb(peer_messages.AccessTold, Room.PROCESS),
    # answers, and news of subscriptions
    Verb(messages.Welcome, Room.CLIENT),
    Verb(messages.Pong, Room.CLIENT),
    Verb(messages.RefusedMessage, Room.CLIENT),
    Verb(messages.Reset, Room.CLIENT),
    Verb(messages.Identity, Room.CLIENT),
    Verb(messages.Access, Room.CLIENT),
    Verb(messages.Entrusted, Room.CLIENT),
    Verb(messages.Confirm, Room.CLIENT),
    Verb(messages.Subscribed, Room.CLIENT),
    Verb(messages.Deliver, Room.CLIENT),
    Verb(messages.DeliverPlain, Room.CLIENT),
    Verb(messages.Acked, Room.CLIENT),
    Verb(messages.ReadyMessage, Room.CLIENT),
    Verb(messages.Recalled, Room.CLIENT),
    Verb(messages.AtEnd, Room.CLIENT),
    Verb(messages.Share, Room.CLIENT),
    Verb(messages.Cancelled, Room.CLIENT),
    Verb(messages.Explained, Room.CLIENT),
    Verb(messages.GroupExplained, Room.CLIENT),
    Verb(messages.Traced, Room.CLIENT),
    Verb(messages.Shown, Room.CLIENT),
    Verb(messages.Done, Room.CLIENT),
    Verb(messages.DeadLetters, Room.CLIENT),
    Verb(messages.Schedules, Room.CLIENT),
    Verb(messages.Job, Room.CLIENT),
    Verb(messages.Topics, Room.CLIENT),
    Verb(messages.StatsReply, Room.CLIENT),
    Verb(messages.StatusReply, Room.CLIENT),
    Verb(messages.Members, Room.CLIENT),
    Verb(messages.Challenge, Room.CLIENT),
    Verb(exports.AckRuns, Room.CLIENT),
    Verb(exports.States, Room.CLIENT),
    Verb(exports.BackedUp, Room.CLIENT),
    Verb(operators.Grown, Room.CLIENT),
    Verb(operators.Clients, Room.CLIENT),
    Verb(operators.Sought, Room.CLIENT),
    Verb(operators.GroupShown, Room.CLIENT),
    Verb(operators.Alarms, Room.CLIENT),
    Verb(operators.ConfigShown, Room.CLIENT),
)
VERBS: dict[type[Message], Verb] = {row.message: row for row in _ROWS}
assert VERBS.keys() == set(messages.MESSAGES.values()), "every message has its row"
NEEDS: dict[type[Message], Need] = {row.message: row.need for row in _ROWS if row.need is not None}
ROOMS: dict[type[Message], Room] = {row.message: row.room for row in _ROWS}
SETTLES = frozenset(row.message for row in _ROWS if row.settles)
SPEAKERS: dict[type[Message], str] = {row.message: row.speaker for row in _ROWS if row.speaker}
#: messages that only nodes send
OF_NODES = frozenset(row.message for row in _ROWS if row.need is None and row.room is not Room.CLIENT)


def served_by(*rooms: Room) -> frozenset[type[Message]]:
    """Return the messages that these rooms serve."""
    return frozenset(row.message for row in _ROWS if row.room in rooms)
