"""`gossipq backup` and `gossipq restore`: points of a running cluster in
a folder or object store.
"""
