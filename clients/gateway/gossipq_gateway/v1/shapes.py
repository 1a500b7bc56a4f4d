"""Requests and answers of the native HTTP API, as JSON. OpenAPI is made from these structs.

Durations are seconds, or text such as "5s". Times are RFC 3339 with a zone, or seconds since 1970.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gossipq import limits

# without `pattern`: structs with one can crash the interpreter at exit (msgspec 0.22)
Duration = Annotated[float, Meta(ge=0)] | Annotated[str, Meta(description='as "500ms", "5s", "1h30m"')]
Time = datetime | Annotated[float, Meta(ge=0)]
Start = Annotated[str, Meta(description='"first", "new", an offset, RFC 3339, or "-10m"')]
Base64 = Annotated[str, Meta(description="standard base64")]
Count = Annotated[int, Meta(ge=1, le=10_000)]
Whole = Annotated[int, Meta(ge=0, le=2**53)]
Text = Annotated[str, Meta(min_length=1)]
Mode = Literal["shared", "exclusive", "key_ordered"]
Order = Literal["arrival", "priority", "fair"]
FLOWS_MAX = 100  #: a node lists no more flows
Level = Literal["stored", "none"]
Conflict = Literal["keep", "replace", "error"]
Missed = Literal["none", "last", "all"]
Overlap = Literal["allow", "skip", "replace"]


class Shape(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Unknown fields are refused, because a misspelt option would be ignored otherwise."""


class Slim(Shape, kw_only=True):
    """The usual fields of a record in a list. Lines with only these are
    published together cheaply.
    """

    value: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    key: str | None = None
    id: Text | None = None
    delay: Duration | None = None


class RecordOptions(Shape, kw_only=True):
    """Options of a record of any kind; `gossipq.record_options` declares them."""

    route: str = ""
    ttl: Duration | None = None
    lease: Duration | None = None
    attempts_max: Annotated[int, Meta(ge=1, le=limits.ATTEMPTS_HARD_MAX)] | None = None
    backoff: Duration | None = None
    partition: Annotated[int, Meta(ge=0, le=limits.PARTITIONS_MAX)] | None = None
    flow: str | None = None
    priority: Annotated[int, Meta(ge=0, le=limits.PRIORITY_MAX)] | None = None
    keep_result: Duration | None = None


class PublishOptions(RecordOptions, kw_only=True):
    """Options of a record that is published."""

    key: str | None = None
    id: Text | None = None
    delay: Duration | None = None
    at: Time | None = None
    level: Level | None = None
    unique: Text | None = None
    until: Duration | None = None
    conflict: Conflict | None = None


class Record(PublishOptions, kw_only=True):
    """A record to publish. `value` is text, or other JSON, which is stored unchanged.
    Bytes go into `value_base64`, `key_base64`, `headers_base64`, `id_base64`; a header in
    both fields counts as bytes.
    """

    value: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    value_base64: Base64 | None = None
    key_base64: Base64 | None = None
    headers: dict[str, str] | None = None
    headers_base64: dict[str, Base64] | None = None
    id_base64: Base64 | None = None


class Records(Shape, kw_only=True):
    """Several records, published in order."""

    records: Annotated[list[Record], Meta(min_length=1, max_length=100_000)]


class Publish(PublishOptions, kw_only=True):
    """Options of a publish of raw bytes, or of all lines. `header` is
    NAME:VALUE and can be repeated.
    """

    header: list[str] = []


class Stored(Shape, kw_only=True, omit_defaults=False):
    """A stored record, or `count` records from it on, on `copies` disks. `offset` is -1 while it is
    scheduled; `ref` always names it. `kept`: this record has the unique name, and the one of the
    request was not stored.
    """

    topic: str
    partition: int
    offset: int
    ref: str
    copies: int
    duplicate: bool
    count: int = 1
    kept: bool | msgspec.UnsetType = msgspec.UNSET


class StoredList(Shape, kw_only=True, omit_defaults=False):
    """All records of a list, in runs of neighbours."""

    count: int
    copies: int
    duplicate: bool
    receipts: list[Stored]


