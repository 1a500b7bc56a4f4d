"""Metrics of a node in the Prometheus text format. The counters are kept elsewhere.

Stored counters have the partition as a label. So a partition that moves to another node does not
look like a counter that was reset.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gossipq.health import State, of_node
from gossipq.limits import TIMING_BOUNDS_US
from gossipq.messages import StatsReply, StatusReply
from gossipq.types import partition_of
from gossipq.values import Alarm, GroupStats, PartitionStats, Timing, WorkerStats

CONTENT_TYPE = CONTENT_TYPE_LATEST
DURATIONS = {
    "publish": ("gossipq_publish_duration_seconds", "Time of a batch from arrival to confirm"),
    "delivery": (
        "gossipq_delivery_duration_seconds",
        "Time of a slice from being stored to its first delivery",
    ),
    "commit": ("gossipq_commit_duration_seconds", "Time of one transaction of a store, with its fsync"),
}
OF_PARTITION = (
    (CounterMetricFamily, "gossipq_messages_published", "Records stored", "published"),
    (CounterMetricFamily, "gossipq_messages_removed", "Records that left by retention or purge", "removed"),
    (GaugeMetricFamily, "gossipq_topic_messages", "Records that can be read", "records"),
    (GaugeMetricFamily, "gossipq_topic_bytes", "Bytes of stored batches", "bytes"),
    (GaugeMetricFamily, "gossipq_topic_scheduled_messages", "Records that are not due", "scheduled"),
)
OF_GROUP = (
    (
        CounterMetricFamily,
        "gossipq_messages_delivered",
        "Records delivered since this leader serves",
        "delivered",
    ),
    (
        CounterMetricFamily,
        "gossipq_messages_redelivered",
        "Deliveries of a record after its first one",
        "redelivered",
    ),
    (CounterMetricFamily, "gossipq_messages_acked", "Records acked", "acked"),
    (CounterMetricFamily, "gossipq_messages_dropped", "Records that expired and were dropped", "dropped"),
    (
        GaugeMetricFamily,
        "gossipq_group_lag_messages",
        "Published and not done: ready, in flight, retrying, parked",
        "lag",
    ),
    (GaugeMetricFamily, "gossipq_group_ready_messages", "Records that can be delivered now", "ready"),
    (
        GaugeMetricFamily,
        "gossipq_group_behind_limit_messages",
        "Of ready: as many records are in flight as a limit allows",
        "behind_limit",
    ),
    (
        GaugeMetricFamily,
        "gossipq_group_behind_rate_messages",
        "Of ready: they wait for a rate",
        "behind_rate",
    ),
    (GaugeMetricFamily, "gossipq_group_in_flight_messages", "Delivered and not acked", "in_flight"),
    (
        GaugeMetricFamily,
        "gossipq_group_retrying_messages",
        "Failed, waiting for the next attempt",
        "retrying",
    ),
    (
        GaugeMetricFamily,
        "gossipq_group_parked_messages",
        "Waiting for their key or for a consumer of their route",
        "parked",
    ),
    (GaugeMetricFamily, "gossipq_group_dead_letters", "Dead letters that are kept", "dead"),
    (
        GaugeMetricFamily,
        "gossipq_group_oldest_unacked_seconds",
        "Age of the oldest record that is not done",
        "oldest",
    ),
    (GaugeMetricFamily, "gossipq_group_consumers", "Subscriptions", "consumers"),
    (
        GaugeMetricFamily,
        "gossipq_group_unaccounted_messages",
        "Records that the counters miss; a value other than 0 is a fault",
        "unaccounted",
    ),
)
OF_WORKER = (
    (CounterMetricFamily, "gossipq_commits", "Transactions of the store", "commits"),
    (CounterMetricFamily, "gossipq_turns", "Turns of the loop", "turns"),
    (CounterMetricFamily, "gossipq_requests_refused", "Requests refused", "refused"),
    (
        CounterMetricFamily,
        "gossipq_faults",
        "Requests and parts of turns that failed by a fault of the node",
        "faults",
    ),
    (
        CounterMetricFamily,
        "gossipq_connections_turned_away",
        "Connections that were closed: idle among many, endless messages, or beyond a limit",
        "turned_away",
    ),
    (
        CounterMetricFamily,
        "gossipq_requests_over_quota",
        "Requests beyond the rates that an address may use",
        "over_quota",
    ),
    (CounterMetricFamily, "gossipq_bad_frames", "Messages that could not be read", "bad_frames"),
    (
        CounterMetricFamily,
        "gossipq_messages_dropped_sends",
        "Messages to receivers that were gone or did not read",
        "dropped",
    ),
    (
        CounterMetricFamily,
        "gossipq_messages_dead",
        "Records that became dead letters since the worker started",
        "dead",
    ),
    (GaugeMetricFamily, "gossipq_store_bytes", "Bytes of the store's file", "store_bytes"),
    (GaugeMetricFamily, "gossipq_disk_free_bytes", "Bytes free on the disk of the store", "disk_free_bytes"),
    (
        GaugeMetricFamily,
        "gossipq_disk_reserve_bytes",
        "Free bytes at which publishes are refused",
        "disk_reserve_bytes",
    ),
    (
        GaugeMetricFamily,
        "gossipq_worker_silent_seconds",
        "Time since the worker reported to its node",
        "silent_seconds",
    ),
    (GaugeMetricFamily, "gossipq_sessions", "Client sessions", "sessions"),
    (GaugeMetricFamily, "gossipq_shards_led", "Shards that this worker leads", "leading"),
)

OF_FRONTDOOR = (
    ("gossipq_frontdoor_bad_frames", "Messages that the frontdoor could not read", "bad_frames"),
    ("gossipq_frontdoor_faults", "Messages that met a fault of the frontdoor", "faults"),
    (
        "gossipq_frontdoor_requests_over_quota",
        "Requests at the frontdoor beyond the rates that an address may use",
        "over_quota",
    ),
    (
        "gossipq_frontdoor_connections_turned_away",
        "Connections to the frontdoor that were closed: idle among many, endless messages, or beyond a limit",
        "turned_away",
    ),
)


def exposition(
    status: StatusReply,
    timings: dict[int, list[Timing]],
    alarms: list[Alarm],
    stats: StatsReply | None,
    moves: int = 0,
    queued: int = 0,
) -> bytes:
    """Return the text. Without an answer of the workers, `stats` is None.

    `moves` counts changes of leaders. `queued` are waiting messages of gossip.
    """
    # A registry for each scrape: the counts come from the processes of the node, which keep them. The
    # default registry would add the metrics of this Python process to them.
    registry = CollectorRegistry()
    rebalances = CounterMetricFamily(
        "gossipq_rebalances", "Changes of leaders that this node saw since its start", value=moves
    )
    queue = GaugeMetricFamily(
        "gossipq_gossip_event_queue", "Messages of gossip that wait to be sent", value=queued
    )
    registry.register(_Known([rebalances, queue, *_families(status, timings, alarms, stats)]))
    return generate_latest(registry)


class _Known:
    """A collector of metrics that are made already. The registry asks a collector for them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _families(
    status: StatusReply, timings: dict[int, list[Timing]], alarms: list[Alarm], stats: StatsReply | None
) -> Iterator[Metric]:
    yield from _of_node(status, alarms, stats is not None)
    for family, name, text, field in OF_WORKER:
        metric = family(name, text, labels=["worker"])
        for worker in status.workers:
            value = worker.silent_ms / 1_000 if field == "silent_seconds" else getattr(worker, field)
            metric.add_metric([str(worker.worker)], value)
        yield metric
    yield _behind(status)
    yield _health(status)
    for kind, (name, text) in DURATIONS.items():
        yield _histogram(name, text, kind, timings)
    if stats is not None:
        yield from _of_partitions(stats.partitions)
        yield from _of_groups(stats.groups)


