"""A node for tests, whose clock the test moves. See `gossipq_client.testing`."""

from gossipq_client.testing import Broker, Client, MovableClock

__all__ = ["Broker", "Client", "MovableClock"]
