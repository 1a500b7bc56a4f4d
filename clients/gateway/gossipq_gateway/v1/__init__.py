"""The native HTTP API, under /v1. `shapes` are what it takes and gives, `table` has every operation; routes
and OpenAPI are made of both."""
