"""spark-submit spark/jobs/search.py ARGUMENTS: what `gossipq spark search` does, on the master that
spark-submit names."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "search", *sys.argv[1:]]))
