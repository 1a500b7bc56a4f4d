"""The house rules that a reader relies on, checked in the source text: floors, purity, one importer per
library, sizes."""

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parent.parent
PACKAGES = {
    "gossipq": HOME / "gossipq",
    "gossipq_node": HOME / "nodes" / "gossipq_node",
    "gossipq_client": HOME / "clients" / "python" / "gossipq_client",
    "gossipq_cli": HOME / "clients" / "terminal" / "gossipq_cli",
    "gossipq_ops": HOME / "clients" / "terminal" / "gossipq_ops",
    "gossipq_gateway": HOME / "clients" / "gateway" / "gossipq_gateway",
    "gossipq_dialects": HOME / "clients" / "gateway" / "gossipq_dialects",
    "gossipq_celery": HOME / "clients" / "integrations" / "gossipq_celery",
    "gossipq_django": HOME / "clients" / "integrations" / "gossipq_django",
    "gossipq_keyed": HOME / "clients" / "integrations" / "gossipq_keyed",
    "gossipq_dramatiq": HOME / "clients" / "integrations" / "gossipq_dramatiq",
    "gossipq_taskiq": HOME / "clients" / "integrations" / "gossipq_taskiq",
    "gossipq_outbox": HOME / "clients" / "integrations" / "gossipq_outbox",
    "gossipq_starlette": HOME / "clients" / "integrations" / "gossipq_starlette",
    "pyspark_gossipq": HOME / "spark" / "pyspark_gossipq",
}

