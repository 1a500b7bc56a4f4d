"""`gossipq store`."""

from typing import Any

import click
import msgspec

from gossipq.texts import dashed, many, size
from gossipq_cli import failures
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, counter
from gossipq_cli.reach import CONNECT_S, trouble_of

data_option = click.option(
    "--data",
    default="gossipq-data",
    show_default=True,
    metavar="DIR",
    help="data directory of a stopped node",
)


@click.group(cls=Noun, lazy=("restore",))
def command() -> None:
    """Inspect, check, copy, shrink, restore a data directory, offline."""


@command.command("info")
@data_option
@pass_choices
def info(choices: Choices, data: str) -> None:
    """Show what a data directory holds.

    \b
    gossipq store info
    gossipq store info --data /var/lib/gossipq -o json
    """
    from gossipq_node import store_tool

    found, out = store_tool.info(data), Output(choices)
    if out.for_machines:
        out.one(msgspec.to_builtins(found))
        return
    manifest: dict[str, Any] = msgspec.to_builtins(found.manifest)
    options = manifest.pop("options")
    fields = {name: _told(value) for name, value in manifest.items()}
    out.one(
        {**fields, "disk_free": size(found.disk_free_bytes), **dict(sorted(options.items()))},
        name=found.manifest.node_id,
    )
    if out.form == "table":
        rows = [msgspec.to_builtins(worker) | worker.rows for worker in found.workers]
        columns = [
            counter("worker"),
            Column("file_bytes", size, right=True),
            Column("used_bytes", size, right=True),
        ]
        out.rows([*columns, *map(counter, found.workers[0].rows), Column("path")], rows)


def _told(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        value = [f"{name} = {text}" for name, text in sorted(value.items())]
    return dashed(", ".join(map(str, value)) if isinstance(value, list) else value)


@command.command("verify")
@data_option
@pass_choices
def verify(choices: Choices, data: str) -> int:
    """Read every stored batch and check its CRC, and open each shard; exits 1 when something is damaged.

    \b
    gossipq store verify --data gossipq-data
    """
    from gossipq_node import store_tool

    out = Output(choices)
    found = store_tool.verify(data, lambda batches: out.detail(f"{many(batches, 'batch', 'batches')} read"))
    row = {
        "batches": found.batches,
        "records": found.records,
        "bytes": found.bytes,
        "damaged": msgspec.to_builtins(found.damaged),
    }
    read = f"{many(found.batches, 'batch', 'batches')}, {many(found.records, 'record')}, {size(found.bytes)}"
    text = f"{read}: {len(found.damaged) or 'none'} damaged"
    out.one(row, text)
    for damage in found.damaged:
        index = f" index {damage.index}" if damage.index else ""
        out.say(f"shard {damage.shard}{index}: {damage.reason}")
    return failures.FAILED if found.damaged else failures.DONE


@command.command("adopt")
@data_option
@click.option("--force", is_flag=True, help="also while something answers where the original ran")
@pass_choices
def adopt(choices: Choices, data: str, force: bool) -> None:
    """Let a node run on a copied data directory.

    \b
    gossipq store adopt --data restored

    For a backup whose original is gone for good: two nodes that run on copies of one directory are taken for
    one node, and records that one of them confirms are lost.
    """
    from gossipq_node import store_tool

    address = "" if force else store_tool.original_address(data)
    if address.startswith("tcp://") and trouble_of(address, CONNECT_S) is None:
        raise failures.Failure(
            "wrong_state",
            f"a node answers at {address}, where the original of {data} ran",
            "end that one for good first; --force if it is another one",
            failures.CONFLICT,
        )
    manifest = store_tool.adopt(data)
    row = {"node_id": manifest.node_id, "dir_uuid": manifest.dir_uuid, "predecessors": manifest.predecessors}
    Output(choices).one(
        row, f"{data} is adopted: the next node that starts there is {manifest.node_id}", manifest.node_id
    )


@command.command("reshard")
@data_option
@click.option(
    "--workers", type=click.IntRange(min=1), required=True, help="worker processes the node will have"
)
@pass_choices
def reshard(choices: Choices, data: str, workers: int) -> None:
    """Convert a data directory to another number of workers.

    \b
    gossipq store reshard --workers 4

    Copies, then switches over; a crash in between leaves the old layout in force.
    """
    from gossipq_node import store_tool

    out = Output(choices)
    manifest = store_tool.reshard(data, workers, lambda shard: out.detail(f"shard {shard} copied"))
    out.one(
        {"workers": manifest.workers, "generation": manifest.generation},
        f"{data} is laid out for {many(manifest.workers, 'worker')}",
    )


@command.command("compact")
@data_option
@pass_choices
def compact(choices: Choices, data: str) -> None:
    """Shrink a data directory: space that it does not need goes back to the disk.

    \b
    gossipq store compact --data gossipq-data

    A store reuses its free pages, and gives them back while the disk is low. Needs as much free space as the
    records take; a crash in between leaves the old files in force.
    """
    from gossipq_node import store_tool

    out = Output(choices)
    before, after = store_tool.compact(data, lambda shard: out.detail(f"shard {shard} copied"))
    row = {"data": data, "bytes_before": before, "bytes_after": after}
    out.one(row, f"{data} had {size(before)} and has {size(after)} now", data)