class Delivery(Shape, kw_only=True):
    """A delivered record: value, key and id as text, or as base64 if they are not UTF-8.
    `headers` has texts, `headers_base64` has headers published as bytes. `lease` is the token for
    ack, nack, reject and extend.
    """

    topic: str
    partition: int
    offset: int
    ref: str
    attempt: int = 0
    publish_time: float = 0.0
    value: str | UnsetType = UNSET
    value_base64: Base64 | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_base64: Base64 | UnsetType = UNSET
    headers: dict[str, str] = {}
    headers_base64: dict[str, Base64] = {}
    route: str = ""
    id: str = ""
    id_base64: Base64 | UnsetType = UNSET
    lease: str = ""


class Deliveries(Shape, kw_only=True, omit_defaults=False):
    records: list[Delivery]


class Page(Shape, kw_only=True, omit_defaults=False):
    """Records of a range, and the next offset of each partition for further requests."""

    records: list[Delivery]
    next: dict[str, int]


class ConsumePolicy(Shape, kw_only=True):
    """Policies of a group that a consumer can name; they hold for all its consumers."""

    mode: Mode | None = None
    attempts_max: Annotated[int, Meta(ge=1, le=limits.ATTEMPTS_HARD_MAX)] | None = None
    backoff: Duration | list[Duration] | None = None
    order: Order | None = None
    weights: dict[str, Annotated[int, Meta(ge=1, le=limits.FLOW_WEIGHT_MAX)]] | None = None
    concurrency: Whole | None = None
    flow_concurrency: Whole | None = None
    rate: str | None = None
    flow_rate: str | None = None
    flow_backlog: Whole | None = None
    age_after: Duration | None = None


class Fetch(ConsumePolicy, kw_only=True):
    """Returns as soon as a record exists, and an empty list after `wait`. The caller
    holds each record for `lease`. The other options are policies of the group, and so
    hold for all its consumers.
    """

    n: Count = 1
    wait: Duration = 0.0
    lease: Duration = 30.0
    start: Start | None = None
    route: str | list[str] | None = None
    create: bool = True  #: a missing topic


class Settle(Shape, kw_only=True):
    """Leases of processed records: `leases` are tokens of this caller."""

    leases: Annotated[list[str], Meta(min_length=1, max_length=10_000)]


class Ack(Settle, kw_only=True):
    """Leases of processed records. `result` is text or other JSON, of each record whose publisher asked for
    it by `keep_result`.
    """

    result: Any = None


class Nack(Settle, kw_only=True):
    """Leases of failed records, which are redelivered after `delay`, or
    after the group's backoff.
    """

    delay: Duration | None = None
    reason: str = ""


class Reject(Settle, kw_only=True):
    """Leases of records that failed for good and become dead letters."""

    reason: str = ""


class Extend(Settle, kw_only=True):
    """Leases to extend by this time from now, up to 12 h in total."""

    lease: Duration


class Settled(Shape, kw_only=True, omit_defaults=False):
    """The number of settled records. `lost` are leases that had ended:
    those records are redelivered.
    """

    settled: int
    lost: list[str] = []


class Read(Shape, kw_only=True):
    start: Start = "first"
    end: Start | None = None
    partition: Annotated[int, Meta(ge=0, le=limits.PARTITIONS_MAX)] | None = None
    n: Count = 100


class Stream(Shape, kw_only=True):
    """`order=time` merges all partitions by publish time."""

    start: Start = "new"
    route: str = ""
    order: Literal["time"] | None = None


class Find(Shape, kw_only=True):
    start: Start = "first"
    end: Start | None = None
    key: str | None = None
    contains: str | None = None
    header: list[str] = []
    n: Count = 100


class Policy(Shape, kw_only=True):
    """The policy of a topic. Omitted fields get the cluster's value, or keep theirs in a change."""

    retention: Duration | None = None
    retain: Literal["acked", "forever"] | None = None
    bytes_max: Whole | None = None
    overflow: Literal["refuse", "drop_oldest"] | None = None
    level: Level | None = None
    ttl: Duration | None = None
    expire: Literal["dead", "drop", "try_once"] | None = None
    dedup: Duration | None = None
    dedup_count: Whole | None = None
    trace: Literal["failures", "all", "off"] | None = None
    lease: Duration | None = None
    attempts_max: Annotated[int, Meta(ge=1, le=limits.ATTEMPTS_HARD_MAX)] | None = None
    backoff: Duration | list[Duration] | None = None
    alarm_lag: Whole | None = None
    group_idle: Duration | None = None