#: room -> (floor, modules or packages in it). A module belongs to the room with the longest matching name.
ROOMS: dict[str, tuple[int, tuple[str, ...]]] = {
    "vocabulary": (
        0,
        (
            "gossipq",
            "gossipq.types",
            "gossipq.values",
            "gossipq.peer_messages",
            "gossipq.operator_messages",
            "gossipq.messages",
            "gossipq.errors",
            "gossipq.limits",
            "gossipq.record_options",
            "gossipq.endpoints",
            "gossipq.export_messages",
            "gossipq.alarms",
            "gossipq.next_steps",
            "gossipq.texts",
            "gossipq.times",
            "gossipq.health",
            "gossipq.rates",
            "gossipq.permissions",
            "gossipq.verbs",
        ),
    ),
    "core": (1, ("gossipq.core",)),
    "wire": (1, ("gossipq.wire",)),
    "config": (2, ("gossipq.config",)),
    "clock": (2, ("gossipq.clock",)),
    "lakes": (2, ("gossipq.lakes",)),
    "tcp": (2, ("gossipq.tcp",)),
    "resolver": (2, ("gossipq.resolver",)),
    "ports": (3, ("gossipq_node.ports", "gossipq_node.settings", "gossipq_node.files")),
    "adapters": (3, ("gossipq_node.adapters",)),
    "client": (3, ("gossipq_client",)),
    # the client's modules by the name of the package that programs import
    "face": (
        4,
        tuple(
            f"gossipq.{name}"
            for name in (
                "aio",
                "answers",
                "embedded",
                "lake",
                "metrics",
                "middleware",
                "outbox",
                "testing",
                "traces",
            )
        ),
    ),
    "spark": (3, ("pyspark_gossipq",)),
    # what frameworks call: a package each, which asks the public client
    "integrations": (
        3,
        (
            "gossipq_taskiq",
            "gossipq_dramatiq",
            "gossipq_keyed",
            "gossipq_django",
            "gossipq_celery",
            "gossipq_outbox",
            "gossipq_starlette",
        ),
    ),
    "actors": (4, ("gossipq_node.actors",)),
    # plays the nodes that a client is tested with
    "stand_ins": (4, ("gossipq_cli.conformance.between",)),
    # the model of operating, which all surfaces for people render
    "ops": (4, ("gossipq_ops",)),
    "gateway": (5, ("gossipq_gateway",)),
    # plug-ins of the gateway, which it knows by their entry points only
    "dialects": (5, ("gossipq_dialects",)),
    "process": (5, ("gossipq_node",)),
    "cli": (6, ("gossipq_cli",)),
    "cli_offline": (
        6,
        (
            "gossipq_cli.access",
            "gossipq_cli.means",
            *(
                f"gossipq_cli.commands.{name}"
                for name in (
                    "init",
                    "node",
                    "cluster",
                    "store",
                    "config",
                    "export",
                    "backup",
                    "restore",
                    "doctor",
                )
            ),
        ),
    ),
}
#: rooms of the core -> floor; rooms on one floor are blind to each other, and others enter by the door alone
CORE_ROOMS = {
    "storage": 1,
    "raft": 2,
    "ledger": 2,
    "desk": 3,
    "copies": 4,
    "delivery": 4,
    "register": 5,
    "requests": 5,
}
CORE_TOP = 6  #: modules right in gossipq.core
#: imports that run sideways and are meant to
BESIDE = {
    ("adapters", "ports"),
    ("cli", "cli_offline"),
    ("cli_offline", "cli"),
    ("cli_offline", "process"),
    ("spark", "client"),
    ("integrations", "client"),
    ("dialects", "gateway"),
}
#: imports that run down and are forbidden all the same
FORBIDDEN = {
    ("client", "core"): "a client knows the wire, never the rules of a shard",
    ("spark", "core"): "Spark reads exports",
    ("actors", "adapters"): "an actor is handed its adapters",
    **{
        (mine, room): "the gateway only asks, over the public client"
        for mine in ("gateway", "dialects")
        for room in ("core", "wire", "ports", "adapters", "actors", "process", "config", "lakes", "spark")
    },
    **{
        ("integrations", room): "an integration only asks, over the public client"
        for room in ("core", "wire", "ports", "adapters", "config", "lakes", "spark")
    },
    **{
        (mine, room): "the command line only asks, over the public client"
        for mine in ("cli", "ops")
        for room in ("core", "wire", "ports", "adapters", "actors", "process", "config")
    },
    **{
        ("cli_offline", room): "offline commands call the node's main and store_tool"
        for room in ("core", "wire", "adapters", "actors")
    },
}
#: the pure rooms: these modules and nothing else, so that a rule is a function of what it is handed
PURE_STDLIB = frozenset(
    (
        *(
            "__future__",
            "abc",
            "array",
            "bisect",
            "collections",
            "collections.abc",
            "contextlib",
            "copy",
            "dataclasses",
            "datetime",
        ),
        *(
            "enum",
            "fnmatch",
            "functools",
            "hashlib",
            "heapq",
            "hmac",
            "ipaddress",
            "itertools",
            "math",
            "operator",
            "re",
            "shlex",
            "string",
            "struct",
            "types",
        ),
        *("typing", "zlib"),
    )
)
PURE_ROOMS = {"vocabulary", "core", "wire"}
#: the modules of the model of operating that start threads or ask the system
OPS_IMPURE = {"gossipq_ops.gather", "gossipq_ops.process"}
#: the only rooms and modules of the client that touch sockets, threads, clocks or processes
CLIENT_IMPURE = {
    "gossipq_client." + name
    for name in (
        *(
            "io",
            "api",
            "app",
            "testing",
            "aio",
            "embedded",
            "instrumentation",
            "lake",
            "metrics",
            "middleware",
            "traces",
            "pytest_plugin",
        ),
        *("handlers.reports", "handlers.signals", "handlers.middleware"),
    )
}
#: rooms of the client -> floor, by the same rules
CLIENT_ROOMS = {
    "values": 1,
    "answers": 2,
    "session": 2,
    "operations": 3,
    "io": 4,
    "handlers": 5,
    "api.sync": 6,
    "api.aio": 6,
    "testing": 7,
    "app": 8,
}
CLIENT_TOP = 9  #: modules right in gossipq_client: what programs import, and `columns`
#: what a pure module may import all the same, and why
PURE_EXCEPTIONS = {
    ("gossipq", "importlib"): "imports the client when a program asks for one of its names",
    ("gossipq_client.answers", "importlib"): "makes its classes when a program asks for one of them",
    ("gossipq.wire.batch", "io"): "cuts bytes by BytesIO, which opens nothing",
    ("gossipq_client.handlers.calls", "inspect"): "looks at what a handler returns",
    (
        "gossipq_client.handlers.calls",
        "asyncio",
    ): "knows what a task is cancelled with, and waits for a Future",
    ("gossipq_client.handlers.calls", "concurrent.futures"): "knows the Future of a pool",
    ("gossipq_client.handlers.registry", "inspect"): "looks at what a handler takes",
    ("gossipq_client.session.session", "difflib"): "names the nearest topic",
    ("gossipq_ops.hints", "difflib"): "names the nearest word",
}
#: imports that run up all the same, and why
UPWARD_EXCEPTIONS = {
    (
        "gossipq_client.testing.broker",
        "gossipq_node.inline",
    ): "a broker for tests is a node in the test's process"
}
#: foreign library -> the only importers
IMPORTERS = {
    "zmq": (
        "gossipq_node.adapters.zmq_mailbox",
        "gossipq_node.adapters.curve",
        "gossipq_client.io.transport",
        "gossipq_cli.conformance.between",
    ),
    "lmdb": (
        "gossipq_client.io.spool",
        "gossipq_node.adapters.lmdb_store",
        "gossipq_node.export.lmdb_file",
        "pyspark_gossipq.files",
    ),
    "zlib_ng": ("gossipq.wire.checksum",),
    "typing_extensions": ("gossipq_client.session.views",),  # for type checkers alone: it is not installed
    "serfclient": ("gossipq_node.adapters.serf_membership",),
    "prometheus_client": (
        "gossipq_node.adapters.metrics",
        "gossipq_node.export.metrics",
        "gossipq_gateway.counters",
    ),
    "starlette": ("gossipq_gateway", "gossipq_dialects", "gossipq_starlette"),
    "jinja2": ("gossipq_gateway.console.pages",),
    "uvicorn": ("gossipq_gateway.listener",),
    "httptools": ("gossipq_gateway.connection",),
    "websockets": ("gossipq_dialects.kapokmq.sockets",),
    "uvloop": ("gossipq_gateway.service",),
    "cronsim": ("gossipq_node.adapters.calendar",),
    "rich": ("gossipq_cli",),
    "click": ("gossipq_cli",),
    "pyspark": ("pyspark_gossipq",),
    "pyarrow": (
        "pyspark_gossipq",
        "gossipq.lakes",
        "gossipq_client.columns",
        "gossipq_client.lake",
        "gossipq_node.export",
    ),
    "opentelemetry": ("gossipq_client.instrumentation", "gossipq_client.metrics", "gossipq_client.traces"),
    "duckdb": ("gossipq_client.lake",),
    "polars": ("gossipq_client.lake",),
    "pyiceberg": ("gossipq_node.export.iceberg", "gossipq_node.export.iceberg_columns"),
    "sqlalchemy": ("gossipq_node.export.iceberg", "gossipq_outbox"),
    "psycopg": ("gossipq_outbox",),
    "django": ("gossipq_django",),
    "django_tasks": ("gossipq_django",),
    "hdrh": ("gossipq_cli.latency",),
    "obstore": ("gossipq_node.bucket",),
    "msgspec": (
        *("gossipq", "gossipq_node", "gossipq_client", "gossipq_cli"),
        *(
            "gossipq_ops",
            "gossipq_dramatiq",
            "gossipq_gateway",
            "gossipq_dialects",
            "pyspark_gossipq",
            "gossipq_outbox",
            "gossipq_django",
        ),
    ),
    "pytest": ("gossipq_client.pytest_plugin",),
    "kombu": ("gossipq_celery",),
    "amqp": ("gossipq_celery",),
    "celery": ("gossipq_celery",),
    "taskiq": ("gossipq_taskiq",),
    "dramatiq": ("gossipq_dramatiq",),
}
#: who may read a clock or throw dice
CLOCKS = {"time", "random", "secrets", "uuid"}
CLOCK_ROOMS = {
    "clock",
    "adapters",
    "client",
    "process",
    "ops",
    "cli",
    "cli_offline",
    "spark",
    "stand_ins",
    "integrations",
}
FUNCTION_LINES_MAX = 60


