"""The operator of a whole cluster: its nodes, clients, growth, alarms, schemas and users."""

from collections.abc import Iterable

from gossipq import limits
from gossipq.messages import Identity, Members, StatsReply, StatusReply
from gossipq.values import AccessChange, AccessTable, Alarm, ClientRow, ConfigRow, GrowthRow
from gossipq.wire.schemas import Declared
from gossipq_client.api.aio.operator import Operator
from gossipq_client.api.aio.schemas import Schemas


class Admin:
    """The verbs for the whole cluster, as `mq.admin`. `mq.topic`, `mq.group`, `mq.dead` and `mq.record` have
    the verbs for one thing.

    Each verb raises Unreachable if no node answers within the client's timeout.
    """

    def __init__(self, operator: Operator, schemas: Schemas) -> None:
        self._operator, self._schemas = operator, schemas

    # --- nodes and clients

    async def status(self) -> StatusReply:
        """Return how the connected node sees itself and its workers."""
        return await self._operator.run(self._operator.asking.status())

    async def alarms(self) -> list[Alarm]:
        """Return the alarms that the connected node raises now. The topic `_alarms` has the alarms of all
        nodes, over time."""
        return await self._operator.run(self._operator.asking.alarms())

    async def running_config(self) -> list[ConfigRow]:
        """Return the options that the connected node runs with, and where each comes from."""
        return await self._operator.run(self._operator.asking.running_config())

    async def stats(self, topics: Iterable[str] = (), *, endpoint: str = "") -> StatsReply:
        """Return counters of partitions and groups, of all topics or the ones named; led anywhere, or at one
        endpoint."""
        return await self._operator.run(self._operator.asking.stats(list(topics), endpoint))

    async def growth(
        self, topics: Iterable[str] = (), *, hours: bool = False, since_ms: int = 0
    ) -> list[GrowthRow]:
        """Return counters at the end of each minute of the last 6 hours, or of each hour of the last 7 days;
        of all topics together, or of those named. `gossipq_client.values.series` makes curves of them."""
        return await self._operator.run(self._operator.asking.growth(topics, hours, since_ms))

    async def clients(self) -> list[ClientRow]:
        """List the connected clients: a row for each session and worker that knows it."""
        return await self._operator.run(self._operator.asking.clients())

    async def kick(self, session: bytes, for_ms: int = limits.KICK_MS) -> int:
        """End a client's session at every worker. Its unacked records are redelivered, and it cannot connect
        again for this time. Returns the number of workers that knew it."""
        return await self._operator.run(self._operator.asking.kick(session, for_ms))

    # --- schemas

    async def schemas(self) -> Declared:
        """Return the declared schemas by topic id. `versions` includes topics whose schema was removed."""
        return await self._schemas.declared()

    # --- the roster

    async def members(self) -> Members:
        """Return the nodes of the cluster, as the leader of its meta shard has them."""
        return await self._operator.run(self._operator.asking.members())

    async def set_member(self, name: str, state: str, secret: bytes = b"") -> Members:
        """Drain a node ("leaving"), take it back ("in"), or off the roster ("gone"). `secret` is what the
        nodes of the cluster share; it is not sent. Raises BadRequest, Refused."""
        return await self._operator.run(self._operator.asking.set_member(name, state, secret))

    async def set_cluster_options(self, options: dict[str, str], secret: bytes = b"") -> Members:
        """Change options of [cluster], dotted key -> JSON text; the answer has all of them. `secret` is what
        the nodes of the cluster share; it is not sent. Raises BadRequest, Refused."""
        return await self._operator.run(self._operator.asking.set_cluster_options(options, secret))

    # --- users

    async def whoami(self) -> Identity:
        """Return the user of this client, as the connected node sees it, and its permissions in a closed
        cluster."""
        return await self._operator.run(self._operator.asking.whoami())

    async def access(self) -> AccessTable:
        """Return the users and roles of the cluster. Raises Forbidden."""
        return await self._operator.run(self._operator.asking.access())

    async def set_access(self, change: AccessChange, secret: bytes = b"") -> AccessTable:
        """Change users and roles, close or open the cluster; the answer is the whole table. `secret` is what
        the nodes of the cluster share, and not sent; a user with the permission `cluster` needs none. Raises
        BadRequest, Refused."""
        return await self._operator.run(self._operator.asking.set_access(change, secret))
