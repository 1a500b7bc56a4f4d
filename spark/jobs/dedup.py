"""spark-submit spark/jobs/dedup.py ARGUMENTS: what `gossipq spark dedup` does, on the master that
spark-submit names."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "dedup", *sys.argv[1:]]))
