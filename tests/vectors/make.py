"""Writes the files that a client in another language checks itself against: `python tests/vectors/make.py`.

The same input gives the same bytes for ever. A field appended to a message changes the frame of that message
here; any other change of an existing vector is a change of the protocol, and needs a new version.
"""

import json
import re
import sys
from array import array
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from struct import pack_into
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints
from zlib import crc32

import msgspec

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)] * (str(ROOT) not in sys.path)

from gossipq import export_messages, limits, messages, operator_messages, peer_messages, values  # noqa: E402
from gossipq.types import partition_key  # noqa: E402
from gossipq.wire import batch, frames  # noqa: E402

FOLDER = Path(__file__).resolve().parent
JSON_INTEGER_MAX = 2**53 - 1
PRODUCER = bytes(range(16))
SESSION = bytes(range(16, 32))
PUBLISH_MS = 1_767_225_600_000  #: 2026-01-01T00:00:00Z
PARTITION = partition_key(7, 1)
COLUMN_NAMES = {
    batch.KEY_HASH: "key_hash",
    batch.DELAY: "delay",
    batch.TTL: "ttl",
    batch.LEASE: "lease",
    batch.ATTEMPTS: "attempts",
    batch.ID_HASH: "id_hash",
    batch.BACKOFF: "backoff",
    batch.FLOW_HASH: "flow_hash",
    batch.PRIORITY: "priority",
    batch.UNIQUE_HASH: "unique_hash",
    batch.UNTIL: "until",
    batch.REPLACE: "replace",
}
VARIABLE_NAMES = {batch.KEYS: "keys", batch.HEADERS: "headers", batch.IDS: "ids", batch.FLOWS: "flows"} | {
    batch.UNIQUES: "uniques"
}

BATCHES_ABOUT = (
    "Sealed batches. 'batch' is the whole batch in hex; the other fields are what it holds: byte strings in "
    "hex, integers "
    "above 2^53 - 1 as decimal text, null for a column that is absent. Each must open to these fields. "
    "Sealing the fields must "
    "give these bytes, but for batches with 'cut_of': they are made by cutting. 'refused' must not open, for "
    "the reason given."
)
FRAMES_ABOUT = (
    "Control frames. 'frame' is the whole frame in hex; 'fields' are in wire order: {'hex': ..} is a byte "
    "string, integers "
    "above 2^53 - 1 are decimal text, {'map': ..} is a map of text, arrays are values inside the message. An "
    "encoder that "
    "takes the shortest form of each number must make these bytes; every frame must read back to these "
    "fields. 'accepted' "
    "frames are read, but never written, by this version. 'refused' must not be read, for the reason given."
)
HASHES_ABOUT = (
    "'crc32': CRC-32 of bytes (zlib, IEEE 802.3, reflected 0xEDB88320). 'partition_of_key': the partition a "
    "key goes to, "
    "CRC-32 of the key modulo partitions; an id without a key goes the same way. 'partition_key': the number "
    "that names a "
    "partition, topic id * 65536 + partition. 'id_hash': BLAKE2b of the id, digest of 8 bytes, no key, read "
    "as a little endian "
    "number, 0 for no id; integers above 2^53 - 1 are decimal text."
)
VERBS_ABOUT = (
    "Every message of the protocol and every value inside one, made of the classes of the code. 'fields' are "
    "in wire order. The type of a field is int, text, bytes, bool, range ([int, int, int]), a list or a map "
    "of these, a tuple in brackets, or the name of a value. Its default is '-' when it is required, else as "
    "docs/reference/verbs.md writes it. Verbs from 96 to 127 are between nodes."
)


