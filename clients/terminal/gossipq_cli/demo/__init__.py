"""`gossipq demo`: a node, real records, three consumers, one of them killed, and the accounting."""
