"""Queues and their attributes, stored in a topic of the cluster.

So all gateways have the same table, and read it again after a restart.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from gossipq import limits
from gossipq.errors import GossipqError
from gossipq.permissions import SYSTEM
from gossipq_client.aio import Client
from gossipq_client.answers import TopicDetails
from gossipq_gateway.dialect import log
from gossipq_gateway.sqs.faults import SqsFault, bad_attribute, bad_value, no_queue

#: a record for each change, with the queue's name as key; the last one is valid
TOPIC = "sqs.queues"
GROUP = "sqs"  #: the group that takes the records of a queue
ACCOUNT = "000000000000"
REGION = "gossipq"
SEEN_S = 5.0  #: maximum time until an own change is read back
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\Z|(?=.{1,80}\Z)[A-Za-z0-9_-]+\.fifo\Z")
_BEGINNING = re.compile(r"[A-Za-z0-9_.-]*")
#: attribute -> lowest and highest value
_NUMBERS = {
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (1_024, 1_048_576),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, 43_200),
}
_DEFAULTS = {
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "MessageRetentionPeriod": "345600",
    "ReceiveMessageWaitTimeSeconds": "0",
    "VisibilityTimeout": "30",
}
#: for FIFO queues: attribute -> its values, the first is the default
_FIFO = {
    "FifoQueue": ("true",),
    "ContentBasedDeduplication": ("false", "true"),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),  # neither is a limit here
}
#: attribute -> the only supported value
_ABSENT = {
    "Policy": "",
    "KmsMasterKeyId": "",
    "KmsDataKeyReusePeriodSeconds": "",
    "SqsManagedSseEnabled": "false",
}
COUNTED = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_MADE = ("QueueArn", "CreatedTimestamp", "LastModifiedTimestamp")
SHOWN = frozenset(
    ("All", *_NUMBERS, *_FIFO, *_ABSENT, *COUNTED, *_MADE, "RedrivePolicy", "RedriveAllowPolicy")
)
SOURCES_MAX = 10  #: queues that a RedriveAllowPolicy names


class Redrive(msgspec.Struct, rename="camel"):
    dead_letter_target_arn: str
    max_receive_count: int | str


class RedriveAllow(msgspec.Struct, rename="camel"):
    """The queues that may name this one in their RedrivePolicy."""

    redrive_permission: Literal["allowAll", "denyAll", "byQueue"]
    source_queue_arns: list[str] = []

    def allows(self, source: "Queue") -> bool:
        named = source.name in map(name_of, self.source_queue_arns)
        return self.redrive_permission == "allowAll" or (self.redrive_permission == "byQueue" and named)


def name_of(arn: str) -> str:
    """Return the queue that an ARN names."""
    return arn.rpartition(":")[2]


class Queue(msgspec.Struct):
    """A queue. `attributes` that are not set have their default."""

    name: str
    attributes: dict[str, str]
    tags: dict[str, str] = {}
    created_s: int = 0
    modified_s: int = 0
    gone: bool = False

    def __getitem__(self, attribute: str) -> str:
        default = _FIFO[attribute][0] if attribute in _FIFO else _DEFAULTS.get(attribute, "")
        return self.attributes.get(attribute) or default

    def number(self, attribute: str) -> int:
        return int(self[attribute])

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")

    @property
    def arn(self) -> str:
        return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{self.name}"

    @property
    def dead_letters(self) -> tuple[str, int] | None:
        """The dead letter queue, and the number of receives after which a message goes there."""
        if not self["RedrivePolicy"]:
            return None
        redrive = msgspec.json.decode(self["RedrivePolicy"], type=Redrive)
        return name_of(redrive.dead_letter_target_arn), int(redrive.max_receive_count)

    @property
    def groups_apart(self) -> bool:
        """True if a deduplication id is valid within its message group only."""
        return self["DeduplicationScope"] == "messageGroup"

    def takes_dead_letters_of(self, source: "Queue") -> bool:
        policy = self["RedriveAllowPolicy"]
        return not policy or msgspec.json.decode(policy, type=RedriveAllow).allows(source)

    def policy(self) -> dict[str, Any]:
        """Return the policy of its topic. Unreceived messages expire;
        this gateway counts receives.
        """
        age_s = self.number("MessageRetentionPeriod")
        return {
            "ttl": age_s,
            "retention": age_s,
            "expire": "drop",
            "dedup": "5m",
            "attempts_max": limits.ATTEMPTS_HARD_MAX,
            "backoff": [0],
        }

    def shown(self) -> dict[str, str]:
        """Return the attributes for GetQueueAttributes, except counters."""
        found = {**_DEFAULTS, **{name: value for name, value in self.attributes.items() if value}}
        found["QueueArn"] = self.arn
        found["CreatedTimestamp"], found["LastModifiedTimestamp"] = str(self.created_s), str(self.modified_s)
        return found


def check_name(name: str) -> None:
    """Raises SqsFault."""
    if not _NAME.match(name):
        raise bad_value(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length; "
            "the name of a FIFO queue ends in .fifo"
        )
    if name.startswith(SYSTEM):
        raise bad_value("Names that begin with an underscore are those of the nodes' own topics.")


def may_begin(text: str) -> bool:
    """True if a queue's name can begin like this."""
    return _BEGINNING.fullmatch(text) is not None


