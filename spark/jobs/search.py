"""spark-submit spark/jobs/search.py ARGUMENTS: `gossipq spark search`, on spark-submit's master."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "search", *sys.argv[1:]]))