class NewTopic(Policy, kw_only=True):
    name: str
    partitions: Annotated[int, Meta(ge=1, le=limits.PARTITIONS_MAX)] | None = None
    beside: str | None = None
    if_not_exists: bool = False


class Topic(Shape, kw_only=True, omit_defaults=False):
    """`config` is its policy, with times in milliseconds."""

    name: str
    partitions: int
    config: dict[str, Any]


class Topics(Shape, kw_only=True, omit_defaults=False):
    topics: list[Topic]


class Names(Shape, kw_only=True):
    pattern: str = "*"


class Group(Shape, kw_only=True, omit_defaults=False):
    """Counters of a group over the partitions of a topic."""

    group: str
    lag: int
    ready: int
    in_flight: int
    retrying: int
    parked: int
    dead: int
    acked: int
    consumers: int
    paused: bool
    oldest_s: float
    work: int = 0  #: in flight, and ready without those behind a limit or a rate, for autoscaling
    behind_limit: int = 0  #: of ready: as many records are in flight as a limit allows
    behind_rate: int = 0  #: of ready: they wait for a rate, or for the end of a pause


class Groups(Shape, kw_only=True, omit_defaults=False):
    groups: list[Group]


class FlowPage(Shape, kw_only=True):
    """`n`: the flows with the most waiting records, and as many that wait longest."""

    n: Annotated[int, Meta(ge=1, le=FLOWS_MAX)] = 10


class Flow(Shape, kw_only=True, omit_defaults=False):
    """A flow of a group in one partition. `waits_for` is "limit", "rate" or "pause"; it is empty if its
    records can be delivered.
    """

    flow: str
    partition: int
    waiting: int
    oldest_s: float
    in_flight: int
    waits_for: str


class Flows(Shape, kw_only=True, omit_defaults=False):
    flows: list[Flow]


class GroupPolicy(ConsumePolicy, kw_only=True):
    """The policy of a group. Omitted fields keep their value. Stop all consumers
    before you change the mode.
    """

    lease: Duration | None = None
    in_flight_max: Whole | None = None
    parked_max: Whole | None = None
    paused: bool | None = None
    alarm_lag: Whole | None = None


class Undo(Shape, kw_only=True):
    """The request that takes this one back. It is absent if nothing was changed, or nothing takes it back."""

    method: str
    path: str
    body: dict[str, str] | UnsetType = UNSET


class Seek(Shape, kw_only=True):
    to: Start
    dry_run: bool = False


class Sought(Shape, kw_only=True, omit_defaults=False):
    partition: int
    before: int
    after: int
    again: int
    skipped: int


class SoughtList(Shape, kw_only=True, omit_defaults=False):
    """`undo` is absent for a group of several partitions, which were at different offsets."""

    partitions: list[Sought]
    undo: Undo | UnsetType = UNSET


class Stand(Shape, kw_only=True, omit_defaults=False):
    """The state of a record for a group, or of a group in a partition: reason,
    and command to change it.
    """

    group: str
    state: str
    because: str
    next: str
    partition: int | None = None


class Why(Shape, kw_only=True, omit_defaults=False):
    ref: str
    standings: list[Stand]


class Step(Shape, kw_only=True, omit_defaults=False):
    time: float
    what: str
    group: str
    consumer: str
    reason: str
    attempt: int


class Steps(Shape, kw_only=True, omit_defaults=False):
    steps: list[Step]


class OfGroup(Shape, kw_only=True):
    group: str = ""


class Wait(Shape, kw_only=True):
    """`wait`: the answer comes when the job has ended, or after this time."""

    group: str = ""
    wait: Duration = 30.0


class Job(Shape, kw_only=True):
    """A record as a job. `state` is "scheduled", "waiting", "running" or "retrying"; when it has ended,
    "succeeded", "failed", "cancelled" or "expired". `time` is since when it runs, when it is due, or when it
    ended. `kept` are the seconds for which the result is still kept. `progress` is the last report of its
    handler, 0 to 1, with `text`. `result` is text or other JSON;
    `result_base64` has bytes.
    """

    ref: str
    state: str
    because: str
    group: str = ""
    consumer: str = ""
    time: float = 0.0
    attempt: int = 0
    failures: int = 0
    error: str = ""
    traceback: str = ""
    kept: float = 0.0
    progress: float | UnsetType = UNSET
    text: str = ""
    result: Any = UNSET
    result_base64: Base64 | UnsetType = UNSET


