"""spark-submit spark/jobs/status.py ARGUMENTS: what `gossipq spark status` does, on the master that
spark-submit names."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "status", *sys.argv[1:]]))
