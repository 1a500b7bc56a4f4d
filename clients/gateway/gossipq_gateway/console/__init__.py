"""The web console: the views of `gossipq top` in a browser, live, with the same verbs.

Pages are made on the server, so that they work without a script. `watches` read the cluster with
the user's token, by the snapshots of `top`. `views` convert them to plain rows, `charts` to curves,
and `pages` to HTML. `console` has the routes.
"""

from gossipq_gateway.console.console import Console as Console

__all__ = ["Console"]
