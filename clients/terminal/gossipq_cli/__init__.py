"""The `gossipq` command: asks a node over the public client and says what it answered."""
