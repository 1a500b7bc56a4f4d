"""`gossipq backup` and `gossipq store restore`: points of a running cluster, or of a stopped node,
in a folder or object store.

A leader makes a point at the next commit (`core/copies/backups.py`) and sends its rows part by
part. Batches never change, so a backup fetches each of them once. A file counts when a point names
it, and the point is written last. A leader drops a point after a minute without a request, and at a
takeover; then the client asks that shard again.
"""
