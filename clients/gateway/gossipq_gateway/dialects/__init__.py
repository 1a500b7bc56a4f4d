"""Protocols of older brokers, so that their clients work unchanged.

Each module has one `Dialect`, which uses its `Desk` and no other part of the gateway.
"""
