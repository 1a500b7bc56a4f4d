"""The native HTTP API, under /v1.

`shapes` are requests and answers, `table` lists the operations. Routes and
OpenAPI are made of both.
"""
