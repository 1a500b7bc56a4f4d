"""Addresses of hosts by their names, looked up in threads of their own.

libzmq looks a name up in the one thread that serves all its connections. While a name server is silent, none
of them sends or receives (zeromq/libzmq#3243). So libzmq is only told numeric addresses.
"""

import re
import socket
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

AGAIN_S = 1.0  #: between the starts of two look-ups of one name
_BY_NAME = re.compile(r"tcp://([A-Za-z0-9_][A-Za-z0-9_.-]*):[0-9]+", re.ASCII)

LookUp = Callable[[str], Sequence[str]]


def ipv4_addresses(name: str) -> list[str]:
    """Return the IPv4 addresses of a host, in the order of the system. Raises OSError for unknown names."""
    rows = socket.getaddrinfo(name, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


def name_in(endpoint: str) -> str:
    """Return the host of tcp://HOST:PORT if it is a name, "" for a numeric address or another transport."""
    match = _BY_NAME.fullmatch(endpoint)
    if match is None:
        return ""
    try:
        socket.inet_pton(socket.AF_INET, match[1])
    except OSError:
        return match[1]
    return ""


def with_address(endpoint: str, address: str) -> str:
    """Return tcp://ADDRESS:PORT for tcp://NAME:PORT."""
    return f"tcp://{address}:{endpoint.rpartition(':')[2]}"


def addresses_within(name: str, seconds: float) -> list[str]:
    """Return `ipv4_addresses`, waiting at most `seconds`. Raises TimeoutError, an OSError, after that."""
    outcome: SimpleQueue[list[str] | OSError] = SimpleQueue()

    def run() -> None:
        try:
            outcome.put(ipv4_addresses(name))
        except OSError as error:
            outcome.put(error)
        except UnicodeError as error:
            outcome.put(OSError(f"{name!r} cannot be a name: {error}"))

    start_new_thread(run, ())
    try:
        found = outcome.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"no answer from a name server within {seconds:g} s") from None
    if isinstance(found, OSError):
        raise found
    return found


class Resolver:
    """Looks names up without making its owner wait, and remembers the last addresses of each name.

    `ask` starts a thread, unless one is already looking for that name. `fd` is readable when a look-up has
    ended; `answered` then tells which. One thread owns a resolver: all calls come from it.
    """

    def __init__(self, look_up: LookUp = ipv4_addresses) -> None:
        """Raises OSError if no file descriptor is left."""
        self._look_up = look_up
        self._addresses: dict[str, Sequence[str]] = {}  # by name, of the last look-up that found any
        self._asked_s: dict[str, float] = {}  # by name, when its last look-up started
        self._pending: set[str] = set()  # names of which a look-up has not ended
        #: a name and its addresses for each look-up that ended; () = none found
        self._answers: deque[tuple[str, Sequence[str]]] = deque()
        self._heard, self._told = socket.socketpair()
        self._heard.setblocking(False)
        self._told.setblocking(False)

    @property
    def fd(self) -> int:
        return self._heard.fileno()

    def ask(self, name: str, now_s: float) -> None:
        """Start a look-up, unless one is under way or the last one started less than AGAIN_S ago."""
        if name in self._pending or now_s - self._asked_s.get(name, -AGAIN_S) < AGAIN_S:
            return
        self._asked_s[name] = now_s
        try:
            start_new_thread(self._run, (name,))
        except RuntimeError:  # the interpreter is about to end: this thread has to wait itself
            self._run(name)
        self._pending.add(name)  # last: if a signal handler raises before, the name can still be asked for

    def _run(self, name: str) -> None:
        try:
            found = self._look_up(name)
        except (OSError, UnicodeError):  # UnicodeError: it cannot be a name, as with two dots in a row
            found = ()
        self._answers.append((name, found))
        try:
            self._told.send(b"!")
        except OSError:  # full, so the owner wakes anyway; or closed
            pass

    def answered(self) -> set[str]:
        """Names whose look-ups have ended since the last call, well or not."""
        try:
            while self._heard.recv(64):
                pass
        except OSError:  # nothing is left
            pass
        names = set[str]()
        while self._answers:
            name, found = self._answers[0]
            if found:
                self._addresses[name] = found
            self._pending.discard(name)
            names.add(name)
            self._answers.popleft()  # last: whoever is interrupted before takes it again
        return names

    def address(self, name: str, current: str = "", is_lost: bool = False) -> str:
        """The address to connect to; "" while none is known.

        `current` is kept as long as the name has it. If its connection was lost or could not be made
        (`is_lost`), the next one of the name takes its place, as behind a name with an address for each node.
        """
        known = self._addresses.get(name, ())
        if current not in known:
            return known[0] if known else ""
        return known[(known.index(current) + is_lost) % len(known)]

    def close(self) -> None:
        """Look-ups that are under way end by themselves."""
        self._heard.close()
        self._told.close()
