"""Celery on gossipq. Importing this package makes `gossipq://` URLs known to kombu and Celery."""

from celery.app.backends import BACKEND_ALIASES
from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES.setdefault("gossipq", "gossipq_celery.transport:Transport")
BACKEND_ALIASES.setdefault("gossipq", "gossipq_celery.results:GossipqBackend")
