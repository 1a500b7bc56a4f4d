"""The outbox as a model, so that migrations create its table and the admin shows it."""

from django.db import models


class OutboxRow(models.Model):
    """A record that waits for the relay. `gossipq_django.outbox.publish` inserts one."""

    number = models.BigAutoField(primary_key=True)
    id = models.TextField()
    topic = models.TextField()
    key = models.BinaryField(null=True)
    value = models.BinaryField()
    options = models.TextField(default="{}")
    created_ms = models.BigIntegerField()
    refused = models.TextField(null=True)  #: why the broker will never take it

    class Meta:
        db_table = "gossipq_outbox"

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"
