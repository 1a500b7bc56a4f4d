"""Reads records as a pyarrow table, for polars, duckdb and pandas. Needs pyarrow, and a node: gossipq node"""

import gossipq

with gossipq.connect() as mq:
    # -- in the guide
    table = mq.read("orders", start="-10m").to_arrow()  # a pyarrow.Table, for polars, duckdb and pandas
    print(table.num_rows, "records", table.column_names)
    # --