def _of_node(status: StatusReply, alarms: list[Alarm], complete: bool) -> Iterator[Metric]:
    # Prometheus has no text values, so each text is the label of a metric that is always 1
    build = {
        "version": status.version,
        "node": status.node,
        "cluster": status.cluster_name,
        "mode": status.mode,
    }
    yield InfoMetricFamily("gossipq_build", "What runs here", value=build)
    for name, text, value in (
        ("gossipq_uptime_seconds", "Since the node started", status.uptime_ms / 1_000),
        ("gossipq_shards", "Shards of the cluster", status.shards),
        ("gossipq_shards_with_leader", "Shards that some node was last known to lead", len(status.leads)),
        (
            "gossipq_shards_without_leader",
            "Shards of which a copy here knows no leader",
            sum(len(worker.leaderless) for worker in status.workers),
        ),
        (
            "gossipq_copies_behind",
            "Copies of the shards led here that are not in sync",
            sum(not c.synced for c in status.copies),
        ),
        (
            "gossipq_gossip_degraded",
            "Whether the Serf agent of the node is not well",
            int(status.gossip not in ("", "off")),
        ),
        ("gossipq_scrape_complete", "Whether the workers answered this scrape", int(complete)),
    ):
        yield GaugeMetricFamily(name, text, value=value)
    for name, text, field in OF_FRONTDOOR:
        yield CounterMetricFamily(name, text, value=getattr(status, field))
    restarts = CounterMetricFamily(
        "gossipq_actor_restarts", "Processes of the node that were started again", labels=["role"]
    )
    # a worker whose disk is full still serves acks, deletes and consumers
    ready = GaugeMetricFamily("gossipq_actor_ready", "Whether it serves", labels=["role"])
    for worker in status.workers:
        restarts.add_metric([_role(worker)], worker.restarts)
        ready.add_metric([_role(worker)], int(worker.state in ("ready", "full")))
    yield restarts
    yield ready
    members = GaugeMetricFamily("gossipq_cluster_members", "Nodes, by state on the roster", labels=["status"])
    states = [("witness " if member.witness else "") + member.state for member in status.members]
    for state in sorted(set(states)):
        members.add_metric([state], states.count(state))
    yield members
    raised = GaugeMetricFamily(
        "gossipq_alarm", "Alarms that are raised now", labels=["name", "severity", "subject"]
    )
    for each in alarms:
        raised.add_metric([each.name, each.severity, each.subject], 1)
    yield raised


