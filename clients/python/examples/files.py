"""Exports a topic to files and reads them with polars, without Spark.

Needs polars, and a node: gossipq node
"""

import subprocess
import sys

import gossipq

subprocess.run([sys.executable, "-m", "gossipq_cli", "-q", "export", "orders", "--out", "lake"], check=True)

# -- in the guide
orders = gossipq.lake.open("lake").polars("orders")  # or .table(), .duckdb(), .pandas(); or as_of="-1h"
by_key = orders.group_by("key").len().sort("len").collect()
print(by_key["len"].sum(), "records of", len(by_key), "keys")
# --
