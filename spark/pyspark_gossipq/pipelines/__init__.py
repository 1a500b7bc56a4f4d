"""What is done with exports again and again: import them into tables, count, look for, deduplicate, publish
again.

Each is a function from frames to a frame; `gossipq spark` and spark/jobs run them, print a table, draw a
picture, and keep roll-ups for those who have no Spark at hand.
"""
