"""The application for INSTALLED_APPS."""

from django.apps import AppConfig


class GossipqConfig(AppConfig):
    """Has the migration of the outbox, and the commands `gossipq_worker` and `gossipq_relay`."""

    name = "gossipq_django"
    verbose_name = "gossipq"
    default_auto_field = "django.db.models.BigAutoField"
