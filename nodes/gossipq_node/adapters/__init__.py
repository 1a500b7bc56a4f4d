"""One foreign library each, and its only importer."""
