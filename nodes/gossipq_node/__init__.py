"""The node: processes, sockets and disks around the decisions of `gossipq`."""
