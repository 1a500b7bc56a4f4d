"""Fixtures of the attacks: real nodes, and raw clients that say whatever they like."""

from e2e.conftest import make as make
from e2e.conftest import raw as raw
from e2e.conftest import served as served
