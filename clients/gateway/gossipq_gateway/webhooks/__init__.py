"""Webhooks: groups whose records are POSTed to a URL, signed as Standard Webhooks says."""
