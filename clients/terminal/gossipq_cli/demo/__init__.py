"""`gossipq demo`: a node, records, three consumers, one of them killed,
and a check of all records.
"""