def check_attributes(name: str, given: Mapping[str, str]) -> None:
    """Raises SqsFault."""
    for attribute, value in given.items():
        if attribute in _NUMBERS:
            low, high = _NUMBERS[attribute]
            if value and not (value.isascii() and value.isdecimal() and low <= int(value[:9]) <= high):
                raise bad_attribute(attribute, value)
        elif attribute in _FIFO and name.endswith(".fifo"):
            if value not in _FIFO[attribute]:
                raise bad_attribute(attribute, value)
        elif attribute == "RedrivePolicy":
            _check_redrive(name, value)
        elif attribute == "RedriveAllowPolicy":
            _check_redrive_allow(value)
        elif attribute in _ABSENT:
            if value not in ("", _ABSENT[attribute]):
                raise SqsFault(
                    "UnsupportedOperation", f"{attribute} would have no effect here: leave it out."
                )
        else:
            raise SqsFault("InvalidAttributeName", f"Unknown Attribute {attribute}.")


def check_scope(queue: Queue, topics: Sequence[TopicDetails]) -> None:
    """Raise SqsFault for attributes that contradict each other.

    Also for a topic with several partitions if the queue needs one set of ids, because each
    partition remembers its own ids.
    """
    if queue["FifoThroughputLimit"] == "perMessageGroupId" and not queue.groups_apart:
        raise bad_attribute(
            "FifoThroughputLimit", "perMessageGroupId without DeduplicationScope=messageGroup"
        )
    partitions = len(topics[0].shards) if topics else 1
    if queue.fifo and partitions > 1 and not queue.groups_apart:
        raise bad_attribute("DeduplicationScope", f"queue over a topic of {partitions} partitions")


def _check_redrive_allow(value: str) -> None:
    if not value:
        return
    try:
        policy = msgspec.json.decode(value, type=RedriveAllow)
    except (msgspec.DecodeError, RecursionError):
        raise bad_attribute("RedriveAllowPolicy", value) from None
    named = len(policy.source_queue_arns)
    if named > SOURCES_MAX or (named > 0) != (policy.redrive_permission == "byQueue"):
        raise bad_attribute("RedriveAllowPolicy", value)


def _check_redrive(name: str, value: str) -> None:
    if not value:
        return
    try:
        redrive = msgspec.json.decode(value, type=Redrive)
        count = int(redrive.max_receive_count)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise bad_attribute("RedrivePolicy", value) from None
    target = name_of(redrive.dead_letter_target_arn)
    if not 1 <= count <= 1_000 or target == name or target.endswith(".fifo") != name.endswith(".fifo"):
        raise bad_attribute("RedrivePolicy", value)


class Queues:
    """The table of queues, kept up to date."""

    def __init__(self, mq: Client) -> None:
        self.mq = mq  #: of the gateway's own user
        self._known: dict[str, Queue] = {}
        self._changed = asyncio.Condition()
        self._seen = -1  #: offset of the last known change
        self._at_end = asyncio.Event()

    async def follow(self) -> None:
        """Read changes, forever."""
        await self.mq.create_topic(TOPIC, 1, if_not_exists=True, retain="forever")
        ends = await self.mq.topic(TOPIC).positions()
        last = ends[0].end - 1
        if last < ends[0].first:
            self._at_end.set()
        async for msg in self.mq.read(TOPIC, start="first", follow=True):
            try:
                queue = msgspec.json.decode(msg.value, type=Queue)
            except msgspec.DecodeError:
                log.warning("%s is no queue", msg.ref)
                queue = None
            async with self._changed:
                if queue is not None and queue.gone:
                    self._known.pop(queue.name, None)
                elif queue is not None:
                    self._known[queue.name] = queue
                self._seen = msg.offset
                self._changed.notify_all()
            if msg.offset >= last:
                self._at_end.set()

    async def ready(self) -> None:
        """Wait until all existing changes are read. Raises SqsFault."""
        try:
            await asyncio.wait_for(self._at_end.wait(), SEEN_S)
        except TimeoutError:
            raise SqsFault("ServiceUnavailable", "The queues are not known yet.", status=503) from None

    def find(self, name: str) -> Queue:
        """Return a queue. Raises SqsFault."""
        queue = self._known.get(name)
        if queue is None:
            raise no_queue(name)
        return queue

    def names(self) -> list[str]:
        return sorted(self._known)

    async def put(self, queue: Queue) -> None:
        """Change a queue. Returns when the change is stored, and read back."""
        try:
            receipt = await self.mq.publish(TOPIC, msgspec.json.encode(queue), key=queue.name)
            async with asyncio.timeout(SEEN_S), self._changed:
                await self._changed.wait_for(lambda: self._seen >= receipt.offset)
        except (GossipqError, TimeoutError) as error:
            raise SqsFault("ServiceUnavailable", str(error) or "not stored in time", status=503) from None
