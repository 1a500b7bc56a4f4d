"""Servers that are kept under a name, in a file of the user's own."""

import json
import os
import re
from contextlib import suppress
from pathlib import Path

from gossipq_cli import failures

HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):\d{1,5}")
FILE = Path("gossipq") / "contexts.json"


def place() -> Path:
    """$XDG_CONFIG_HOME/gossipq/contexts.json, or under ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / FILE


class Contexts:
    """What the file holds: names with their servers, and which one is in use ("" = none)."""

    def __init__(self, servers: dict[str, list[str]], current: str) -> None:
        self.servers, self.current = servers, current

    def save(self) -> None:
        """Replaces the file in one step."""
        path = place()
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        try:
            new.write_text(json.dumps({"current": self.current, "contexts": self.servers}, indent=2) + "\n", "utf-8")
            os.replace(new, path)
        finally:
            with suppress(FileNotFoundError):
                new.unlink()

    def named(self, name: str) -> list[str]:
        """Raises Failure."""
        if name not in self.servers:
            from gossipq_cli.options import nearest

            hint = (
                f"there are {', '.join(sorted(self.servers))}"
                if self.servers
                else "`gossipq context save NAME -s URL` makes one"
            )
            text = f"no context {name}{nearest(name, list(self.servers))}"
            raise failures.Failure("unknown_context", text, hint, failures.NOT_FOUND)
        return self.servers[name]


def load() -> Contexts:
    """What is kept; nothing when there is no file. Raises Failure for one that cannot be read."""
    path = place()
    try:
        found = json.loads(path.read_text("utf-8"))
        servers = {str(name): [str(server) for server in urls] for name, urls in found["contexts"].items()}
        return Contexts(servers, str(found.get("current", "")))
    except FileNotFoundError:
        return Contexts({}, "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise failures.Failure("config", f"{path} cannot be read: {error}", f"rm {path}", failures.BAD_CONFIG) from None


def servers_of(given: list[str]) -> list[str]:
    """Addresses for what -s says, URLs, HOST:PORT or names of contexts; without it those of $GOSSIPQ_SERVER, else those of the
    context in use."""
    if not given:
        if said := os.environ.get("GOSSIPQ_SERVER"):
            return [address_of(server.strip()) for server in said.split(",") if server.strip()]
        kept = load()
        return kept.named(kept.current) if kept.current else []
    given = [address_of(server) for server in given]
    if all("://" in server for server in given):
        return given
    kept = load()
    return [address for server in given for address in ([server] if "://" in server else kept.named(server))]


def address_of(server: str) -> str:
    """tcp://HOST:PORT for HOST:PORT; anything else as it is."""
    return f"tcp://{server}" if HOST_AND_PORT.fullmatch(server) else server
