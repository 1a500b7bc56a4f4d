"""What programs hold: the client, its messages and subscriptions, in two dresses, `sync` and `aio`."""
