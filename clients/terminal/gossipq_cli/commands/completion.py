"""`gossipq completion`."""

import click

from gossipq_cli.options import Choices, Verb, pass_choices
from gossipq_cli.output import Output

VARIABLE = "_GOSSIPQ_COMPLETE"  #: read by click


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@pass_choices
def command(choices: Choices, shell: str) -> None:
    """Print what a shell needs to complete these commands.

    \b
    gossipq completion bash >> ~/.bashrc
    gossipq completion zsh >> ~/.zshrc
    gossipq completion fish > ~/.config/fish/completions/gossipq.fish
    """
    from click.shell_completion import get_completion_class

    from gossipq_cli.main import root

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three"
    Output.write(kind(root, {}, "gossipq", VARIABLE).source())
