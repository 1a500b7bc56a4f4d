"""A broker for tests of applications: a whole node inside the test's process, with a clock that the test
moves.

    with gossipq.testing.Broker() as broker.connect() as mq:
        mq.publish("orders", b"one", delay="1h")
        mq.advance("1h")
        assert mq.fetch("orders", "billing").values() == [b"one"]

`mq.run(stop_at_end=True)` runs the handlers of `mq` over everything there is. Those of an application are run
by `mq.include(app.mq.handlers)` before. The pytest plugin has all of this as fixture `mq`.
"""

from gossipq_client.testing.broker import Broker, Client, MovableClock

__all__ = ["Broker", "Client", "MovableClock"]
