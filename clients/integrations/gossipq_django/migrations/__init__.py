"""The table of the outbox."""
