"""Options of older brokers' dialects, under the names in their own configuration."""

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1, le=100_000)]
Seconds = Annotated[int, Meta(ge=1, le=86_400)]
Group = Annotated[str, Meta(min_length=1, max_length=100)]


class KapokMqOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`push_type` 1: a message goes to one consumer of its topic; 2: to all.

    `nodes`: HOST:PORT of all gateways, for clients that ask. `origins`: web pages that may send
    requests. `in_hand_max`: unacked messages of a consumer.
    """

    secret_key: str = "test"
    push_type: Annotated[int, Meta(ge=1, le=2)] = 1
    push_retry_time: Seconds = 300
    group: Group = "kapokmq"
    nodes: list[str] = []
    origins: list[str] = []
    in_hand_max: Count = 1_000


class MoonMqOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`keepalive`: seconds of silence after which a connection ends.

    `in_flight_max`: unacked messages of a connection; moonmq's own client stores 16.
    """

    group: Group = "moonmq"
    keepalive: Annotated[int, Meta(ge=1, le=600)] = 65
    in_flight_max: Count = 8


class QueueServerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`leader`: HOST:PORT of the gateway that serves requests.

    This gateway then forwards to it, or with `forward_request` 0 tells clients its address.
    """

    group: Group = "queue_server"
    node_id: int = 1
    leader: str = ""
    leader_node_id: int = 0
    forward_request: Annotated[int, Meta(ge=0, le=1)] = 1


class XxlMqOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`access_token`: required from callers; "" = none. `timeout`: seconds of a message's lease."""

    access_token: str = ""
    timeout: Seconds = 300