@lru_cache(maxsize=1)  # every rule looks at the same module, before the next one is read
def nodes_of(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@cache
def room_of(module: str) -> str | None:
    """The room with the longest matching name; `gossipq` stands for itself, not for all below it."""
    best, found = "", None
    for room, (_, names) in ROOMS.items():
        for name in names:
            exact_only = name == "gossipq"
            if (module == name if exact_only else inside(module, name)) and len(name) > len(best):
                best, found = name, room
    return found


def modules() -> dict[str, Path]:
    """Every module of the house by its dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")) if folder.is_dir() else ():
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.AST, known: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) of each import, also inside functions and TYPE_CHECKING. Relative ones come with their
    dots."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield node.lineno, name if name in known else base


def is_pure(module: str) -> bool:
    return (
        room_of(module) in PURE_ROOMS
        or (room_of(module) == "ops" and module not in OPS_IMPURE)
        or (inside(module, "gossipq_client") and not any(inside(module, impure) for impure in CLIENT_IMPURE))
    )


def import_trouble(module: str, target: str) -> str | None:
    """The error if `module` must not import `target`, or None."""
    top = target.split(".")[0]
    if target.startswith("."):
        return "relative import"
    if top in PACKAGES:
        mine, other = room_of(module), room_of(target)
        if mine is None or other is None:
            return f"{module if mine is None else target} stands in no room; give it one in ROOMS"
        if mine == other or (mine, other) in BESIDE or (module, target) in UPWARD_EXCEPTIONS:
            return None
        if (mine, other) in FORBIDDEN:
            return FORBIDDEN[mine, other]
        if ROOMS[other][0] >= ROOMS[mine][0]:
            return (
                f"{mine} (floor {ROOMS[mine][0]}) imports {other} (floor {ROOMS[other][0]}): imports "
                "point down"
            )
        return None
    if top in sys.stdlib_module_names:
        if is_pure(module) and target not in PURE_STDLIB and (module, target) not in PURE_EXCEPTIONS:
            return f"{module} is pure"
        if top in CLOCKS and room_of(module) not in CLOCK_ROOMS:
            return f"{top} belongs to gossipq.clock and to the edges of the house"
        return None
    if not any(inside(module, importer) for importer in IMPORTERS.get(top, ())):
        return f"only {', '.join(IMPORTERS.get(top, ())) or 'nobody'} may"
    return None


#: houses with rooms inside: package -> (its rooms and their floors, the floor of modules right in it)
INNER_ROOMS = {"gossipq.core": (CORE_ROOMS, CORE_TOP), "gossipq_client": (CLIENT_ROOMS, CLIENT_TOP)}


@cache
def inner_room(module: str) -> tuple[str, str]:
    """The package with rooms that a module is in, and the module's room there; "" for others."""
    for house, (rooms, _) in INNER_ROOMS.items():
        for room in rooms:
            if inside(module, f"{house}.{room}"):
                return house, room
        if inside(module, house):
            return house, ""
    return "", ""


def door_trouble(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Imports that pass by the door of a room, and those between rooms that do not point down."""
    home, mine = inner_room(module)
    for node in nodes_of(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        house, room = inner_room(node.module or "")
        if not room:
            continue
        door = f"{house}.{room}"
        if (home, mine) == (house, room):
            if node.module == door and any(a.name not in room_modules(door) for a in node.names):
                yield node.lineno, f"{node.module}: a room does not use its own door"
            continue
        if node.module != door:
            yield node.lineno, f"{node.module}: the door of the room is {door}"
        rooms, top = INNER_ROOMS[house]
        floor = rooms[mine] if mine else top
        if home == house and rooms[room] >= floor:
            yield (
                node.lineno,
                f"{mine} (floor {floor}) imports {room} (floor {rooms[room]}): imports point down",
            )


#: parts of a shard that only the core uses; other modules may pass `shard.ledger`
#: on but not look into it
INSIDE_A_SHARD = {"ledger", "dispatch", "replica", "peers", "moving"}


def reach_trouble(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields code that reaches through a shard into one of its rooms."""
    if room_of(module) in ("actors", "process", "ports", "adapters"):
        for node in nodes_of(tree):
            through = node.value if isinstance(node, ast.Attribute) else None
            if isinstance(through, ast.Attribute) and through.attr in INSIDE_A_SHARD:
                yield node.lineno, f"{ast.unparse(node)} reaches into a shard: ask the shard"


#: modules that read the clock of an actor: the loop, and the worker for how long things take
LOOP = "gossipq_node.actors.loop"
CLOCK_READERS = {LOOP, "gossipq_node.actors.worker"}


def clock_trouble(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields actor code that asks the clock: only the loop does, once a turn, and
    passes the time on. The worker also measures how long things take, and in one place
    asks for the time after a commit.
    """
    if not inside(module, "gossipq_node.actors"):
        return
    after_commit = {
        id(node)
        for each in nodes_of(tree)
        if isinstance(each, ast.FunctionDef) and each.name == "turn"
        for node in ast.walk(each)
    }
    for node in nodes_of(tree):
        asks = isinstance(node, ast.Attribute) and node.attr in ("now", "ticks_us")
        owner = node.value if asks and isinstance(node, ast.Attribute) else None
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if name.lstrip("_") != "clock" or not isinstance(node, ast.Attribute):
            continue
        allowed = node.attr == "ticks_us" or id(node) in after_commit or module == LOOP
        if module not in CLOCK_READERS or not allowed:
            yield node.lineno, f"{ast.unparse(node)}: the loop asks the clock and hands on what it said"


#: what of a dispatch only its room sees
INSIDE_DISPATCH = {"dirty", "failed", "parking", "retry_deadlines", "sort_out", "take_acks", "take_leases"}
#: a dispatch, and its parts
PARTS_OF_DISPATCH = {"dispatch", "attempts", "holdings", "readback", "selector", "settlement", "turn"}


def dispatch_trouble(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields code outside of dispatch's room that uses what only its own modules may use."""
    if not inside(module, "gossipq") or inside(module, "gossipq.core.delivery"):
        return
    for node in nodes_of(tree):
        owner = node.value if isinstance(node, ast.Attribute) and node.attr in INSIDE_DISPATCH else None
        name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        if name.lstrip("_") in PARTS_OF_DISPATCH:
            yield node.lineno, f"{ast.unparse(node)} reaches into the dispatch: ask it"


def raft_trouble(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields code outside of raft's room that writes into a replica, or into its
    knowledge of another copy.
    """
    if not module.startswith(("gossipq", "gossipq_node")) or inner_room(module) == ("gossipq.core", "raft"):
        return
    for node in nodes_of(tree):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AugAssign)
            else []
        )
        for target in (
            each for found in targets for each in (found.elts if isinstance(found, ast.Tuple) else [found])
        ):
            owner = target.value if isinstance(target, ast.Attribute) else None
            name = (
                owner.attr
                if isinstance(owner, ast.Attribute)
                else owner.id
                if isinstance(owner, ast.Name)
                else ""
            )
            if name.lstrip("_") in ("replica", "progress"):
                yield node.lineno, f"{ast.unparse(target)} is written outside of raft: call a method"


@cache
def room_modules(door: str) -> set[str]:
    package, *rooms = door.split(".")
    return {path.stem for path in PACKAGES[package].joinpath(*rooms).glob("*.py")}


def shape_trouble(tree: ast.Module) -> Iterator[tuple[int, str]]:
    if ast.get_docstring(tree) is None:
        yield 1, "module without a docstring"
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name} has {size} lines; {FUNCTION_LINES_MAX} at most"


def violations(module: str, source: str, known: set[str]) -> list[str]:
    """Every broken rule in one module's source, as `module:line: what`."""
    tree = ast.parse(source)
    found = [
        f"{module}:{line}: imports {target}: {trouble}"
        for line, target in imports(tree, known)
        if (trouble := import_trouble(module, target))
    ]
    if is_pure(module):
        found += [
            f"{module}:{node.lineno}: calls {node.func.id}: {module} is pure"
            for node in nodes_of(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "print", "input", "__import__")
        ]
    found += [f"{module}:{line}: {trouble}" for line, trouble in door_trouble(module, tree)]
    for rule in (reach_trouble, dispatch_trouble, clock_trouble, raft_trouble):
        found += [f"{module}:{line}: {trouble}" for line, trouble in rule(module, tree)]
    return found + [f"{module}:{line}: {trouble}" for line, trouble in shape_trouble(tree)]


HOUSE = modules()


def test_modules_keep_the_house_rules() -> None:
    known = set(HOUSE)
    found = (violations(module, path.read_text("utf-8"), known) for module, path in HOUSE.items())
    assert [each for of_module in found for each in of_module] == []


def test_packages_of_clients_import_in_one_direction() -> None:
    """The command line asks the gateway's package to serve; both render `gossipq_ops`; none imports back."""
    order = ("gossipq_client", "gossipq_ops", "gossipq_gateway", "gossipq_dialects", "gossipq_cli")
    known = set(HOUSE)
    found = {
        (module.split(".")[0], target.split(".")[0])
        for module, path in HOUSE.items()
        if module.split(".")[0] in order
        for _, target in imports(ast.parse(path.read_text("utf-8")), known)
    }
    upward = {(low, high) for at, low in enumerate(order) for high in order[at + 1 :]} & found
    assert upward == set()
    assert {("gossipq_cli", "gossipq_ops"), ("gossipq_gateway", "gossipq_ops")} <= found


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """Return rooms that import one another in a circle; [] if there is none."""
    left = {room: set(targets) for room, targets in arrows.items()}
    while ends := [room for room, targets in left.items() if not targets & left.keys()]:
        for room in ends:
            del left[room]
    return sorted(left)


def test_rooms_of_clients_import_in_no_circle() -> None:
    """A room is a folder or a module at the top of a package."""
    known, arrows = set(HOUSE), dict[str, set[str]]()
    for module, path in HOUSE.items():
        if module.split(".")[0] in ("gossipq_ops", "gossipq_gateway", "gossipq_dialects", "gossipq_cli"):
            room = ".".join(module.split(".")[:2])
            found = {target for _, target in imports(ast.parse(path.read_text("utf-8")), known)}
            rooms = {".".join(target.split(".")[:2]) for target in found if "." in target}
            arrows.setdefault(room, set()).update(rooms - {room})
    assert circle(arrows) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"e"}}) == ["a", "b", "c"]


def test_every_room_of_the_house_is_seen() -> None:
    assert {
        "gossipq.core.storage.tables",
        "gossipq.wire.batch",
        "gossipq_node.ports",
        "gossipq_cli.main",
    } <= set(HOUSE)


LONG_FUNCTION = '"""Doc."""\ndef long():\n' + "    x = 1\n" * FUNCTION_LINES_MAX
INJECTED = [
    ("gossipq.core.shard", "import time", "is pure"),
    ("gossipq.core.shard", "from random import random", "is pure"),
    ("gossipq.core.shard", "def f():\n    import os", "is pure"),
    ("gossipq.core.shard", "import logging", "is pure"),
    ("gossipq.core.shard", "import threading, asyncio", "is pure"),
    ("gossipq.core.shard", "print(1)", "is pure"),
    ("gossipq.core.shard", "open('f')", "is pure"),
    ("gossipq.core.shard", "import zmq", "may"),
    ("gossipq.core.shard", "from gossipq.wire import batch", "imports point down"),
    ("gossipq.core.shard", "from gossipq.clock import SystemClock", "imports point down"),
    ("gossipq.wire.batch", "import gossipq.core.storage.tables", "imports point down"),
    ("gossipq.messages", "from gossipq.wire import frames", "imports point down"),
    ("gossipq.core.shard", "from gossipq.core.raft.replica import Replica", "the door"),
    ("gossipq_node.actors.worker", "from gossipq.core.ledger.records import U64", "the door"),
    ("gossipq.core.raft.replica", "from gossipq.core.ledger import Ledger", "imports point down"),
    ("gossipq.core.ledger.ledger", "from gossipq.core.delivery import Dispatch", "imports point down"),
    ("gossipq.core.raft.replica", "from gossipq.core.raft import Progress", "its own door"),
    ("gossipq_node.actors.worker", "print(shard.ledger.topics)", "ask the shard"),
    ("gossipq_node.actors.worker", "shards[0].replica.now_ms = 7", "ask the shard"),
    ("gossipq.core.requests.consume", "self._dispatch.settlement.take_acks()", "reaches into the dispatch"),
    ("gossipq.core.shard", "shown = dispatch.holdings.failed", "reaches into the dispatch"),
    ("gossipq_node.actors.frontdoor", "at = self._clock.now()", "the loop asks the clock"),
    ("gossipq_node.actors.worker", "def f():\n    return self._clock.now()", "the loop asks the clock"),
    ("gossipq.core.copies.peers", "self.replica.commit = 7", "outside of raft"),
    ("gossipq.core.copies.peers", "replica.hollow = begun = True", "outside of raft"),
    ("gossipq.core.copies.peers", "a, progress.match = 1, 2", "outside of raft"),
    ("gossipq_client.session.session", "import time", "is pure"),
    ("gossipq_client.session.session", "import zmq", "may"),
    ("gossipq_client.api.sync.client", "from gossipq.core import tables", "never the rules"),
    ("gossipq_client.api.sync.client", "import gossipq_node.ports", "imports point down"),
    ("gossipq_client.session.session", "from gossipq_client.values.inputs import Value", "the door"),
    ("gossipq_client.session.session", "from gossipq_client.io import Engine", "imports point down"),
    ("gossipq_client.api.aio.client", "from gossipq_client.api.sync import Client", "imports point down"),
    ("gossipq_client.session.session", "from gossipq_client.session import Held", "its own door"),
    ("gossipq_cli.main", "from gossipq_client.session.held import Held", "the door"),
    ("gossipq_node.adapters.zmq_mailbox", "import lmdb", "may"),
    (
        "gossipq_node.actors.worker",
        "from gossipq_node.adapters.lmdb_store import LmdbStore",
        "handed its adapters",
    ),
    ("gossipq_node.actors.worker", "import time", "gossipq.clock"),
    ("gossipq_node.ports", "from gossipq_node import supervisor", "imports point down"),
    ("gossipq_gateway.service", "from gossipq.core.ledger import Ledger", "only asks"),
    ("gossipq_gateway.service", "import gossipq_node.actors.worker", "only asks"),
    ("gossipq_gateway.service", "import gossipq_cli.main", "imports point down"),
    ("gossipq_gateway.service", "from gossipq_dialects.kapokmq import KapokMq", "imports point down"),
    ("gossipq_ops.sums", "import time", "is pure"),
    ("gossipq_ops.sums", "from gossipq_cli.output import Column", "imports point down"),
    ("gossipq_gateway.service", "import time", "gossipq.clock"),
    ("gossipq_node.main", "import rich", "may"),
    ("gossipq_node.main", "import requests", "nobody"),
    ("gossipq.novelty", "import gossipq.types", "no room"),
    ("gossipq_cli.commands.pub", "from gossipq.wire.frames import encode", "only asks"),
    ("gossipq_cli.commands.pub", "import gossipq_node.main", "only asks"),
    ("gossipq_cli.main", "from . import output", "relative import"),
    ("gossipq_cli.main", LONG_FUNCTION, "at most"),
]


def test_injected_violations_are_caught() -> None:
    known = {*HOUSE, "gossipq_node.supervisor"}
    for module, source, says in INJECTED:
        text = source if source.startswith('"""') else f'"""Doc."""\n{source}\n'
        found = violations(module, text, known)
        assert found, f"the checker saw nothing in {source!r}"
        assert says in found[0], source


def test_a_module_without_docstring_is_caught() -> None:
    assert violations("gossipq_cli.main", "x = 1\n", set(HOUSE)) == [
        "gossipq_cli.main:1: module without a docstring"
    ]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gossipq.core.shard", "from itertools import pairwise\nimport msgspec\nfrom gossipq import limits"),
        ("gossipq_node.adapters.lmdb_store", "import lmdb\nfrom gossipq_node.ports import Store"),
        ("gossipq_cli.commands.store", "from gossipq_node import store_tool"),
        ("gossipq_cli.commands.pub", "import click\nfrom gossipq_client import connect"),
        ("gossipq_client.io.transport", "import time\nimport zmq"),
    ],
)
def test_good_source_passes(module: str, source: str) -> None:
    known = {*HOUSE, "gossipq_node.store_tool", "gossipq_node.main"}
    assert violations(module, f'"""Doc."""\n{source}\n', known) == []


