"""`gossipq node`."""

import os

import click

from gossipq_cli.options import Verb


@click.command(cls=Verb)
@click.option("--config", metavar="FILE", help="default: $GOSSIPQ_CONFIG, ./cluster.toml, /etc/gossipq/cluster.toml, none")
@click.option("--name", help="name of this node (default: made from the host's)")
@click.option("--data", metavar="DIR", help="data directory (./gossipq-data)")
@click.option("--workers", type=click.IntRange(min=0), help="worker processes; 0 = one per core")
@click.option("--bind", metavar="URL", help="tcp://HOST:PORT for clients (tcp://127.0.0.1:7700)")
@click.option("--advertise", metavar="HOST", help="what others reach this machine by")
@click.option("--cluster", metavar="NAME", help="name of the cluster")
@click.option("--mode", type=click.Choice(["auto", "standalone"]), help="how the node finds others")
@click.option(
    "--insecure", is_flag=True, default=None, help="bind addresses that other machines reach, without any check of who comes"
)
def command(
    config: str | None,
    name: str | None,
    data: str | None,
    workers: int | None,
    bind: str | None,
    advertise: str | None,
    cluster: str | None,
    mode: str | None,
    insecure: bool | None,
) -> int:
    """Run a node.

    \b
    gossipq node
    gossipq node --data /var/lib/gossipq --bind tcp://127.0.0.1:7700
    gossipq node --config cluster.toml

    SIGTERM or Ctrl-C drains and stops; a second one stops at once. Exits 0 then, 1 when the node cannot
    start (its directory is in use, say), 78 on a bad option.
    """
    from gossipq.config import find, load
    from gossipq_node.main import run

    flags = {"node.name": name, "node.data": data, "node.workers": workers, "node.bind": bind, "node.advertise": advertise}
    flags |= {"cluster.name": cluster, "node.mode": mode, "node.insecure": insecure}
    return run(load(find(config, os.environ), os.environ, flags))
