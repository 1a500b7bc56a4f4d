"""The operations of SQS on queues and messages: a function for each."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from gossipq.errors import BadRequest, Forbidden, GossipqError, LeaseLost, UnknownRecord
from gossipq.times import unix_ms_of
from gossipq_client.aio import Message
from gossipq_client.values import GIVEN_BACK
from gossipq_gateway.callers import Caller
from gossipq_gateway.counters import Counters
from gossipq_gateway.dialect import log
from gossipq_gateway.leases import Lease, Leases, named
from gossipq_gateway.sqs import messages, queues
from gossipq_gateway.sqs.faults import SqsFault, bad_handle, bad_value, fault_of, no_queue
from gossipq_gateway.sqs.fifo import Order
from gossipq_gateway.sqs.messages import Attribute
from gossipq_gateway.sqs.queues import GROUP, Queue, Queues
from gossipq_ops.sums import waiting_of

CONFIRM_S = 10.0
SHORT_S = 0.25  #: a short poll waits this long, because the leaders must be asked
SLICE_S = 0.5  #: interval at which a FIFO queue checks its waiting messages
HELD_S = 30  #: minimum lease that the leader is asked for
BATCH_MAX = 10
LIST_MAX = 1_000


class Asked(NamedTuple):
    """One request, its caller, and the caller's URL of the gateway."""

    caller: Caller
    token: bytes
    data: dict[str, Any]
    base_url: str
    counters: Counters
    now_ms: int  #: unix


class Said(msgspec.Struct, rename="pascal"):
    """A message to send; an entry of a batch has an id."""

    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, Attribute] = {}
    message_system_attributes: dict[str, Attribute] = {}
    message_group_id: str = ""
    message_deduplication_id: str = ""
    id: str = ""
    queue_url: str = ""


class Receive(msgspec.Struct, rename="pascal"):
    queue_url: str
    max_number_of_messages: int = 1
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    receive_request_attempt_id: str = ""


