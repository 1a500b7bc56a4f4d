# Made by clients/python/make_twins.py from api/aio/requester.py: change that, then run it.
"""Requests to handlers of other clients: published with a place for the reply, which is waited for."""

from typing import Any, Unpack

from gossipq.errors import NoReply
from gossipq.messages import Topics
from gossipq.types import META_SHARD
from gossipq_client.api.sync.consumer import Consumers, Message
from gossipq_client.handlers import Requests, make_replies, told
from gossipq_client.io import Engine
from gossipq_client.values import PublishOptions, inputs


class Requester:
    """Sends requests, and reads replies from this client's own route of the topic of replies."""

    def __init__(self, client: Consumers) -> None:
        self._client = client
        self._engine: Engine | None = None  #: of the session that `_requests` belong to
        self._requests = Requests()

    def _current(self) -> Requests:
        """The requests of the session in use: a client that connects anew subscribes to replies anew."""
        return self._client._do(self._of_session)

    def _of_session(self) -> Requests:
        engine = self._client._engine
        if engine is not self._engine:
            self._engine, self._requests = engine, Requests()
        return self._requests

    def request(
        self, topic: str, value: Any, timeout: inputs.Timeout, **options: Unpack[PublishOptions]
    ) -> Message:
        """Publish a request and wait for its reply, as `Facade.request` says."""
        client, requests = self._client, self._current()
        seconds = client._seconds(timeout)
        self._require_consumers(topic)
        self._open_replies()
        consuming = client._engine.session.consuming
        correlation = client._do(requests.begin)
        deadline_ms = None if seconds is None else client._engine.now_ms() + seconds * 1000
        try:
            options["headers"] = requests.headers(correlation, options.get("headers"))
            client.publish(topic, value, timeout=seconds, **options)
            left_s = None
            if deadline_ms is not None:
                left_s = max(0.0, deadline_ms - client._engine.now_ms()) / 1000
            client._until(lambda: requests.reply(correlation, consuming) is not None, left_s)
            reply = client._do(requests.reply, correlation, consuming)
            if reply is None:
                raise NoReply(f"no reply from {topic!r} within {seconds} s", hint=f"gossipq group ls {topic}")
            message = client._changed_message(*reply)
            told(topic, message.headers, message.value)
            return message
        finally:
            requests.end(correlation)

    def _require_consumers(self, topic: str) -> None:
        """Raise NotFound, or NoReply if the topic is without a consumer in a group."""
        client, requests = self._client, self._current()
        now_ms = client._engine.now_ms()
        if requests.heard(topic, now_ms):
            return
        known = client._topic(topic, create=False)
        stats = client._talk(client._engine.asking.stats(list(known.virtual or [topic]), ""))
        if not any(group.consumers for group in stats.groups):
            raise NoReply(f"nobody consumes {topic!r}", hint=f"gossipq group ls {topic}")
        requests.heard_ms[topic] = now_ms

    def _open_replies(self) -> None:
        """Before the first request: the topic of replies, and this client's own route of it."""
        client, requests = self._client, self._current()
        consuming = client._engine.session.consuming
        client._do(requests.renew, consuming)
        if requests.ready:
            return
        client._ask(make_replies(), META_SHARD, Topics)

        def subscribe() -> None:
            """Once, whoever else is about to."""
            if requests.subscription is None:
                requests.route = client._engine.session.links.session.hex()
                requests.subscription = client._engine.subscribe(requests.joining(), False)

        client._do(subscribe)
        client._require(lambda: requests.ready, client._timeout)
