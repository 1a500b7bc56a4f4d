"""The web console: what `gossipq top` shows, in a browser, live, and the same verbs. Pages are made here, so
that they can be read without a script.

`watches` ask the cluster as who signed in, by the snapshots of `top`; `views` make plain rows of them,
`charts` curves, and `pages` HTML of both. `console` has the routes.
"""

from gossipq_gateway.console.console import Console as Console

__all__ = ["Console"]