class Actions:
    """The operations of one gateway."""

    def __init__(self, table: Queues) -> None:
        self._table = table
        self._orders: dict[tuple[bytes, str], Order[Message]] = {}
        self.known: dict[str, Callable[[Asked], Coroutine[Any, Any, dict[str, Any]]]] = {
            "CreateQueue": self.create_queue,
            "DeleteQueue": self.delete_queue,
            "GetQueueUrl": self.get_queue_url,
            "ListQueues": self.list_queues,
            "GetQueueAttributes": self.get_queue_attributes,
            "SetQueueAttributes": self.set_queue_attributes,
            "PurgeQueue": self.purge_queue,
            "ListDeadLetterSourceQueues": self.list_sources,
            "ListQueueTags": self.list_tags,
            "TagQueue": self.tag,
            "UntagQueue": self.untag,
            "SendMessage": self.send,
            "SendMessageBatch": self.send_batch,
            "ReceiveMessage": self.receive,
            "DeleteMessage": self.delete,
            "DeleteMessageBatch": self.delete_batch,
            "ChangeMessageVisibility": self.change_visibility,
            "ChangeMessageVisibilityBatch": self.change_visibility_batch,
        }

    # --- queues

    def _queue(self, asked: Asked) -> Queue:
        """Return a queue. The cluster checks permissions in the following request."""
        return self._table.find(_queue_name(asked))

    async def _seen(self, asked: Asked, name: str) -> Queue:
        """Return a queue, after checking that the caller may use its topic.
        Raises SqsFault, Forbidden.

        The error is the same whether the queue exists or not.
        """
        if not queues.may_begin(name) or not await asked.caller.mq.topics(name):
            raise no_queue(name)
        return self._table.find(name)

    async def _names(self, asked: Asked, prefix: str = "") -> list[str]:
        """Return the names of queues whose topics the user may use, in order."""
        if not queues.may_begin(prefix):
            return []
        seen = {topic.name for topic in await asked.caller.mq.topics(f"{prefix}*")}
        return [name for name in self._table.names() if name in seen]

    @staticmethod
    def _url(asked: Asked, name: str) -> str:
        return f"{asked.base_url}/sqs/{queues.ACCOUNT}/{name}"

    async def create_queue(self, asked: Asked) -> dict[str, Any]:
        name, given = _text(asked.data, "QueueName"), _texts(asked.data, "Attributes")
        queues.check_name(name)
        queues.check_attributes(name, given)
        if name in await self._names(asked, name):
            known = self._table.find(name)
            if any(known[attribute] != value for attribute, value in given.items()):
                told = f"A queue named {name} already exists with a different value for an attribute."
                raise SqsFault("QueueNameExists", told, "QueueAlreadyExists")
            return {"QueueUrl": self._url(asked, name)}
        now_s = asked.now_ms // 1000
        queue = Queue(name, given, _texts(asked.data, "tags"), now_s, now_s)
        await self._check_target(asked, queue)
        mq = asked.caller.mq
        taken = await mq.topics(name)
        queues.check_scope(queue, taken)
        if taken:
            log.warning(
                "the queue %s takes a topic that was there: SetQueueAttributes sets its options", name
            )
        await mq.create_topic(name, if_not_exists=True, **queue.policy())
        await self._table.put(queue)
        return {"QueueUrl": self._url(asked, name)}

    async def _check_target(self, asked: Asked, queue: Queue) -> None:
        target = queue.dead_letters[0] if queue.dead_letters is not None else ""
        if target and target not in await self._names(asked, target):
            raise bad_value(
                f"Value {queue['RedrivePolicy']} for parameter RedrivePolicy is invalid: no such queue."
            )
        if target and not self._table.find(target).takes_dead_letters_of(queue):
            raise bad_value(
                f"Value {queue['RedrivePolicy']} for parameter RedrivePolicy is invalid: "
                f"the RedriveAllowPolicy of {target} does not allow it."
            )

    async def delete_queue(self, asked: Asked) -> dict[str, Any]:
        queue = self._queue(asked)
        await asked.caller.mq.topic(queue.name).delete()
        await self._table.put(Queue(queue.name, {}, gone=True))
        return {}

    async def get_queue_url(self, asked: Asked) -> dict[str, Any]:
        return {"QueueUrl": self._url(asked, (await self._seen(asked, _text(asked.data, "QueueName"))).name)}

    async def list_queues(self, asked: Asked) -> dict[str, Any]:
        prefix, after = (_optional_text(asked.data, name) for name in ("QueueNamePrefix", "NextToken"))
        count = min(_number(asked.data, "MaxResults", 1, LIST_MAX) or LIST_MAX, LIST_MAX)
        names = [name for name in await self._names(asked, prefix) if name > after]
        found: dict[str, Any] = {"QueueUrls": [self._url(asked, name) for name in names[:count]]}
        if len(names) > count:
            found["NextToken"] = names[count - 1]
        return found

    async def get_queue_attributes(self, asked: Asked) -> dict[str, Any]:
        queue, names = await self._seen(asked, _queue_name(asked)), _names(asked.data, "AttributeNames")
        if unknown := [name for name in names if name not in queues.SHOWN]:
            raise SqsFault("InvalidAttributeName", f"Unknown Attribute {unknown[0]}.")
        found = queue.shown()
        if any(name == "All" or name.startswith("Approximate") for name in names):
            found |= await self._counted(asked, queue)
        if not names:
            return {}
        return {"Attributes": found if "All" in names else {n: found[n] for n in names if n in found}}

    @staticmethod
    async def _counted(asked: Asked, queue: Queue) -> dict[str, str]:
        stats = await asked.caller.mq.admin.stats([queue.name])
        groups = {row.partition: row for row in stats.groups if row.group == GROUP}
        ready = hidden = 0
        for row in stats.partitions:
            group = groups.get(row.partition)
            if group is None:
                ready += row.next - row.first
            else:
                ready += waiting_of(group)
                hidden += group.in_flight
        return {
            "ApproximateNumberOfMessages": str(ready),
            "ApproximateNumberOfMessagesNotVisible": str(hidden),
            "ApproximateNumberOfMessagesDelayed": str(sum(row.scheduled for row in stats.partitions)),
        }

    async def set_queue_attributes(self, asked: Asked) -> dict[str, Any]:
        queue, given = self._queue(asked), _texts(asked.data, "Attributes")
        queues.check_attributes(queue.name, given)
        changed = Queue(
            queue.name, {**queue.attributes, **given}, queue.tags, queue.created_s, asked.now_ms // 1000
        )
        await self._check_target(asked, changed)
        queues.check_scope(changed, await asked.caller.mq.topics(queue.name))
        await asked.caller.mq.topic(queue.name).configure(**changed.policy())
        await self._table.put(changed)
        return {}

    async def purge_queue(self, asked: Asked) -> dict[str, Any]:
        await asked.caller.mq.topic(self._queue(asked).name).purge()
        return {}

    async def list_sources(self, asked: Asked) -> dict[str, Any]:
        name = (await self._seen(asked, _queue_name(asked))).name
        known = [self._table.find(each) for each in await self._names(asked)]
        sources = [each.name for each in known if each.dead_letters and each.dead_letters[0] == name]
        return {"queueUrls": [self._url(asked, each) for each in sources]}

    async def list_tags(self, asked: Asked) -> dict[str, Any]:
        return {"Tags": (await self._seen(asked, _queue_name(asked))).tags}

    async def tag(self, asked: Asked) -> dict[str, Any]:
        queue = await self._seen(asked, _queue_name(asked))
        await self._tagged(queue, {**queue.tags, **_texts(asked.data, "Tags")})
        return {}

    async def untag(self, asked: Asked) -> dict[str, Any]:
        queue, gone = await self._seen(asked, _queue_name(asked)), _names(asked.data, "TagKeys")
        await self._tagged(queue, {name: text for name, text in queue.tags.items() if name not in gone})
        return {}

    async def _tagged(self, queue: Queue, tags: dict[str, str]) -> None:
        await self._table.put(Queue(queue.name, queue.attributes, tags, queue.created_s, queue.modified_s))

    # --- send

    async def send(self, asked: Asked) -> dict[str, Any]:
        queue, said = self._queue(asked), _shape(asked.data, Said)
        (found,) = await self._sent(asked, queue, [said])
        if isinstance(found, SqsFault):
            raise found
        del found["Id"]
        return found

    async def send_batch(self, asked: Asked) -> dict[str, Any]:
        queue = self._queue(asked)
        entries = [_shape(entry, Said) for entry in _entries(asked.data)]
        if sum(len(each.message_body.encode()) for each in entries) > messages.BODY_BYTES_MAX:
            raise SqsFault(
                "BatchRequestTooLong",
                f"Batch requests cannot be longer than {messages.BODY_BYTES_MAX} bytes.",
                "AWS.SimpleQueueService.BatchRequestTooLong",
            )
        return _outcomes(entries, await self._sent(asked, queue, entries))

    async def _sent(self, asked: Asked, queue: Queue, entries: list[Said]) -> list[dict[str, Any] | SqsFault]:
        """Send each message by itself, so that errors are independent."""
        mq, found = asked.caller.mq, list[dict[str, Any] | SqsFault]()
        pending: list[tuple[int, Any]] = []
        for at, said in enumerate(entries):
            made = messages.message_id(os.urandom(16))
            try:
                bytes_max = queue.number("MaximumMessageSize")
                messages.check(said.message_body, said.message_attributes, bytes_max)
                messages.check_system(said.message_system_attributes)
                options = _options(queue, said)
                options["headers"] = messages.headers(
                    made, said.message_attributes, said.message_system_attributes
                )
                pending.append((at, mq.post(queue.name, said.message_body.encode(), **options)))
                found.append(_told(said, made))
            except SqsFault as fault:
                found.append(fault)
            except GossipqError as error:
                found.append(fault_of(error))
        await asyncio.sleep(0)
        for at, receipt in pending:
            try:
                kept = await receipt.result(CONFIRM_S)
                asked.counters.published()
                told = found[at]
                if queue.fifo and isinstance(told, dict):
                    told["SequenceNumber"] = f"{max(0, kept.offset):020d}"
                    if kept.duplicate:
                        told["MessageId"] = await self._id_of_first(asked, kept.ref)
            except GossipqError as error:
                found[at] = fault_of(error)
        return found

    async def _id_of_first(self, asked: Asked, ref: str) -> str:
        """Return the id of the message that was first sent with a deduplication id.

        If the sender may not read it, the gateway reads it. An unreadable one is named by its ref.
        """
        for mq in (asked.caller.mq, self._table.mq):
            try:
                return messages.id_of((await mq.record(ref).show()).headers_shown, ref)
            except (Forbidden, UnknownRecord):
                continue
        return messages.id_of({}, ref)

    # --- receive

    async def receive(self, asked: Asked) -> dict[str, Any]:
        queue, said = self._queue(asked), _shape(asked.data, Receive)
        if not 1 <= said.max_number_of_messages <= BATCH_MAX:
            raise bad_value(
                f"Value {said.max_number_of_messages} for MaxNumberOfMessages is not between 1 and 10."
            )
        visible_s = queue.number("VisibilityTimeout")
        if said.visibility_timeout is not None:
            visible_s = _within("VisibilityTimeout", said.visibility_timeout, 43_200)
        wait_s = float(queue.number("ReceiveMessageWaitTimeSeconds"))
        if said.wait_time_seconds is not None:
            wait_s = float(_within("WaitTimeSeconds", said.wait_time_seconds, 20))
        attempt_id = said.receive_request_attempt_id
        if attempt_id and not queue.fifo:
            raise bad_value("ReceiveRequestAttemptId is for FIFO queues.")
        leases = self._order(asked, queue).again(attempt_id) if attempt_id else []
        if leases:
            for lease in leases:
                asked.caller.leases.extend(lease, asked.caller.now_ms() + max(1, visible_s * 1000))
            return {"Messages": [_shown(lease, said, queue) for lease in leases]}
        found = await self._received(asked, queue, said.max_number_of_messages, max(SHORT_S, wait_s))
        until_ms = asked.caller.now_ms() + max(1, visible_s * 1000)
        leases = [asked.caller.leases.add(GROUP, msg, until_ms, 0.0) for msg in found]
        if queue.fifo:
            self._order(asked, queue).hand_out(leases, attempt_id)
        asked.counters.delivered(len(leases))
        return {"Messages": [_shown(lease, said, queue) for lease in leases]} if leases else {}

    async def _received(self, asked: Asked, queue: Queue, n: int, wait_s: float) -> list[Message]:
        """Return records to deliver. A record that was received too often goes to the dead letter
        queue instead.
        """
        deadline_ms = asked.caller.now_ms() + round(wait_s * 1000)
        while True:
            left_s = max(0.0, (deadline_ms - asked.caller.now_ms()) / 1000)
            found = await self._fetched(asked, queue, n, left_s)
            if queue.dead_letters is not None:
                found = await self._redriven(asked, queue, found, *queue.dead_letters)
            if found or asked.caller.now_ms() >= deadline_ms:
                return found

    async def _fetched(self, asked: Asked, queue: Queue, n: int, wait_s: float) -> list[Message]:
        topics, caller = (queue.name,), asked.caller
        if not queue.fifo:
            return await caller.fetch(
                topics, GROUP, n, wait_s, {"mode": "shared", "order": "fair", "ahead": False}
            )
        order = self._order(asked, queue)
        order.used_ms = caller.now_ms()
        if found := order.take((), n):
            return found
        came = await caller.fetch(
            topics, GROUP, n, min(wait_s, SLICE_S), {"mode": "key_ordered", "ahead": False}
        )
        return order.take(came, n)

    def _order(self, asked: Asked, queue: Queue) -> Order[Message]:
        """Return the order of a FIFO queue for a caller.

        If the caller's session was ended, its order is new, and its records are redelivered.
        """
        key = asked.token, queue.name
        order = self._orders.get(key)
        if order is None or order.leases is not asked.caller.leases:
            order = self._orders[key] = Order(asked.caller.leases)
        return order

    def rest(self, now_ms: int, idle_ms: int) -> None:
        """Give back records that wait for their message group without requests."""
        for key, order in list(self._orders.items()):
            if now_ms - order.used_ms >= idle_ms:
                for msg in order.give_up():
                    msg.settle(GIVEN_BACK)
                if not order.in_hand:
                    del self._orders[key]

    async def _redriven(
        self, asked: Asked, queue: Queue, found: list[Message], target: str, most: int
    ) -> list[Message]:
        """Publish records to the dead letter queue, by ids that detect repeats, then ack them.

        After an error, or if the caller disconnected, all are given back.
        """
        over = [msg for msg in found if msg.attempt > most]
        if not over:
            return found
        mq = asked.caller.mq
        try:
            with self._order(asked, queue).kept(found) if queue.fifo else nullcontext():
                for msg in over:
                    group = "" if queue.fifo or msg.key is None else msg.key.decode(errors="replace")
                    await mq.publish(
                        target,
                        msg.value,
                        key=msg.key,
                        flow=messages.flow_of(group) if group else None,
                        headers=msg.header_bytes,
                        id=f"{queue.name}/{msg.ref}",
                    )
                await mq.ack(over)
        except BaseException:
            for msg in reversed(found):
                msg.settle(GIVEN_BACK)
            raise
        return [msg for msg in found if msg.attempt <= most]

    # --- settle

    async def delete(self, asked: Asked) -> dict[str, Any]:
        queue = self._queue(asked)
        (found,) = await self._deleted(asked, queue, [_text(asked.data, "ReceiptHandle")])
        if found is not None:
            raise found
        return {}

    async def delete_batch(self, asked: Asked) -> dict[str, Any]:
        queue, entries = self._queue(asked), _entries(asked.data)
        found = await self._deleted(asked, queue, [_text(entry, "ReceiptHandle") for entry in entries])
        return _settled(entries, found)

    async def _deleted(self, asked: Asked, queue: Queue, handles: list[str]) -> list[SqsFault | None]:
        """Delete by handles. Returns a fault for each that failed.

        The handle of a message's last delivery deletes it, also after the visibility timeout and at
        another gateway. In a FIFO queue, the message must still be in flight.
        """
        leases = asked.caller.leases
        faults, found, elsewhere = dict[str, SqsFault](), dict[str, Lease[Message]](), set[str]()
        for handle in handles:
            try:
                check_handle(queue, handle)
                if not leases.was_acked(handle):
                    found[handle] = leases.find(handle)
            except SqsFault as fault:
                faults[handle] = fault
            except LeaseLost as lost:
                elsewhere.add(handle)
                if queue.fifo:
                    faults[handle] = _not_in_hand(leases, handle, lost)
        acked, why = await asked.caller.ack(list(found.values())) if found else (set(), None)
        for handle, lease in found.items():
            if lease in acked:
                continue
            elsewhere.add(handle)
            if queue.fifo:
                faults[handle] = _not_in_hand(leases, handle, why)
        late = set[str]()
        if elsewhere and not queue.fifo:
            late = await asked.caller.ack_delivered(elsewhere)
            told = "the message was received again since, or is not in this queue any more"
            faults |= {handle: bad_handle(handle, told) for handle in late}
        asked.counters.acked(len(acked) + (0 if queue.fifo else len(elsewhere - late)))
        return [faults.get(handle) for handle in handles]

    async def change_visibility(self, asked: Asked) -> dict[str, Any]:
        fault = await self._changed(asked, self._queue(asked), asked.data)
        if fault is not None:
            raise fault
        return {}

    async def change_visibility_batch(self, asked: Asked) -> dict[str, Any]:
        queue, entries = self._queue(asked), _entries(asked.data)
        found = list[SqsFault | None]()
        for entry in entries:  # each by itself, as in a send
            try:
                found.append(await self._changed(asked, queue, entry))
            except SqsFault as fault:
                found.append(fault)
        return _settled(entries, found)

    async def _changed(self, asked: Asked, queue: Queue, data: dict[str, Any]) -> SqsFault | None:
        seconds = _number(data, "VisibilityTimeout", 0, 43_200)
        if seconds is None:
            return SqsFault("MissingParameter", "The request must contain the parameter VisibilityTimeout.")
        handle, leases = _text(data, "ReceiptHandle"), asked.caller.leases
        check_handle(queue, handle)
        try:
            lease = leases.find(handle)
            # its leader knows whether another consumer has the record; this gateway does not
            await lease.record.extend(max(seconds, HELD_S))
        except LeaseLost as lost:
            if queue.fifo or not leases.is_of(handle):
                return _not_in_hand(leases, handle, lost)
            told = f"Value {handle[:200]} for parameter ReceiptHandle is invalid: {lost.message}"
            return SqsFault("MessageNotInflight", told, "AWS.SimpleQueueService.MessageNotInflight")
        if seconds:
            leases.extend(lease, asked.caller.now_ms() + seconds * 1000)
        else:
            await lease.record.nack(0, "its visibility timeout was set to 0")
            leases.drop(lease)
        return None


