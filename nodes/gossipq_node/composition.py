"""Builds the settings of each process of a node from options and a data directory."""

import logging
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from gossipq import __version__, limits
from gossipq.config import ADOPTED, AUTO, DEFAULT, Config, admin_place, fitting, options, value_of
from gossipq.endpoints import Endpoint, door_of, endpoint, gossip_address, invitation
from gossipq.errors import ConfigError
from gossipq.values import ConfigRow, Member
from gossipq.wire import ownership
from gossipq.wire.proofs import token
from gossipq_node import machine, trust
from gossipq_node.directory import GOSSIP, DataDirectory, DirectoryManifest
from gossipq_node.files import read_access
from gossipq_node.settings import FrontdoorSettings, GossipSettings, NodeKeys, WorkerSettings

Mode = Literal["standalone", "static", "serf"]

SERF = "serf"
INSTALL = "apt-get install serf   (or list the nodes: --mode static --peer tcp://HOST:PORT)"
#: options of [cluster] that may differ between nodes
OF_THE_NODE = frozenset(("cluster.join", "cluster.expect"))


def serf_installed() -> bool:
    return shutil.which(SERF) is not None


def mode_of(config: Config, member: bool, log: logging.Logger) -> Mode:
    """Return how the node finds others. Raises ConfigError if that is impossible.

    A member of a cluster knows addresses of other nodes, so it can start in any case.
    """
    node, join, expect = config.node, config.cluster.join, config.cluster.expect
    invited = any(map(invitation, join))  # the invitation names a node, so no agent is needed
    if endpoint(node.bind).transport == "ipc":
        if join or node.peer or expect > 1:
            raise ConfigError(
                f"node.bind = {node.bind!r} is for this machine alone",
                "bind tcp://HOST:PORT to be in a cluster",
            )
        return "standalone"
    if node.mode in ("standalone", "static"):
        if join and not invited:
            raise ConfigError(
                f"--join needs Serf, and node.mode is {node.mode!r}", "use --peer tcp://HOST:PORT"
            )
        if node.mode == "standalone" and (node.peer or expect > 1):
            raise ConfigError(
                f"a standalone node finds no others, and {'node.peer' if node.peer else 'cluster.expect'} is "
                "set",
                "leave out --mode standalone",
            )
        return node.mode
    if not serf_installed():
        if not invited and (join or node.mode == "serf"):
            what = "--join was given" if join else "node.mode is 'serf'"
            if member:
                log.warning(
                    "%s, and the `serf` program is not installed: nodes at new addresses are not found. %s",
                    what,
                    INSTALL,
                )
                return "static"
            raise ConfigError(f"{what}, and the `serf` program is not installed", INSTALL)
        if node.peer or invited:
            return "static"
        if expect > 1:
            raise ConfigError("cluster.expect is set, and nothing says where the others are", INSTALL)
        return "standalone"
    return "static" if node.peer and not join and node.mode == "auto" else "serf"


class Site(NamedTuple):
    """The addresses of the node."""

    listen: Endpoint
    host: str  #: the host that others are told
    inside: str  #: the host for its own processes

    def local(self, encrypts: bool, insecure: bool) -> bool:
        """True if unencrypted ports are bound to loopback only."""
        return encrypts and not insecure and not self.listen.is_loopback

    def doors(self, step: int) -> tuple[str, ...]:
        """Return the encrypted client addresses of the process at `step` above the first port."""
        listen, above = self.listen, step + limits.DOOR_PORT_STEP
        here = () if listen.is_loopback or listen.is_wildcard else (listen.step(above, LOOPBACK),)
        return (listen.step(above), *here)


LOOPBACK = "127.0.0.1"


def place_of(config: Config) -> Site:
    listen = endpoint(config.node.bind)
    return Site(listen, config.node.advertise or listen.host, LOOPBACK if listen.is_wildcard else listen.host)