def plain(value: Any) -> Any:
    """A value as JSON can hold it without loss."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        return {"map": {str(key): plain(item) for key, item in value.items()}}
    if isinstance(value, bool) or not isinstance(value, int):
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value
    return value if abs(value) <= JSON_INTEGER_MAX else str(value)


# --- batches ------------------------------------------------------------------------------------------------


def id_hash(raw: bytes) -> int:
    """What the column "id hash" has for an id; 0 without one."""
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little") if raw else 0


def headers(pairs: dict[str, bytes]) -> bytes:
    return msgspec.msgpack.encode(pairs) if pairs else b""


def described(raw: bytes | bytearray) -> dict[str, Any]:
    """What a batch holds, read back from its bytes."""
    opened = batch.Batch(bytes(raw))
    info = opened.info
    columns: dict[str, Any] = {
        name: None if (column := opened.fixed(bit)) is None else plain(column.tolist())
        for bit, name in COLUMN_NAMES.items()
    }
    for bit, name in VARIABLE_NAMES.items():
        items = opened.column(bit)
        columns[name] = None if items is None else [item.hex() for item in items]
    values = opened.variable(0)
    assert values is not None
    return {
        "size": info.size,
        "crc32": info.crc,
        "count": info.count,
        "producer": info.producer.hex(),
        "sequence": plain(info.sequence),
        "publish_ms": plain(info.publish_ms),
        "columns": info.columns,
        "route": opened.route.hex(),
        **columns,
        "values": [value.hex() for value in opened.values()],
        "first_value_offset": values.offsets[0],
        "batch": bytes(raw).hex(),
    }


def sealed() -> dict[str, bytes]:
    """The batches that come from `seal`, by name."""
    words = [b"one", b"two", b"", b"three"]
    stamp: dict[str, Any] = {"producer": PRODUCER, "publish_ms": PUBLISH_MS}
    made = {
        "one record, nothing else": batch.seal([b"hello"]),
        "one record of no bytes": batch.seal([b""]),
        "plain, four records": batch.seal(words, sequence=1, **stamp),
        "keys and headers": batch.seal(
            words,
            keys=[b"ada", b"", b"bob", b"ada"],
            headers=[headers({"k": b"v"}), b"", headers({"a": b"1", "b": b"\xff\x00"}), b""],
            fixed={batch.KEY_HASH: array("I", map(crc32, (b"ada", b"", b"bob", b"ada")))},
            sequence=2,
            **stamp,
        ),
        "route": batch.seal(words, route=b"eu.fr", sequence=3, **stamp),
        "route of eight bytes, which needs no padding": batch.seal(
            [b"12345678"], route=b"eu.fr.75", sequence=4, **stamp
        ),
        "every column": batch.seal(
            words,
            route=b"eu.fr",
            keys=[b"ada", b"", b"bob", b"ada"],
            headers=[headers({"k": b"v"}), b"", b"", b""],
            ids=[b"", b"order-17", b"order-18", b""],
            uniques=[b"report:7", b"", b"report:8", b""],
            fixed={
                batch.KEY_HASH: array("I", map(crc32, (b"ada", b"", b"bob", b"ada"))),
                batch.UNIQUE_HASH: array("Q", map(id_hash, (b"report:7", b"", b"report:8", b""))),
                batch.UNTIL: array("q", [0, 0, limits.DELAY_MS_MAX, 0]),
                batch.REPLACE: array("I", [1, 0, 0, 0]),
                batch.DELAY: array("q", [0, 5_000, 5_000, limits.DELAY_MS_MAX]),
                batch.TTL: array("q", [0, limits.DELAY_MS_MAX, 60_000, 1]),
                batch.LEASE: array("I", [0, 1, 30_000, 2**32 - 1]),
                batch.ATTEMPTS: array("I", [0, 1, 10, 2**32 - 1]),
                batch.ID_HASH: array("Q", map(id_hash, (b"", b"order-17", b"order-18", b""))),
                batch.BACKOFF: array("I", [0, 1, 5_000, 2**32 - 1]),
            },
            sequence=2**64 - 1,
            **stamp,
        ),
        "one fixed column of odd width": batch.seal(
            [b"a", b"b", b"c"], fixed={batch.LEASE: array("I", [1, 2, 3])}, sequence=5, **stamp
        ),
        "scheduled: delays that never fall": batch.seal(
            words, fixed={batch.DELAY: array("q", [1_000, 1_000, 5_000, 86_400_000])}, sequence=6, **stamp
        ),
        "unique names, each taken until its record is done": batch.seal(
            [b"a", b"b"],
            uniques=[b"report:7", b"report:8"],
            fixed={batch.UNIQUE_HASH: array("Q", map(id_hash, (b"report:7", b"report:8")))},
            sequence=8,
            **stamp,
        ),
        "ids, for one record none": batch.seal(
            [b"a", b"b", b"c"],
            ids=[b"order-17", b"", b"order-18"],
            fixed={batch.ID_HASH: array("Q", map(id_hash, (b"order-17", b"", b"order-18")))},
            sequence=7,
            **stamp,
        ),
        "flows and priorities": batch.seal(
            words,
            flows=[b"ada", b"", b"ada", b"bob"],
            fixed={
                batch.FLOW_HASH: array("Q", map(id_hash, (b"ada", b"", b"ada", b"bob"))),
                batch.PRIORITY: array("B", [5, 0, 9, 5]),
            },
            sequence=8,
            **stamp,
        ),
    }
    return {name: bytes(raw) for name, raw in made.items()}


CUTS = (
    ("cut from the middle: first offset is not 0", "plain, four records", 1, 2),
    ("cut of the last record", "keys and headers", 3, 1),
    ("cut with every column", "every column", 1, 2),
    ("cut of what is due", "scheduled: delays that never fall", 0, 2),
    ("cut with flows and priorities", "flows and priorities", 1, 2),
)


def damaged(raw: bytes, at: int, layout: str, value: int, reseal: bool = True) -> bytes:
    """One number of the batch changed; with `reseal` the CRC fits again."""
    copy = bytearray(raw)
    pack_into("<" + layout, copy, at, value)
    if reseal:
        pack_into("<I", copy, 4, crc32(memoryview(copy)[8:]))
    return bytes(copy)


def batches() -> dict[str, Any]:
    made = sealed()
    good = [{"name": name, **described(raw)} for name, raw in made.items()]
    for name, source, first, count in CUTS:
        cut = batch.Batch(made[source]).cut(first, count)
        good.append(
            {"name": name, "cut_of": source, "cut_first": first, "cut_count": count, **described(cut)}
        )
    words, later = made["plain, four records"], made["scheduled: delays that never fall"]
    refused = {
        "one bit of a value flipped": damaged(words, len(words) - 8, "B", words[-8] ^ 1, reseal=False),
        "CRC of zero": damaged(words, 4, "I", 0, reseal=False),
        "format version 2": damaged(words, 3, "B", 2),
        "size says 8 bytes more": damaged(words, 8, "I", len(words) + 8),
        "cut off after the header": words[: batch.HEADER.size],
        "count of 0": damaged(words, 12, "I", 0),
        "count of 65537": damaged(words, 12, "I", limits.BATCH_RECORDS_HARD_MAX + 1),
        "count one too high": damaged(words, 12, "I", 5),
        "column bit 31, which this version does not know": damaged(words, 48, "I", 1 << 31),
        "keys column that is not there": damaged(words, 48, "I", batch.KEYS),
        "route of 256 bytes": bytes(batch.seal([b""], route=bytes(limits.ROUTE_BYTES_MAX + 1))),
        "route beyond the end": damaged(words, 52, "H", 255),
        "first offset negative": damaged(words, 56, "i", -1),
        "offset that falls": damaged(words, 60, "i", 7),
        "offset beyond the data": damaged(words, 64, "i", 1_000),
        "last offset beyond the batch": damaged(words, 72, "i", 2**31 - 1),
        "delay that falls": damaged(later, 64, "q", 999),
        "negative delay": damaged(later, 56, "q", -1),
        "priority of 10": bytes(batch.seal([b""], fixed={batch.PRIORITY: array("B", [10])})),
        "delay of more than ten years": damaged(later, 80, "q", limits.DELAY_MS_MAX + 1),
    }
    return {
        "about": BATCHES_ABOUT,
        "batches": good,
        "refused": [{"name": name, "batch": raw.hex()} for name, raw in refused.items()],
    }


# --- frames -------------------------------------------------------------------------------------------------


def samples() -> list[messages.Message]:
    """One of each verb, every field set."""
    m, v, p, o, e = messages, values, peer_messages, operator_messages, export_messages
    policy = (60_000, "drop", 300_000, 1_000, "all", 60_000, 5, [1_000, 30_000])
    config = v.TopicConfig(
        4, 86_400_000, "forever", 1 << 30, "drop_oldest", "none", "invoices", *policy, [], 10_000, 604_800_000
    )
    topic = v.TopicInfo(7, "orders", 3, config, [5, 6, 7, 8])
    virtual = v.TopicInfo(9, "all-orders", 2, v.TopicConfig(virtual=["orders", "audit"]), [])
    flows = 100, 5, v.Rate(100, 1_000, 200), v.Rate(10, 1_000), 20_000, 60_000
    group = v.GroupOptions(
        "key_ordered", 30_000, 20_000, 5, [1_000, 30_000], 50_000, True, 5_000, "fair", {"ada": 3}, *flows
    )
    options = v.TopicOptions(
        4,
        86_400_000,
        "forever",
        1 << 30,
        "drop_oldest",
        "none",
        "invoices",
        *policy,
        ["audit"],
        10_000,
        604_800_000,
    )
    route = v.Route(5, 2, "tcp://127.0.0.1:7701")
    member = v.Member("n2/1", "n2", "tcp://10.0.0.2:7700", 2, True, "leaving", "0.1.0", 1)
    lead, copy = v.Lead(5, 2, "n1/1"), v.CopyStats(5, 2, "n2/1", "follower", 40, 3, 120, True, -2_500)
    ranges = [(PARTITION, 10, 20), (PARTITION, 30, 31)]
    stored, scheduled = v.Ref(PARTITION, 17), v.Ref(PARTITION, -1, 4_711, 2)
    named = v.Ref(PARTITION, id_hash=id_hash(b"order-17"))
    standing = v.Standing(
        "billing",
        "in_flight",
        "c1 has it until 09:00:30",
        "gossipq msg requeue",
        "c1",
        PUBLISH_MS + 30_000,
        3,
        2,
    )
    steps = [
        v.TraceEvent(PUBLISH_MS, "published"),
        v.TraceEvent(PUBLISH_MS + 9, "failed", "billing", "c1", "timeout at the bank", 1),
    ]
    schedule = v.Schedule(
        "nightly",
        "0 7 * * mon-fri",
        "Europe/Berlin",
        0,
        PUBLISH_MS,
        PUBLISH_MS + 86_400_000,
        5,
        30_000,
        "all",
        10,
        "skip",
        True,
    )
    letter = v.DeadLetter(
        PARTITION, "billing", 17, 1, "failures", "timeout at the bank", 12, 10, PUBLISH_MS, 72, steps[1:]
    )
    worker = v.WorkerStats(
        *(
            0,
            4711,
            "tcp://127.0.0.1:7701",
            "ready",
            1,
            16,
            3,
            1_000,
            900,
            800,
            7,
            2,
            5_000,
            400,
            950,
            1 << 20,
            "recovered",
        ),
        *(3, 40, 2, 93_000, 120 << 20, [3, 5], ["n2.copy"], [7], 8 << 30, 1 << 28, 250, 1),
    )
    alarm = v.Alarm(
        *("lag", "warning", "n1", "orders/billing", "group billing on orders is 12,000 records behind"),
        *("gossipq why orders --group billing", PUBLISH_MS),
    )
    consuming = [v.Consuming("orders", "billing", 2, 900, 8_000_000, 100, 1_500, 400, 502, 2)]
    client = v.ClientRow(
        SESSION[:8], "example 1.0", "0.1.0", "n1", 0, 1, 60_000, 20, 7, 700, 70_000, consuming, 2
    )
    rules = [v.Rule("orders*", ["read", "publish"]), v.Rule("*", ["observe"])]
    ada = v.User("ada", ["billing"], [v.Credential(bytes(range(32)), PUBLISH_MS)])
    table = v.AccessTable(17, True, [ada], [v.Role("billing", rules)])
    return [
        m.Hello(SESSION, "example 1.0", "0.1.0", b"token", "ada", b"key", True),
        m.Welcome(
            "n1",
            PRODUCER,
            "0.1.0",
            33_554_432,
            5_000,
            1_000,
            [route],
            32,
            ["tcp://127.0.0.1:7700"],
            [bytes(range(16))],
            [3, 5],
            ["n2", "n3"],
        ),
        m.Ping(),
        m.Pong(),
        m.Bye(lost=True),
        m.Reset([3, 5], "the leader changed"),
        m.RefusedMessage(
            "not_leader", "shard 5 is led elsewhere", "connect to the endpoint", 50, 0, "tcp://127.0.0.1:7702"
        ),
        m.Publish(PARTITION, "stored", 25, 1, ranges),
        m.PublishPlain(PARTITION, "stored", "eu.fr", 5_000, 60_000, 1, 7, 1, ranges, 600_000, True),
        m.Confirm(
            [(1, 0, 1, False), (2, 500, 3, True), (3, -1, 1, False)],
            33_554_432,
            "tcp://127.0.0.1:7701",
            [(3, [v.Run(4, -1, 4_711, 0), v.Run(1, 17, duplicate=True), v.Run(1, 18, 4_711, 4, True, True)])],
        ),
        e.ListAcks(PARTITION, 40, 3, 17),
        e.AckRuns(43, [v.AckRun("billing", 17, 30, PUBLISH_MS, "worker-1", 42)], 3, 30),
        e.ListStates(PARTITION, 3, 17),
        e.States(
            43,
            [v.StateRun("billing", "dead", 17, 18, 5, 3, 0, PUBLISH_MS, "failures", "no bank", "worker-1")],
            3,
            18,
        ),
        e.BackUp(4_711, "batches", 4_000),
        e.BackedUp(4_711, 3, bytes(range(16)), PUBLISH_MS, 4_200),
        m.Subscribe(
            1,
            "billing",
            [v.Start(PARTITION, "offset", 17), v.Start(PARTITION + 1, "time", PUBLISH_MS)],
            1_000,
            8_388_608,
            group,
            True,
            ranges,
            ["eu.*", "us.#"],
            False,
            [5, 6],
            True,
            True,
            True,
            True,
            True,
            True,
            True,
        ),
        m.Subscribed(1, 30_000, [(PARTITION, 17, 510)], "tcp://127.0.0.1:7701", "shared", 10),
        m.Unsubscribe(1),
        m.Credit(1, 500, 65_536),
        m.Deliver(
            1,
            [
                v.Delivered(PARTITION, 17, 4, 1, 96, 96),
                v.Delivered(PARTITION, 21, 3, 2, 72, 72, [(21, 22), (30, 32)], 1, True),
            ],
            29_999,
        ),
        m.Ack(1, ranges, True),
        m.AckDelivered(PARTITION, "billing", [(17, 2)]),
        m.Acked([(PARTITION, 30, 31)]),
        m.Nack(1, ranges, 5_000, True, "timeout at the bank", "rejected", True),
        m.Extend(1, ranges, 30_000),
        m.ReadyMessage(1),
        m.Share(1, 12),
        m.Cancelled(1, ranges),
        m.Recall(1),
        m.Recalled(1, 500, 65_536),
        m.AtEnd(1, [(PARTITION, 510, 510)]),
        m.Started(1, ranges),
        m.DeliverPlain(1, 30_000),
        m.Why(named, "billing"),
        m.Explained(stored, [standing], ["attempts_max 5, from the topic"]),
        m.WhyGroup("billing", [PARTITION, PARTITION + 1]),
        m.GroupExplained(
            [
                (
                    PARTITION,
                    "paused",
                    "an operator paused it",
                    "gossipq group resume orders billing",
                    PUBLISH_MS,
                )
            ]
        ),
        m.Trace(stored, "billing"),
        m.Traced(steps),
        m.Show(scheduled),
        m.Shown(scheduled, PUBLISH_MS),
        m.Cancel(scheduled, "sold out", running=True),
        m.Reschedule(scheduled, 60_000),
        m.Edit(stored),
        m.Requeue(stored, "billing"),
        m.Done(1, stored),
        m.SetSchedule(PARTITION, schedule),
        m.DropSchedule(PARTITION, "nightly"),
        m.RunSchedule(PARTITION, "nightly"),
        m.ListSchedules(PARTITION, "morning"),
        m.Schedules(
            [v.ScheduleInfo(schedule, 3, [v.Tick(PUBLISH_MS, 510)], [PUBLISH_MS + 60_000])], "nightly"
        ),
        m.AckResults(
            1,
            [(PARTITION, 510, 513)],
            [v.JobResult(PARTITION, 510, 3_600_000, "json", b"42")],
            [v.ResultRun(PARTITION, 511, 3_600_000, "json", [b"43", b"44"])],
        ),
        m.ReportProgress(1, [v.JobProgress(PARTITION, 510, 0.25, "page 1 of 4")]),
        m.AskJob(stored, "billing", 20_000, PUBLISH_MS),
        m.JoinJobs(PARTITION, [v.JoinPart(stored, "orders", 6)], 3_600_000, 1, "billing", b"join-1"),
        m.Job(
            v.JobInfo(
                stored,
                "billing",
                "succeeded",
                "ada was done with it",
                "ada",
                PUBLISH_MS,
                1,
                0,
                "json",
                b"42",
                3_600_000,
                0.75,
                "page 3 of 4",
                PUBLISH_MS,
            )
        ),
        m.ListDead(PARTITION, "billing", 10, 50, True),
        m.DeadLetters([letter], 18),
        m.ReplayDead(PARTITION, "billing", [(10, 20)], True),
        m.Resolve(["orders", "in*"], True, "inbox"),
        m.Topics([topic, virtual], "orders"),
        m.CreateTopic("orders", options, True),
        m.DropTopic("orders"),
        m.Stats(["orders"], [5, 196_608, 7]),
        m.StatsReply(
            [v.PartitionStats(PARTITION, "orders", 6, 0, 0, 510, 530, 0, 55_000, 17, 3)],
            [
                v.GroupStats(
                    PARTITION,
                    "orders",
                    "billing",
                    17,
                    380,
                    90,
                    20,
                    0,
                    3,
                    2,
                    7,
                    8,
                    2,
                    1,
                    2,
                    5,
                    3,
                    True,
                    900,
                    4_000,
                    0,
                    10_000,
                    86_400_000,
                )
            ],
            [6, PARTITION, 17],
        ),
        m.Status(),
        m.StatusReply(
            "n1",
            "default",
            PRODUCER,
            "0.1.0",
            "standalone",
            60_000,
            32,
            32,
            [worker],
            [route],
            ["one node"],
            3,
            "n1/1",
            [member],
            [lead],
            [copy],
            "no other Serf agent answers",
            [v.GossipEvent(1_767_225_600_000, "fail", "n2", "tcp://10.0.0.2:7700")],
            12_000,
            45 << 20,
            7,
            3,
            1,
        ),
        m.PurgeDead(PARTITION, "billing", [(10, 20)], True),
        m.SetGroup(7, "billing", group),
        m.BindTopic("all-orders", ["orders", "audit"]),
        m.Join(member, PRODUCER, b"proof", {"copies": "3"}, SESSION),
        m.Members(12, [member], "default", {"cluster.copies": "3"}, table),
        m.WhoAmI(),
        m.Entrust(PRODUCER + PRODUCER, "node.copy"),
        m.Entrusted(b"secret"),
        m.Identity("ada", True, rules, "gateway", PUBLISH_MS),
        m.AskAccess(),
        m.Access(table),
        m.SetAccess(
            v.AccessChange(table.users, table.roles, ["bob"], ["clerk"], True, table.version), b"proof"
        ),
        m.SetOptions({"cluster.replace_ms": "60000"}, b"proof"),
        m.AskMembers(),
        m.SetMember("n2", "leaving", b"proof"),
        m.Challenge(SESSION, "n1/1", b"proof"),
        o.Growth(["orders"], True, PUBLISH_MS, [6, 7, PUBLISH_MS]),
        o.Grown(
            [v.GrowthRow("orders", 6, PUBLISH_MS, 530, 90, 2, 20, 493, 55_000, 400, 2, 3)], [6, 7, PUBLISH_MS]
        ),
        o.ListClients(SESSION),
        o.Clients([client], SESSION),
        o.Kick(SESSION[:8], 60_000),
        o.SetTopic("orders", options),
        o.PurgeTopic(PARTITION, 510, True),
        o.SeekGroup(7, "billing", [v.Start(PARTITION, "offset", 17)], True, v.GroupConfig("shared", 30_000)),
        o.Sought([v.SoughtRow(PARTITION, 400, 17, 90, 0)]),
        o.DropGroup(7, "billing", True, True),
        o.ShowGroup(7, "billing", 10),
        o.GroupShown(
            v.GroupConfig("shared", 30_000, alarm_lag=10),
            [("lease", "30s", "group")],
            ["example 1.0/10111213"],
            [v.FlowRow(3, "ada", 500, 60_000, 2, "rate")],
        ),
        o.ListAlarms(),
        o.Alarms([alarm]),
        o.ShowConfig(),
        o.ConfigShown([v.ConfigRow("node.bind", '"tcp://127.0.0.1:7700"', "default")]),
        p.Append("n1", 41, 2, 40, [56, 640, 48, 0], 1_000, b"12345678", 1_700_000_000_123, True, 3),
        p.Appended("n2", False, 43, 1_000, 47, 2, True, 1_700_000_000_120, 1_700_000_000_119, True, True, 3),
        p.InstallTopic(topic, True),
        p.WatchJobs(6, [v.JobWatch(PARTITION, 41, 0, v.JoinPart(stored, "orders", 6), "billing")]),
        p.JobsEnded(6, 3, [v.EndedPart(PARTITION, 41, 0, v.PartEnd("failed", stored, "ValueError: no"))]),
        p.TopicInstalled(7, 3, 6),
        p.AskTopic(7, 6),
        p.LimitUsed(7, "billing", 6, 41, 12, 1_000_003, 60, 1_000, 20, 333, 500),
        p.LimitTold(7, "billing", 12, 1_000_004, 41, [30, 500]),
        p.Report(
            worker,
            [lead],
            [copy],
            12,
            [member],
            [v.Timing("commit", [0, 0, 0, 380, 20, *[0] * 10], 380_000)],
            [alarm],
            14,
            [v.AuditRow(PUBLISH_MS, "ada", "10.0.0.7", "PURGE_TOPIC", "orders", "forbidden")],
        ),
        p.VoteRequest("n2", 4, 3, 43, False, True),
        p.Vote("n1", 4, True, False, 1_700_000_000_120, 1_700_000_000_119, True, 3),
        p.TimeoutNow("n1"),
        p.Snapshot(
            "n1",
            40,
            2,
            b"12345678",
            1_700_000_000_000,
            ["n1", "n2", "n3"],
            ["n3"],
            [],
            1,
            "body",
            0,
            41,
            1_000,
            900,
        ),
        p.Installed("n2", 40, 2, False, 1_000),
        p.ChangeVoters(["n1", "n2", "n3"], ["n3"], ["n4"]),
        p.Transfer("n2"),
        p.Bundle(PRODUCER, "n1", "n2", [frames.encode(m.Ping(), 5)], [0]),
        p.View(12, [member], [lead], 14),
        p.Waiting(member, 3, "n1/1", {"cluster.copies": "3"}, b"proof", ["tcp://10.0.0.3:7700"]),
        p.Stray("n4/1", 1_000),
        p.Dismiss("n1", 1_000),
        p.Greet(PRODUCER, "n1/1", "n2/1", SESSION),
        p.Prove("n1/1", SESSION, b"proof"),
        p.AccessTold(table),
    ]


def wire_array(message: messages.Message) -> list[Any]:
    """The control part with values inside it as arrays, byte strings kept."""

    def flat(value: Any) -> Any:
        if isinstance(value, msgspec.Struct):
            return [flat(item) for item in msgspec.structs.astuple(value)]
        return [flat(item) for item in value] if isinstance(value, list | tuple) else value

    return [flat(item) for item in msgspec.structs.astuple(message)]


def described_frame(message: messages.Message, shard: int, request_id: int, term: int) -> dict[str, Any]:
    names = [field.name for field in msgspec.structs.fields(type(message))]
    return {
        "name": type(message).__name__.removesuffix("Message"),
        "verb": message.verb,
        "shard": shard,
        "request_id": plain(request_id),
        "term": plain(term),
        "fields": dict(zip(names, map(plain, wire_array(message)), strict=True)),
        "frame": frames.encode(message, shard, request_id, term).hex(),
    }


def raw_frame(
    verb: int, control: bytes, magic: bytes = frames.MAGIC, version: int = frames.VERSION, flags: int = 0
) -> bytes:
    return frames.HEADER.pack(magic, version, verb, 0, flags, 0, 0) + control


def control_frames() -> dict[str, Any]:
    good = [described_frame(message, 6, 1_000 + message.verb, 2) for message in samples()]
    good.append(described_frame(messages.Ping(), 0xFFFF, 0, 0))
    good.append(described_frame(messages.Ping(), 31, 2**64 - 1, limits.NUMBER_MAX))
    encode: Callable[[Any], bytes] = msgspec.msgpack.encode
    publish = messages.Publish.verb
    accepted = {
        "optional fields left out": (
            "Publish",
            [PARTITION, "", 0, 0, []],
            raw_frame(publish, encode([PARTITION])),
        ),
        "field of a later version at the end": (
            "Ping",
            [],
            raw_frame(messages.Ping.verb, encode([{"later": [1, None]}])),
        ),
        "flags of a later version": ("Ping", [], raw_frame(messages.Ping.verb, encode([]), flags=0x8000)),
        "number in a longer form than needed": (
            "Unsubscribe",
            [1],
            raw_frame(messages.Unsubscribe.verb, b"\x91\xcf" + (1).to_bytes(8, "big")),
        ),
    }
    refused = {
        "no bytes": ("protocol", b""),
        "23 bytes": ("protocol", raw_frame(messages.Ping.verb, b"")[:-1]),
        "wrong magic": ("protocol", raw_frame(messages.Ping.verb, b"\x90", magic=b"QG")),
        "version 1": ("wrong_version", raw_frame(messages.Ping.verb, b"\x90", version=1)),
        "verb 255": ("unknown_verb", raw_frame(255, b"\x90")),
        "no control part": ("protocol", raw_frame(messages.Ping.verb, b"")),
        "bytes after the array": ("protocol", raw_frame(messages.Ping.verb, b"\x90\x90")),
        "map instead of array": ("protocol", raw_frame(messages.Ping.verb, b"\x80")),
        "required field left out": ("protocol", raw_frame(publish, b"\x90")),
        "text where an integer belongs": ("protocol", raw_frame(publish, b"\x91\xa11")),
        "array that says four billion fields": ("protocol", raw_frame(publish, b"\xdd\xff\xff\xff\xff")),
    }
    return {
        "about": FRAMES_ABOUT,
        "frames": good,
        "accepted": [
            {"name": name, "message": kind, "fields": plain(fields), "frame": raw.hex()}
            for name, (kind, fields, raw) in accepted.items()
        ],
        "refused": [
            {"name": name, "code": code, "frame": raw.hex()} for name, (code, raw) in refused.items()
        ],
    }


# --- hashes -------------------------------------------------------------------------------------------------


def hashes() -> dict[str, Any]:
    keys = [b"", b"a", b"ada", b"bob", b"order-17", "\u00e9t\u00e9".encode(), bytes(range(256)), b"x" * 64]
    return {
        "about": HASHES_ABOUT,
        "crc32": [{"bytes": key.hex(), "crc32": crc32(key)} for key in (b"123456789", *keys)],
        "partition_of_key": [
            {"key": key.hex(), "partitions": partitions, "partition": crc32(key) % partitions}
            for key in keys
            for partitions in (1, 4, 7, limits.PARTITIONS_MAX)
        ],
        "partition_key": [
            {
                "topic_id": topic_id,
                "partition": partition,
                "partition_key": partition_key(topic_id, partition),
            }
            for topic_id, partition in ((1, 0), (7, 1), (10_000, limits.PARTITIONS_MAX - 1))
        ],
        "id_hash": [{"id": key.hex(), "id_hash": plain(id_hash(key))} for key in keys],
    }


def structs_of(module: ModuleType) -> list[type[msgspec.Struct]]:
    """Those that are made there and travel, in their order: options alone are no arrays."""
    made = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    ]
    return [kind for kind in made if kind is not values.Message and kind.__struct_config__.array_like]


def title(kind: type) -> str:
    """Of a message: two have a longer name in Python, where another class has theirs."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__.removesuffix("Message")).upper()