# --- names ------------------------------------------------------------------------------------------------

NOUNS_IN_ING = {"pending", "testing"}  #: pending things, and a name that numpy and others use


@cache
def walked(source: str) -> list[ast.AST]:
    """All nodes of a module; several tests look at each."""
    return list(ast.walk(ast.parse(source)))


def public_names(source: str) -> set[str]:
    """Names that a module gives to classes and types at its top level, imported ones included. Names in
    capitals belong to constants, and are left out.
    """
    found, named = set[str](), set[str]()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named.add(node.targets[0].id)
        elif isinstance(node, ast.ImportFrom):
            named |= {each.asname for each in node.names if each.asname and each.asname != each.name}
    found |= {name for name in named if not name.isupper()}
    return {name for name in found if name[0].isupper() and "_" not in name}


def named_twice(sources: Iterable[str]) -> set[str]:
    """Public names that more than one of these modules gives to something."""
    counts = Counter(name for source in sources for name in public_names(source))
    return {name for name, count in counts.items() if count > 1}


def gerunds(modules: Iterable[str]) -> set[str]:
    names = {module: module.split(".")[-1] for module in modules}
    return {module for module, name in names.items() if name.endswith("ing") and name not in NOUNS_IN_ING}


@cache
def sources_of(*packages: str) -> list[str]:
    return [path.read_text("utf-8") for module, path in HOUSE.items() if module.split(".")[0] in packages]


