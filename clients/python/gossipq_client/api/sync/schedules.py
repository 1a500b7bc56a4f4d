# Made by clients/python/make_twins.py from api/aio/schedules.py: change that, then run it.
"""Schedules: a topic gets a record again and again, by a cron expression or every so often."""

from typing import Any, Unpack

from gossipq.errors import BadRequest, NotFound
from gossipq_client.api.sync.operator import Operator
from gossipq_client.api.sync.publisher import Publisher
from gossipq_client.operations import Place, Planning, ScheduleOptions, ScheduleState, record_of, schedule_of
from gossipq_client.values import publish_options


class Schedules:
    """Sets, shows and removes the schedules of topics."""

    def __init__(self, operator: Operator, publisher: Publisher) -> None:
        self._operator, self._publisher = operator, publisher

    @property
    def _planning(self) -> Planning:
        return Planning(self._operator.asking)

    def set(self, topic: str, value: Any, *, name: str, **options: Unpack[ScheduleOptions]) -> bool:
        """Set a schedule, or change it, as `Facade.schedule` says."""
        schedule, record = schedule_of(name, **options)
        checked = publish_options(self._operator.now, **record)
        batch = record_of(self._publisher.raw_value(topic, value), checked)
        known = self._operator.topic(topic)
        if known.virtual:
            raise BadRequest(f"{topic} is a virtual topic", hint="a schedule belongs to one of its topics")
        chooser = name.encode() if checked.key is None else checked.key
        place = Place(known.info, known.writer(chooser, checked.partition).number)
        return self._operator.run(self._planning.set(place, schedule, batch))

    def declare(self, topic: str, value: Any, *, name: str, **options: Unpack[ScheduleOptions]) -> None:
        """Set the schedule of a handler. If it exists and is paused, it stays paused."""
        try:
            options["paused"] = (self.show(topic, name)).paused
        except NotFound:
            pass
        self.set(topic, value, name=name, **options)

    def all(self, topic: str, most: int = 0) -> list[ScheduleState]:
        """List the schedules of a topic in order of their names. Raises NotFound.

        most: stop asking when more than this many are known, 0 = list all
        """
        return self._operator.run(self._planning.all(topic, most))

    def show(self, topic: str, name: str) -> ScheduleState:
        """Show one schedule: its last ticks and the next ones. Raises NotFound."""
        return self._operator.run(self._planning.show(topic, name))

    def pause(self, topic: str, name: str) -> bool:
        """Stop the ticks of a schedule until `resume`. Returns False if it is paused already. Raises
        NotFound."""
        return self._operator.run(self._planning.pause(topic, name, True))

    def resume(self, topic: str, name: str) -> bool:
        """Let a paused schedule go on with its next tick. Returns False if it is not paused. Raises
        NotFound."""
        return self._operator.run(self._planning.pause(topic, name, False))

    def run(self, topic: str, name: str) -> str:
        """Store the record of a schedule now, besides its ticks. Returns its ref. Raises
        NotFound."""
        return self._operator.run(self._planning.run(topic, name))

    def remove(self, topic: str, name: str) -> bool:
        """Remove a schedule. Returns False if there is none of that name. Raises NotFound."""
        return self._operator.run(self._planning.remove(topic, name))
