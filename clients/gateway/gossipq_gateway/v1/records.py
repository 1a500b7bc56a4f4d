"""Operations on records for applications: publish, fetch, settle, read."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.responses import Response

from gossipq.errors import BadRequest, GossipqError, LeaseLost
from gossipq_client import Receipt
from gossipq_client.aio import Client, Message
from gossipq_client.values import inputs
from gossipq_gateway import problems
from gossipq_gateway.callers import Caller
from gossipq_gateway.leases import Lease
from gossipq_gateway.manners import unless_gone
from gossipq_gateway.problems import Refusal
from gossipq_gateway.v1 import plain, shapes
from gossipq_gateway.v1.operation import JSON, NDJSON, Call, read

IDEMPOTENCY_KEY = "idempotency-key"
WAIT_S_MIN = 0.25  #: the leaders must be asked
WAIT_S_MAX = 60.0  #: longer polls are asked again
FIND_S_MAX = 20.0
CONFIRM_S = 10.0  #: for all of a list
COMPANY_S = 0.002  #: time to wait for records of other connections
READ_BYTES_MAX = 8 << 20  #: of values in one page

_slim_lines = msgspec.json.Decoder(shapes.Slim).decode_lines
_lines = msgspec.json.Decoder(shapes.Record).decode_lines


# --- publish


async def publish(call: Call) -> Any:
    """Publish records: one or several as JSON, one per line, or the bytes of one."""
    kind = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    topic, options = call.path["topic"], call.query
    again = call.request.headers.get(IDEMPOTENCY_KEY, "")
    if kind == NDJSON:
        receipt = await _publish_lines(call.caller.mq, topic, call.body, options, again)
    elif kind == JSON:
        if _is_list(call.body):
            records = read(shapes.Records, call.body).records
            receipt = await _publish_list(call.caller.mq, topic, records, options, again)
        else:
            receipt = await _publish_one(call.caller, topic, read(shapes.Record, call.body), options, again)
            return _created(call, receipt)
    else:
        given = _given(options, again)
        return _created(call, await _published(call.caller, topic, call.body, given))
    call.counters.published(receipt.count)
    return plain.stored_list(receipt)


def _is_list(body: bytes) -> bool:
    """True if the first name in the object is "records"."""
    return body[:64].lstrip().removeprefix(b"{").lstrip().startswith(b'"records"')


def _created(call: Call, receipt: Receipt) -> Response:
    call.counters.published()
    headers = {"location": f"/v1/records/{receipt.ref}"} if receipt.ref else {}
    status = 200 if receipt.duplicate else 201
    return Response(msgspec.json.encode(plain.stored(receipt)), status, headers, JSON)


def _given(options: shapes.Publish, again: str) -> dict[str, Any]:
    """Return the options of all records. The Idempotency-Key is the id of a single record."""
    given = plain.options_of(options, "header", "id")
    if options.header:
        given["headers"] = plain.headers_of(options.header)
    if options.id or again:
        given["id"] = options.id or again
    return given


async def _publish_one(
    caller: Caller, topic: str, record: shapes.Record, options: shapes.Publish, again: str
) -> Receipt:
    value, own = plain.published(record)
    return await _published(caller, topic, value, _given(options, again) | own)


async def _published(caller: Caller, topic: str, value: bytes, given: dict[str, Any]) -> Receipt:
    """Publish one record, and return when it is stored.

    Simultaneous records of several connections share a batch. A single one
    does not wait for others.
    """
    pending = caller.mq.post(topic, value, **given)
    caller.publishing += 1
    try:
        await asyncio.sleep(COMPANY_S if caller.publishing > 1 else 0)
        return await pending.result(CONFIRM_S)
    finally:
        caller.publishing -= 1


async def _publish_lines(mq: Client, topic: str, body: bytes, options: shapes.Publish, again: str) -> Receipt:
    try:
        records: Sequence[shapes.Slim] = _slim_lines(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        try:
            return await _publish_list(mq, topic, _lines(body), options, again)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadRequest(f"a line is not a record: {error}", hint='{"value": ...}, one a line') from None
    return await _publish_slim(mq, topic, records, options, again)


async def _publish_slim(
    mq: Client,
    topic: str,
    records: Sequence[shapes.Slim | shapes.Record],
    options: shapes.Publish,
    again: str,
) -> Receipt:
    """Publish records in one list, with one receipt."""
    if not records:
        raise BadRequest("there is no record in the body", hint='{"value": ...}, one a line')
    given = _given(options, "")
    _require_single(given)
    values = [plain.value_of(record.value) for record in records]
    keys, ids = [record.key for record in records], [record.id for record in records]
    delays = [record.delay for record in records]
    if any(key is not None for key in keys):
        common = given.pop("key", None)
        given["keys"] = [common if key is None else key for key in keys]
    if again:
        ids = [each or f"{again}/{at}" for at, each in enumerate(ids)]
    if any(each is not None for each in ids):
        given["ids"] = ids
    if any(delay is not None for delay in delays):
        common = given.pop("delay", None)
        given["delays"] = [common if delay is None else delay for delay in delays]
    pending = mq.post_many(topic, values, **given)
    return await pending.result(CONFIRM_S)


def _require_single(common: dict[str, Any]) -> None:
    """Raises BadRequest if the options of all records name one of them."""
    for name in ("id", "unique"):
        if name in common:
            hint = f"give each record its own {name}"
            raise BadRequest(f"one {name}= cannot be that of several records", hint=hint)


_SLIM = frozenset(shapes.Slim.__struct_fields__)
_MORE = tuple(name for name in shapes.Record.__struct_fields__ if name not in _SLIM)


def _is_slim(record: shapes.Record) -> bool:
    return all(getattr(record, name) in (None, "") for name in _MORE)


async def _publish_list(
    mq: Client, topic: str, records: Sequence[shapes.Record], options: shapes.Publish, again: str
) -> Receipt:
    """Publish records in order. If a record has options of its own, each record is posted by itself; the
    client still sends them together.
    """
    if all(map(_is_slim, records)):
        return await _publish_slim(mq, topic, records, options, again)
    common = _given(options, "")
    _require_single(common)
    pending = []
    for at, (value, own) in enumerate([plain.published(record) for record in records]):
        made = {"id": f"{again}/{at}"} if again else {}
        pending.append(mq.post(topic, value, **{**common, **made, **own}))
    receipts = [await each.result(CONFIRM_S) for each in pending]
    first = receipts[0]
    return Receipt(
        first.topic,
        first.partition,
        first.offset,
        first.ref,
        min(each.copies for each in receipts),
        all(each.duplicate for each in receipts),
        len(receipts),
        receipts,
        all(each.kept for each in receipts),
    )


# --- fetch and settle


async def fetch(call: Call) -> shapes.Deliveries:
    """Return records of a group, each with a lease for the caller."""
    body: shapes.Fetch = call.body
    caller, group = call.caller, call.path["group"]
    wait_s = max(WAIT_S_MIN, min(inputs.duration_ms(body.wait, "wait") / 1000, WAIT_S_MAX))
    lease_ms = inputs.duration_ms(body.lease, "lease", 1, 12 * 3_600_000)
    # the next fetch may come from another worker of the same user
    options = plain.options_of(body, "n", "wait", "lease", "start")
    if body.start is not None:
        options["start"] = plain.start_of(body.start)
    topics = tuple(call.path["topic"].split(","))
    fetching = caller.fetch(topics, group, body.n, wait_s, options)
    found = await unless_gone(call.request.receive, fetching) if wait_s > WAIT_S_MIN else await fetching
    until_ms = caller.now_ms() + lease_ms
    leases = [caller.leases.add(group, msg, until_ms, None) for msg in found]
    call.counters.delivered(len(found))
    return shapes.Deliveries(records=[plain.delivery(lease.record, lease.token) for lease in leases])


def _in_hand(call: Call) -> tuple[list[Lease[Message]], list[str], LeaseLost | None]:
    """Return valid leases, and the tokens of lost ones. Raises BadRequest."""
    found, lost = list[Lease[Message]](), list[str]()
    why: LeaseLost | None = None
    for token in dict.fromkeys(call.body.leases):
        try:
            found.append(call.caller.leases.find(token))
        except LeaseLost as error:
            lost.append(token)
            why = why or error
    return found, lost, why


def _settled(settled: int, lost: list[str], why: GossipqError | None) -> Any:
    """Return the answer; if all are lost it is a conflict."""
    if not settled and why is not None:
        return problems.response(problems.problem(why, lost))
    return shapes.Settled(settled=settled, lost=lost)


async def ack(call: Call) -> Any:
    """Ack records. Returns when the acks are stored. Repeating it is harmless."""
    caller = call.caller
    again = sum(map(caller.leases.was_acked, dict.fromkeys(call.body.leases)))
    found, lost, why = _in_hand(call)
    lost = [token for token in lost if not caller.leases.was_acked(token)]
    if call.body.result is not None:
        for lease in found:
            lease.record.ack_soon(call.body.result)
    acked, late = await caller.ack(found)
    lost += [lease.token for lease in found if lease not in acked]
    call.counters.acked(len(acked))
    return _settled(len(acked) + again, lost, why or late)


async def nack(call: Call) -> Any:
    """Count the attempts as failed: the records are redelivered."""
    found, lost, why = _in_hand(call)
    for lease in found:
        await lease.record.nack(call.body.delay, call.body.reason)
        call.caller.leases.drop(lease)
    return _settled(len(found), lost, why)


async def reject(call: Call) -> Any:
    """Make the records dead letters, without further attempts."""
    found, lost, why = _in_hand(call)
    for lease in found:
        await lease.record.reject(call.body.reason)
        call.caller.leases.drop(lease)
    return _settled(len(found), lost, why)


async def extend(call: Call) -> Any:
    """Extend leases."""
    lease_ms = inputs.duration_ms(call.body.lease, "lease", 1, 12 * 3_600_000)
    found, lost, why = _in_hand(call)
    for lease in found:
        call.caller.leases.extend(lease, call.caller.now_ms() + lease_ms)
    return _settled(len(found), lost, why)


# --- read


async def read_range(call: Call) -> shapes.Page:
    """Read records between two positions, by partition, without a group:
    nothing is leased or acked.
    """
    asked: shapes.Read = call.query
    mq, topic = call.caller.mq, call.path["topic"]
    spans = await mq.topic(topic).positions(plain.start_of(asked.start))
    ends = {number: span.end for number, span in spans.items()}
    if asked.end is not None:
        stops = await mq.topic(topic).positions(plain.start_of(asked.end))
        ends = {number: min(end, stops[number].first) for number, end in ends.items()}
    wanted = sorted(spans) if asked.partition is None else [asked.partition]
    if asked.partition is not None and asked.partition not in spans:
        raise BadRequest(f"topic {topic} has partitions 0 to {len(spans) - 1}, not {asked.partition}")
    found, places, size = list[shapes.Delivery](), {number: spans[number].first for number in wanted}, 0
    for number in wanted:
        while len(found) < asked.n and size < READ_BYTES_MAX and places[number] < ends[number]:
            first, end = places[number], min(places[number] + asked.n - len(found), ends[number])
            stretches = mq.read(topic, start=first, end=end).batches(number)
            async for stretch in stretches:
                found += plain.deliveries_of(stretch)
                size += sum(map(len, stretch.values()))
                places[number] = stretch.end
                if size >= READ_BYTES_MAX:
                    await stretches.aclose()  # type: ignore[attr-defined]
                    break
            else:
                places[number] = end
    call.counters.delivered(len(found))
    return shapes.Page(records=found, next={str(number): place for number, place in places.items()})


async def find(call: Call) -> shapes.Deliveries:
    """Find records by key, by a text in their value, and by headers."""
    asked: shapes.Find = call.query
    found = call.caller.mq.read(
        call.path["topic"],
        start=plain.start_of(asked.start),
        end=None if asked.end is None else plain.start_of(asked.end),
    ).where(key=asked.key, contains=asked.contains, headers=plain.headers_of(asked.header), limit=asked.n)
    try:
        async with asyncio.timeout(FIND_S_MAX):
            return shapes.Deliveries(records=[plain.delivery(msg) async for msg in found])
    except TimeoutError:
        told, hint = (
            f"the search was not over within {FIND_S_MAX:g} s",
            "search less at a time: start=, end=, n=",
        )
        raise Refusal(504, "too_slow", told, hint) from None
