"""The scheduler of `celery beat`: any number of beats may run, and each tick is one task."""

import uuid
from copy import copy
from datetime import UTC, datetime
from typing import Any

from celery import beat, schedules
from celery.exceptions import ImproperlyConfigured

from gossipq_celery.names import topic_of
from gossipq_celery.transport import Transport
from gossipq_keyed import KeyedTopic

TOPIC = "celery-beat"
REMEMBERED_S = 7 * 86_400.0  #: a beat that was suspended for longer may send a tick again
ROUNDED_S = 10.0  #: ticks of other schedules, such as solar ones, are computed from the present
SPACE = uuid.uuid5(uuid.NAMESPACE_URL, "gossipq:celery-beat")


class TickEntry(beat.ScheduleEntry):
    """An entry with the same ticks in each beat: intervals begin at multiples of their length."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.last_run_at: datetime | None
        super().__init__(*args, **kwargs)
        if (every_s := interval_of(self.schedule)) and self.last_run_at is not None:
            self.last_run_at = aligned(self.last_run_at, every_s)

    def tick(self) -> datetime:
        """Return the moment of the tick that is due, or will be next."""
        last = self.schedule.maybe_make_aware(self.last_run_at)
        if every_s := interval_of(self.schedule):
            return datetime.fromtimestamp(last.timestamp() + every_s, UTC)
        if isinstance(self.schedule, schedules.crontab):
            began, left, _ = self.schedule.remaining_delta(last)
            return (began + left).astimezone(UTC)
        due = datetime.now(UTC) + self.schedule.remaining_estimate(last)
        return aligned(due, ROUNDED_S)


def interval_of(schedule: Any) -> float:
    """Return the seconds of a plain interval; 0 for crontabs, solar schedules and those of others."""
    return schedule.run_every.total_seconds() if type(schedule) is schedules.schedule else 0.0


def aligned(moment: datetime, every_s: float) -> datetime:
    """Return the last multiple of an interval, counted from 1970, that is not after `moment`."""
    return datetime.fromtimestamp(moment.timestamp() // every_s * every_s, moment.tzinfo or UTC)


class GossipqScheduler(beat.Scheduler):
    """`celery beat -S gossipq`. A tick has an id, by which the broker stores its task once."""

    Entry = TickEntry
    _channel: Any = None
    _sent: KeyedTopic

    def setup_schedule(self) -> None:
        self.install_default_entries(self.data)
        self.merge_inplace(self.app.conf.beat_schedule)

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        """Send the task of a tick, unless another beat has done so; returns None then."""
        name = f"{entry.name}/{entry.tick().isoformat(timespec='seconds')}"
        sent = self._sent_ticks()
        if advance:
            self.reserve(entry)
        if sent.get(name) is not None:
            return None
        task_id = str(uuid.uuid5(SPACE, name))
        mine = copy(entry)
        mine.options = {**entry.options, "message_id": f"beat/{name}", "task_id": task_id}
        result = super().apply_async(mine, producer=producer, advance=False, **kwargs)
        sent.set(name, task_id.encode())
        return result

    def _sent_ticks(self) -> KeyedTopic:
        """Return the ticks that were sent, by their names, for longer than a queue remembers ids."""
        if self._channel is None:
            connection = self.app.connection_for_write()
            if connection.transport.driver_type != Transport.driver_type:
                raise ImproperlyConfigured("the scheduler gossipq needs a broker_url of gossipq://")
            self._channel = connection.default_channel
            topic = topic_of(connection.virtual_host or "", TOPIC)
            self._sent = KeyedTopic(lambda: self._channel.client, topic, REMEMBERED_S)
        return self._sent

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.connection.client.close()
        super().close()
