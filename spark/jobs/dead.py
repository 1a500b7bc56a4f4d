"""spark-submit spark/jobs/dead.py ARGUMENTS: what `gossipq spark dead` does, on the master that spark-submit
names."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "dead", *sys.argv[1:]]))
