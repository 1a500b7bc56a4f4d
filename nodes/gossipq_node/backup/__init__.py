"""`gossipq backup` and `gossipq restore`: points of a running cluster in a folder or an object store."""
