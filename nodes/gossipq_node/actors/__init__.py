"""Actors: one loop each, over core and ports."""
