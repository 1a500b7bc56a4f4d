"""spark-submit spark/jobs/latency.py ARGUMENTS: `gossipq spark latency`,
on spark-submit's master.
"""

import sys

from gossipq_cli.main import main

sys.exit(main(["spark", "latency", *sys.argv[1:]]))
