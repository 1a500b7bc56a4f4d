"""Wires of older brokers, so that their clients work unchanged. Each module has one `Dialect`, which sees its
`Desk` and nothing else of the gateway."""
