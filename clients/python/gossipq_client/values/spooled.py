"""A record in the spool until it is confirmed: all options of its publish, with times that
are right after a restart.
"""

import msgspec

from gossipq import limits
from gossipq.types import Now
from gossipq_client.values import inputs
from gossipq_client.values.terms import NOTHING, Options, Terms, Unique


class Spooled(msgspec.Struct, array_like=True, frozen=True):
    """One record. It always has an id, so that the cluster recognizes it when it is sent again."""

    topic: str
    value: bytes
    id: bytes
    key: bytes | None = None
    headers: bytes = b""
    route: bytes = b""
    level: str = ""
    partition: int | None = None
    due_ms: int = 0  #: unix time; 0 = at once
    ttl_ms: int = 0
    lease_ms: int = 0
    attempts_max: int = 0
    backoff_ms: int = 0
    spooled_ms: int = 0  #: unix time
    flow: bytes = b""
    priority: int = limits.PRIORITY
    name: bytes = b""  #: unique
    unique: Unique = Unique()

    def options(self, now: Now) -> Options:
        """Options for the publish. The time to live runs while the record waits here,
        starting when it was due.
        """
        due_ms = self.due_ms - now.wall_ms + now.boot_ms if self.due_ms > now.wall_ms else 0
        waited_ms = max(0, now.wall_ms - max(self.due_ms, self.spooled_ms))
        ttl_ms = max(1, self.ttl_ms - waited_ms) if self.ttl_ms else 0
        terms = Terms(
            due_ms=due_ms,
            ttl_ms=ttl_ms,
            lease_ms=self.lease_ms,
            attempts_max=self.attempts_max,
            backoff_ms=self.backoff_ms,
            id=self.id,
            flow=self.flow,
            priority=self.priority,
            name=self.name,
            unique=self.unique,
        )
        return Options(self.key, self.headers, self.route, self.level, terms, self.partition)


def spooled(topic: str, value: bytes, options: Options, now: Now) -> Spooled:
    """The row of one record; its options must have an id. Raises BadRequest, because a spooled
    record must be readable later.
    """
    terms = options.terms or NOTHING
    return Spooled(
        inputs.text_of(topic, "topic"),
        value,
        terms.id,
        options.key,
        options.headers,
        options.route,
        options.level,
        options.partition,
        terms.due_ms - now.boot_ms + now.wall_ms if terms.due_ms else 0,
        terms.ttl_ms,
        terms.lease_ms,
        terms.attempts_max,
        terms.backoff_ms,
        now.wall_ms,
        terms.flow,
        terms.priority,
        terms.name,
        terms.unique,
    )
