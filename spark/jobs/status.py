"""spark-submit spark/jobs/status.py ARGUMENTS: `gossipq spark status`, on spark-submit's master."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "status", *sys.argv[1:]]))
