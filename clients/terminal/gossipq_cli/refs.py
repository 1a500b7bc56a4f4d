"""Names of single records and of ranges, as arguments of commands."""

import re
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gossipq_client.values import Address

_RANGE = re.compile(r"(\d+)(?:/(\d+)(?:-(\d+)?)?)?")

id_option = click.option(
    "--id", "record_id", metavar="ID", help="the record that was published with this id; REF is its topic"
)


def where(ref: str, record_id: str | None, also: str = "") -> dict[str, Any]:
    """Return arguments of `mq.record`: a ref, or an id in a topic. `also`:
    other accepted arguments.
    """
    if record_id is not None:
        if "/" in ref:
            raise click.UsageError(f"with --id, {ref!r} must be the name of a topic")
        return {"name": ref, "id": record_id}
    if "/" not in ref:
        ways = "write TOPIC/PARTITION/OFFSET, or TOPIC --id ID"
        raise click.UsageError(f"{ref!r} names no record; {ways}{also}")
    return {"name": ref}


def place(ref: str) -> "Address":
    """Return topic, partition and offset. Raises BadRequest, UsageError."""
    from gossipq_client.values import refs

    address = refs.parse(ref)
    if address.offset < 0:
        raise click.UsageError(f"{ref} has no offset: it is not due yet")
    return address


def range_of(text: str, topic: str) -> tuple[int, int, int]:
    """Return (partition, first, end) of a range, also with TOPIC/ in front.

    A range is PARTITION, PARTITION/OFFSET, PARTITION/FIRST-LAST or PARTITION/FIRST-.
    """
    found = _RANGE.fullmatch(text.removeprefix(f"{topic}/"))
    if found is None:
        raise click.BadParameter(
            f"{text!r}; write PARTITION, PARTITION/OFFSET or PARTITION/FIRST-LAST", param_hint="'RANGE'"
        )
    partition, first, last = found.groups()
    if first is None:
        return int(partition), 0, ALL
    end = int(last) + 1 if last is not None else ALL if text.endswith("-") else int(first) + 1
    if end <= int(first):
        raise click.BadParameter(f"{text!r} ends before it begins", param_hint="'RANGE'")
    return int(partition), int(first), end


ALL = 2**62  #: above all offsets
