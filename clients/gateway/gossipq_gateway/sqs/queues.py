"""What queues there are, with their attributes: a table that lies in a topic of the cluster, so that all
gateways have the same one, and each has it again after a restart."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gossipq import limits
from gossipq.errors import GossipqError
from gossipq.permissions import SYSTEM
from gossipq_client.aio import Client
from gossipq_gateway.dialect import log
from gossipq_gateway.sqs.faults import SqsFault, bad_attribute, bad_value, no_queue

TOPIC = "sqs.queues"  #: a record for each change, with the name of the queue as key; the last one holds
GROUP = "sqs"  #: that takes the records of a queue
ACCOUNT = "000000000000"
REGION = "gossipq"
SEEN_S = 5.0  #: a change of one's own is seen within so long
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
_FLAGS = ("FifoQueue", "ContentBasedDeduplication")
#: taken, kept and shown, without any effect
_IDLE = (
    "Policy",
    "RedriveAllowPolicy",
    "KmsMasterKeyId",
    "KmsDataKeyReusePeriodSeconds",
    "SqsManagedSseEnabled",
    "DeduplicationScope",
    "FifoThroughputLimit",
)


class Redrive(msgspec.Struct, rename="camel"):
    dead_letter_target_arn: str
    max_receive_count: int | str


class Queue(msgspec.Struct):
    """`attributes` as they were set, and what is left away has its default."""

    name: str
    attributes: dict[str, str]
    tags: dict[str, str] = {}
    created_s: int = 0
    modified_s: int = 0
    gone: bool = False

    def __getitem__(self, attribute: str) -> str:
        return self.attributes.get(attribute) or _DEFAULTS.get(attribute, "")

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
        """The queue for what was received more often than that."""
        if not self["RedrivePolicy"]:
            return None
        redrive = msgspec.json.decode(self["RedrivePolicy"], type=Redrive)
        return redrive.dead_letter_target_arn.rpartition(":")[2], int(redrive.max_receive_count)

    def policy(self) -> dict[str, Any]:
        """Of its topic: what is not received in time expires; the count of attempts is kept here."""
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
        """Attributes as GetQueueAttributes has them, but for those that are counted."""
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
    """Whether some queue could have a name that begins so."""
    return _BEGINNING.fullmatch(text) is not None


def check_attributes(name: str, given: Mapping[str, str]) -> None:
    """Raises SqsFault."""
    for attribute, value in given.items():
        if attribute in _NUMBERS:
            low, high = _NUMBERS[attribute]
            if value and not (value.isascii() and value.isdecimal() and low <= int(value[:9]) <= high):
                raise bad_attribute(attribute, value)
        elif attribute in _FLAGS:
            if value not in ("true", "false"):
                raise bad_attribute(attribute, value)
            if not name.endswith(".fifo"):
                raise SqsFault("InvalidAttributeName", f"Unknown Attribute {attribute}.")
        elif attribute == "RedrivePolicy":
            _check_redrive(name, value)
        elif attribute not in _IDLE:
            raise SqsFault("InvalidAttributeName", f"Unknown Attribute {attribute}.")
    if name.endswith(".fifo") != (given.get("FifoQueue", "true") == "true" and name.endswith(".fifo")):
        raise bad_attribute("FifoQueue", given["FifoQueue"])


def _check_redrive(name: str, value: str) -> None:
    if not value:
        return
    try:
        redrive = msgspec.json.decode(value, type=Redrive)
        count = int(redrive.max_receive_count)
    except (msgspec.DecodeError, ValueError):
        raise bad_attribute("RedrivePolicy", value) from None
    target = redrive.dead_letter_target_arn.rpartition(":")[2]
    if not 1 <= count <= 1_000 or target == name or target.endswith(".fifo") != name.endswith(".fifo"):
        raise bad_attribute("RedrivePolicy", value)


class Queues:
    """The table, followed."""

    def __init__(self, mq: Client) -> None:
        self._mq = mq
        self._known: dict[str, Queue] = {}
        self._changed = asyncio.Condition()
        self._seen = -1  #: offset of the last change that is known
        self._at_end = asyncio.Event()

    async def follow(self) -> None:
        """For ever: takes up each change."""
        await self._mq.create_topic(TOPIC, 1, if_not_exists=True, retain="forever")
        ends = await self._mq.admin.positions(TOPIC)
        last = ends[0].end - 1
        if last < ends[0].first:
            self._at_end.set()
        async for msg in self._mq.consume(TOPIC, start="first"):
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
        """Returns when all that there is is known. Raises SqsFault."""
        try:
            await asyncio.wait_for(self._at_end.wait(), SEEN_S)
        except TimeoutError:
            raise SqsFault("ServiceUnavailable", "The queues are not known yet.", status=503) from None

    def find(self, name: str) -> Queue:
        """Raises SqsFault."""
        queue = self._known.get(name)
        if queue is None:
            raise no_queue(name)
        return queue

    def names(self) -> list[str]:
        return sorted(self._known)

    async def put(self, queue: Queue) -> None:
        """Changes a queue; returns when it is stored, and known here."""
        try:
            receipt = await self._mq.publish_and_wait(TOPIC, msgspec.json.encode(queue), key=queue.name)
            async with asyncio.timeout(SEEN_S), self._changed:
                await self._changed.wait_for(lambda: self._seen >= receipt.offset)
        except (GossipqError, TimeoutError) as error:
            raise SqsFault("ServiceUnavailable", str(error) or "not stored in time", status=503) from None
