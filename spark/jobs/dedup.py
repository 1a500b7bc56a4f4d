"""spark-submit spark/jobs/dedup.py ARGUMENTS: `gossipq spark dedup`, on spark-submit's master."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "dedup", *sys.argv[1:]]))
