"""spark-submit spark/jobs/import.py ARGUMENTS: what `gossipq spark import` does, on the master that
spark-submit names."""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "import", *sys.argv[1:]]))
