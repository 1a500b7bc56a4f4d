"""A worker's answers about itself: STATS, GROWTH, LIST_CLIENTS. They never walk records."""

from collections.abc import Collection, Sequence

from gossipq import limits
from gossipq.core.delivery import NUMBER_MAX, within
from gossipq.core.shard import Shard
from gossipq.errors import BadRequest
from gossipq.messages import Stats, StatsReply
from gossipq.operator_messages import Clients, Grown, Growth, ListClients
from gossipq.permissions import Rights
from gossipq.types import Now
from gossipq.values import ClientRow, GrowthRow, Message
from gossipq_node.actors.sessions import Session, Sessions
from gossipq_node.settings import WorkerSettings

QUESTIONS = (Stats, Growth, ListClients)
#: position before all shards, partitions and groups of STATS; likewise for GROWTH
BEGINNING = (-1, -1, -1)


def answer(
    request: Message,
    settings: WorkerSettings,
    shards: Collection[Shard],
    sessions: Sessions,
    now: Now,
    rights: Rights | None,
) -> StatsReply | Grown | Clients:
    """Answers one of the QUESTIONS; `shards` have the clocks of this turn. Lists come in pages and
    show only what the asker may see.

    Raises BadRequest for an impossible number.
    """
    if isinstance(request, Growth):
        return _growth(request, shards)
    if isinstance(request, ListClients):
        return _clients(request, settings, shards, sessions, now)
    assert isinstance(request, Stats), "one of the questions"
    return _stats(request, settings, shards, rights)


def _stats(
    request: Stats, settings: WorkerSettings, shards: Collection[Shard], rights: Rights | None
) -> StatsReply:
    """Rows are in the order of shards, partitions and groups, so that a shard that comes or goes
    between two pages moves no other row.
    """
    begin, *row = _after(request.after)
    topics, reply = frozenset(request.topics), StatsReply([], [])

    def shown(topic: str) -> bool:
        return (not topics or topic in topics) and (rights is None or rights.sees(topic))

    for shard in sorted(shards, key=lambda shard: shard.id):
        if shard.id < begin:
            continue
        # only the shard at which the last page ended continues; the others begin with their first row
        after = (row[0], row[1]) if shard.id == begin else (-1, -1)
        left = limits.LIST_ROWS_MAX - len(reply.partitions) - len(reply.groups)
        partitions, groups, last = shard.stats(settings.worker, shown, after, left)
        reply.partitions.extend(partitions)
        reply.groups.extend(groups)
        if last is not None:
            return StatsReply(reply.partitions, reply.groups, [shard.id, *last])
    return reply


def _after(after: list[int]) -> Sequence[int]:
    """Return the position where a page begins. Raises BadRequest."""
    if after and (len(after) != len(BEGINNING) or not all(-1 <= each <= NUMBER_MAX for each in after)):
        raise BadRequest(f"after = {after}", hint="pass the `more` value of the previous page")
    return after or BEGINNING


def _growth(request: Growth, shards: Collection[Shard]) -> Grown:
    """Rows in the order of shards, topics and times."""
    within("since_ms", request.since_ms, 0, NUMBER_MAX)
    begin, *row = _after(request.after)
    topics, rows = frozenset(request.topics), list[GrowthRow]()
    for shard in sorted(shards, key=lambda shard: shard.id):
        if shard.id < begin:
            continue
        after = (row[0], row[1]) if shard.id == begin else (-1, -1)
        found, last = shard.growth(request, topics, after, limits.LIST_ROWS_MAX - len(rows))
        rows += found
        if last is not None:
            return Grown(rows, [shard.id, *last])
    return Grown(rows)


def _clients(
    request: ListClients,
    settings: WorkerSettings,
    shards: Collection[Shard],
    sessions: Sessions,
    now: Now,
) -> Clients:
    rows: list[ClientRow] = []
    size = 0
    for session in sorted(sessions, key=lambda session: session.client.session):
        if _short(session) <= request.after:
            continue
        if len(rows) >= limits.LIST_ROWS_MAX or size >= limits.LIST_BYTES_MAX:
            return Clients(rows, rows[-1].session)
        rows.append(_client(session, settings, shards, now))
        # an estimate of the row in bytes: a page must fit into one control frame
        size += 400 + sum(100 + len(each.topic) + len(each.group.encode()) for each in rows[-1].subscriptions)
    return Clients(rows)


def _short(session: Session) -> bytes:
    return session.client.session[: limits.SESSION_SHOWN_BYTES]


def _client(session: Session, settings: WorkerSettings, shards: Collection[Shard], now: Now) -> ClientRow:
    consuming = [row for shard in shards for row in shard.subscriptions(session.client.session)]
    return ClientRow(
        session=_short(session),
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
        subscriptions=consuming[: limits.SUBSCRIPTIONS_LISTED_MAX],
        unlisted=max(0, len(consuming) - limits.SUBSCRIPTIONS_LISTED_MAX),
    )
