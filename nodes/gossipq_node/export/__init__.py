"""Exporting a cluster to files: an ordinary client that reads ranges and writes segments and manifests.
docs/EXPORT.md."""
