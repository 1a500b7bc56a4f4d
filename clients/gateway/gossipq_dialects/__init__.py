"""Protocols of five older brokers, so that their clients work unchanged: plug-ins of the gateway.

Each is found by its entry point of the group `gossipq.dialects`, which names a function of `factories`. A
dialect uses its `Desk`, and of the gateway what listens and answers over HTTP.
"""
