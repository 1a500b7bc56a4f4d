"""What a worker tells of itself: STATS, GROWTH, LIST_CLIENTS. It never walks records."""

from collections.abc import Collection

from gossipq import limits
from gossipq.core.delivery import NUMBER_MAX, within
from gossipq.core.shard import Shard
from gossipq.errors import BadRequest
from gossipq.messages import Stats, StatsReply
from gossipq.operator_messages import Clients, Grown, Growth, ListClients
from gossipq.types import Now, SessionId
from gossipq.values import ClientRow, Consuming, Message
from gossipq.wire.frames import encode
from gossipq_node.actors.sessions import Sessions
from gossipq_node.settings import WorkerSettings

QUESTIONS = (Stats, Growth, ListClients)


def answer(
    request: Message, settings: WorkerSettings, shards: Collection[Shard], sessions: Sessions, now: Now
) -> StatsReply | Grown | Clients:
    """Of one of the QUESTIONS; `shards` have the clocks of this turn.

    Raises BadRequest: a number that cannot be, or an answer that would be too large."""
    if isinstance(request, Growth):
        return _growth(request, shards)
    if isinstance(request, ListClients):
        clients = _clients(settings, shards, sessions, now)
        _check_size(
            clients,
            f"{len(clients.rows)} clients",
            "close those that are not needed; gossipq top counts them",
        )
        return clients
    assert isinstance(request, Stats), "one of the questions"
    counted = _stats(request, settings, shards)
    what = f"{len(counted.partitions)} rows of partitions and {len(counted.groups)} of groups"
    _check_size(counted, what, "name fewer topics, and ask again for the others")
    return counted


def _check_size(reply: StatsReply | Clients, what: str, hint: str) -> None:
    """Who asked could not read it. Raises BadRequest."""
    if (size := len(encode(reply))) > limits.CONTROL_BYTES_MAX:
        raise BadRequest(f"{what} are {size} bytes; {limits.CONTROL_BYTES_MAX} go in one answer", hint=hint)


def _stats(request: Stats, settings: WorkerSettings, shards: Collection[Shard]) -> StatsReply:
    topics = frozenset(request.topics)
    parts = [shard.stats(settings.worker, topics) for shard in shards]
    return StatsReply([row for rows, _ in parts for row in rows], [row for _, rows in parts for row in rows])


def _growth(request: Growth, shards: Collection[Shard]) -> Grown:
    within("since_ms", request.since_ms, 0, NUMBER_MAX)
    rows = [row for shard in shards for row in shard.growth(request)]
    if len(rows) > limits.GROWTH_ROWS_MAX:
        hint = "name fewer topics, or a later time"
        raise BadRequest(f"{len(rows)} rows of growth; {limits.GROWTH_ROWS_MAX} in one answer", hint=hint)
    return Grown(rows)


def _clients(settings: WorkerSettings, shards: Collection[Shard], sessions: Sessions, now: Now) -> Clients:
    consuming: dict[SessionId, list[Consuming]] = {}
    for shard in shards:
        for owner, row in shard.subscriptions():
            consuming.setdefault(owner, []).append(row)
    return Clients(
        [
            ClientRow(
                session=session.client.session,
                client=session.name,
                version=session.version,
                node=settings.node,
                worker=settings.worker,
                connections=len(session.origins),
                age_ms=now.boot_ms - session.since_ms,
                silent_ms=now.boot_ms - session.last_ms,
                batches=session.batches,
                published=session.published,
                bytes=session.bytes,
                subscriptions=consuming.get(session.client.session, []),
            )
            for session in sessions
        ]
    )