def _behind(status: StatusReply) -> Metric:
    names = {member.copy: member.name for member in status.members}
    metric = GaugeMetricFamily(
        "gossipq_follower_behind_entries",
        "Log entries that a node lacks of the shards led here",
        labels=["follower"],
    )
    # one series for each node, not for each copy: a node is slow or silent as a whole, and shards are many
    behind: dict[str, int] = {}
    for row in status.copies:
        if row.role != "leader":
            name = names.get(row.copy, row.copy)
            behind[name] = behind.get(name, 0) + row.behind
    for name, entries in sorted(behind.items()):
        metric.add_metric([name], entries)
    return metric


def _health(status: StatusReply) -> Metric:
    metric = GaugeMetricFamily(
        "gossipq_health", "1 for the word that holds for this node, 0 for the others", labels=["state"]
    )
    now = of_node(status).state
    for state in State:
        metric.add_metric([state], int(state is now))
    return metric


def _role(worker: WorkerStats) -> str:
    return f"worker-{worker.worker}"


def _histogram(name: str, text: str, kind: str, timings: dict[int, list[Timing]]) -> Metric:
    metric = HistogramMetricFamily(name, text, labels=["worker"])
    bounds = [*(str(bound / 1_000_000) for bound in TIMING_BOUNDS_US), "+Inf"]
    for worker, rows in sorted(timings.items()):
        for row in rows:
            # counts of other bounds would be wrong under these
            if row.name == kind and len(row.counts) == len(bounds):
                # workers count each bucket alone; a bucket of Prometheus has all counts below its bound
                below, buckets = 0, []
                for bound, count in zip(bounds, row.counts, strict=True):
                    below += count
                    buckets.append((bound, below))
                metric.add_metric([str(worker)], buckets, row.sum_us / 1_000_000)
    return metric


def _of_partitions(rows: list[PartitionStats]) -> Iterator[Metric]:
    # by worker, since partitions that are led unevenly show as one busy process
    led: dict[int, int] = {}
    for row in rows:
        led[row.worker] = led.get(row.worker, 0) + 1
    partitions = GaugeMetricFamily(
        "gossipq_partitions_led", "Partitions that this worker leads", labels=["worker"]
    )
    for worker, count in sorted(led.items()):
        partitions.add_metric([str(worker)], count)
    yield partitions
    for family, name, text, field in OF_PARTITION:
        metric = family(name, text, labels=["topic", "partition"])
        for row in rows:
            value = row.next - row.first if field == "records" else getattr(row, field)
            metric.add_metric([row.topic, str(partition_of(row.partition))], value)
        yield metric


def _of_groups(rows: list[GroupStats]) -> Iterator[Metric]:
    for family, name, text, field in OF_GROUP:
        metric = family(name, text, labels=["topic", "group", "partition"])
        for row in rows:
            metric.add_metric(
                [row.topic, row.group, str(partition_of(row.partition))], _group_value(row, field)
            )
        yield metric


def _group_value(row: GroupStats, field: str) -> float:
    if field == "lag":
        return row.ready + row.in_flight + row.retrying + row.parked
    if field == "oldest":
        return row.oldest_ms / 1_000
    value: int = getattr(row, field)
    return value