def keys_of(
    config: Config,
    directory: DataDirectory,
    manifest: DirectoryManifest,
    secret: bytes,
    door: bytes = b"",
    rotate: bool = False,
) -> tuple[NodeKeys | None, bytes]:
    """Return the keys of a node, and its next public key. Raises ConfigError.

    Keys exist for a node that listens on a network and shares a secret, or was
    invited and knows the public key of the cluster's ports. `rotate`: use the next
    keys now, if the cluster knows them.
    """
    place, encrypts = place_of(config), trust.encrypts(config.node, secret)
    others = [row for row in directory.roster().members if row.copy != manifest.voter]
    meets = not place.listen.is_loopback or any(
        row.encrypts for row in others
    )  # addresses that must be dialled encrypted
    if place.listen.transport != "tcp" or not (encrypts or door or (secret and meets)):
        return None, b""
    # imported late: nodes without a network do not need it
    from gossipq_node.adapters.curve import public_of

    known = directory.roster().members if rotate else []
    row = next((row for row in known if row.copy == manifest.voter), None)
    using, following = trust.node_keys(directory.path, row)
    opened = trust.door_secrets(secret)
    keys = NodeKeys(
        secret=using,
        public=public_of(using),
        door=door or b"".join(map(public_of, opened)),
        door_secret=opened[0] if encrypts else b"",
        assumes=encrypts or bool(door),
    )
    return keys, public_of(following)


def node_name(config: Config) -> str:
    """Return the given name, or the host's; the second node of a host adds its port."""
    port = endpoint(config.node.bind).port
    return config.node.name or (
        socket.gethostname() if port in (0, limits.PORT) else f"{socket.gethostname()}-{port}"
    )


def member_of(
    config: Config, manifest: DirectoryManifest, keys: NodeKeys | None = None, next_key: bytes = b""
) -> Member:
    """Return this node's row in the roster."""
    place = place_of(config)
    url = place.listen.step(0, place.host)
    row = Member(
        manifest.voter, node_name(config), url, manifest.workers, manifest.witness, version=__version__
    )
    if keys is None:
        return row
    return msgspec.structs.replace(row, key=keys.public, next_key=next_key, encrypts=keys.encrypts)


def options_of(config: Config) -> dict[str, str]:
    """Return the options that must be equal on all nodes: dotted key -> JSON text."""
    keys = [key for key, _ in options() if key.startswith("cluster.") and key not in OF_THE_NODE]
    return {key: msgspec.json.encode(value_of(config, key)).decode() for key in keys}


def said_here(config: Config, origins: Mapping[str, str]) -> dict[str, str]:
    """Return options of the cluster that this node's own file, environment or flags set."""
    options = options_of(config)
    return {key: text for key, text in options.items() if origins[key] not in (DEFAULT, ADOPTED)}


