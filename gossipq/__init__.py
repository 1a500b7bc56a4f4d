"""gossipq: vocabulary, decisions and wire format of a gossip-clustered message broker.

This package decides. It never does I/O.
"""

__version__ = "0.2.0"
