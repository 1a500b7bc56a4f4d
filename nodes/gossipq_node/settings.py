"""Settings of child processes: frozen values from the parent, equal for
first starts and restarts.
"""

import msgspec

from gossipq import __version__, limits
from gossipq.config import check_options
from gossipq.core.storage import Calendar, ShardSettings
from gossipq.endpoints import endpoint
from gossipq.messages import Welcome
from gossipq.values import AccessTable, ConfigRow, GroupConfig, Member, Quota, Route, TopicConfig
from gossipq.wire import ownership


class NodeKeys(msgspec.Struct, frozen=True):
    """CURVE keys of a node, 32 bytes each, and the addresses they apply to."""

    secret: bytes  #: of this node alone
    public: bytes
    #: public key of all encrypted ports of the cluster; during a change of secret others follow it
    door: bytes
    door_secret: bytes = b""  #: b"": the ports of this node are not encrypted
    assumes: bool = False  #: True if ports of unknown nodes are assumed to be encrypted
    own: frozenset[str] = frozenset()  #: peer ports of its own processes, as they dial each other
    clear: frozenset[str] = frozenset()  #: client ports that it dials unencrypted, within the host

    @property
    def encrypts(self) -> bool:
        return bool(self.door_secret)

    @property
    def doors(self) -> list[bytes]:
        """Keys with which a port can be dialled."""
        return ownership.tokens_of(self.door)

    def __repr__(self) -> str:
        return "NodeKeys()"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of worker `worker` of the node `member`."""

    worker: int
    node: str  #: name, for people
    predecessors: tuple[str, ...]  #: copies that the operator let this one replace
    cluster: bytes  #: 16 bytes
    shards: int  #: of the cluster
    owned: tuple[int, ...]  #: shards in this worker's store
    siblings: tuple[str, ...]  #: peer addresses of this node's workers, from within
    clients_bind: str
    peers_bind: str
    frontdoor: str  #: address for reports
    directory: str  #: directory of the store
    map_bytes: int
    disk_reserve_bytes: int
    disk_reserve_percent: int
    memory_bytes_max: int = 0
    window_bytes: int
    auto_create: bool
    topic: TopicConfig
    group: GroupConfig
    quota: Quota = Quota()
    #: virtual topics that exist from the start -> their target topics
    virtual: dict[str, list[str]] = {}
    boot: str = ""  #: id of this boot of the machine
    restarts: int = 0
    log_json: bool = True
    member: Member  #: this node's own row in the roster
    version: int = 0  #: of `members`
    members: tuple[Member, ...] = ()  #: the roster as last known
    token: bytes = b""  #: proves to other nodes that this one knows the secret
    joins: bool = False  #: True if this directory did not found the cluster
    copies: int = limits.COPIES  #: of each shard, in a cluster with enough nodes
    cluster_name: str = ""
    #: options of [cluster] on this node; newcomers must not contradict them
    options: dict[str, str] = {}
    replace_ms: int = limits.REPLACE_MS
    stray_ms: int = limits.STRAY_MS
    standalone: bool = False  #: started as standalone: nodes cannot join
    former: tuple[bytes, ...] = ()  #: clusters that this one replaced in a `recover`
    access: AccessTable = AccessTable()  #: users and roles as last known
    clear_tokens: bool = False  #: True if tokens may arrive unencrypted from other hosts
    keys: NodeKeys | None = None  #: None: the node neither encrypts nor dials encrypted ports
    doors_bind: tuple[str, ...] = ()  #: encrypted, for clients
    secret: bytes = b""  #: the cluster's secret, for invited nodes

    @property
    def speaks_for_nodes(self) -> bytes:
        """The token with which a client proves to be a node.

        b"": every client counts as one, as on a node within a program, whose clients are its own.
        """
        return self.token if endpoint(self.clients_bind).transport == "tcp" else b""

    @property
    def endpoint(self) -> str:
        """Address of this worker for clients."""
        return endpoint(self.member.endpoint).step(limits.CLIENT_PORT_STEP + self.worker)


class GossipSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a node's discovery."""

    mode: str  #: "static" or "serf"
    peers: tuple[str, ...] = ()  #: frontdoors, as tcp://HOST:PORT
    join: tuple[str, ...] = ()  #: agents, as HOST:PORT
    bind: str  #: HOST:PORT of the own agent
    advertise: str = ""  #: host that others are told
    member: Member
    cluster: str = ""  #: uuid in hex; "": none yet
    #: keys of 32 bytes as base64. The first encrypts, all decrypt; without
    #: keys, gossip is unencrypted
    keys: tuple[str, ...] = ()
    directory: str  #: for files of the agent


class FrontdoorSettings(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    cluster_name: str
    cluster: bytes
    mode: str
    shards: int
    clients_bind: str
    peers_bind: str
    forwards: tuple[str, ...]  #: by worker: address for forwarded messages
    siblings: tuple[str, ...]  #: by worker: address for peers, from within
    window_bytes: int
    quota: Quota = Quota()
    memory_bytes_max: int = 0
    warnings: tuple[str, ...] = ()
    config: tuple[ConfigRow, ...] = ()  #: the options the node runs with, for display
    admin: str = ""  #: HOST:PORT of metrics and health; "" = off
    admin_hosts: frozenset[str] = frozenset()  #: host names that requests may use
    admin_token: bytes = b""  #: token that requests must contain
    admin_auto: bool = False  #: the default address: it may be in use
    log_json: bool = True
    member: Member
    version: int = 0
    members: tuple[Member, ...] = ()
    token: bytes = b""
    roster_file: str = ""  #: file for the newest roster; "": none
    gossip: GossipSettings | None = None  #: None: discovery is off
    alarms: bool = False  #: True if alarms are published as records
    endpoint: str = ""  #: frontdoor address for clients on this machine
    former: tuple[bytes, ...] = ()  #: clusters that this one replaced in a `recover`
    insisted: dict[str, str] = {}  #: options of [cluster] that must hold in the cluster
    access: AccessTable = AccessTable()
    access_file: str = ""  #: file for users and roles; "": none
    clear_tokens: bool = False
    keys: NodeKeys | None = None
    doors_bind: tuple[str, ...] = ()
    doubted: bool = False  #: True if its directory may be a copy, which could not be detected
    session: bytes = b""  #: 16 random bytes, for requests to other nodes; b"": it sends none

    def worker_endpoint(self, worker: int) -> str:
        """Return the address of a worker for clients."""
        return endpoint(self.member.endpoint).step(limits.CLIENT_PORT_STEP + worker)


def welcome(settings: WorkerSettings | FrontdoorSettings, routes: list[Route], nodes: list[str]) -> Welcome:
    """Return the answer to HELLO, for any process."""
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
    """The state of a worker's process, as the supervisor knows it."""

    worker: int
    pid: int
    running: bool
    restarts: int
    detail: str = ""


def shard_settings(settings: WorkerSettings, calendar: Calendar) -> ShardSettings:
    """Return the settings of each shard of a worker."""
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
        clock_step_ms=1,
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
        calendar=calendar,
        endpoint=settings.member.endpoint,
    )
