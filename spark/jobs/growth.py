"""spark-submit spark/jobs/growth.py ARGUMENTS: what `gossipq spark growth` does, on the master that
spark-submit names."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "growth", *sys.argv[1:]]))
