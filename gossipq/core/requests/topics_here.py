"""Topics that have partitions in a shard, as the register tells them; and those that it has not told yet."""

from gossipq import limits
from gossipq.core.delivery import NUMBER_MAX, within
from gossipq.core.desk import Desk, Request
from gossipq.core.ledger import Ledger
from gossipq.core.storage import log, payloads
from gossipq.errors import BadRequest, Busy, GossipqError, UnknownTopic, WrongShard
from gossipq.peer_messages import AskTopic, InstallTopic, TopicInstalled
from gossipq.types import META_SHARD, PARTITION_BITS, PartitionKey, partition_of, topic_id_of

TOPIC_ASK_MS = 200
TOPIC_ID_MAX = NUMBER_MAX >> PARTITION_BITS
GONE, ELSEWHERE = -1, -2  #: in place of a time: the topic does not exist; it has no partition in this shard


class TopicsHere:
    def __init__(self, desk: Desk, ledger: Ledger) -> None:
        self._desk, self._ledger = desk, ledger
        self._asked: dict[int, int] = {}  # topic id -> boot time of the last AskTopic, GONE or ELSEWHERE

    def unknown(self, partition: PartitionKey) -> GossipqError:
        """Return the error for a topic that this shard has not logged. If the register was not asked
        lately, ask it; the client tries again."""
        topic_id = topic_id_of(partition)
        asked_ms = self._asked.get(topic_id, 0)
        known = self._ledger.topics.get(topic_id)
        if asked_ms == ELSEWHERE or (known is not None and partition_of(partition) < len(known.shards)):
            text = (
                f"partition {partition_of(partition)} of the topic with id {topic_id} is not in shard "
                f"{self._desk.shard}"
            )
            return WrongShard(text, hint="resolve the topic's name: it tells the shard of each partition")
        if (
            not 0 < topic_id <= TOPIC_ID_MAX
            or asked_ms == GONE
            or known is not None
            or self._ledger.removed(topic_id)
        ):
            text = (
                f"no topic with id {topic_id} has partition {partition_of(partition)} in shard "
                f"{self._desk.shard}"
            )
            return UnknownTopic(text, hint="resolve its name again")
        if self._desk.boot_ms - asked_ms >= TOPIC_ASK_MS:
            if len(self._asked) > limits.TOPICS_MAX:
                self._asked.clear()
            self._asked[topic_id] = self._desk.boot_ms
            self._desk.tell(META_SHARD, AskTopic(topic_id, self._desk.shard))
        return Busy(f"the topic with id {topic_id} is not known here yet", retry_after_ms=20)

    def serve(self, request: Request) -> None:
        """Log a topic that the register announces or removes, and confirm it to the register. Raises
        BadRequest."""
        message: InstallTopic = request.message
        info, deleted = message.topic, message.deleted
        within("topic id", info.id, 1, TOPIC_ID_MAX)
        known, removed = self._ledger.topics.get(info.id), self._ledger.removed(info.id)
        if known is not None and info.name not in ("", known.name):
            # the register lost its newest entries, and uses their ids again
            if not deleted:
                raise BadRequest(
                    f"topic {info.name!r} has the id of {known.name!r}, which is here and in no register",
                    hint="give it another name: that gets another id",
                )
            self._desk.tell(META_SHARD, TopicInstalled(info.id, -info.id, self._desk.shard))
        elif deleted and not removed and (known is not None or self._desk.shard in info.shards):
            self._desk.propose(log.TOPIC, payloads.encode(payloads.TopicChange(known or info, deleted)))
        elif deleted:
            self._asked[info.id] = ELSEWHERE if info.shards and not removed else GONE
            self._desk.tell(META_SHARD, TopicInstalled(info.id, -info.id, self._desk.shard))
        elif removed:
            pass  # said before the topic was removed, and late
        elif known is not None and known.version >= info.version:
            self._desk.tell(META_SHARD, TopicInstalled(info.id, known.version, self._desk.shard))
        else:
            if len(info.shards) > limits.PARTITIONS_MAX or (
                known is not None and known.shards != info.shards
            ):
                raise BadRequest(
                    f"topic {info.name!r} with other partitions",
                    hint="partitions are chosen when a topic is made",
                )
            self._desk.propose(log.TOPIC, payloads.encode(payloads.TopicChange(info)))