class Edit(Shape, kw_only=True):
    """Omitted fields stay unchanged."""

    value: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    value_base64: Base64 | None = None
    headers: dict[str, str] | None = None
    headers_base64: dict[str, Base64] | None = None


class Later(Shape, kw_only=True):
    delay: Duration | None = None
    at: Time | None = None


class ForGroup(Shape, kw_only=True):
    group: Text


class Reason(Shape, kw_only=True):
    """`running`: also if a consumer holds the record; its ack is lost then."""

    reason: str = ""
    running: bool = False


class Sealed(RecordOptions, kw_only=True):
    """A record that is stored later."""

    value: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    value_base64: Base64 | None = None
    key: str | None = None
    headers: dict[str, str] | None = None
    headers_base64: dict[str, Base64] | None = None


class NewJoin(Sealed, kw_only=True):
    """A record that is published when `jobs`, which are refs, have ended: all, any, or a number of them."""

    jobs: Annotated[list[str], Meta(min_length=1, max_length=limits.JOIN_PARTS_MAX)]
    when: Literal["all", "any"] | Whole = "all"
    timeout: Duration | None = None
    group: str = ""
    id: str | None = None


class Moved(Shape, kw_only=True, omit_defaults=False):
    ref: str


class NewSchedule(Sealed, kw_only=True):
    """A schedule by `cron` (in the zone `tz`) or `every`, and the record that each tick stores, as in a
    publish.
    """

    cron: str = ""
    tz: str = ""
    every: Duration | None = None
    start: Time | None = None
    end: Time | None = None
    count: Whole | None = None
    jitter: Duration | None = None
    missed: Missed | None = None
    missed_max: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    overlap: Overlap | None = None
    paused: bool = False


class Tick(Shape, kw_only=True, omit_defaults=False):
    """A tick that is over. `offset` is that of its record; null: it got none."""

    time: float
    offset: int | None


class ScheduleShown(Shape, kw_only=True, omit_defaults=False):
    """A schedule. Durations are seconds; `last` has the oldest tick first."""

    topic: str
    partition: int
    name: str
    cron: str
    tz: str
    every: float
    start: float | None
    end: float | None
    count: int
    jitter: float
    missed: str
    missed_max: int
    overlap: str
    paused: bool
    ticks: int
    last: list[Tick]
    next: list[float]


class ScheduleList(Shape, kw_only=True, omit_defaults=False):
    schedules: list[ScheduleShown]


class Changed(Shape, kw_only=True, omit_defaults=False):
    """`changed`: false if it was so already."""

    changed: bool
    undo: Undo | UnsetType = UNSET


class DeadPage(Shape, kw_only=True):
    n: Count = 100
    values: bool = True


class Dead(Shape, kw_only=True):
    """A record that its group will not receive again. Without values, neighbours
    are one row with a `count`.
    """

    topic: str
    partition: int
    offset: int
    ref: str
    group: str
    reason: str
    error: str
    attempts: int
    time: float
    count: int = 1
    value: str | UnsetType = UNSET
    value_base64: Base64 | UnsetType = UNSET


class DeadList(Shape, kw_only=True, omit_defaults=False):
    dead: list[Dead]


class Letters(Shape, kw_only=True):
    """All dead letters of the group, or those of ranges [partition, first, end)."""

    ranges: list[tuple[Whole, Whole, Whole]] | None = None
    dry_run: bool = False


class Replay(Letters, kw_only=True):
    """`to`: publish them to that topic instead, and delete them here."""

    to: str | None = None


class Counted(Shape, kw_only=True, omit_defaults=False):
    count: int


class Purge(Shape, kw_only=True):
    partition: Annotated[int, Meta(ge=0, le=limits.PARTITIONS_MAX)] | None = None
    dry_run: bool = False


class Removal(Shape, kw_only=True):
    """`dead`: delete the group even if it has dead letters, and delete these too."""

    dead: bool = False


class WhoAmI(Shape, kw_only=True, omit_defaults=False):
    user: str
    closed: bool
    acting: str
    rules: list[dict[str, Any]]
