"""How to find a cluster: addresses, names of contexts, $GOSSIPQ_SERVER. Programs, the command line
and Spark use the same rules.

A context is a name for the addresses of a cluster. `gossipq context save` keeps
it in a file of the user.
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
#: whether the mode of a file says who may read it; on Windows each file has 0o666
MODES_TELL = os.name != "nt"
DEFAULT_ADDRESS = f"tcp://127.0.0.1:{limits.PORT}"
PORT_MAX, PORT_DIGITS_MAX = 65_535, 5


class UnknownContext(ConfigError):
    """The name is neither a context nor an address."""


def _home() -> Path:
    """Home of this user. Some users of containers have none; then nothing is found there."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)


def place() -> Path:
    """Path of the contexts: $XDG_CONFIG_HOME/gossipq/contexts.json, or under ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or _home() / ".config") / FILE


def own_credentials() -> Path:
    """This user's credentials for nodes of this machine, beside the secret of its nodes."""
    state = os.environ.get("XDG_STATE_HOME") or _home() / ".local" / "state"
    return Path(state) / "gossipq" / "credentials"


class Contexts:
    """Contents of the file: names with their addresses, the name in use ("" = none), and for some
    names a file of credentials.
    """

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
        """Addresses of a context. Raises UnknownContext."""
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
    """Reads the file; empty if it does not exist. Raises ConfigError if it cannot be read."""
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
    """Addresses for the given names; each is tcp://HOST:PORT, HOST:PORT or the name of a
    context. Without names, those of $GOSSIPQ_SERVER (comma separated), else of the context in
    use, else []. Raises ConfigError.
    """
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
    """Addresses for the arguments of `connect`. Without arguments the chosen ones, else the local
    default. Raises ConfigError.
    """
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
    """The credentials to use at `places`, which `given` names. The first of these counts:

    - credentials that were found before, or a token given as bytes (b"" for none),
    - the given file, the file of $GOSSIPQ_CREDENTIALS, the file of the context,
    - the user's own file, for nodes of this machine.

    Raises ConfigError if the file has no credentials, if other users can read it, or if the token
    would leave this machine unencrypted.
    """
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
    """True if all messages to these addresses stay on this machine."""
    return all(map(_is_here, places))


def _is_here(place: str) -> bool:
    """True if messages to this address stay on this machine; False for a malformed one."""
    try:
        return endpoint(place).is_loopback
    except ConfigError:
        return False


def read_credentials(path: Path) -> Credentials:
    """Reads a file of credentials. Raises ConfigError."""
    try:
        text, about = path.read_text("utf-8", "replace"), path.stat()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", "gossipq user add NAME --save FILE"
        ) from None
    if MODES_TELL and stat.S_ISREG(about.st_mode) and stat.S_IMODE(about.st_mode) & 0o077:
        raise ConfigError(f"other users of this machine may read {path}", f"chmod 600 {path}")
    # a pipe can be read only once
    file = os.path.abspath(path) if stat.S_ISREG(about.st_mode) else ""
    return credentials_of(text, str(path))._replace(file=file)


def hint_of(places: Iterable[str], shown: Credentials) -> str:
    """The hint for the case that no node answers."""
    start = "start one: gossipq node"
    if shown.door and shown.file:  # it never dials a node that does not encrypt
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
    """A value that changes with the file's contents; () if the file does not exist."""
    try:
        about = os.stat(path)
    except OSError:
        return ()
    return about.st_ino, about.st_mtime_ns, about.st_size, about.st_mode


def credentials_file(given: Iterable[str | Iterable[str]]) -> str:
    """The file of $GOSSIPQ_CREDENTIALS, else of the first named context that has one; "" = none."""
    if path := os.environ.get("GOSSIPQ_CREDENTIALS"):
        return path
    names = [name for each in given for name in ([each] if isinstance(each, str) else each)]
    names = names or os.environ.get("GOSSIPQ_SERVER", "").replace(",", " ").split()
    if names and all(":" in name for name in names):
        return ""
    kept = load()
    return next((kept.credentials[name] for name in names or [kept.current] if name in kept.credentials), "")
