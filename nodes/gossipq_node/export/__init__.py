"""Export of a cluster to files, by an ordinary client. See docs/how-to/export.md."""
