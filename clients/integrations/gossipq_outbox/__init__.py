"""A transactional outbox: rows in the caller's database transaction, which a relay publishes.

outbox = gossipq.outbox.Outbox()
with connection:  # a transaction
    connection.execute("update stock set figs = figs - 1")
    outbox.publish(connection, "orders", {"item": "figs"}, key="ada")

gossipq.outbox.Relay(mq, "postgresql://shop@db/shop").run()  # or: gossipq outbox relay
"""

from gossipq_outbox.outbox import Outbox
from gossipq_outbox.relay import Relay

__all__ = ["Outbox", "Relay"]
