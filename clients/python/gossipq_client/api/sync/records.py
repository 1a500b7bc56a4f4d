# Made by clients/python/make_twins.py from api/aio/records.py: change that, then run it.
"""What an application asks of its own records: why one does not move, and to have it later or not at all."""

from functools import cached_property

from gossipq.messages import Explained
from gossipq_client.api.sync.admin import Admin
from gossipq_client.api.sync.schemas import SchemaKeepers
from gossipq_client.values import address, delay_of, inputs


class Records(SchemaKeepers):
    """The part of a client for single records, and the way to the verbs of operators.

    A record is named by (topic, partition, offset), by ref= (of its receipt), or by topic and id=. Raises
    UnknownRecord when there is none, WrongState when it is not where the verb wants it, BadRequest,
    UnknownTopic.
    """

    @cached_property
    def admin(self) -> Admin:
        """The verbs of operators: topics, groups, dead letters, nodes."""
        return Admin(self)

    def why(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        group: str = "",
    ) -> Explained:
        """Where a record stands for a group, or for each: its state, because of what, and the command that
        changes it."""
        return self._talk(self._engine.asking.why(address(topic, partition, offset, ref, id), group))

    def cancel(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        reason: str = "",
    ) -> str:
        """Voids a record that no consumer holds and not every group has acked. Returns its ref."""
        return self._talk(self._engine.asking.cancel(address(topic, partition, offset, ref, id), reason))

    def reschedule(
        self,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
        *,
        ref: str = "",
        id: inputs.Value | None = None,
        delay: inputs.Duration | None = None,
        at: inputs.Time | None = None,
    ) -> str:
        """Another due time for a scheduled record: `delay` from now (seconds, or "5m"), or
        `at` (an aware datetime, or seconds since 1970)."""
        delay_ms = delay_of(self._engine.clock.now, delay, at)
        return self._talk(
            self._engine.asking.reschedule(address(topic, partition, offset, ref, id), delay_ms)
        )
