"""`gossipq version`."""

import click

from gossipq import __version__
from gossipq_cli.options import Choices, Verb, pass_choices


@click.command(cls=Verb)
@pass_choices
def command(choices: Choices) -> None:
    """Print the version.

    \b
    gossipq version
    gossipq version -o json      also Python's and the libraries'
    """
    from gossipq_cli.output import Output

    out = Output(choices)
    if not out.for_machines:
        out.write(f"gossipq {__version__}")
        return
    from importlib.metadata import version
    from platform import python_version

    libraries = {name: version(name) for name in ("pyzmq", "lmdb", "msgspec", "click", "rich")}
    out.one({"version": __version__, "python": python_version(), **libraries})
