"""The model of operating that the command line, `top`, the console and HTTP render.

It has a snapshot of the cluster, its sums and history, the forecast of a group, and the verbs of rows.

All but `gather` (threads that ask nodes) and `process` is pure: clients and secrets are handed in.
"""
