"""Django: a backend for its tasks, their workers, and an outbox in its transactions."""
