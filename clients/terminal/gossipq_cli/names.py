"""Names for shell completion: present topics, groups, nodes and contexts."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from gossipq_cli.choices import Choices

if TYPE_CHECKING:
    from gossipq_client import Client

ASK_S = 1.0  #: the user waits this long at most after pressing the key
Ask = Callable[["Client", click.Context], Iterable[str]]


class Name(click.types.StringParamType):
    """The name of something in the cluster."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names. Empty if no node answers, because a shell should not show errors."""
        from gossipq.errors import GossipqError
        from gossipq_cli import ask

        choices = replace(ctx.find_object(Choices) or Choices(), timeout_s=ASK_S)
        try:
            with ask.connect(choices) as mq:
                found = sorted(set(self._ask(mq, ctx)))
        except GossipqError:
            return []
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]


class ContextName(click.types.StringParamType):
    """The name of a context of this user."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from gossipq.errors import GossipqError
        from gossipq_client.io import contexts

        try:
            known = contexts.load().servers
        except GossipqError:
            return []
        return [CompletionItem(name) for name in sorted(known) if name.startswith(incomplete)]


def _topics(mq: "Client", ctx: click.Context) -> Iterable[str]:
    return (topic.name for topic in mq.topics())


def _groups(mq: "Client", ctx: click.Context) -> Iterable[str]:
    """Groups of the topic that was typed before, else of all topics."""
    # behind an option without a value, click has not assigned earlier arguments yet
    topic = ctx.params.get("topic") or ctx.params.get("topics") or ctx.params.get("ref") or ctx.args[:1]
    topics = {name.partition("/")[0] for name in ([topic] if isinstance(topic, str) else topic)}
    return (row.group for row in mq.admin.raw.stats(topics).groups)


def _nodes(mq: "Client", ctx: click.Context) -> Iterable[str]:
    return (member.name for member in mq.admin.raw.status().members)


TOPIC, GROUP, NODE, CONTEXT = Name(_topics), Name(_groups), Name(_nodes), ContextName()
#: by the name of the parameter
KINDS: dict[str, Any] = dict.fromkeys(("topic", "topics", "targets"), TOPIC)
KINDS |= dict.fromkeys(("group", "named"), GROUP) | {"node": NODE}
