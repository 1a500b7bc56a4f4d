# Made by clients/python/make_twins.py from api/aio/admin.py: change that, then run it.
"""The operator of a whole cluster: its nodes, clients, growth, alarms, schemas and users."""

from collections.abc import Iterable

from gossipq import limits
from gossipq.messages import Identity, Members, StatsReply, StatusReply
from gossipq.values import AccessChange, AccessTable, Alarm, ClientRow, ConfigRow, GrowthRow
from gossipq.wire.schemas import Declared
from gossipq_client.api.sync.operator import Operator
from gossipq_client.api.sync.schemas import Schemas


class Admin:
    """The verbs for the whole cluster, as `mq.admin`. `mq.topic`, `mq.group`, `mq.dead` and `mq.record` have
    the verbs for one thing.

    Each verb raises Unreachable if no node answers within the client's timeout.
    """

    def __init__(self, operator: Operator, schemas: Schemas) -> None:
        self._operator, self._schemas = operator, schemas

    # --- nodes and clients

    def status(self) -> StatusReply:
        """Return how the connected node sees itself and its workers."""
        return self._operator.run(self._operator.asking.status())

    def alarms(self) -> list[Alarm]:
        """Return the alarms that the connected node raises now. The topic `_alarms` has the alarms of all
        nodes, over time."""
        return self._operator.run(self._operator.asking.alarms())

    def running_config(self) -> list[ConfigRow]:
        """Return the options that the connected node runs with, and where each comes from."""
        return self._operator.run(self._operator.asking.running_config())

    def stats(self, topics: Iterable[str] = (), *, endpoint: str = "") -> StatsReply:
        """Return counters of partitions and groups, of all topics or the ones named; led anywhere, or at one
        endpoint."""
        return self._operator.run(self._operator.asking.stats(list(topics), endpoint))

    def growth(
        self, topics: Iterable[str] = (), *, hours: bool = False, since_ms: int = 0
    ) -> list[GrowthRow]:
        """Return counters at the end of each minute of the last 6 hours, or of each hour of the last 7 days;
        of all topics together, or of those named. `gossipq_client.values.series` makes curves of them."""
        return self._operator.run(self._operator.asking.growth(topics, hours, since_ms))

    def clients(self) -> list[ClientRow]:
        """List the connected clients: a row for each session and worker that knows it."""
        return self._operator.run(self._operator.asking.clients())

    def kick(self, session: bytes, for_ms: int = limits.KICK_MS) -> int:
        """End a client's session at every worker. Its unacked records are redelivered, and it cannot connect
        again for this time. Returns the number of workers that knew it."""
        return self._operator.run(self._operator.asking.kick(session, for_ms))

    # --- schemas

    def schemas(self) -> Declared:
        """Return the declared schemas by topic id. `versions` includes topics whose schema was removed."""
        return self._schemas.declared()

    # --- the roster

    def members(self) -> Members:
        """Return the nodes of the cluster, as the leader of its meta shard has them."""
        return self._operator.run(self._operator.asking.members())

    def set_member(self, name: str, state: str, secret: bytes = b"") -> Members:
        """Drain a node ("leaving"), take it back ("in"), or off the roster ("gone"). `secret` is what the
        nodes of the cluster share; it is not sent. Raises BadRequest, Refused."""
        return self._operator.run(self._operator.asking.set_member(name, state, secret))

    def set_cluster_options(self, options: dict[str, str], secret: bytes = b"") -> Members:
        """Change options of [cluster], dotted key -> JSON text; the answer has all of them. `secret` is what
        the nodes of the cluster share; it is not sent. Raises BadRequest, Refused."""
        return self._operator.run(self._operator.asking.set_cluster_options(options, secret))

    # --- users

    def whoami(self) -> Identity:
        """Return the user of this client, as the connected node sees it, and its permissions in a closed
        cluster."""
        return self._operator.run(self._operator.asking.whoami())

    def access(self) -> AccessTable:
        """Return the users and roles of the cluster. Raises Forbidden."""
        return self._operator.run(self._operator.asking.access())

    def set_access(self, change: AccessChange, secret: bytes = b"") -> AccessTable:
        """Change users and roles, close or open the cluster; the answer is the whole table. `secret` is what
        the nodes of the cluster share, and not sent; a user with the permission `cluster` needs none. Raises
        BadRequest, Refused."""
        return self._operator.run(self._operator.asking.set_access(change, secret))
