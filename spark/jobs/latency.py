"""spark-submit spark/jobs/latency.py ARGUMENTS: what `gossipq spark latency` does, on the master that
spark-submit names."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "latency", *sys.argv[1:]]))
