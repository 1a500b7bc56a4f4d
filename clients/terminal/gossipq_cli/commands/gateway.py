"""`gossipq gateway`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gossipq.messages import StatusReply
from gossipq_cli import ask
from gossipq_cli.failures import Failure
from gossipq_cli.options import Choices, Verb, pass_choices

if TYPE_CHECKING:
    from gossipq_client import Client
    from gossipq_gateway.console import Console

HTTP = "127.0.0.1:7781"
CALLER_S = 2.0


@click.command(cls=Verb)
@click.option("--http", metavar="HOST:PORT", default=HTTP, help=f"native HTTP and the console ({HTTP})")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="another host name of the gateway, which Host: may have",
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="origin whose pages may send requests (CORS)",
)
@click.option(
    "--public-url",
    metavar="URL",
    default="",
    help="how callers reach it through a proxy, as https://mq.example: QueueUrls of SQS begin so",
)
@click.option(
    "--trust-proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="a proxy or its network, whose X-Forwarded-Proto counts (one on this machine always does)",
)
@click.option("--sqs", is_flag=True, help="Amazon SQS, at /sqs of the port of HTTP")
@click.option("--sqs-keys", metavar="FILE", default="", help="access keys of SQS, a file of your own (0600)")
@click.option(
    "--webhooks", metavar="FILE", default="", help="push groups to URLs: a TOML file of your own (0600)"
)
@click.option(
    "--dialect",
    "dialects",
    multiple=True,
    metavar="NAME[=HOST:PORT]",
    help="a protocol of an installed package: kapokmq, moonmq, queue-server, xxl-mq, prettyq",
)
@click.option("--dialect-options", metavar="FILE", default="", help="a TOML file with a table per dialect")
@pass_choices
def command(choices: Choices, /, **given: Any) -> None:
    """Serve HTTP, a console for browsers, Amazon SQS and older wires.

    \b
    gossipq gateway
    gossipq gateway --http 127.0.0.1:7781 --sqs --sqs-keys keys.json
    gossipq -s ada:7700 gateway --dialect kapokmq=127.0.0.1:8011

    A client of the cluster like any other: it runs beside a node or anywhere, as many as you like. Callers
    of HTTP show tokens of their own; other dialects do what the user of --credentials may do. SIGTERM or
    Ctrl-C: unacked records are redelivered.
    """
    try:
        from gossipq_gateway import plugins, service
    except ModuleNotFoundError as missing:
        raise Failure(
            "not_installed", f"the gateway needs {missing.name}", 'pip install "gossipq[gateway]"'
        ) from None
    from gossipq_client.aio import Client, connect
    from gossipq_gateway.dialect import place
    from gossipq_gateway.settings import Settings

    given["http"] = place(given["http"], "--http")
    options_file = given.pop("dialect_options")
    given["dialects"] = plugins.wanted(given["dialects"], options_file, given["hosts"])
    settings = Settings(**given, insecure=choices.insecure)

    # callers with their own tokens need the key of encrypted ports in this file
    if choices.credentials:
        os.environ["GOSSIPQ_CREDENTIALS"] = choices.credentials

    def client(token: bytes | None) -> Client:
        return connect(
            *choices.servers,
            name=f"gateway-{os.getpid()}",
            timeout=choices.timeout_s,
            # callers with a refused token hear it soon; the node was reached before
            wait=None if token is None else min(CALLER_S, choices.timeout_s),
            credentials=token,
            insecure=choices.insecure,
        )

    service.run(client, settings, [console(choices)])


def console(choices: Choices) -> "Console":
    """Return the console, in which each user is a client with its own token."""
    import gossipq_client
    from gossipq_cli.contexts import servers_of
    from gossipq_cli.means import means
    from gossipq_client.io import addresses_of, contexts
    from gossipq_client.values import Credentials
    from gossipq_gateway.console import Console
    from gossipq_ops.process import own_name

    home = ask.Home()

    def connect(endpoint: str, token: bytes | None) -> "Client":
        shown = token or b""
        if not endpoint:
            return client(choices.servers, shown)

        def status() -> StatusReply:
            with client(choices.servers, shown) as mq:
                return mq.admin.raw.status()

        there = ask.elsewhere(choices, endpoint, home.told(status))
        path = there.credentials
        door = there.door or (contexts.read_credentials(Path(path)).door if path else b"")
        return client([endpoint], Credentials(shown, door=door) if door else shown)

    def client(servers: Sequence[str], shown: bytes | Credentials) -> "Client":
        return gossipq_client.connect(
            *servers,
            name=own_name(),
            timeout=choices.timeout_s,
            wait=choices.timeout_s,
            credentials=shown,
            insecure=choices.insecure,
        )

    return Console(connect, addresses_of(servers_of(choices.servers))[0], means)
