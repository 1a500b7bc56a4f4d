"""`gossipq store`."""

from typing import Any

import click
import msgspec

from gossipq_cli import failures
from gossipq_cli.options import Choices, Noun, pass_choices
from gossipq_cli.output import Column, Output, counter, size

data_option = click.option(
    "--data", default="gossipq-data", show_default=True, metavar="DIR", help="data directory of a stopped node"
)


@click.group(cls=Noun)
def command() -> None:
    """Look into a data directory, offline."""


@command.command("info")
@data_option
@pass_choices
def info(choices: Choices, data: str) -> None:
    """Say what a data directory holds.

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
    out.one({**manifest, "disk_free": size(found.disk_free_bytes)}, name=found.manifest.node_id)
    if out.form == "table":
        rows = [msgspec.to_builtins(worker) | worker.rows for worker in found.workers]
        columns = [counter("worker"), Column("file_bytes", size, right=True), Column("used_bytes", size, right=True)]
        out.rows([*columns, *map(counter, found.workers[0].rows), Column("path")], rows)


@command.command("verify")
@data_option
@pass_choices
def verify(choices: Choices, data: str) -> int:
    """Read every stored batch and check its CRC; exits 1 when one is damaged.

    \b
    gossipq store verify --data gossipq-data
    """
    from gossipq_node import store_tool

    out = Output(choices)
    found = store_tool.verify(data, lambda batches: out.detail(f"{batches:,} batches read"))
    row = {
        "batches": found.batches,
        "records": found.records,
        "bytes": found.bytes,
        "damaged": msgspec.to_builtins(found.damaged),
    }
    text = f"{found.batches:,} batches, {found.records:,} records, {size(found.bytes)}: {len(found.damaged) or 'none'} damaged"
    out.one(row, text)
    for damage in found.damaged:
        out.say(f"shard {damage.shard} index {damage.index}: {damage.reason}")
    return failures.FAILED if found.damaged else failures.DONE


@command.command("adopt")
@data_option
@pass_choices
def adopt(choices: Choices, data: str) -> None:
    """Let a node run on a copied data directory.

    \b
    gossipq store adopt --data restored

    For a backup whose original is gone for good: two nodes that run on copies of one directory are taken for one node.
    """
    from gossipq_node import store_tool

    manifest = store_tool.adopt(data)
    row = {"node_id": manifest.node_id, "dir_uuid": manifest.dir_uuid, "predecessors": manifest.predecessors}
    Output(choices).one(row, f"{data} is adopted: the next node that starts there is {manifest.node_id}", manifest.node_id)


@command.command("reshard")
@data_option
@click.option("--workers", type=click.IntRange(min=1), required=True, help="worker processes the node will have")
@pass_choices
def reshard(choices: Choices, data: str, workers: int) -> None:
    """Lay a data directory out for another number of workers.

    \b
    gossipq store reshard --workers 4

    Copies, then switches over; a crash in between leaves the old layout in force.
    """
    from gossipq_node import store_tool

    out = Output(choices)
    manifest = store_tool.reshard(data, workers, lambda shard: out.detail(f"shard {shard} copied"))
    out.one(
        {"workers": manifest.workers, "generation": manifest.generation}, f"{data} is laid out for {manifest.workers} workers"
    )
