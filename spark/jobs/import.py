"""spark-submit spark/jobs/import.py ARGUMENTS: `gossipq spark import`, on spark-submit's master."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "import", *sys.argv[1:]]))