def test_no_two_types_have_one_name() -> None:
    found = named_twice(sources_of("gossipq", "gossipq_node"))
    assert sorted(found) == [], "two types of one name: give the new one its own, or one home to both"


METHODS_MAX = 60  #: of a class, those of its parents counted


def large_classes(sources: Iterable[str]) -> set[str]:
    """Classes with more than METHODS_MAX methods. Parents are found by their names."""
    classes = {
        node.name: node for source in sources for node in walked(source) if isinstance(node, ast.ClassDef)
    }

    def methods(name: str) -> set[str]:
        node = classes.get(name)
        if node is None:
            return set()
        own = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        return own.union(*(methods(base.id) for base in node.bases if isinstance(base, ast.Name)))

    return {name for name in classes if len(methods(name)) > METHODS_MAX}


def test_no_class_has_too_many_methods() -> None:
    found = large_classes(sources_of("gossipq", "gossipq_node"))
    assert sorted(found) == [], "cut the class into parts that it owns"


def test_methods_of_parents_count() -> None:
    half = [f"    def a{number}(self): ...\n" for number in range(METHODS_MAX)]
    sources = ["class A:\n" + "".join(half), "class B(A):\n    def b(self): ...\n"]
    assert large_classes(sources) == {"B"}


def test_no_module_is_named_by_a_gerund() -> None:
    assert sorted(gerunds(HOUSE)) == [], "name a module by a noun"


