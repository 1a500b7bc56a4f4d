"""Options of a node, read from cluster.toml, the environment and flags.

The result is frozen and validated, and each value knows its origin. Precedence: flag, then
environment (GOSSIPQ_NODE__BIND for node.bind), then file, then default. This module does no I/O,
except that it reads one file.
"""

import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, inspect

from gossipq import limits
from gossipq.endpoints import Endpoint, endpoint, gossip_address, invitation
from gossipq.errors import ConfigError
from gossipq.values import ConfigRow, Count, GroupDefaults, Quota, TopicDefaults

DEFAULT, ADOPTED = "default", "the cluster"  #: origins of options that are not set on this node
AUTO = "auto"  #: value of node.admin: loopback, at the port of node.bind plus a fixed step
SECRET = re.compile("secret$|token|password")  #: keys whose values are masked when they are shown
SECRET_FILE = "secret"  #: name of the file in a data directory that holds the secret of the cluster
PARTITIONS_SHARE = 4  #: the partitions of a worker get 1/4 of its memory
ENVIRONMENT_PREFIX = "GOSSIPQ_"
CONFIG_VARIABLE = "GOSSIPQ_CONFIG"
FLAGS = {"cluster.name": "cluster"}  #: flags with another name than the last part of their key
SEARCH = ("cluster.toml", "/etc/gossipq/cluster.toml")

PlainName = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]*\Z", max_length=limits.NAME_BYTES_MAX)]
Host = Annotated[str, Meta(pattern=r"^[^\s/]*\Z")]
TopicName = Annotated[str, Meta(pattern="^[A-Za-z0-9._-]+$", max_length=limits.NAME_BYTES_MAX)]


def fitting(quota: Quota, memory_bytes: int) -> Quota:
    """Return a quota whose partitions fit into the memory of one worker; 0 bytes mean no limit.

    If they do not fit, their number is lowered, and the shares of one address and user shrink in
    proportion.
    """
    fit = memory_bytes // PARTITIONS_SHARE // limits.PARTITION_MEMORY_BYTES
    most = min(quota.partitions, fit) if memory_bytes else quota.partitions
    shares = {
        name: getattr(quota, name) * most // quota.partitions
        for name in ("partitions", "address_partitions", "user_partitions")
    }
    return msgspec.structs.replace(quota, **shares)


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Options that are the same on every node of a cluster."""

    name: Annotated[str, Meta(min_length=1, max_length=limits.NAME_BYTES_MAX)] = "gossipq"
    join: tuple[str, ...] = ()
    expect: Annotated[int, Meta(ge=0, le=limits.MEMBERS_MAX)] = 0
    copies: Literal[3, 5, 7] = 3
    replace_ms: Annotated[int, Meta(ge=10 * limits.SECOND_MS, le=limits.NUMBER_MAX)] = limits.REPLACE_MS
    shards: Annotated[int, Meta(ge=1, le=limits.SHARDS_MAX)] = limits.SHARDS
    auto_create: bool = True
    window_bytes: Annotated[int, Meta(ge=limits.BATCH_BYTES_HARD_MAX, le=limits.NUMBER_MAX)] = (
        limits.PUBLISH_WINDOW_BYTES
    )
    topic: TopicDefaults = TopicDefaults()
    group: GroupDefaults = GroupDefaults()
    quota: Quota = Quota()
    virtual: dict[TopicName, Annotated[list[TopicName], Meta(min_length=1)]] = {}


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """Options of this node alone."""

    name: PlainName = ""
    data: Annotated[str, Meta(min_length=1)] = "gossipq-data"
    workers: Annotated[int, Meta(ge=0, le=limits.WORKERS_MAX)] = 0
    bind: str = f"tcp://127.0.0.1:{limits.PORT}"
    advertise: Host = ""
    admin: str = AUTO
    admin_hosts: tuple[str, ...] = ()
    admin_token_file: str = ""
    alarms: bool = True
    mode: Literal["auto", "standalone", "static", "serf"] = "auto"
    peer: tuple[str, ...] = ()
    gossip: str = ""
    secret_file: str = ""
    insecure: bool = False
    encrypt: Literal["auto", "always", "never"] = "auto"
    drain_ms: Annotated[int, Meta(ge=0, le=limits.DAY_MS)] = 5_000
    stray_ms: Annotated[int, Meta(ge=2 * limits.SECOND_MS, le=limits.NUMBER_MAX)] = limits.STRAY_MS
    map_bytes: Annotated[int, Meta(ge=limits.MIB, le=limits.MAP_BYTES_MAX)] = limits.MAP_BYTES
    disk_reserve_bytes: Count = limits.DISK_RESERVE_BYTES
    disk_reserve_percent: Annotated[int, Meta(ge=0, le=100)] = limits.DISK_RESERVE_PERCENT
    memory_bytes_max: Count = limits.PROCESS_MEMORY_BYTES_MAX


class Config(msgspec.Struct, frozen=True, kw_only=True):
    cluster: Cluster = Cluster()
    node: Node = Node()


class Loaded(NamedTuple):
    config: Config
    #: "node.bind" -> "flag --bind", "environment GOSSIPQ_NODE__BIND", "file cluster.toml" or "default"
    origins: dict[str, str]
    path: str  #: path of the file that was read; "" without a file


def options(kind: type[msgspec.Struct] = Config, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, type) of every option, in the order of the file."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from options(hint, f"{prefix}{name}.")
        else:
            yield prefix + name, hint


def value_of(config: Config, key: str) -> object:
    """Return the value of a dotted key such as "node.bind"."""
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def toml_text(value: object) -> str:
    """Return a value as it is written in cluster.toml."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{name}" = {toml_text(each)}' for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_text, value))}]"
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f'"{value}"'
        if isinstance(value, str)
        else str(value)
    )


