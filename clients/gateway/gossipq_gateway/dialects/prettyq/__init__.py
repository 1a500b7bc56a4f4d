"""prettyQ: its files and its query. `wire` is pure and all that `gossipq export` and `gossipq query` need;
`pages` is the query over HTTP."""