def test_names_that_may_not_be_are_seen() -> None:
    assert named_twice(["class A: ...\nclass _B: ...", "class A: ...\nclass _B: ...", "class C: ..."]) == {
        "A"
    }
    assert named_twice(
        ["class Cd: ...", "Cd = tuple[int, int]\nDE = 1", "from x import y as Cd\nDE = 2"]
    ) == {"Cd"}
    assert gerunds(["gossipq.core.copies.moving", "gossipq.core.ring_of", "gossipq.moving.copies"]) == {
        "gossipq.core.copies.moving"
    }


HOSTS_MAX = 4  #: protocols by which a part calls its owner; a part gets what it needs, by name


def host_protocols(sources: Iterable[str]) -> list[str]:
    return [
        node.name
        for source in sources
        for node in walked(source)
        if isinstance(node, ast.ClassDef)
        and node.name.endswith("Host")
        and any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
    ]


def test_few_protocols_call_upwards() -> None:
    assert len(host_protocols(sources_of("gossipq", "gossipq_node"))) <= HOSTS_MAX
    assert host_protocols(["class AHost(Protocol): ...\nclass BHost: ..."]) == ["AHost"]


SPLATS_MAX = 1  #: records of hot loops that are built by a splat beside other fields; ten would be allowed


def splats(source: str) -> list[int]:
    """Lines that build a record by a splat among its fields: two of them can be swapped, and nothing sees it.
    A call whose only argument is a splat unpacks a row that was packed in that order, and is left out.
    """
    return [
        node.lineno
        for node in walked(source)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1][0].isupper()
        and len(node.args) + len(node.keywords) > 1
        and any(isinstance(each, ast.Starred) for each in node.args)
    ]


