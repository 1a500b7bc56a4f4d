"""Records as jobs: their state, and their results."""

from collections.abc import AsyncIterator
from typing import Any

from gossipq.errors import NoReply
from gossipq_client.api.aio.operator import Operator
from gossipq_client.operations import Job, Jobs, ends_s, named_job, reported_ms, wait_ms_of
from gossipq_client.session import Receipt
from gossipq_client.values import UNSET, Address, inputs


class JobQuestions:
    """Asks for jobs, and waits for their ends."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    async def show(self, job: Address, group: str, wait_ms: int = 0, seen_ms: int = -1) -> Job:
        """Return the state of a job, as `Facade.job` says."""
        return await self._operator.run(Jobs(self._operator.asking).ask(job, group, wait_ms, seen_ms))

    async def cancel(self, job: str | Receipt, reason: str) -> str:
        """Cancel a job, also one that runs, as `Facade.cancel` says."""
        return await self._operator.run(self._operator.asking.cancel(named_job(job), reason, running=True))

    async def follow(self, job: str | Receipt, group: str) -> AsyncIterator[Job]:
        """Yield the job now, at each report of progress, and at its end, as `Facade.follow` says."""
        address, timeout_s = named_job(job), self._operator.driver.timeout_s
        found = await self.show(address, group)
        yield found
        while not found.ended:
            before = found.state, reported_ms(found)
            wait_ms = wait_ms_of(float("inf"), timeout_s)
            found = await self.show(address, group, wait_ms, before[1])
            if (found.state, reported_ms(found)) != before:
                yield found

    async def result(self, job: str | Receipt, timeout: inputs.Timeout, group: str, as_type: Any) -> Any:
        """Wait for the end of a job and return its result, as `Facade.result` says."""
        address, driver = named_job(job), self._operator.driver
        seconds = driver.timeout_s if timeout is UNSET else ends_s(timeout)
        end_ms = driver.engine.now_ms() + seconds * 1_000
        while True:
            left_s = max(0.0, end_ms - driver.engine.now_ms()) / 1_000
            found = await self.show(address, group, wait_ms_of(left_s, driver.timeout_s))
            if found.ended:
                return found.result(as_type)
            if driver.engine.now_ms() >= end_ms:
                text = f"{found.ref} has not ended within {seconds:g} s: it is {found.state}"
                raise NoReply(text, hint=f"gossipq why {found.ref}")
