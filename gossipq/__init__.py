"""gossipq: vocabulary, decisions and wire format of a gossip-clustered message broker. Decides, never
does."""

__version__ = "0.2.0"
