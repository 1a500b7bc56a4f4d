"""Starlette and FastAPI: a client that lives as long as the application, and a route for probes.

broker = gossipq_starlette.Attached(gossipq.aio.connect())
app = FastAPI(lifespan=broker.lifespan)
app.add_route("/readyz", broker.readyz)
"""

from gossipq_starlette.attached import Attached

__all__ = ["Attached"]
