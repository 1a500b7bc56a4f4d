# Made by clients/python/make_twins.py from api/aio/admin.py: change that, then run it.
"""The operator of a whole cluster: its nodes, clients, growth, alarms, schemas and users."""

from collections.abc import Iterable

from gossipq import limits
from gossipq.wire.schemas import Declared
from gossipq_client import answers
from gossipq_client.answers import value_of
from gossipq_client.api.sync.operator import Operator
from gossipq_client.api.sync.raw import RawAnswers
from gossipq_client.api.sync.schemas import Schemas
from gossipq_client.values import inputs


class Admin:
    """The verbs for the whole cluster, as `mq.admin`. `mq.topic`, `mq.group`, `mq.dead` and `mq.record` have
    the verbs for one thing.

    Each verb raises Unreachable if no node answers within the client's timeout.
    """

    def __init__(self, operator: Operator, schemas: Schemas) -> None:
        self._operator, self._schemas = operator, schemas
        self.raw = RawAnswers(operator)  #: for the tools of gossipq

    # --- nodes and clients

    def status(self) -> "answers.NodeStatus":
        """Return how the connected node sees itself and its workers."""
        return value_of(answers.NodeStatus, self.raw.status())

    def alarms(self) -> "list[answers.NodeAlarm]":
        """Return the alarms that the connected node raises now. The topic `_alarms` has the alarms of all
        nodes, over time."""
        return [value_of(answers.NodeAlarm, row) for row in self.raw.alarms()]

    def running_config(self) -> "list[answers.ConfigOption]":
        """Return the options that the connected node runs with, and where each comes from."""
        return [value_of(answers.ConfigOption, row) for row in self.raw.running_config()]

    def stats(self, topics: Iterable[str] = (), *, endpoint: str = "") -> "answers.Counters":
        """Return counters of partitions and groups, of all topics or the ones named; led anywhere, or at one
        endpoint."""
        return value_of(answers.Counters, self.raw.stats(topics, endpoint=endpoint))

    def growth(
        self, topics: Iterable[str] = (), *, hours: bool = False, since: inputs.Time = 0
    ) -> "list[answers.GrowthCounters]":
        """Return counters at the end of each minute of the last 6 hours, or of each hour of the last 7 days,
        from `since` on (an aware datetime, or seconds since 1970); of all topics together, or of those
        named."""
        since_ms = inputs.time_ms(since, "since")
        rows = self.raw.growth(topics, hours=hours, since_ms=since_ms)
        return [value_of(answers.GrowthCounters, row) for row in rows]

    def clients(self) -> "list[answers.ClientSession]":
        """List the connected clients: one entry for each session and worker that knows it."""
        return [value_of(answers.ClientSession, row) for row in self.raw.clients()]

    def kick(self, session: bytes, duration: inputs.Duration = limits.KICK_MS / 1_000) -> int:
        """End a client's session at every worker. Its unacked records are redelivered, and it cannot connect
        again for `duration` (seconds, or "5m"). Returns the number of workers that knew it."""
        for_ms = inputs.duration_ms(duration, "duration")
        return self._operator.run(self._operator.asking.kick(session, for_ms))

    # --- schemas

    def schemas(self) -> Declared:
        """Return the declared schemas by topic id. `versions` includes topics whose schema was removed."""
        return self._schemas.declared()

    # --- the roster

    def members(self) -> "answers.Roster":
        """Return the nodes of the cluster, as the leader of its meta shard has them."""
        return value_of(answers.Roster, self.raw.members())

    def set_member(self, name: str, state: str, secret: bytes = b"") -> "answers.Roster":
        """Drain a node ("leaving"), take it back ("in"), or off the roster ("gone"). `secret` is what the
        nodes of the cluster share; it is not sent. Raises BadRequest, Refused."""
        return value_of(answers.Roster, self.raw.set_member(name, state, secret))

    def set_cluster_options(self, options: dict[str, str], secret: bytes = b"") -> "answers.Roster":
        """Change options of [cluster], dotted key -> JSON text; the answer has all of them. `secret` is what
        the nodes of the cluster share; it is not sent. Raises BadRequest, Refused."""
        return value_of(answers.Roster, self.raw.set_cluster_options(options, secret))

    # --- users

    def whoami(self) -> "answers.ClientIdentity":
        """Return the user of this client, as the connected node sees it, and its permissions in a closed
        cluster."""
        return value_of(answers.ClientIdentity, self.raw.whoami())

    def access(self) -> "answers.Access":
        """Return the users and roles of the cluster. Raises Forbidden."""
        return value_of(answers.Access, self.raw.access())

    def set_access(
        self,
        *,
        users: "Iterable[answers.User]" = (),
        roles: "Iterable[answers.Role]" = (),
        users_gone: Iterable[str] = (),
        roles_gone: Iterable[str] = (),
        closed: bool | None = None,
        version: int = 0,
        secret: bytes = b"",
    ) -> "answers.Access":
        """Change users and roles, close or open the cluster, completely or not at all. Returns the
        whole table.

        users, roles: they replace those of the same names
        users_gone, roles_gone: names to remove
        closed: whether requests need permissions; None: unchanged
        version: the `version` of the table that the change was made for; 0 = any
        secret: what the nodes of the cluster share, and not sent; a user with the permission `cluster` needs
            none

        Raises BadRequest, Refused, Forbidden."""
        change = answers.access_change(users, roles, users_gone, roles_gone, closed, version)
        return value_of(answers.Access, self.raw.set_access(change, secret))
