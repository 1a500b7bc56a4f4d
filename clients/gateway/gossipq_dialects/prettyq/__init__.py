"""prettyQ: its files and its query.

`wire` is pure, and used by `gossipq export` and `gossipq peek`; `pages` is the query over HTTP.
"""
