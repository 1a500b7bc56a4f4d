"""`gossipq backup` and `gossipq store restore`: points of a running cluster in
a folder or object store.
"""
