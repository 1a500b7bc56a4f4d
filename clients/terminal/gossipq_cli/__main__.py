"""`python -m gossipq_cli` is `gossipq`."""

from gossipq_cli.entry import run

run()
