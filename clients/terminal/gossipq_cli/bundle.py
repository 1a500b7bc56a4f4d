"""`gossipq doctor --bundle`: a file for remote diagnosis, without records and secrets."""

import io
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import msgspec

from gossipq import __version__
from gossipq.errors import GossipqError
from gossipq.texts import many
from gossipq_cli import ask
from gossipq_cli.files import written
from gossipq_cli.options import Choices
from gossipq_cli.output import as_object

LOG_BYTES_MAX = 16 << 20  #: of a longer log only the end is packed
JOURNAL = ("journalctl", "--unit", "gossipq", "--output", "cat", "--lines", "50000", "--no-pager")
JOURNAL_S = 30
HIDDEN = "(hidden)"
SECRET = re.compile(r"secret|token|password|credential|auth|proof", re.IGNORECASE)
#: patterns of tokens of users and nodes, and of generated secrets
TOKEN = re.compile(r"\b(gq|door)_[0-9a-f]{16,}|\b[0-9a-f]{64,}\b|(?<=[?&])(?:token|auth)=[^&\s\"]+")


def write(
    path: str, choices: Choices, findings: Sequence[Any], config: Any, logs: Iterable[str]
) -> list[str]:
    """Write the bundle. Returns the names of its files. Raises OSError.

    Unavailable parts are listed in `missing.txt`.
    """
    parts, missing = dict[str, bytes](), list[str]()
    parts["versions.json"] = _json(_versions())
    parts["findings.json"] = _json([finding._asdict() for finding in findings])
    parts["config.json"] = _json(msgspec.to_builtins(config))
    for name, part in _of_cluster(choices):
        try:
            parts[name] = _json(part())
        except GossipqError as error:
            missing.append(f"{name}: {error.message}")
    for number, log in enumerate(logs):
        try:
            parts[f"logs/{number}-{Path(log).name}"] = _log(_end_of(Path(log)))
        except OSError as error:
            missing.append(f"{log}: {error.strerror}")
    if shutil.which(JOURNAL[0]) is not None and (journal := _journal()):
        parts["logs/journal.txt"] = _log(journal)
    elif not logs:
        missing.append("logs: no journal of a unit named gossipq; name files with --log")
    if missing:
        parts["missing.txt"] = "\n".join(missing).encode() + b"\n"
    _pack(Path(path), parts)
    return sorted(parts)


def _of_cluster(choices: Choices) -> Iterator[tuple[str, Callable[[], Any]]]:
    def nodes() -> Any:
        view = ask.look(choices)
        return {node.member.name: node.status or "does not answer" for node in view.nodes}

    def asked(what: Callable[[Any], Any]) -> Callable[[], Any]:
        def part() -> Any:
            with ask.connect(choices) as mq:
                return what(mq.admin.raw)

        return part

    yield "status.json", nodes
    yield "counters.json", asked(lambda admin: admin.stats())
    yield "alarms.json", asked(lambda admin: admin.alarms())
    yield "running_config.json", asked(lambda admin: admin.running_config())
    yield "clients.json", asked(lambda admin: admin.clients())


def _versions() -> dict[str, Any]:
    libraries = {each.metadata["Name"]: each.version for each in distributions()}
    system = {"python": sys.version, "system": platform.platform(), "libc": " ".join(platform.libc_ver())}
    return {
        "gossipq": __version__,
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **system,
    } | {"libraries": dict(sorted(libraries.items()))}


def _json(value: Any) -> bytes:
    return TOKEN.sub(HIDDEN, json.dumps(hidden(_named(value)), indent=1, default=str)).encode()


def _named(value: Any) -> Any:
    """Convert a struct to a dict by field names, with bytes as hex."""
    if isinstance(value, msgspec.Struct):
        return {name: _named(each) for name, each in as_object(value).items()}
    if isinstance(value, dict):
        return {str(name): _named(each) for name, each in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    return list(map(_named, value)) if isinstance(value, list | tuple) else value


def hidden(value: Any) -> Any:
    """Remove values of keys that name a secret, in dicts, and in lists of options."""
    if isinstance(value, dict):
        if isinstance(value.get("key"), str) and SECRET.search(value["key"]) and value.get("value"):
            value = value | {"value": HIDDEN}
        return {
            name: HIDDEN if isinstance(name, str) and SECRET.search(name) and each else hidden(each)
            for name, each in value.items()
        }
    return list(map(hidden, value)) if isinstance(value, list) else value


def _log(raw: bytes) -> bytes:
    return TOKEN.sub(HIDDEN, raw.decode("utf-8", "replace")).encode()


def _end_of(path: Path) -> bytes:
    with path.open("rb") as opened:
        opened.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
        return opened.read()


def _journal() -> bytes:
    try:
        done = subprocess.run(JOURNAL, capture_output=True, timeout=JOURNAL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return b"" if done.returncode or done.stdout.startswith(b"-- No entries") else done.stdout


def _pack(path: Path, parts: dict[str, bytes]) -> None:
    """Write the archive atomically, for its owner only."""
    with written(str(path), "bundle") as stream, tarfile.open(fileobj=stream, mode="w|gz") as packed:
        for name, content in sorted(parts.items()):
            entry = tarfile.TarInfo(f"gossipq-bundle/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
            packed.addfile(entry, io.BytesIO(content))


def summary(path: str, names: Sequence[str]) -> str:
    return f"{path} has {many(len(names), 'file')}: no record, no secret; look through it before you send it"
