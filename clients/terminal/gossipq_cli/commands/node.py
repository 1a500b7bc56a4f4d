"""`gossipq node`."""

import os
from collections.abc import Callable
from typing import Any

import click

from gossipq_cli.options import Verb

_OPTIONS = (
    click.option(
        "--config",
        metavar="FILE",
        help="default: $GOSSIPQ_CONFIG, ./cluster.toml, /etc/gossipq/cluster.toml, none",
    ),
    click.option("--name", help="name of this node (default: made from the host's)"),
    click.option("--data", metavar="DIR", help="data directory (./gossipq-data)"),
    click.option("--bind", metavar="URL", help="tcp://HOST:PORT for clients (tcp://127.0.0.1:7700)"),
    click.option("--advertise", metavar="HOST", help="HOST or address at which others reach this machine"),
    click.option(
        "--admin",
        metavar="HOST:PORT",
        help='metrics and health (loopback, 80 above the port of bind); "" = nowhere',
    ),
    click.option(
        "--join",
        multiple=True,
        metavar="HOST[:PORT]",
        help="HOST:PORT of a node's gossip (Serf), or an invitation; repeatable",
    ),
    click.option(
        "--peer",
        multiple=True,
        metavar="URL",
        help="another node, as tcp://HOST:PORT, without Serf; repeatable",
    ),
    click.option(
        "--gossip",
        metavar="HOST:PORT",
        help="where the Serf agent of this node listens (90 ports above --bind)",
    ),
    click.option(
        "--mode",
        type=click.Choice(["auto", "standalone", "static", "serf"]),
        help="how the node finds others",
    ),
    click.option(
        "--secret-file", metavar="FILE", help="file with the secret that all nodes of the cluster share"
    ),
    click.option(
        "--encrypt",
        type=click.Choice(["auto", "always", "never"]),
        help="CURVE between nodes and for clients (auto: where other machines reach the node)",
    ),
    click.option(
        "--insecure",
        is_flag=True,
        default=None,
        help="allow addresses that other machines reach, without a secret",
    ),
)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(cls=Verb)
@options
@click.option("--witness", is_flag=True, help="run a witness: it votes in elections, and keeps no records")
@click.option("--workers", type=click.IntRange(min=0), help="worker processes; 0 = one per core")
@click.option("--cluster", metavar="NAME", help="name of the cluster")
def command(config: str | None, witness: bool, **given: Any) -> int:
    """Run a node or a witness: the first of a cluster, or one more.

    \b
    gossipq node
    gossipq node --data /var/lib/gossipq --bind tcp://127.0.0.1:7700
    gossipq node --data b --bind tcp://127.0.0.1:7900 --join 127.0.0.1:7790
    gossipq node --config cluster.toml
    gossipq node --witness --join ada

    A witness votes in elections of leaders and keeps no records, so that two nodes can take over from each
    other. Any third host will do; a cluster of three full nodes needs none.

    SIGTERM or Ctrl-C drains and stops; a second one stops at once. Exits 0 then, 1 when the node cannot
    start (its directory or port is in use, say), 78 on a bad option or when the cluster refuses it.
    """
    from gossipq.config import find, load
    from gossipq_node.main import run

    said = {name: value for name, value in given.items() if value not in (None, ())}
    keys = {"cluster": "cluster.name", "join": "cluster.join"}
    flags = {keys.get(name, f"node.{name}"): value for name, value in said.items()}
    return run(load(find(config, os.environ), os.environ, flags), witness)
