"""Where a cluster is: addresses, names of contexts, $GOSSIPQ_SERVER; the same for programs, the command line
and Spark.

A context is a name for the addresses of a cluster, kept by `gossipq context save` in a file of the user's
own.
"""

import difflib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from gossipq import limits
from gossipq.endpoints import endpoint
from gossipq.errors import ConfigError
from gossipq_client.values import NO_CREDENTIALS, Credentials, credentials_of

FILE = Path("gossipq") / "contexts.json"
DEFAULT_ADDRESS = f"tcp://127.0.0.1:{limits.PORT}"
PORT_MAX, PORT_DIGITS_MAX = 65_535, 5


class UnknownContext(ConfigError):
    """No context has that name, and it is no address."""


def _home() -> Path:
    """Of this user. Who has none, as some users of containers, has nothing there either."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)


def place() -> Path:
    """$XDG_CONFIG_HOME/gossipq/contexts.json, or under ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or _home() / ".config") / FILE


def own_credentials() -> Path:
    """Of this user, for nodes of this machine: beside the secret of its nodes."""
    state = os.environ.get("XDG_STATE_HOME") or _home() / ".local" / "state"
    return Path(state) / "gossipq" / "credentials"


class Contexts:
    """What the file holds: names with their addresses, which one is in use ("" = none), and for some a file
    of credentials."""

    def __init__(
        self, servers: Mapping[str, list[str]], current: str, credentials: Mapping[str, str] | None = None
    ) -> None:
        self.servers, self.current, self.credentials = dict(servers), current, dict(credentials or {})

    def save(self) -> None:
        """Replaces the file in one step."""
        path = place()
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        try:
            kept = {"current": self.current, "contexts": self.servers}
            if self.credentials:
                kept["credentials"] = {
                    name: path for name, path in self.credentials.items() if name in self.servers
                }
            new.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
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
        credentials = {str(name): str(file) for name, file in found.get("credentials", {}).items()}
        return Contexts(servers, str(found.get("current", "")), credentials)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts({}, "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
    _, colon, port = name.rpartition(":")
    numbered = bool(colon) and port.isdecimal()
    if numbered and (len(port) > PORT_DIGITS_MAX or not 0 < int(port) <= PORT_MAX):
        raise ConfigError(f"{name}: there is no port {port}", f"ports are 1 to {PORT_MAX}")
    if "://" in name:
        return [name]
    return [f"tcp://{name}"] if numbered else load().named(name)


def addresses_of(addresses: Iterable[str | Iterable[str]]) -> list[str]:
    """What `connect` was given, as addresses; without any those that are chosen, else the local default.
    Raises ConfigError."""
    names: list[str] = []
    for address in addresses:
        names += [address] if isinstance(address, str) else list(address)
    return chosen(names) or [DEFAULT_ADDRESS]


def credentials_for(
    given: Iterable[str | Iterable[str]],
    places: Iterable[str],
    path: str | os.PathLike[str] | bytes | Credentials | None,
    insecure: bool = False,
    act_for: str = "",
) -> Credentials:
    """What a client shows at `places`, which is what `given` names: what was found before, the token that is
    given (b"": none), else what is in the file that is given, else in that of $GOSSIPQ_CREDENTIALS, else in
    that of the context, else in the user's own, for nodes of this machine. Raises ConfigError: the file holds
    none, or others can read it, or the token would leave this machine unencrypted."""
    if isinstance(path, Credentials):
        return path
    local = are_here(places)
    if isinstance(path, bytes):
        beside = credentials_file(given)
        shown = Credentials(path, door=read_credentials(Path(beside)).door if beside else b"")
    else:
        named = path or credentials_file(given)
        if not named:
            own = own_credentials()
            if not local or not os.path.exists(own):
                return NO_CREDENTIALS._replace(act_for=act_for)
            named = own
        shown = read_credentials(Path(named))
    if shown.token and not (local or insecure or shown.door):
        raise ConfigError(
            "the token would cross a network in the clear, where others may read it",
            "take a file that has the key of the cluster's doors in it, too: gossipq user rotate NAME --save "
            "FILE; or connect by a TLS proxy on this machine; or --insecure (insecure=True) if that network "
            "is yours",
        )
    return shown._replace(insecure=insecure, act_for=act_for)


def are_here(places: Iterable[str]) -> bool:
    """Whether what is said to these addresses stays on this machine."""
    return all(map(_is_here, places))


def _is_here(place: str) -> bool:
    """Whether what is said to an address stays on this machine; not to what is none."""
    try:
        return endpoint(place).is_loopback
    except ConfigError:
        return False


def read_credentials(path: Path) -> Credentials:
    """What is in a file. Raises ConfigError."""
    try:
        text, about = path.read_text("utf-8", "replace"), path.stat()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", "gossipq user add NAME --save FILE"
        ) from None
    if stat.S_ISREG(about.st_mode) and stat.S_IMODE(about.st_mode) & 0o077:
        raise ConfigError(f"other users of this machine may read {path}", f"chmod 600 {path}")
    file = os.path.abspath(path) if stat.S_ISREG(about.st_mode) else ""  # a pipe is read once
    return credentials_of(text, str(path))._replace(file=file)


def hint_of(places: Iterable[str], shown: Credentials) -> str:
    """What may help where no node answers."""
    start = "start one: gossipq node"
    if shown.door and shown.file:  # a node that does not encrypt is never asked by it
        other = "name a file without one: --credentials FILE"
        if shown.file == os.path.abspath(own_credentials()):
            other = f"mv {shown.file} FILE; its cluster: gossipq --credentials FILE context save NAME -s URL"
        return (
            f"{start}; if it runs without encryption, the cause may be the door key (door_...) in "
            f"{shown.file}: by that only encrypted ports are asked. {other}"
        )
    if shown.door or are_here(places):
        return start
    return (
        f"{start}; if it encrypts, its clients need a file with the key of its door: on its host, gossipq "
        "cluster door --save FILE; then here: --credentials FILE (credentials=FILE in a program)"
    )


def stamp(path: str) -> tuple[int, ...]:
    """Of a file: another one when what is in it is another; () = it is not there."""
    try:
        about = os.stat(path)
    except OSError:
        return ()
    return about.st_ino, about.st_mtime_ns, about.st_size, about.st_mode


def credentials_file(given: Iterable[str | Iterable[str]]) -> str:
    """That of $GOSSIPQ_CREDENTIALS, else of the first context that is named and has one; "" = none."""
    if path := os.environ.get("GOSSIPQ_CREDENTIALS"):
        return path
    names = [name for each in given for name in ([each] if isinstance(each, str) else each)]
    names = names or os.environ.get("GOSSIPQ_SERVER", "").replace(",", " ").split()
    if names and all(":" in name for name in names):
        return ""
    kept = load()
    return next((kept.credentials[name] for name in names or [kept.current] if name in kept.credentials), "")
