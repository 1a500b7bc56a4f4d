"""A site of Django with tasks and an outbox."""
