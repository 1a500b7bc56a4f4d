"""Celery on gossipq: a kombu transport. Importing this package makes `gossipq://` URLs known to kombu."""

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES.setdefault("gossipq", "gossipq_celery.transport:Transport")
