"""Export of a cluster to files, by an ordinary client. See docs/how-to/export.md.

A client works for any number of hosts: a leader sends stored batches as it does to readers, and no reader of
a store stays open. On one host it moves more than a million records per second and core. The manifests are
the only state of an export, and a file counts when a manifest names it. So the next run continues where the
newest manifest ends.
"""