def type_name(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return type_name(get_args(kind)[0])
    if kind == values.Range:
        return "range"
    if get_origin(kind) is list:
        return f"list of {type_name(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return f"map of {type_name(get_args(kind)[1])}"
    if get_origin(kind) is UnionType:
        return " or ".join(map(type_name, get_args(kind)))
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        if inner[-1] is ...:
            return f"list of {type_name(inner[0])}"
        return f"[{', '.join(map(type_name, inner))}]"
    if get_origin(kind) is Literal:
        return "text"
    if isinstance(kind, type) and issubclass(kind, tuple):
        return f"[{', '.join(map(type_name, get_type_hints(kind).values()))}]"
    return {int: "int", str: "text", bytes: "bytes", bool: "bool", NoneType: "nil", Any: "bytes or text"}.get(
        kind
    ) or kind.__name__


def default_name(field: Any) -> str:
    if field.required:
        return "-"
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(default, msgspec.Struct):
        return "its defaults"
    if default is None:
        return "nil"
    if isinstance(default, bool):
        return str(default).lower()
    return "empty" if default == b"" else f'"{default}"' if isinstance(default, str) else str(default)


def described_fields(kind: type[msgspec.Struct]) -> list[dict[str, str]]:
    return [
        {"name": field.name, "type": type_name(field.type), "default": default_name(field)}
        for field in msgspec.structs.fields(kind)
    ]


def verbs() -> dict[str, Any]:
    return {
        "about": VERBS_ABOUT,
        "verbs": [
            {"verb": verb, "name": title(kind), "fields": described_fields(kind)}
            for verb, kind in sorted(messages.MESSAGES.items())
        ],
        "values": [{"name": kind.__name__, "fields": described_fields(kind)} for kind in structs_of(values)],
    }


FILES: dict[str, Callable[[], dict[str, Any]]] = {
    "batches.json": batches,
    "frames.json": control_frames,
    "hashes.json": hashes,
    "verbs.json": verbs,
}


def text_of(name: str) -> str:
    return json.dumps(FILES[name](), indent=1) + "\n"


if __name__ == "__main__":
    for name in FILES:
        (FOLDER / name).write_text(text_of(name), encoding="ascii")
