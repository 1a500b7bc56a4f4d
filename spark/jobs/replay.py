"""spark-submit spark/jobs/replay.py ARGUMENTS: `gossipq spark replay`, on spark-submit's master."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "replay", *sys.argv[1:]]))
