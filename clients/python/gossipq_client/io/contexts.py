"""Where a cluster is: addresses, names of contexts, $GOSSIPQ_SERVER; the same for programs, the command line
and Spark.

A context is a name for the addresses of a cluster, kept by `gossipq context save` in a file of the user's
own.
"""

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from gossipq import limits
from gossipq.errors import ConfigError

FILE = Path("gossipq") / "contexts.json"
DEFAULT_ADDRESS = f"tcp://127.0.0.1:{limits.PORT}"


class UnknownContext(ConfigError):
    """No context has that name, and it is no address."""


def place() -> Path:
    """$XDG_CONFIG_HOME/gossipq/contexts.json, or under ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / FILE


class Contexts:
    """What the file holds: names with their addresses, and which one is in use ("" = none)."""

    def __init__(self, servers: Mapping[str, list[str]], current: str) -> None:
        self.servers, self.current = dict(servers), current

    def save(self) -> None:
        """Replaces the file in one step."""
        path = place()
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        try:
            new.write_text(
                json.dumps({"current": self.current, "contexts": self.servers}, indent=2) + "\n", "utf-8"
            )
            os.replace(new, path)
        finally:
            with suppress(FileNotFoundError):
                new.unlink()

    def named(self, name: str) -> list[str]:
        """Raises UnknownContext."""
        if name not in self.servers:
            close = difflib.get_close_matches(name, list(self.servers), n=1)
            near = f"; did you mean `{close[0]}`?" if close else ""
            known = f"there are {', '.join(sorted(self.servers))}; " if self.servers else ""
            hint = (
                f"{known}`gossipq context save NAME -s URL` makes one; an address is HOST:PORT or "
                "tcp://HOST:PORT"
            )
            raise UnknownContext(f"no context {name}{near}", hint)
        return self.servers[name]


def load() -> Contexts:
    """What is kept; nothing when there is no file. Raises ConfigError for one that cannot be read."""
    path = place()
    try:
        found = json.loads(path.read_text("utf-8"))
        servers = {str(name): [str(server) for server in urls] for name, urls in found["contexts"].items()}
        return Contexts(servers, str(found.get("current", "")))
    except FileNotFoundError:
        return Contexts({}, "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", f"rm {path}") from None


def chosen(given: Iterable[str]) -> list[str]:
    """Addresses for what is given: each tcp://HOST:PORT, HOST:PORT or the name of a context. Without any
    those of $GOSSIPQ_SERVER (comma separated), else of the context in use; [] when nothing is chosen. Raises
    ConfigError."""
    names = list(given) or os.environ.get("GOSSIPQ_SERVER", "").replace(",", " ").split()
    if not names:
        kept = load()
        return kept.named(kept.current) if kept.current else []
    return [address for name in names for address in _addresses(name)]


def _addresses(name: str) -> list[str]:
    if "://" in name:
        return [name]
    _, _, port = name.rpartition(":")
    if ":" in name and port.isdigit():
        return [f"tcp://{name}"]
    return load().named(name)


def addresses_of(addresses: Iterable[str | Iterable[str]]) -> list[str]:
    """What `connect` was given, as addresses; without any those that are chosen, else the local default.
    Raises ConfigError."""
    names: list[str] = []
    for address in addresses:
        names += [address] if isinstance(address, str) else list(address)
    return chosen(names) or [DEFAULT_ADDRESS]
