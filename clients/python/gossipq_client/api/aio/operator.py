"""Asks the cluster: what handles, `mq.admin`, schedules, jobs and publishing share."""

from collections.abc import Callable

from gossipq.types import Now, ShardId
from gossipq.values import Message as Request
from gossipq_client.api.aio.driver import Driver
from gossipq_client.operations import Operating, Result, Talk, go_on
from gossipq_client.session import Answer, Call, Topic


class Operator:
    """Asks by the session of a client, also after the client connected anew."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    @property
    def asking(self) -> Operating:
        """The questions of the session in use."""
        return self.driver.engine.asking

    def now(self) -> Now:
        return self.driver.engine.clock.now()

    @property
    def wall_ms(self) -> int:
        return self.now().wall_ms

    async def run(self, talk: Talk[Result]) -> Result:
        """Wait for each call of a question, and return its answer. Raises Unreachable if no node answers
        within the client's timeout."""
        driver = self.driver
        while True:
            step, end = driver.step(go_on, talk)
            if step is None:
                return end  # type: ignore[return-value]
            if isinstance(step, Call):
                await self.answered(step)
            else:
                await driver.await_flights([step], driver.timeout_s)

    async def ask(self, request: Request, shard: ShardId, kind: type[Answer]) -> Answer:
        """Send one request to the leader of a shard, and return its answer."""
        return await self.run(self.asking.ask(request, shard, kind))

    async def answered(self, call: Call) -> None:
        """Wait for the answer of a call. Raises Unreachable."""
        engine = self.driver.engine
        try:
            await self.require(lambda: call.done or engine.in_vain(call))
            if not call.done:
                raise engine.unreachable()
        except BaseException:
            engine.session.calls.cancel(call)
            raise

    async def require(self, ready: Callable[[], bool]) -> None:
        """Wait until something is so. Raises Unreachable after the client's timeout."""
        if not await self.driver.until(ready, self.driver.timeout_s):
            raise self.driver.engine.unreachable()

    async def topic(self, name: str, create: bool = True) -> Topic:
        """Look up a topic, and make it if it is missing. Raises NotFound."""
        engine = self.driver.engine
        found = self.driver.step(engine.find_topic, name, create)
        if isinstance(found, Topic):
            return found
        await self.answered(found)
        return self.driver.step(engine.learn_topic, name, found)
