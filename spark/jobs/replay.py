"""spark-submit spark/jobs/replay.py ARGUMENTS: what `gossipq spark replay` does, on the master that
spark-submit names."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "replay", *sys.argv[1:]]))
