"""An application and its processes: what `gossipq run` does."""

from gossipq_client.app import fleet
from gossipq_client.app.application import run

__all__ = ["fleet", "run"]
