"""spark-submit spark/jobs/growth.py ARGUMENTS: `gossipq spark growth`, on spark-submit's master."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "growth", *sys.argv[1:]]))
