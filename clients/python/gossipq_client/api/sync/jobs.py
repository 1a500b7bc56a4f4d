# Made by clients/python/make_twins.py from api/aio/jobs.py: change that, then run it.
"""Records as jobs: their state, and their results."""

from collections.abc import Iterable, Iterator
from typing import Any, Unpack

from gossipq.errors import BadRequest, NoReply
from gossipq_client.api.sync.operator import Operator
from gossipq_client.api.sync.publisher import Publisher
from gossipq_client.operations import (
    Job,
    Jobs,
    Joining,
    JoinOptions,
    Place,
    ends_s,
    joined_records,
    named_job,
    record_of,
    reported_ms,
    then_of,
    wait_ms_of,
)
from gossipq_client.session import Receipt
from gossipq_client.values import UNSET, Address, inputs, publish_options


class JobQuestions:
    """Asks for jobs, joins them, and waits for their ends."""

    def __init__(self, operator: Operator, publisher: Publisher) -> None:
        self._operator, self._publisher = operator, publisher

    def show(self, job: Address, group: str, wait_ms: int = 0, seen_ms: int = -1) -> Job:
        """Return the state of a job, as `Facade.job` says."""
        return self._operator.run(Jobs(self._operator.asking).ask(job, group, wait_ms, seen_ms))

    def cancel(self, job: str | Receipt, reason: str) -> str:
        """Cancel a job, also one that runs, as `Facade.cancel` says."""
        return self._operator.run(self._operator.asking.cancel(named_job(job), reason, running=True))

    def join(
        self,
        jobs: Iterable[str | Receipt],
        then: tuple[str, Any],
        when: str | int,
        timeout: inputs.Duration,
        group: str,
        **options: Unpack[JoinOptions],
    ) -> str:
        """Publish a record when jobs have ended, as `Facade.join` says."""
        topic, value = then_of(then, options)
        checked = publish_options(self._operator.now, **options)
        batch, asked = record_of(self._publisher.raw_value(topic, value), checked), joined_records(jobs)
        timeout_ms = inputs.duration_ms(timeout, "timeout", 1)
        known = self._operator.topic(topic)
        if known.virtual:
            raise BadRequest(f"{topic} is a virtual topic", hint="join publishes to one of its topics")
        place = Place(known.info, known.writer(checked.chooser, checked.partition).number)
        joining = Joining(self._operator.asking)
        return self._operator.run(joining.join(place, batch, asked, when, timeout_ms, group))

    def follow(self, job: str | Receipt, group: str) -> Iterator[Job]:
        """Yield the job now, at each report of progress, and at its end, as `Facade.follow` says."""
        address, timeout_s = named_job(job), self._operator.driver.timeout_s
        found = self.show(address, group)
        yield found
        while not found.ended:
            before = found.state, reported_ms(found)
            wait_ms = wait_ms_of(float("inf"), timeout_s)
            found = self.show(address, group, wait_ms, before[1])
            if (found.state, reported_ms(found)) != before:
                yield found

    def result(self, job: str | Receipt, timeout: inputs.Timeout, group: str, as_type: Any) -> Any:
        """Wait for the end of a job and return its result, as `Facade.result` says."""
        address, driver = named_job(job), self._operator.driver
        seconds = driver.timeout_s if timeout is UNSET else ends_s(timeout)
        end_ms = driver.engine.now_ms() + seconds * 1_000
        while True:
            left_s = max(0.0, end_ms - driver.engine.now_ms()) / 1_000
            found = self.show(address, group, wait_ms_of(left_s, driver.timeout_s))
            if found.ended:
                return found.result(as_type)
            if driver.engine.now_ms() >= end_ms:
                text = f"{found.ref} has not ended within {seconds:g} s: it is {found.state}"
                raise NoReply(text, hint=f"gossipq why {found.ref}")
