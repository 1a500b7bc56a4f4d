"""Runs the questions of operators: what handles, `mq.admin` and exports share."""

from gossipq.types import Now
from gossipq_client.api.aio.connection import Connection
from gossipq_client.operations import Operating, Result, Talk


class Operator:
    """Asks the cluster by the session of a client, also after the client connected anew."""

    def __init__(self, client: Connection) -> None:
        self._client = client

    @property
    def asking(self) -> Operating:
        """The questions of the session in use."""
        return self._client._engine.asking

    def now(self) -> Now:
        return self._client._engine.clock.now()

    @property
    def wall_ms(self) -> int:
        return self.now().wall_ms

    async def run(self, talk: Talk[Result]) -> Result:
        """Wait for each call of a question, and return its answer. Raises Unreachable if no node answers
        within the client's timeout."""
        return await self._client._talk(talk)
