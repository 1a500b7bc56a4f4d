"""`python -m gossipq_cli` is `gossipq`."""

from gossipq_cli.main import run

run()