# --- parameters


def check_handle(queue: Queue, handle: str) -> None:
    """Raise SqsFault for a handle that cannot belong to this queue."""
    try:
        known = named(handle)
    except BadRequest:
        raise bad_handle(handle) from None
    if (known.topic, known.group) != (queue.name, GROUP):
        raise bad_handle(handle, "it is of another queue")


def _not_in_hand(leases: Leases[Message], handle: str, why: LeaseLost | None) -> SqsFault:
    """Return the fault for a message received elsewhere, or after its visibility timeout."""
    told = why.message if why is not None else "the message is with somebody else"
    return (
        bad_value(f"The receipt handle has expired: {told}")
        if leases.is_of(handle)
        else bad_handle(handle, told)
    )


def _queue_name(asked: Asked) -> str:
    return _text(asked.data, "QueueUrl").rstrip("/").rpartition("/")[2]


def _shape(data: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise SqsFault("InvalidParameterValue", f"Invalid request: {error}") from None


def _text(data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise SqsFault("MissingParameter", f"The request must contain the parameter {name}.")
    return value


def _optional_text(data: dict[str, Any], name: str) -> str:
    return _text(data, name) if data.get(name) else ""


def _texts(data: dict[str, Any], name: str) -> dict[str, str]:
    found = data.get(name) or {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise bad_value(f"{name} is not a map of texts.")
    return found


def _names(data: dict[str, Any], name: str) -> list[str]:
    found = data.get(name) or []
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise bad_value(f"{name} is not a list of texts.")
    return found


def _number(data: dict[str, Any], name: str, low: int, high: int) -> int | None:
    value = data.get(name)
    if value is not None and (type(value) is not int or not low <= value <= high):
        raise bad_value(f"Value {value!r} for parameter {name} is not between {low} and {high}.")
    return value


def _within(name: str, value: int, high: int) -> int:
    if not 0 <= value <= high:
        raise bad_value(f"Value {value} for parameter {name} is not between 0 and {high}.")
    return value


def _entries(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of a batch. Raises SqsFault."""
    entries, prefix = data.get("Entries"), "AWS.SimpleQueueService."
    if not isinstance(entries, list) or not entries or not all(isinstance(each, dict) for each in entries):
        raise SqsFault(
            "EmptyBatchRequest", "There should be an entry in the batch.", f"{prefix}EmptyBatchRequest"
        )
    if len(entries) > BATCH_MAX:
        told = f"Maximum number of entries per request are {BATCH_MAX}. You have sent {len(entries)}."
        raise SqsFault("TooManyEntriesInBatchRequest", told, f"{prefix}TooManyEntriesInBatchRequest")
    ids = [_text(each, "Id") for each in entries]
    if len(set(ids)) < len(ids):
        told = "Two or more batch entries in the request have the same Id."
        raise SqsFault("BatchEntryIdsNotDistinct", told, f"{prefix}BatchEntryIdsNotDistinct")
    return entries


def _outcomes(entries: Iterable[Said], found: list[dict[str, Any] | SqsFault]) -> dict[str, Any]:
    pairs = list(zip(entries, found, strict=True))
    failed = [_failed(said.id, fault) for said, fault in pairs if isinstance(fault, SqsFault)]
    made = {"Successful": [told for _, told in pairs if isinstance(told, dict)]}
    return {**made, "Failed": failed} if failed else made


def _settled(entries: list[dict[str, Any]], found: list[SqsFault | None]) -> dict[str, Any]:
    pairs = list(zip(entries, found, strict=True))
    failed = [_failed(entry["Id"], fault) for entry, fault in pairs if fault is not None]
    made: dict[str, Any] = {"Successful": [{"Id": entry["Id"]} for entry, fault in pairs if fault is None]}
    return {**made, "Failed": failed} if failed else made


def _failed(entry: str, fault: SqsFault) -> dict[str, Any]:
    return {"Id": entry, "SenderFault": fault.status < 500, "Code": fault.code, "Message": fault.message}


# --- messages


def _options(queue: Queue, said: Said) -> dict[str, Any]:
    """Return the options of the publish. Raises SqsFault."""
    options: dict[str, Any] = {}
    delay_s = queue.number("DelaySeconds") if said.delay_seconds is None else said.delay_seconds
    if delay_s:
        options["delay"] = _within("DelaySeconds", delay_s, 900)
    if not queue.fifo:
        if said.message_deduplication_id:
            raise bad_value("MessageDeduplicationId is for FIFO queues.")
        if said.message_group_id:
            messages.check_names(MessageGroupId=said.message_group_id)
            options["key"] = said.message_group_id
            options["flow"] = messages.flow_of(said.message_group_id)
        return options
    if said.delay_seconds is not None:
        raise bad_value("DelaySeconds of a message is not for FIFO queues: set that of the queue.")
    if not said.message_group_id:
        raise SqsFault("MissingParameter", "The request must contain the parameter MessageGroupId.")
    made = said.message_deduplication_id
    if not made:
        if queue["ContentBasedDeduplication"] != "true":
            raise bad_value(
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId "
                "provided explicitly"
            )
        made = sha256(said.message_body.encode()).hexdigest()
    messages.check_names(MessageGroupId=said.message_group_id, MessageDeduplicationId=made)
    record_id = messages.record_id(said.message_group_id, made) if queue.groups_apart else made
    return {**options, "key": said.message_group_id, "id": record_id}


def _told(said: Said, made: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "Id": said.id,
        "MessageId": made,
        "MD5OfMessageBody": messages.digest(said.message_body),
    }
    if said.message_attributes:
        found["MD5OfMessageAttributes"] = messages.digest_of(said.message_attributes)
    if said.message_system_attributes:
        found["MD5OfMessageSystemAttributes"] = messages.digest_of(said.message_system_attributes)
    return found


def _shown(lease: Lease[Message], said: Receive, queue: Queue) -> dict[str, Any]:
    msg = lease.record
    body, headers = msg.value.decode(errors="replace"), msg.headers_shown
    found: dict[str, Any] = {
        "MessageId": messages.id_of(headers, msg.ref),
        "ReceiptHandle": lease.token,
        "MD5OfBody": messages.digest(body),
        "Body": body,
    }
    names = [*said.attribute_names, *said.message_system_attribute_names]
    if names:
        found["Attributes"] = messages.wanted(names, _system(msg, queue))
    if said.message_attribute_names:
        given = messages.wanted(said.message_attribute_names, messages.attributes_of(headers))
        if given:
            found["MessageAttributes"] = msgspec.to_builtins(given)
            found["MD5OfMessageAttributes"] = messages.digest_of(given)
    return found


def _system(msg: Message, queue: Queue) -> dict[str, str]:
    sent_ms = str(unix_ms_of(msg.publish_time))
    found = {
        "SenderId": "gossipq",
        "SentTimestamp": sent_ms,
        "ApproximateReceiveCount": str(msg.attempt),
        "ApproximateFirstReceiveTimestamp": sent_ms,
    }
    if msg.key is not None:
        found["MessageGroupId"] = msg.key.decode(errors="replace")
    if queue.fifo:
        found["MessageDeduplicationId"] = messages.deduplication_of(msg.id or "")
        found["SequenceNumber"] = f"{msg.offset:020d}"
    trace = messages.attributes_of(msg.headers_shown, system=True).get("AWSTraceHeader")
    if trace is not None:
        found["AWSTraceHeader"] = trace.string_value or ""
    return found
