"""One module for each foreign library, and the only one that imports it."""
