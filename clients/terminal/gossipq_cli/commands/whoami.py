"""`gossipq user whoami`."""

import click

from gossipq.texts import dashed, spaced
from gossipq_cli import access, ask
from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output


@click.command(cls=Verb)
@pass_choices
def command(choices: Choices) -> None:
    """Show which user you are to the cluster, and what you may do there.

    \b
    gossipq user whoami
    gossipq user whoami --credentials ~/ada.token
    """
    with ask.connect(choices) as mq:
        said = mq.admin.raw.whoami()
    rules = [f"{rule.topics}: {', '.join(rule.permissions)}" for rule in said.rules]
    out = Output(choices)
    row = {
        "user": said.user,
        "acting": said.acting,
        "closed": said.closed,
        "rules": [{"topics": rule.topics, "permissions": list(rule.permissions)} for rule in said.rules],
        "expires": access.until(said.expires_ms),
    }
    if out.for_machines:
        out.one(row, name=said.user)
        return
    may = "; ".join(rules) or "nothing" if said.closed else "everything: the cluster is open"
    told = {"acting": dashed(said.acting), "expires": spaced(access.until(said.expires_ms))}
    out.one(row | told | {"rules": may, "closed": "yes" if said.closed else "no"}, name=said.user)