def shown(loaded: Loaded) -> list[ConfigRow]:
    """Return a row for every option: its value as in cluster.toml and its origin. Secrets are
    masked.
    """
    values = {key: value_of(loaded.config, key) for key, _ in options()}
    masked = {
        key: '"***"' if value and SECRET.search(key) else toml_text(value) for key, value in values.items()
    }
    return [ConfigRow(key, text, loaded.origins[key]) for key, text in masked.items()]


def find(flag: str | None, environment: Mapping[str, str]) -> str:
    """Return the path of the configuration file, or "" if none exists.

    The first that is set or exists wins: --config, $GOSSIPQ_CONFIG, ./cluster.toml,
    /etc/gossipq/cluster.toml.
    """
    asked = flag or environment.get(CONFIG_VARIABLE, "")
    return asked or next((path for path in SEARCH if os.path.isfile(path)), "")


def load(path: str, environment: Mapping[str, str], flags: Mapping[str, object]) -> Loaded:
    """Read the options.

    `path` is the file ("" = none); `flags` maps dotted keys to values, None = flag not given.
    Raises ConfigError, which names the origin, the key and, for an unknown key, the nearest known
    one.
    """
    known = dict(options())
    found: dict[str, tuple[object, str]] = {key: (value, f"file {path}") for key, value in _flat(_read(path))}
    for variable, text in sorted(environment.items()):
        if variable.startswith(ENVIRONMENT_PREFIX) and "__" in variable:
            key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            found[key] = text, f"environment {variable}"
    for key, value in flags.items():
        if value is not None:
            found[key] = value, f"flag --{FLAGS.get(key) or key.rpartition('.')[2].replace('_', '-')}"
    nested: dict[str, Any] = {}
    for key, (value, origin) in found.items():
        if key not in known:
            raise (_unknown_table if isinstance(value, dict) else _unknown)(key, origin, list(known))
        checked = _checked(key, known[key], value, origin)
        *tables, name = key.split(".")
        place = nested
        for table in tables:
            place = place.setdefault(table, {})
        place[name] = checked
    origins = {key: found[key][1] if key in found else DEFAULT for key in known}
    config = msgspec.convert(nested, Config)
    _check_relations(config, origins)
    return Loaded(config, origins, path)


def at_bounds(said: Mapping[str, str]) -> dict[str, str]:
    """Return the cluster's options that exceed the bounds of this version, moved to the bound.

    `said` and the result map dotted keys to JSON text. Such values exist if an earlier version of
    gossipq, with wider bounds, accepted them.
    """
    held = dict[str, str]()
    for key, hint in options():
        with suppress(msgspec.DecodeError):
            value = msgspec.json.decode(said.get(key, "null"))
            near = _at_bound(inspect.type_info(hint), value)
            if near != value:
                held[key] = msgspec.json.encode(near).decode()
    return held


