"""Ends of a topic, and positions of a group that keeps its own: talks for readers such as Spark."""

from collections.abc import Collection, Iterable, Mapping

from gossipq import limits
from gossipq.errors import BadRequest
from gossipq.messages import Ack, AckDelivered, Acked, Subscribe, Subscribed, Unsubscribe
from gossipq.types import Offset, PartitionKey, ShardId, partition_key, partition_of
from gossipq.values import Start, TopicInfo
from gossipq_client import answers
from gossipq_client.operations.questions import PROBE_NUMBERS, Asking, Talk
from gossipq_client.session import Session
from gossipq_client.values import inputs


def positions(asking: Asking, topic: str, start: tuple[str, int]) -> "Talk[dict[int, answers.Span]]":
    """For each partition, where a reader would start, and one past its last record. Raises
    NotFound.
    """
    found = yield from asking.spans([(yield from asking.topic(topic))], start)
    return {partition_of(key): span for key, span in sorted(found.items())}


def ack_below(
    asking: Asking, session: Session, topic: str, group: str, ends: Mapping[int, Offset]
) -> Talk[None]:
    """Acks all records below these offsets for a group, except those that its consumers hold. A new
    group begins at the first record.

    It uses a subscription without credit, and acks records that were never delivered
    to it. Raises BadRequest.
    """
    if not group:
        raise BadRequest("no group named", hint="gossipq group ls TOPIC")
    info = yield from asking.topic(topic)
    for number, end in ends.items():
        inputs.whole(number, "partition", 0, len(info.shards) - 1)
        inputs.whole(end, "offset", 0, inputs.OFFSET_END - 1)
    for shard, keys in _by_shard(info, ends).items():
        number = PROBE_NUMBERS + session.links.next_id()
        request = Subscribe(number, group, [Start(key) for key in keys], 0, 0)
        here = (yield from asking.ask(request, shard, Subscribed)).ends
        stops = {key: min(end, ends[partition_of(key)]) for key, _, end in here}
        ranges = [(key, position, stops[key]) for key, position, _ in here if position < stops[key]]
        if ranges:
            yield from asking.ask(Ack(number, ranges, unseen=True), shard, Acked)
        yield from asking.ask(Unsubscribe(number), shard, Acked)


def ack_delivered(
    asking: Asking, topic: str, group: str, deliveries: "Collection[answers.Delivery]"
) -> "Talk[set[answers.Delivery]]":
    """Ack deliveries for a group, whichever clients got them. Returns those that are no longer
    valid. Their record was delivered again, is a dead letter, was never delivered, or belongs to an
    earlier topic of this name. Raises NotFound, BadRequest.
    """
    info = yield from asking.topic(topic)
    places: dict[int, list[answers.Delivery]] = {}
    late = set(deliveries)
    for each in late:
        if each.topic_id == info.id and 0 <= each.partition < len(info.shards):
            places.setdefault(each.partition, []).append(each)
    for number, found in places.items():
        for at in range(0, len(found), limits.MOVED_RANGES_MAX):
            some = found[at : at + limits.MOVED_RANGES_MAX]
            names = [(each.offset, each.attempt) for each in some]
            request = AckDelivered(partition_key(info.id, number), group, names)
            answer = yield from asking.ask(request, info.shards[number], Acked)
            lost = {first for _, first, _ in answer.lost}
            late -= {each for each in some if each.offset not in lost}
    return late


def _by_shard(info: TopicInfo, numbers: Iterable[int]) -> dict[ShardId, list[PartitionKey]]:
    shards: dict[ShardId, list[PartitionKey]] = {}
    for number in numbers:
        shards.setdefault(info.shards[number], []).append(partition_key(info.id, number))
    return shards