def test_records_are_built_by_names_and_not_by_splats() -> None:
    found = [line for source in sources_of("gossipq", "gossipq_node") for line in splats(source)]
    assert len(found) <= SPLATS_MAX, "pass the fields by their names"
    assert splats("Row(*name, 1)\nRow(*packed)\nrow(*name, 1)\na.Row(1, *name)") == [1, 4]


POSITIONS_MAX = 5  #: fields of a record that are passed by position; more are passed by their names
#: records of the plain way of a publish or a delivery, made for each batch
BY_POSITION = {"BatchInfo", "Entry", "Part", "Place", "Request", "Run", "Slice"}
RECORDS = {"NamedTuple", "msgspec.Struct", "Struct", "Message"}


def built_by_position(sources: Sequence[str]) -> set[str]:
    """Records that are built with many fields by position."""
    nodes = [node for source in sources for node in walked(source)]
    kinds = {
        node.name
        for node in nodes
        if isinstance(node, ast.ClassDef) and RECORDS.intersection(map(ast.unparse, node.bases))
    }
    return {
        name
        for node in nodes
        if isinstance(node, ast.Call) and len(node.args) > POSITIONS_MAX
        for name in [ast.unparse(node.func).split(".")[-1]]
        if name in kinds
    }


def test_records_of_many_fields_are_built_by_names() -> None:
    assert built_by_position(sources_of("gossipq", "gossipq_node")) <= BY_POSITION, (
        "pass fields by their names"
    )
    source = "class A(NamedTuple): ...\nclass B: ...\nA(1, 2, 3, 4, 5, 6)\nA(1)\nB(1, 2, 3, 4, 5, 6)"
    assert built_by_position([source]) == {"A"}


AT_ONCE_MAX = 2  #: attributes that one statement sets


def set_at_once(source: str) -> list[int]:
    """Lines of statements that set many things at once, attributes among them."""
    return [
        node.lineno
        for node in walked(source)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
        and len(node.targets[0].elts) > AT_ONCE_MAX
        and any(isinstance(each, ast.Attribute) for each in node.targets[0].elts)
    ]


def test_attributes_are_set_one_by_one() -> None:
    found = [line for source in sources_of("gossipq", "gossipq_node") for line in set_at_once(source)]
    assert found == [], "one assignment a statement"
    assert set_at_once("self.a, self.b, c = 1, 2, 3\na, b, c = 1, 2, 3\nself.a, self.b = 1, 2") == [1]