def _at_bound(kind: inspect.Type, value: Any) -> Any:
    """Return the number, or the list of numbers, that the type allows and that is nearest to
    `value`.
    """
    if isinstance(kind, inspect.IntType) and type(value) is int:
        low = value if kind.ge is None else max(value, int(kind.ge))
        return low if kind.le is None else min(low, int(kind.le))
    if isinstance(kind, inspect.VarTupleType) and isinstance(value, list):
        return [_at_bound(kind.item_type, each) for each in value[: kind.max_length]]
    return value


def adopted(loaded: Loaded, said: Mapping[str, str], insisted: Collection[str]) -> Loaded:
    """Return `loaded` with the options that the cluster has stored.

    `said` maps dotted keys to JSON text. Keys in `insisted` keep their local value. Raises
    ConfigError if the result is not a valid configuration.
    """
    tree = msgspec.to_builtins(loaded.config)
    origins = dict(loaded.origins)
    for key, text in said.items():
        if key in origins and key not in insisted and key not in limits.OPTIONS_FOUNDED:
            *tables, name = key.split(".")
            place = tree
            for table in tables:
                place = place[table]
            place[name], origins[key] = _json(key, text), ADOPTED
    try:
        return Loaded(msgspec.convert(tree, Config), origins, loaded.path)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"an option of the cluster makes no sense here: {error}",
            "where a node of it runs: gossipq cluster config set KEY=VALUE",
        ) from None


def check_options(said: Mapping[str, str]) -> None:
    """Raise ConfigError if no node could start with these options of the cluster.

    `said` maps dotted keys to JSON text.
    """
    known = dict(options())
    for key, text in said.items():
        value = _json(key, text)
        if key in known:
            _checked(key, known[key], value, "for the cluster")
    loaded = adopted(Loaded(Config(), dict.fromkeys(known, DEFAULT), ""), said, ())
    _check_relations(loaded.config, loaded.origins)


