"""PROTOCOL.md and the code say the same: verbs, fields, defaults, error codes, limits, kinds of log
entries."""

import re
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin

import msgspec
import pytest

from gossipq import errors, limits, messages, values
from gossipq.core.ledger import records
from gossipq.core.raft import ClockRow
from gossipq.core.storage import log, payloads
from gossipq.errors import GossipqError
from gossipq.messages import MESSAGES
from gossipq.wire import batch, frames

TEXT = (Path(__file__).resolve().parents[2] / "PROTOCOL.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (.*)\|$", re.MULTILINE)  #: a ruler of dashes is none


def structs_of(module: ModuleType) -> list[type[msgspec.Struct]]:
    """Those that are made there and travel, in their order: options alone are no arrays."""
    made = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    ]
    return [kind for kind in made if kind is not values.Message and kind.__struct_config__.array_like]


def section(heading: str) -> str:
    """What follows a heading, up to the next one."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", TEXT, re.MULTILINE)
    assert found, f"PROTOCOL.md has no heading {heading!r}"
    rest = TEXT[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[list[str]]:
    """Cells of a table, without its head."""
    return [[cell.strip() for cell in row.split("|")] for row in ROW.findall(text)][1:]


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
        return f"[{', '.join(map(type_name, get_args(kind)))}]"
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


def fields_of(kind: type[msgspec.Struct]) -> list[list[str]]:
    return [
        [field.name, type_name(field.type), default_name(field)] for field in msgspec.structs.fields(kind)
    ]


@pytest.mark.parametrize("kind", MESSAGES.values(), ids=title)
def test_every_message(kind: type[messages.Message]) -> None:
    assert [row[:3] for row in rows(section(f"{kind.verb} {title(kind)}"))] == fields_of(kind)


@pytest.mark.parametrize("kind", structs_of(values), ids=lambda kind: kind.__name__)
def test_every_value(kind: type[msgspec.Struct]) -> None:
    assert [row[:3] for row in rows(section(kind.__name__))] == fields_of(kind)


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
ENTRIES = section("16. Log entries").partition("### State")[0]


def listed(kind: type[msgspec.Struct]) -> list[str]:
    """The row of a payload or a value of the state."""
    return [
        kind.__name__,
        ", ".join(f"{field.name}: {type_name(field.type)}" for field in msgspec.structs.fields(kind)),
    ]


def test_kinds_of_log_entries() -> None:
    table = [row for row in rows(ENTRIES) if row[0].isdigit()]
    assert {int(number): name for number, name, *_ in table} == KINDS
    made = {"none", "fixed layout, below", *(kind.__name__ for kind in structs_of(payloads))}
    assert {payload for _, _, payload, _ in table} <= made


def test_payloads_of_log_entries() -> None:
    table = [row for row in rows(ENTRIES) if len(row) == 2 and row[0] != "payload"]
    assert table == [listed(kind) for kind in structs_of(payloads)]


def test_rows_of_the_state() -> None:
    table = rows(section("State"))
    letters = re.findall(r'^    "(\w)"', records.__doc__ or "", re.MULTILINE)
    assert [row[0] for row in table if len(row) == 3] == letters
    assert [row for row in table if len(row) == 2 and row[0] != "value"] == [
        listed(kind) for kind in (*structs_of(records), ClockRow)
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
        "keys": batch.KEYS,
        "headers": batch.HEADERS,
        "ids": batch.IDS,
    }
    found = re.findall(r"^    (\d+)\s+(0x[0-9a-f]{5})\s+(\w+(?: hash)?)\s", section("6. Batch"), re.MULTILINE)
    assert {name: int(value, 16) for _, value, name in found} == names
    assert all(1 << int(bit) == int(value, 16) for bit, value, _ in found)


def test_example_batch() -> None:
    lines = re.findall(r"^    ((?:[0-9a-f]{4,8} )+) {2,}\w", section("6. Batch"), re.MULTILINE)
    assert batch.Batch(bytes.fromhex("".join(lines))).values() == [b"hello"]


def test_versions() -> None:
    assert TEXT.startswith(f"# The gossipq protocol, version {frames.VERSION}\n")
    assert batch.MAGIC[3] == 1
