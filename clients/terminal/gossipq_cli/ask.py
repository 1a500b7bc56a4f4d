"""The client through which commands talk to a node."""

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gossipq.endpoints import door_of
from gossipq.errors import GossipqError, UnknownTopic
from gossipq.messages import StatusReply
from gossipq_cli import failures, reach
from gossipq_cli.choices import Choices
from gossipq_cli.contexts import servers_of
from gossipq_ops.hints import nearest
from gossipq_ops.process import own_name

if TYPE_CHECKING:
    from gossipq.values import GroupStats
    from gossipq_client import Client
    from gossipq_ops.clusters import ClusterView

ASK_AGAIN_S = 0.1  #: pause between two questions of `wait_healthy`


def connect(choices: Choices, patience_s: float = 0.0) -> "Client":
    """Connect to the chosen servers. Raises Unreachable if none answers within the time limit.

    Requests of a long job wait at least `patience_s`, so that a disk which stalls for
    a moment does not end it.
    """
    import gossipq_client
    from gossipq_client.io import contexts

    places = contexts.addresses_of(servers_of(choices.servers))
    here, path = choices.servers, choices.credentials or None
    shown = contexts.credentials_for(here, places, path, choices.insecure or bool(choices.door))
    shown = shown._replace(door=shown.door or choices.door, insecure=choices.insecure)
    doors = [door_of(place) if shown.door else place for place in places]
    first = reach.require(doors, choices.timeout_s, contexts.hint_of(places, shown), has_key=bool(shown.door))
    return gossipq_client.connect(
        *places[first:],  # the client would wait a second for each unreachable address
        *places[:first],
        name=own_name(),
        timeout=max(choices.timeout_s, patience_s),
        wait=choices.timeout_s,
        credentials=shown,
        insecure=choices.insecure,
    )


class Home:
    """The node that the user named, with its last STATUS for the time while it is away."""

    def __init__(self) -> None:
        self._told: StatusReply | None = None

    def told(self, asked: Callable[[], StatusReply]) -> StatusReply:
        """Return its present STATUS, or else the last one. Raises as `asked` if there was none."""
        try:
            self._told = asked()
        except GossipqError:
            if self._told is None:
                raise
        return self._told


def elsewhere(choices: Choices, address: str, asked: StatusReply) -> Choices:
    """Return the choices for another node of the cluster, which `asked` describes.

    Operators of a node need no credentials file for the others: their node knows the
    key of the encrypted ports.
    """
    from gossipq_client.io import contexts

    path = choices.credentials or contexts.credentials_file(choices.servers)
    encrypts = any(member.encrypts for member in asked.members if member.endpoint == address)
    home = contexts.are_here(contexts.addresses_of(servers_of(choices.servers)))
    door = asked.door if encrypts and home else b""
    return replace(choices, servers=[address], credentials=path, door=door)


def missing(mq: "Client", names: Iterable[str]) -> list[str]:
    """Return the names without a topic. Patterns are ignored."""
    return [
        name for name in names if "*" not in name and all(topic.name != name for topic in mq.topics(name))
    ]


def groups_of(mq: "Client", topic: str) -> "list[GroupStats]":
    """Return the counters of groups of the topics that match. Raises UnknownTopic if none does."""
    names = {each.name for each in mq.topics(topic)}
    if not names:
        raise no_topic(mq, topic)
    if "*" not in topic:
        return mq.admin.raw.stats([topic]).groups
    return [part for part in mq.admin.raw.stats().groups if part.topic in names]


def no_topic(mq: "Client", name: str, hint: str = "`gossipq topic ls` lists topics") -> UnknownTopic:
    """Return the error for an unknown topic, with the nearest existing name."""
    return UnknownTopic(f"no topic {name}{nearest(name, [topic.name for topic in mq.topics()])}", hint=hint)


def sure(choices: Choices, doing: str, question: str) -> None:
    """Continue if --yes was given or the user agrees.

    Raises UsageError if the user cannot be asked, because stdin is not a terminal.
    """
    if choices.yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{doing} needs --yes when nobody can be asked")
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:  # Ctrl-C: the cursor is behind the question
        click.echo(err=True)
        raise
    if not agreed:
        raise click.Abort


def look(choices: Choices) -> "ClusterView":
    """Ask one node for the members, and then each of them. Raises errors of the first question."""
    from gossipq_ops.gather import view_of

    asked = status(choices)
    return view_of(asked, lambda address: status(elsewhere(choices, address, asked)))


def status(choices: Choices) -> StatusReply:
    with connect(choices) as mq:
        return mq.admin.raw.status()


def wait_healthy(choices: Choices, wait_s: float, nodes: int = 0) -> "ClusterView":
    """Wait until all is well and `nodes` nodes answer, even if none is running yet.

    Raises Failure when the time is over.
    """
    from gossipq_ops import clusters

    deadline, last = time.monotonic() + wait_s, "no answer"
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            view = look(replace(choices, timeout_s=min(choices.timeout_s, left_s)))
        except GossipqError as error:
            if not error.retryable or failures.explain(error).exit_code == failures.REFUSED:
                raise
            last = error.message
        else:
            last = clusters.unhealthy(view, nodes)
            if not last:
                return view
        time.sleep(max(0.0, min(ASK_AGAIN_S, deadline - time.monotonic())))
    raise failures.Failure(
        "timed_out",
        f"not healthy within {wait_s:g} s: {last}",
        "`gossipq status` says more",
        failures.TIMED_OUT,
    )
