"""What a child process is told by its parent at birth: plain frozen values, the same for a fresh and a
restarted process."""

import msgspec

from gossipq import __version__, limits
from gossipq.config import check_options
from gossipq.core.storage import ShardSettings
from gossipq.endpoints import endpoint
from gossipq.messages import Welcome
from gossipq.values import AccessTable, ConfigRow, GroupConfig, Member, Quota, Route, TopicConfig
from gossipq.wire import ownership


class NodeKeys(msgspec.Struct, frozen=True):
    """CURVE keys of a node, and which of its addresses they are for. Keys are 32 bytes."""

    secret: bytes  #: of this node alone
    public: bytes
    #: the public one of all doors of the cluster; while the secret is replaced, others are behind it
    door: bytes
    door_secret: bytes = b""  #: b"": the doors of this node are not encrypted
    assumes: bool = False  #: whether those of nodes that are not known are
    own: frozenset[str] = frozenset()  #: doors for peers of its processes, as they dial each other
    clear: frozenset[str] = frozenset()  #: doors for clients that it dials unencrypted, within the host

    @property
    def encrypts(self) -> bool:
        return bool(self.door_secret)

    @property
    def doors(self) -> list[bytes]:
        """By which keys a door may be dialled."""
        return ownership.tokens_of(self.door)

    def __repr__(self) -> str:
        return "NodeKeys()"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of worker `worker` of the node `member`."""

    worker: int
    node: str  #: name, for people
    predecessors: tuple[str, ...]  #: names of the copies that the operator let this one replace
    cluster: bytes  #: 16 bytes
    shards: int  #: of the cluster
    owned: tuple[int, ...]  #: shards that live in this worker's store
    siblings: tuple[str, ...]  #: by worker of this node: where it answers peers, from within
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
    quota: Quota = Quota()
    #: virtual topics that are there from the start -> the topics they copy to
    virtual: dict[str, list[str]] = {}
    boot: str = ""  #: names this run of the machine
    restarts: int = 0
    log_json: bool = True
    member: Member  #: this node's own row in the roster
    version: int = 0  #: of `members`
    members: tuple[Member, ...] = ()  #: the roster as last known
    token: bytes = b""  #: proves to other nodes that this one knows the secret
    joins: bool = False  #: this directory did not found the cluster
    copies: int = limits.COPIES  #: of each shard, when there are so many nodes
    cluster_name: str = ""
    options: dict[str, str] = {}  #: what [cluster] says here: newcomers must not say otherwise
    replace_ms: int = limits.REPLACE_MS
    stray_ms: int = limits.STRAY_MS
    standalone: bool = False  #: it was told to be alone: nobody joins it
    former: tuple[bytes, ...] = ()  #: clusters that this one went on from, by a recover
    access: AccessTable = AccessTable()  #: who may do what, as last known
    clear_tokens: bool = False  #: tokens may come from other hosts
    keys: NodeKeys | None = None  #: None: it neither encrypts nor speaks to who does
    doors_bind: tuple[str, ...] = ()  #: for clients, encrypted
    secret: bytes = b""  #: of the cluster, for who was invited to it

    @property
    def speaks_for_nodes(self) -> bytes:
        """The token by which a client shows that it is a node; b"": all may say what nodes say, as on a node
        within a program, whose clients are its own."""
        return self.token if endpoint(self.clients_bind).transport == "tcp" else b""

    @property
    def endpoint(self) -> str:
        """Where clients reach this worker."""
        return endpoint(self.member.endpoint).step(limits.CLIENT_PORT_STEP + self.worker)


class GossipSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a node finds others."""

    mode: str  #: "static" or "serf"
    peers: tuple[str, ...] = ()  #: frontdoors, as tcp://HOST:PORT
    join: tuple[str, ...] = ()  #: agents, as HOST:PORT
    bind: str  #: HOST:PORT of the own agent
    advertise: str = ""  #: host that others are told
    member: Member
    cluster: str = ""  #: uuid in hex; "": none yet
    keys: tuple[str, ...] = ()  #: 32 bytes as base64 each; the first encrypts, all decrypt; (): in the clear
    directory: str  #: for what the agent keeps


class FrontdoorSettings(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    cluster_name: str
    cluster: bytes
    mode: str
    shards: int
    clients_bind: str
    peers_bind: str
    forwards: tuple[str, ...]  #: by worker: where it takes forwarded messages
    siblings: tuple[str, ...]  #: by worker: where it answers peers, from within
    window_bytes: int
    quota: Quota = Quota()
    memory_bytes_max: int = 0
    warnings: tuple[str, ...] = ()
    config: tuple[ConfigRow, ...] = ()  #: the options the node runs with, for who asks
    admin: str = ""  #: HOST:PORT for metrics and health; "" = nowhere
    admin_hosts: frozenset[str] = frozenset()  #: names by which that is asked
    admin_token: bytes = b""  #: that who asks has to show
    admin_auto: bool = False  #: nobody asked for that place: it may be taken
    log_json: bool = True
    member: Member
    version: int = 0
    members: tuple[Member, ...] = ()
    token: bytes = b""
    roster_file: str = ""  #: where the newest roster is kept for the next start; "": nowhere
    gossip: GossipSettings | None = None  #: None: it looks for nobody
    alarms: bool = False  #: whether they are told as records
    endpoint: str = ""  #: where this machine's own clients reach the frontdoor
    former: tuple[bytes, ...] = ()  #: clusters that this one went on from, by a recover
    insisted: dict[str, str] = {}  #: what [cluster] was told to say: the cluster must not say otherwise
    access: AccessTable = AccessTable()
    access_file: str = ""  #: where the newest one is kept for the next start; "": nowhere
    clear_tokens: bool = False
    keys: NodeKeys | None = None
    doors_bind: tuple[str, ...] = ()
    doubted: bool = False  #: its directory may be a copy, and nothing would tell
    session: bytes = b""  #: 16 random bytes, for what it asks other nodes; b"": it asks nobody

    def worker_endpoint(self, worker: int) -> str:
        """Where clients reach a worker."""
        return endpoint(self.member.endpoint).step(limits.CLIENT_PORT_STEP + worker)


def welcome(settings: WorkerSettings | FrontdoorSettings, routes: list[Route], nodes: list[str]) -> Welcome:
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
        nodes=nodes,
        former=list(settings.former),
    )


class WorkerState(msgspec.Struct, frozen=True):
    """What the supervisor knows of a worker's process."""

    worker: int
    pid: int
    running: bool
    restarts: int
    detail: str = ""


def shard_settings(settings: WorkerSettings) -> ShardSettings:
    """What each shard of a worker is told."""
    return ShardSettings(
        me=settings.member.copy,
        predecessors=settings.predecessors,
        shards=settings.shards,
        auto_create=settings.auto_create,
        topic=settings.topic,
        group=settings.group,
        quota=settings.quota,
        virtual=settings.virtual,
        boot=settings.boot,
        joins=settings.joins,
        witness=settings.member.witness,
        cluster=settings.cluster,
        cluster_name=settings.cluster_name,
        options=settings.options,
        check_options=check_options,
        replace_ms=settings.replace_ms,
        stray_ms=settings.stray_ms,
        standalone=settings.standalone,
        access=settings.access,
        endpoint=settings.member.endpoint,
    )
