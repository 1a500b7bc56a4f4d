"""What a gateway is started with."""

from typing import NamedTuple

from gossipq import limits
from gossipq.errors import ConfigError
from gossipq_gateway.dialect import Place
from gossipq_gateway.dialects.options import DialectOptions

PORT = limits.PORT + 81


class Settings(NamedTuple):
    """`hosts` are names by which browsers may call it, beside its own address; `origins` those whose pages
    may read its answers (CORS). A place that is None is not served."""

    http: Place = Place("127.0.0.1", PORT)
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    insecure: bool = False  #: tokens may cross a network in the clear
    sqs: bool = False
    sqs_keys: str = ""  #: file of access keys
    xxl_mq: bool = False
    prettyq: bool = False
    kapokmq: Place | None = None
    moonmq: Place | None = None
    moonmq_http: Place | None = None
    queue_server: Place | None = None
    options: DialectOptions = DialectOptions()  #: of those of older brokers

    def check(self) -> None:
        """Raises ConfigError: tokens, keys and records would cross a network in the clear."""
        named = {
            "--http": self.http,
            "--kapokmq": self.kapokmq,
            "--moonmq": self.moonmq,
            "--moonmq-http": self.moonmq_http,
            "--queue-server": self.queue_server,
        }
        for option, place in named.items():
            if place is not None and not place.is_loopback and not self.insecure:
                raise ConfigError(
                    f"{option} {place}: others may read what crosses a network in the clear",
                    "listen on 127.0.0.1 behind a TLS proxy; or --insecure if that network is yours",
                )
