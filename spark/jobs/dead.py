"""spark-submit spark/jobs/dead.py ARGUMENTS: `gossipq spark dead`, on spark-submit's master."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "dead", *sys.argv[1:]]))
