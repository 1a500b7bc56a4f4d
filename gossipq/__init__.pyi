from gossipq import aio as aio
from gossipq import embedded as embedded
from gossipq import lake as lake
from gossipq import metrics as metrics
from gossipq import middleware as middleware
from gossipq import testing as testing
from gossipq import traces as traces
from gossipq_client import *  # noqa: F403

__version__: str
