# Made by clients/python/make_twins.py from api/aio/requester.py: change that, then run it.
"""Requests to handlers of other clients: published with a place for the reply, which is waited for."""

from typing import Any

from gossipq.errors import NoReply
from gossipq.messages import Topics
from gossipq.types import META_SHARD
from gossipq_client.api.sync.consumer import Consumer, Message
from gossipq_client.handlers import Requests, make_replies, told
from gossipq_client.values import PublishOptions, inputs


class Requester:
    """Sends requests, and reads replies from this client's own route of the topic of replies."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer, self._driver, self._operator = consumer, consumer.driver, consumer.operator

    @property
    def requests(self) -> Requests:
        """The requests of the session in use: a client that connects anew subscribes to replies anew. Two
        threads that ask first at the same time get the same ones."""
        found: Requests = self._driver.engine.parts.setdefault("requests", Requests())
        return found

    def request(self, topic: str, value: Any, timeout: inputs.Timeout, options: PublishOptions) -> Message:
        """Publish a request and wait for its reply, as `Facade.request` says."""
        driver, requests = self._driver, self.requests
        seconds = driver.seconds(timeout)
        self._require_consumers(topic)
        self.open_replies()
        engine = driver.engine
        consuming = engine.session.consuming
        correlation = driver.step(requests.begin)
        deadline_ms = None if seconds is None else engine.now_ms() + seconds * 1000
        try:
            options["headers"] = requests.headers(correlation, options.get("headers"))
            self._consumer.publisher.publish(topic, value, options, seconds)
            left_s = None
            if deadline_ms is not None:
                left_s = max(0.0, deadline_ms - engine.now_ms()) / 1000
            driver.until(lambda: requests.reply(correlation, consuming) is not None, left_s)
            reply = driver.step(requests.reply, correlation, consuming)
            if reply is None:
                raise NoReply(f"no reply from {topic!r} within {seconds} s", hint=f"gossipq group ls {topic}")
            message = self._consumer.changed_message(*reply)
            told(topic, message.headers, message.value)
            return message
        finally:
            requests.end(correlation)

    def _require_consumers(self, topic: str) -> None:
        """Raise NotFound, or NoReply if the topic is without a consumer in a group."""
        operator, requests = self._operator, self.requests
        now_ms = self._driver.engine.now_ms()
        if requests.heard(topic, now_ms):
            return
        known = operator.topic(topic, create=False)
        stats = operator.run(operator.asking.stats(list(known.virtual or [topic]), ""))
        if not any(group.consumers for group in stats.groups):
            raise NoReply(f"nobody consumes {topic!r}", hint=f"gossipq group ls {topic}")
        requests.heard_ms[topic] = now_ms

    def open_replies(self) -> None:
        """Before the first request: the topic of replies, and this client's own route of it."""
        engine, requests = self._driver.engine, self.requests
        self._driver.step(requests.renew, engine.session.consuming)
        if requests.ready:
            return
        self._operator.ask(make_replies(), META_SHARD, Topics)

        def subscribe() -> None:
            """Once, whoever else is about to."""
            if requests.subscription is None:
                requests.route = engine.session.links.session.hex()
                requests.subscription = engine.subscribe(requests.joining(), False)

        self._driver.step(subscribe)
        self._operator.require(lambda: requests.ready)
