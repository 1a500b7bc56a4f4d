"""What a child process is told by its parent at birth: plain frozen values, the same for a fresh and a restarted process."""

import msgspec

from gossipq import __version__, limits
from gossipq.messages import Welcome
from gossipq.values import GroupConfig, Route, TopicConfig


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of worker `worker`. `routes` and `peers` cover every shard of the cluster, also this worker's own."""

    worker: int
    node: str  #: name, for people
    voter: str  #: name of this copy in the logs: node id and directory id
    predecessors: tuple[str, ...]  #: names of the copies that the operator let this one replace
    cluster: bytes  #: 16 bytes
    shards: int  #: of the cluster
    owned: tuple[int, ...]  #: shards that live in this worker's store
    routes: tuple[Route, ...]  #: shard -> where its leader answers clients
    peers: tuple[str, ...]  #: by shard: where its leader answers peers
    clients_bind: str
    peers_bind: str
    frontdoor: str  #: where reports go
    directory: str  #: of the store
    map_bytes: int
    disk_reserve_bytes: int
    disk_reserve_percent: int
    memory_bytes_max: int = 0
    window_bytes: int
    auto_create: bool
    topic: TopicConfig
    group: GroupConfig
    virtual: dict[str, list[str]] = {}  #: virtual topics that are there from the start -> the topics they copy to
    boot: str = ""  #: names this run of the machine
    restarts: int = 0
    log_json: bool = True

    @property
    def endpoint(self) -> str:
        """Where clients reach this worker."""
        return next(route.endpoint for route in self.routes if route.shard == self.owned[0])


class FrontdoorSettings(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    cluster_name: str
    cluster: bytes
    mode: str
    shards: int
    clients_bind: str
    peers_bind: str
    routes: tuple[Route, ...]  #: what clients are told
    forwards: tuple[str, ...]  #: by worker: where it takes forwarded messages
    window_bytes: int
    memory_bytes_max: int = 0
    warnings: tuple[str, ...] = ()
    log_json: bool = True


def welcome(settings: WorkerSettings | FrontdoorSettings, routes: list[Route]) -> Welcome:
    """The answer to HELLO, from whichever process it reached."""
    return Welcome(
        node=settings.node,
        cluster=settings.cluster,
        version=__version__,
        window_bytes=settings.window_bytes,
        silence_ms=limits.SESSION_SILENCE_MS,
        ping_ms=limits.PING_MS,
        routes=routes,
        shards=settings.shards,
    )


class WorkerState(msgspec.Struct, frozen=True):
    """What the supervisor knows of a worker's process."""

    worker: int
    pid: int
    running: bool
    restarts: int
    detail: str = ""