def insisted(config: Config, origins: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Return the options that must hold in the cluster, or the node refuses to start.

    The other options are adopted from the cluster: those not set here, and those whose text is the
    default or the same as `before`, because an operator has then changed them for all nodes.
    """
    before = options_of(Config()) | dict(before)
    said = said_here(config, origins)
    return {key: text for key, text in said.items() if key in limits.OPTIONS_FOUNDED or text != before[key]}


def accepted(
    said: Mapping[str, str], known: Mapping[str, str], before: Mapping[str, str], alone: bool
) -> dict[str, str]:
    """Return the options of this node's file that the cluster agreed to, now or earlier.

    A node that is `alone` is the cluster.
    """
    agreed = {key: text for key, text in said.items() if alone or known.get(key, text) == text}
    return {key: agreed.get(key, before.get(key, "")) for key in said if key in agreed or key in before}


class Composition:
    """The settings of a node whose directory belongs to a cluster, with mode and secret fixed."""

    def __init__(
        self,
        config: Config,
        directory: DataDirectory,
        manifest: DirectoryManifest,
        log_json: bool,
        mode: Mode = "standalone",
        shown: Sequence[ConfigRow] = (),
        insisted: Mapping[str, str] | None = None,
        rotate: bool = False,
    ) -> None:
        """`shown`: the options for display. `insisted`: options that must hold in the cluster.

        `rotate`: use the next keys, if the cluster knows them. Raises ConfigError if
        the secret cannot be read.
        """
        self._shown, self._insisted = tuple(shown), dict(insisted or {})
        self.config = config
        self.directory = directory
        self.manifest = manifest
        self._log_json = log_json
        self.mode = mode
        self.secret = trust.secret_of(config.node, directory.path)
        keys, next_key = keys_of(config, directory, manifest, self.secret, rotate=rotate)
        self.member = member_of(config, manifest, keys, next_key)
        self.cluster = bytes.fromhex(manifest.cluster_uuid)
        self.token = token(self.secret, self.cluster)
        self._former = tuple(map(bytes.fromhex, manifest.former))
        self._place = place_of(config)
        listen, _, inside = self._place
        self.encrypts = keys is not None and keys.encrypts
        local = self._place.local(self.encrypts, config.node.insecure)
        #: host of unencrypted client ports; and the host by which this node's processes dial them
        self._clear, self._home = (LOOPBACK, LOOPBACK) if local else ("", inside)
        self._siblings = tuple(
            listen.step(limits.PEER_PORT_STEP + worker, inside) for worker in range(manifest.workers)
        )
        self._frontdoor = listen.step(limits.FRONTDOOR_PEER_PORT_STEP, inside)
        self._forwards = tuple(
            listen.step(limits.CLIENT_PORT_STEP + worker, self._home) for worker in range(manifest.workers)
        )
        own = frozenset((*self._siblings, self._frontdoor))
        self._keys = keys and msgspec.structs.replace(keys, own=own, clear=frozenset(self._forwards))
        # read once: these files may be gone when the frontdoor restarts
        self._admin_token = trust.read(config.node.admin_token_file, "node.admin_token_file")
        self.warnings = tuple(self._warnings())
        # name and number of shards are those of the founding, even if the file says otherwise
        founded = {"cluster.name": manifest.cluster_name, "cluster.shards": manifest.shards}
        self.options = options_of(config) | {
            key: msgspec.json.encode(value).decode() for key, value in founded.items()
        }

    @property
    def door(self) -> str:
        """The encrypted address for clients on other hosts; "" without one."""
        there = not self._place.listen.is_loopback and not self.manifest.witness
        return door_of(self.member.endpoint) if self.encrypts and there else ""

    def worker(self, worker: int, restarts: int) -> WorkerSettings:
        """Settings of a worker. Made for each start, because the roster may have changed."""
        config, manifest, roster = self.config, self.manifest, self.directory.roster()
        listen = self._place.listen
        return WorkerSettings(
            worker=worker,
            node=self.member.name,
            predecessors=tuple(manifest.predecessors),
            cluster=self.cluster,
            shards=manifest.shards,
            owned=tuple(range(worker, manifest.shards, manifest.workers)),
            siblings=self._siblings,
            clients_bind=listen.step(limits.CLIENT_PORT_STEP + worker, self._clear),
            peers_bind=listen.step(limits.PEER_PORT_STEP + worker),
            frontdoor=self._frontdoor,
            keys=self._keys,
            doors_bind=self._place.doors(limits.CLIENT_PORT_STEP + worker) if self.encrypts else (),
            secret=self.secret,
            directory=str(self.directory.store(manifest, worker)),
            map_bytes=config.node.map_bytes,
            disk_reserve_bytes=config.node.disk_reserve_bytes,
            disk_reserve_percent=config.node.disk_reserve_percent,
            memory_bytes_max=config.node.memory_bytes_max,
            window_bytes=config.cluster.window_bytes,
            auto_create=config.cluster.auto_create,
            topic=config.cluster.topic.message(),
            group=config.cluster.group.message(),
            quota=fitting(config.cluster.quota, config.node.memory_bytes_max),
            virtual=config.cluster.virtual,
            boot=machine.boot_id(),
            restarts=restarts,
            log_json=self._log_json,
            member=self.member,
            version=roster.version,
            members=tuple(roster.members),
            token=self.token,
            joins=manifest.joined,
            copies=config.cluster.copies,
            cluster_name=manifest.cluster_name,
            options=self.options,
            replace_ms=config.cluster.replace_ms,
            stray_ms=config.node.stray_ms,
            standalone=config.node.mode == "standalone",
            former=self._former,
            access=read_access(self.directory.access_file),
            clear_tokens=config.node.insecure,
        )

    def frontdoor(self, restarts: int = 0) -> FrontdoorSettings:
        config, manifest, roster = self.config, self.manifest, self.directory.roster()
        listen = self._place.listen
        return FrontdoorSettings(
            node=self.member.name,
            cluster_name=manifest.cluster_name,
            cluster=self.cluster,
            mode=self.mode,
            shards=manifest.shards,
            clients_bind=listen.step(0, self._clear),
            peers_bind=listen.step(limits.FRONTDOOR_PEER_PORT_STEP),
            forwards=self._forwards,
            keys=self._keys,
            doors_bind=self._place.doors(0) if self.encrypts else (),
            siblings=self._siblings,
            window_bytes=config.cluster.window_bytes,
            quota=fitting(config.cluster.quota, config.node.memory_bytes_max),
            memory_bytes_max=config.node.memory_bytes_max,
            warnings=self.warnings,
            log_json=self._log_json,
            member=self.member,
            version=roster.version,
            members=tuple(roster.members),
            token=self.token,
            roster_file=str(self.directory.roster_file),
            config=self._shown,
            admin=admin_place(config),
            admin_hosts=frozenset(
                name.lower()
                for name in (*config.node.admin_hosts, socket.gethostname(), config.node.advertise)
            ),
            admin_token=self._admin_token,
            admin_auto=config.node.admin == AUTO,
            alarms=config.node.alarms and listen.transport == "tcp",
            endpoint=listen.step(0, self._home),
            gossip=self.gossip(self.directory.others(manifest)),
            former=self._former,
            insisted=self._insisted,
            access=read_access(self.directory.access_file),
            access_file=str(self.directory.access_file),
            clear_tokens=config.node.insecure,
            doubted=not machine.machine_id() and bool(self.directory.others(manifest)),
            session=ownership.unowned(os.urandom(16)),
        )

    def gossip(self, known: list[str]) -> GossipSettings | None:
        """Settings of gossip. `known` are frontdoors of nodes that may have a Serf agent."""
        return gossip_settings(self.config, self.directory, self.manifest, self.mode, self.secret, known)

    def _warnings(self) -> list[str]:
        listen, secret = self._place.listen, self.config.node.secret_file
        said = (
            [f"other users of this machine may read the secret: chmod 600 {secret}"]
            if trust.exposed(secret)
            else []
        )
        if listen.is_loopback:
            return said
        if not self.secret:
            return [
                "--insecure: anybody who reaches this address may read and write everything, and join the "
                "cluster"
            ]
        if self.encrypts and not self.config.node.insecure:
            return said
        return [
            *said,
            "--insecure: who listens to this network can read what clients say, and use it",
        ]


def gossip_settings(
    config: Config,
    directory: DataDirectory,
    manifest: DirectoryManifest,
    mode: Mode,
    secret: bytes,
    known: list[str],
) -> GossipSettings | None:
    """Return the settings of gossip, also for a node without a cluster. None in standalone mode."""
    if mode == "standalone":
        return None
    place = place_of(config)
    bind = config.node.gossip or place.listen.step(limits.GOSSIP_PORT_STEP).removeprefix("tcp://")
    guesses = [endpoint(url).step(limits.GOSSIP_PORT_STEP).removeprefix("tcp://") for url in known]
    member = member_of(config, manifest)
    return GossipSettings(
        mode=mode,
        peers=tuple(dict.fromkeys((*config.node.peer, *known))),
        join=tuple(
            dict.fromkeys((*(gossip_address(text, "cluster.join") for text in config.cluster.join), *guesses))
        ),
        bind=bind,
        advertise=config.node.advertise,
        member=member,
        cluster=manifest.cluster_uuid,
        keys=trust.gossip_keys(secret),
        directory=str(directory.path / GOSSIP),
    )
