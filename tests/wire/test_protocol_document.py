"""PROTOCOL.md, docs/reference/verbs.md, docs/internals/peers.md and the code agree: verbs, fields, defaults,
error codes, limits, kinds of log entries, and the frames of the quick start.
"""

import re
from pathlib import Path

import msgspec

from gossipq import errors, limits, messages, values
from gossipq.core.ledger import records
from gossipq.core.raft import ClockRow
from gossipq.core.storage import log, payloads
from gossipq.errors import GossipqError
from gossipq.messages import MESSAGES
from gossipq.wire import batch, frames
from node.test_worker import ENDPOINT, Hands
from vectors import make

HOME = Path(__file__).resolve().parents[2]
PAGES = [
    (HOME / name).read_text(encoding="utf-8")
    for name in ("PROTOCOL.md", "docs/reference/verbs.md", "docs/internals/peers.md")
]
TEXT = "\n".join(PAGES)
WORDS_MAX = 12_500
ROW = re.compile(r"^\| (.*)\|$", re.MULTILINE)  #: a line of dashes does not match


def section(heading: str) -> str:
    """The text below a heading, up to the next heading."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", TEXT, re.MULTILINE)
    assert found, f"no page of the protocol has the heading {heading!r}"
    rest = TEXT[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[list[str]]:
    """Cells of a table without its head."""
    return [[cell.strip() for cell in row.split("|")] for row in ROW.findall(text)][1:]


def fields_of(kind: type[msgspec.Struct]) -> list[list[str]]:
    return [
        [field.name, make.type_name(field.type), make.default_name(field)]
        for field in msgspec.structs.fields(kind)
    ]


def test_every_message() -> None:
    for kind in MESSAGES.values():
        title = f"{kind.verb} {make.title(kind)}"
        assert [row[:3] for row in rows(section(title))] == fields_of(kind), title


def test_every_value() -> None:
    for kind in make.structs_of(values):
        assert [row[:3] for row in rows(section(kind.__name__))] == fields_of(kind), kind.__name__


def test_no_message_too_many() -> None:
    documented = {int(verb) for verb in re.findall(r"^### (\d+) [A-Z_]+$", TEXT, re.MULTILINE)}
    assert documented == set(MESSAGES)


def codes_of(kind: type[GossipqError]) -> set[str]:
    return {kind.code}.union(*map(codes_of, kind.__subclasses__()))


def test_error_codes() -> None:
    documented = set(re.findall(r"^    ([a-z_]+)  +\w", section("2. Errors"), re.MULTILINE))
    assert documented == codes_of(errors.ProtocolError) | codes_of(errors.Refused) | codes_of(
        errors.NotLeader
    )


def test_refused_means_certainly_not_stored() -> None:
    assert not issubclass(errors.NotLeader, errors.Refused), "a leader that resigned cannot say whether it is"
    assert errors.from_code("not_leader", "").retryable


def test_limits() -> None:
    table = rows(section("14. Limits"))
    assert len(table) > 20
    for name, value, *_ in table:
        assert getattr(limits, name) == int(value), name


NO_KINDS = {"VERSION", "CHAIN_BYTES", "ROW_HEAD_BYTES"}
KINDS = {
    value: name
    for name, value in vars(log).items()
    if isinstance(value, int) and name.isupper() and name not in NO_KINDS
}
ENTRIES = section("Log entries").partition("### State")[0]


def listed(kind: type[msgspec.Struct]) -> list[str]:
    """The row of a payload or a stored value."""
    return [
        kind.__name__,
        ", ".join(f"{field.name}: {make.type_name(field.type)}" for field in msgspec.structs.fields(kind)),
    ]


def test_kinds_of_log_entries() -> None:
    table = [row for row in rows(ENTRIES) if row[0].isdigit()]
    assert {int(number): name for number, name, *_ in table} == KINDS
    made = {"none", "fixed layout, below", *(kind.__name__ for kind in make.structs_of(payloads))}
    assert {payload for _, _, payload, _ in table} <= made


def test_payloads_of_log_entries() -> None:
    table = [row for row in rows(ENTRIES) if len(row) == 2 and row[0] != "payload"]
    assert table == [listed(kind) for kind in make.structs_of(payloads)]


def test_rows_of_the_state() -> None:
    table = rows(section("State"))
    letters = re.findall(r'^    "(\w)"', records.__doc__ or "", re.MULTILINE)
    assert [row[0] for row in table if len(row) == 3] == letters
    assert [row for row in table if len(row) == 2 and row[0] != "value"] == [
        listed(kind) for kind in (*make.structs_of(records), ClockRow)
    ]


def test_column_bits() -> None:
    names = {
        "key hash": batch.KEY_HASH,
        "delay": batch.DELAY,
        "ttl": batch.TTL,
        "lease": batch.LEASE,
        "attempts": batch.ATTEMPTS,
        "id hash": batch.ID_HASH,
        "backoff": batch.BACKOFF,
        "flow hash": batch.FLOW_HASH,
        "priority": batch.PRIORITY,
        "keys": batch.KEYS,
        "headers": batch.HEADERS,
        "ids": batch.IDS,
        "flows": batch.FLOWS,
        "uniques": batch.UNIQUES,
        "unique hash": batch.UNIQUE_HASH,
        "until": batch.UNTIL,
        "replace": batch.REPLACE,
    }
    found = re.findall(
        r"^    (\d+)\s+(0x[0-9a-f]{5,6})\s+(\w+(?: hash)?)\s", section("6. Batch"), re.MULTILINE
    )
    assert {name: int(value, 16) for _, value, name in found} == names
    assert all(1 << int(bit) == int(value, 16) for bit, value, _ in found)


def test_example_batch() -> None:
    lines = re.findall(r"^    ((?:[0-9a-f]{4,8} )+) {2,}\w", section("6. Batch"), re.MULTILINE)
    assert batch.Batch(bytes.fromhex("".join(lines))).values() == [b"hello"]


def test_versions() -> None:
    assert TEXT.startswith(f"# The gossipq protocol, version {frames.VERSION}\n")
    assert batch.MAGIC[3] == 1


def test_a_client_can_be_written_from_one_page_in_an_afternoon() -> None:
    assert len(PAGES[0].split()) <= WORDS_MAX


HEX = re.compile(r"[0-9a-f]+(?: [0-9a-f]+)*")


def quick_start() -> list[tuple[str, list[bytes]]]:
    """Frames that the client sends, with the name of each verb."""
    said: list[tuple[str, list[bytes]]] = []
    for line in section("Quick start").splitlines():
        words = line.removeprefix("    ")
        if words.startswith("-> "):
            said.append((words.split()[1], [b""]))
        elif words.startswith("<- ") or not line.startswith("    "):
            continue
        elif said and (found := HEX.match(words.removeprefix("+ "))):
            if words.startswith("+ "):
                said[-1][1].append(b"")
            said[-1][1][-1] += bytes.fromhex(found[0])
    return said


def test_the_quick_start_works_as_it_stands() -> None:
    """Sends each frame of the page to a worker and compares the answers with the page."""
    hands = Hands()
    client = hands.network.client(ENDPOINT)
    came: list[messages.Message] = []
    sent = quick_start()
    assert [name for name, _ in sent] == [*("HELLO", "RESOLVE", "HELLO", "PUBLISH_PLAIN", "SUBSCRIBE", "ACK")]
    for name, frame in sent:
        assert make.title(type(frames.decode(frame[0])[1])) == name
        for _ in range(9):  # a topic that was just created may be busy
            client.send(*frame)
            hands.turn(30)
            answers = [client.receive() for _ in range(len(client.inbox))]
            heard = [frames.decode(answer[0])[1] for answer in answers]
            if not isinstance(heard[0], messages.RefusedMessage):
                break
        came += heard
    assert [make.title(type(each)) for each in came] == [
        *("WELCOME", "TOPICS", "WELCOME", "CONFIRM", "SUBSCRIBED", "DELIVER_PLAIN", "ACKED")
    ]
    (info,) = next(each.topics for each in came if isinstance(each, messages.Topics))
    assert (info.id, info.shards) == (3, [1])
    assert next(each.rows for each in came if isinstance(each, messages.Confirm)) == [(4, 0, 1, False)]
    assert came[-1] == messages.Acked()
