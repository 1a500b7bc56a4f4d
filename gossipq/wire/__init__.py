"""Bytes to messages and back. No sockets; blind to `gossipq.core`."""
