"""The global options of one call. They are below the commands and the completion of names."""

from dataclasses import dataclass, field

TIMEOUT_S = 5.0
FORMS = ("table", "json", "jsonl", "names")


@dataclass
class Choices:
    """The global options of one call, which every command gets."""

    #: empty: $GOSSIPQ_SERVER, else the client's default
    servers: list[str] = field(default_factory=list)
    output: str = "table"
    quiet: bool = False
    verbose: bool = False
    timeout_s: float = TIMEOUT_S
    color: bool = True
    debug: bool = False
    yes: bool = False
    credentials: str = ""  #: file with the token; "" = as the client finds it
    insecure: bool = False  #: tokens may be sent unencrypted over a network
    door: bytes = b""  #: key of the encrypted port there, from a node of this machine