def _json(key: str, text: str) -> Any:
    """Decode the JSON text of an option. Raises ConfigError."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{key} = {text}: {error}", 'it is said as JSON: 7, "acked", true') from None


def in_force(key: str) -> str:
    """Return a sentence that says when a change of an option of [cluster] takes effect."""
    if key in limits.OPTIONS_FOUNDED:
        return "never: it is settled when the cluster is founded"
    return "at once" if key in limits.OPTIONS_AT_ONCE else "at the next start of each node"


def _checked(key: str, kind: Any, value: object, origin: str) -> object:
    """Convert `value` to the type of its option. Raises ConfigError.

    Text from the environment can stand for a number or a boolean, or for a list or table in TOML.
    """
    from_text = origin.startswith("environment")
    try:
        return msgspec.convert(_plural(kind, value) if from_text else value, kind, strict=not from_text)
    except msgspec.ValidationError as error:
        allowed = ", ".join(map(repr, get_args(kind))) if get_origin(kind) is Literal else ""
        hint = f"allowed: {allowed}" if allowed else "the sample cluster.toml explains every option"
        raise ConfigError(f"{origin}: {key} = {value!r}: {error}", hint) from None


def _plural(kind: Any, text: object) -> object:
    """Return the list or table that `text` contains if `kind` is a list or a table, else `text`."""
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(bare) not in (tuple, dict):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _read(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(
            f"config {path} cannot be read: {error.strerror}", "check --config and $GOSSIPQ_CONFIG"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"config {path} is not TOML: {error}", "mend that line: the sample cluster.toml shows the form"
        ) from None


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    tables = {key.rpartition(".")[0] for key, _ in options()} | {"cluster", "node"}
    for name, value in tree.items():
        if isinstance(value, dict) and prefix + name in tables:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _unknown(key: str, origin: str, known: list[str]) -> ConfigError:
    table = key.rpartition(".")[0]
    near = (get_close_matches(key, known, 1, 0.6) if table else []) or [
        other for other in known if other.rpartition(".")[2] == key.rpartition(".")[2]
    ]
    allowed = ", ".join(other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == table)
    hint = f"did you mean `{near[0]}`?" if near else ""
    if allowed:
        hint = f"{hint} allowed in [{table}]: {allowed}".strip()
    if any(other.startswith(f"{key}.") for other in known):
        return ConfigError(f"{origin}: `{key}` is a table", f"write [{key}] on a line of its own")
    return ConfigError(f"{origin}: unknown key `{key}`", hint or "the tables are [cluster] and [node]")


def _unknown_table(key: str, origin: str, known: list[str]) -> ConfigError:
    tables = sorted({other.rpartition(".")[0] for other in known})
    near = get_close_matches(key, tables, 1, 0.6)
    hint = f"did you mean [{near[0]}]? " if near else ""
    shown = ", ".join(f"[{table}]" for table in tables)
    return ConfigError(f"{origin}: unknown table [{key}]", f"{hint}the tables are {shown}")


def admin_place(config: Config) -> str:
    """Return HOST:PORT of metrics and health, or "" if they are off. Raises ConfigError."""
    admin, place = config.node.admin, endpoint(config.node.bind)
    if admin == AUTO:
        return "" if place.transport == "ipc" else f"127.0.0.1:{place.port + limits.ADMIN_PORT_STEP}"
    host, _, port = admin.rpartition(":")
    if admin and (not host or not port.isdecimal() or int(port) > 65_535):
        raise ConfigError(
            f"node.admin = {admin!r} is not HOST:PORT", 'write 127.0.0.1:7780, "" for nowhere, or "auto"'
        )
    return admin


def _has_secret(config: Config) -> bool:
    """True if the node has the secret of its cluster, or will get it when it joins by an
    invitation.
    """
    node = config.node
    invited = any(map(invitation, config.cluster.join))
    return bool(node.secret_file) or invited or os.path.isfile(os.path.join(node.data, SECRET_FILE))


def _check_relations(config: Config, origins: dict[str, str]) -> None:
    node, cluster = config.node, config.cluster
    place = endpoint(node.bind)
    admin = admin_place(config)
    if admin and not node.insecure and not Endpoint("tcp", admin.rpartition(":")[0], 0).is_loopback:
        raise ConfigError(
            f"{origins['node.admin']}: node.admin = {admin!r} is open to other machines: it tells names of "
            "topics and groups",
            "add --insecure if that network is yours alone, or listen on 127.0.0.1:PORT",
        )
    gossip = (
        endpoint(f"tcp://{gossip_address(node.gossip, 'node.gossip')}", "node.gossip", 0)
        if node.gossip
        else place
    )
    for key, value, at in (("node.bind", node.bind, place), ("node.gossip", node.gossip, gossip)):
        if not at.is_loopback and not node.insecure and not _has_secret(config):
            raise ConfigError(
                f"{origins[key]}: {key} = {value!r} is open to other machines, without any authentication",
                "create keys, users and invitations with `gossipq init --bind ...`; or add "
                "--secret-file FILE, the same on all nodes; or --insecure if that network is yours alone; or "
                "bind 127.0.0.1",
            )
    if node.encrypt == "never" and not node.insecure and not place.is_loopback:
        raise ConfigError(
            f"{origins['node.encrypt']}: node.encrypt = 'never', and {node.bind!r} is open to other machines",
            "leave it out; or add --insecure if that network is yours alone",
        )
    for text in node.peer:
        endpoint(text, f"{origins['node.peer']}: node.peer")
    for text in cluster.join:
        gossip_address(text, f"{origins['cluster.join']}: cluster.join")
    if place.is_wildcard and not node.advertise:
        raise ConfigError(
            f"{origins['node.bind']}: node.bind = {node.bind!r} says nothing that clients can connect to",
            "add --advertise HOST, the name or address other machines reach this one by",
        )
    if node.workers > cluster.shards:
        raise ConfigError(
            f"{origins['node.workers']}: node.workers = {node.workers} is more than cluster.shards = "
            f"{cluster.shards}",
            "a worker without shards has nothing to do",
        )
    if 0 < node.memory_bytes_max < limits.PROCESS_MEMORY_BYTES_MIN:
        raise ConfigError(
            f"{origins['node.memory_bytes_max']}: node.memory_bytes_max = {node.memory_bytes_max}: each "
            f"process of the node needs {limits.PROCESS_MEMORY_BYTES_MIN} at least",
            "0 sets no bound",
        )
    for name, targets in cluster.virtual.items():
        where = f"{origins['cluster.virtual']}: cluster.virtual: {name}"
        if virtual := next((target for target in targets if target in cluster.virtual), None):
            raise ConfigError(f"{where} contains {virtual}, which is virtual itself", "name the real topics")
        if len(set(targets)) < len(targets):
            raise ConfigError(f"{where} names a topic twice", "each target gets one copy")
