"""A transactional outbox: rows in the caller's database transaction, which a relay publishes."""
