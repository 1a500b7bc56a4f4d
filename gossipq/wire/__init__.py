"""Messages to bytes and back. No sockets; does not import `gossipq.core`."""
