"""The one way from a command to a node: the public client."""

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gossipq.errors import GossipqError
from gossipq.messages import StatusReply
from gossipq_cli import failures
from gossipq_cli.options import Choices

if TYPE_CHECKING:
    from gossipq_client import Client

ASK_AGAIN_S = 0.1  #: pause between two questions of `wait_healthy`


def connect(choices: Choices) -> "Client":
    """A client for the chosen servers; raises Unreachable when none answers within the time limit."""
    import gossipq_client

    return gossipq_client.connect(*choices.servers, name=f"gossipq-{os.getpid()}", timeout=choices.timeout_s)


def missing(mq: "Client", names: Iterable[str]) -> list[str]:
    """The names that no topic has; a pattern is none."""
    return [name for name in names if "*" not in name and all(topic.name != name for topic in mq.topics(name))]


def sure(choices: Choices, doing: str, question: str) -> None:
    """Goes on when --yes was given, or when somebody says yes. Raises UsageError where nobody can."""
    if choices.yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{doing} needs --yes when nobody can be asked")
    click.confirm(question, abort=True, err=True)


def healthy(status: StatusReply) -> bool:
    """Every shard has a leader with its full set of voters."""
    return status.led == status.shards > 0


def status(choices: Choices) -> StatusReply:
    with connect(choices) as mq:
        return mq.status()


def wait_healthy(choices: Choices, wait_s: float) -> StatusReply:
    """Asks until the answer is good, also when nobody is there yet. Raises Failure when the time is over."""
    deadline, last = time.monotonic() + wait_s, "no answer"
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            answer = status(replace(choices, timeout_s=min(choices.timeout_s, left_s)))
        except GossipqError as error:
            if not error.retryable:
                raise
            last = error.message
        else:
            if healthy(answer):
                return answer
            last = f"{answer.led} of {answer.shards} shards have a leader"
        time.sleep(max(0.0, min(ASK_AGAIN_S, deadline - time.monotonic())))
    raise failures.Failure(
        "timed_out", f"not healthy within {wait_s:g} s: {last}", "`gossipq status` says more", failures.TIMED_OUT
    )
