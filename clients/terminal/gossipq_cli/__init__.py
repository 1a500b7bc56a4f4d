"""The `gossipq` command: asks a node through the public client and prints the answers."""
