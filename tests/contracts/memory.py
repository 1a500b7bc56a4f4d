"""The fakes of the ports, held to the same contract as the real ones: a store and a mailbox without disk and
network."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from gossipq import limits
from gossipq.core.storage import Reader
from gossipq.core.storage.tables import MemoryTable, MemoryTables
from gossipq.errors import StoreError
from gossipq.types import Origin
from gossipq.values import Member
from gossipq_node.ports import Incoming, StoreUsage


class _Handle:
    """A table that stays good over commits and failures: it looks its rows up in the store each time."""

    def __init__(self, store: "MemoryStore", shard: int, name: str) -> None:
        self._store, self._shard, self._name = store, shard, name

    def _now(self) -> MemoryTable:
        table: MemoryTable = getattr(self._store.working.setdefault(self._shard, MemoryTables()), self._name)
        return table

    def _write(self) -> MemoryTable:
        self._store.count_down()
        return self._now()

    def get(self, key: bytes) -> bytes | None:
        return self._now().get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._write().put(key, value)

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        return self._now().get_many(keys)

    def put_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        self._write().put_many(rows)

    def append_many(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        self._write().append_many(rows)

    def delete(self, key: bytes) -> bool:
        return self._write().delete(key)

    def delete_many(self, keys: Iterable[bytes], prefix: bytes) -> None:
        self._write().delete_many(keys, prefix)

    def scan(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._now().scan(first, end)

    def scan_keys(self, first: bytes, end: bytes) -> Iterator[bytes]:
        return self._now().scan_keys(first, end)

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        return self._now().floor(key)

    def delete_range(self, first: bytes, end: bytes, rows_max: int) -> int:
        return self._write().delete_range(first, end, rows_max)

    def reader(self) -> Reader:
        stored = self._store.disk.get(self._shard, MemoryTables())
        table: MemoryTable = getattr(stored, self._name)
        return table.reader()


class _Tables:
    def __init__(self, store: "MemoryStore", shard: int) -> None:
        self.log, self.body, self.state = (_Handle(store, shard, name) for name in ("log", "body", "state"))


class MemoryStore:
    """A Store whose disk is a copy. `fail_in` makes the n-th write or commit from now fail, as a full disk
    does."""

    def __init__(self, disk: dict[int, MemoryTables] | None = None) -> None:
        self.disk = {} if disk is None else disk  #: what a crash leaves
        self.working = {shard: tables.copy() for shard, tables in self.disk.items()}
        self.fail_in = 0
        self.commits = self.shrinks = 0

    def count_down(self) -> None:
        if self.fail_in:
            self.fail_in -= 1
            if not self.fail_in:
                self.abort()
                raise StoreError("no space left on device")

    def tables(self, shard: int) -> _Tables:
        return _Tables(self, shard)

    def commit(self) -> None:
        self.count_down()
        self.disk.clear()
        self.disk.update({shard: tables.copy() for shard, tables in self.working.items()})
        self.commits += 1

    def abort(self) -> None:
        self.working = {shard: tables.copy() for shard, tables in self.disk.items()}

    def shrink(self) -> None:
        self.shrinks += 1

    def usage(self) -> StoreUsage:
        used = sum(
            len(key) + len(value)
            for tables in self.working.values()
            for table in (tables.log, tables.body, tables.state)
            for key, value in table.rows.items()
        )
        return StoreUsage(limits.MAP_BYTES, used, used, limits.MAP_BYTES - used, limits.MAP_BYTES)

    def maintain(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryNetwork:
    """Mailboxes by endpoint, and the clients that talk to them."""

    def __init__(self) -> None:
        self.mailboxes: dict[str, MemoryMailbox] = {}
        self.clients: dict[bytes, MemoryClient] = {}
        self._numbers = count(1)

    def next_serial(self) -> bytes:
        return b"%d" % next(self._numbers)

    def client(self, endpoint: str) -> "MemoryClient":
        number = b"client-" + self.next_serial()
        self.clients[number] = MemoryClient(self, number, endpoint)
        return self.clients[number]


class MemoryClient:
    """A DEALER of a client: frames in, frames out."""

    def __init__(self, network: MemoryNetwork, name: bytes, endpoint: str) -> None:
        self._network, self._name, self._endpoint = network, name, endpoint
        self.inbox: deque[list[bytes]] = deque()

    def send(self, *frames: bytes) -> None:
        mailbox = self._network.mailboxes[self._endpoint]
        is_client = self._endpoint == mailbox.clients
        mailbox.take((b"c" if is_client else b"p", self._name), frames)

    def receive(self) -> list[bytes]:
        return self.inbox.popleft()

    def close(self) -> None:
        del self._network.clients[self._name]
        mailbox = self._network.mailboxes.get(self._endpoint)
        if mailbox is not None and self._endpoint == mailbox.clients:
            mailbox.lose((b"c", self._name))


class MemoryMailbox:
    """A Mailbox on a MemoryNetwork. It never waits: a test decides when something arrives."""

    def __init__(self, network: MemoryNetwork, clients: str = "", peers: str = "") -> None:
        self.bad_frames = self.dropped = 0
        self._network, self.clients, self.peers = network, clients, peers
        self._gone: list[Origin] = []
        self.serial = network.next_serial()  #: of the connections to it
        self._inboxes: tuple[deque[Incoming], deque[Incoming]] = deque(), deque()  #: peers, clients
        network.mailboxes |= {endpoint: self for endpoint in (clients, peers) if endpoint}

    def take(self, origin: Origin, frames: Sequence[bytes]) -> None:
        """A message as it comes in by origin[0]: b"c" clients, b"p" peers, b"d" an answer."""
        inbox = self._inboxes[origin[0] == b"c"]
        if len(frames) in (1, 2):
            inbox.append(Incoming(origin, frames[0], frames[1] if len(frames) == 2 else b""))
        elif len(frames) in (3, 4) and frames[1] == b"":
            inbox.append(
                Incoming((*origin, frames[0], b""), frames[2], frames[3] if len(frames) == 4 else b"")
            )
        else:
            self.bad_frames += 1

    def receive(self, timeout_ms: int | None) -> list[Incoming]:
        arrived: list[Incoming] = []
        room = limits.TURN_BYTES_MAX
        for inbox in self._inboxes:
            while inbox and room > 0 and len(arrived) < limits.TURN_MESSAGES_MAX:
                arrived.append(inbox.popleft())
                room -= len(arrived[-1].control) + len(arrived[-1].batch)
        return arrived

    def reply(self, origin: Origin, control: bytes, batch: bytes | Sequence[bytes] = b"") -> bool:
        joined = batch if isinstance(batch, (bytes, bytearray, memoryview)) else b"".join(batch)
        frames = [control, bytes(joined)] if joined else [control]
        tag, name, *envelope = origin
        if tag == b"d":
            return self.stands(origin) and self.send(name.decode(), control, bytes(joined))
        client = self._network.clients.get(name)
        peer = self._network.mailboxes.get(name.decode("ascii", "replace"))
        if client is not None:
            client.inbox.append([*envelope, *frames])
        elif peer is not None:
            peer.take((b"d", (self.peers or self.clients).encode(), self.serial), frames)
        else:
            self.dropped += 1
            return False
        return True

    def send(self, endpoint: str, control: bytes, batch: bytes = b"") -> bool:
        peer = self._network.mailboxes.get(endpoint)
        if peer is None:
            self.dropped += 1
            return False
        tag = b"c" if endpoint == peer.clients else b"p"
        peer.take((tag, (self.peers or self.clients).encode()), [control, batch] if batch else [control])
        return True

    def from_client(self, origin: Origin) -> bool:
        return origin[0] == b"c"

    def from_peer(self, origin: Origin) -> bool:
        return origin[0] == b"p"

    def admit(self, members: Iterable[Member]) -> None: ...

    def encrypted(self, origin: Origin) -> bool:
        return True

    @property
    def turned_away(self) -> int:
        return 0

    def address(self, origin: Origin) -> str:
        return "this host"

    def crowded(self, origin: Origin) -> bool:
        return False

    def moving(self, origin: Origin) -> bool:
        return False

    def answerer(self, origin: Origin) -> str:
        return origin[1].decode() if origin[0] == b"d" else ""

    def stands(self, origin: Origin) -> bool:
        other = self._network.mailboxes.get(origin[1].decode())
        return other is not None and other.serial == origin[2]

    def lose(self, origin: Origin) -> None:
        self._gone.append(origin)

    def gone(self) -> list[Origin]:
        gone, self._gone = self._gone, []
        return gone

    def close(self) -> None:
        for endpoint in (self.clients, self.peers):
            self._network.mailboxes.pop(endpoint, None)
