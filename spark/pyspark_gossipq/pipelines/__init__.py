"""Common jobs on exports: import into tables, count, search, deduplicate, publish again.

Each is a function from frames to a frame. `gossipq spark` and spark/jobs run them, print a table,
draw a chart, and keep roll-ups for readers without Spark.
"""
