"""Record what clients of real nodes ask and hear, in the form of Jepsen's histories.

An operation is an `invoke` and later one completion of the same process: `ok` (it happened), `fail` (it
certainly did not happen) or `info` (unknown). A process has one operation at a time, and a process whose
operation ended as `info` is not used again (https://jepsen-io.github.io/jepsen/jepsen.history.html). Our
clients keep many requests under way, so each request takes a free process, and `client` names its client.

Values, by the function `f` of an operation; a record is known by its name, a text:
    send      [["send", partition, name], ...]; ok: [["send", partition, [offset, name]], ...]
    poll      [["poll"]]; ok: [["poll", {partition: [[offset, name], ...]}]]; a reader without a group
    fetch     ok: [[partition, offset, name, term], ...]; a consumer of a group, term of the leader
    settle    [[partition, offset], ...]; the consumer acks or gives back these records
    acked     [[partition, first, end, term], ...]; a leader confirmed these acks. The client merges acks, so
              a confirm is an operation of its own
    close     the consumer ends and holds no record any more
    publish   [name, id]; ok: [name, id, offset]; a record with an id
    schedule  [name, delay_ms]; ok: [name, delay_ms]; a record with a delay
    arrive    ok: [name, ...]; scheduled records that a consumer got
    write     a number; ok: the same; a policy of a topic is set
    read      ok: a number; the policy is read
"""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import msgspec

Type = Literal["invoke", "ok", "fail", "info"]


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of a history; fields are named as in Jepsen."""

    index: int
    time: int  #: ns since the history began, of one monotonic clock
    process: int | str  #: a number, or "nemesis"
    type: Type
    f: str
    value: Any = None
    client: str = ""
    topic: str = ""
    error: str = ""


class Call:
    """An operation that was invoked and is not completed yet."""

    def __init__(self, recorder: "Recorder", process: int, invoked: dict[str, Any]) -> None:
        self._recorder, self._process, self._invoked = recorder, process, invoked

    def ok(self, value: Any = None) -> None:
        self._recorder.complete(self._process, "ok", self._invoked | {"value": value})

    def fail(self, error: str) -> None:
        self._recorder.complete(self._process, "fail", self._invoked | {"error": error})

    def info(self, error: str) -> None:
        self._recorder.complete(self._process, "info", self._invoked | {"error": error})


class Recorder:
    """Write operations to a file as they happen: one line of JSON for each. Any thread may call it.

    Without a path it discards everything, so that a load can run without a history.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._file = None if path is None else path.open("wb")
        self._lock = threading.Lock()
        self._began_ns = time.monotonic_ns()
        self._index = self._processes = 0
        self._free: list[int] = []
        self._encoder = msgspec.json.Encoder()

    def invoke(self, f: str, value: Any = None, *, client: str = "", topic: str = "") -> Call:
        with self._lock:
            if self._free:
                process = self._free.pop()
            else:
                process = self._processes
                self._processes += 1
            said = {"f": f, "value": value, "client": client, "topic": topic}
            self._write(process, "invoke", said)
        return Call(self, process, said)

    def complete(self, process: int, type: Type, said: dict[str, Any]) -> None:
        with self._lock:
            self._write(process, type, said)
            if type != "info":
                self._free.append(process)

    @contextmanager
    def call(self, f: str, value: Any = None, *, client: str = "", topic: str = "") -> Iterator[Call]:
        """An operation that is `info` if the block raises."""
        call = self.invoke(f, value, client=client, topic=topic)
        try:
            yield call
        except BaseException as error:
            call.info(repr(error))
            raise

    def fault(self, name: str, begins: bool, value: Any = None) -> None:
        """A fault of nodes, as an operation of Jepsen's nemesis: `info` when it begins and when it ends."""
        with self._lock:
            self._write("nemesis", "info", {"f": name, "value": ["start" if begins else "stop", value]})

    def _write(self, process: int | str, type: Type, said: dict[str, Any]) -> None:
        if self._file is None:
            return
        operation = Operation(self._index, time.monotonic_ns() - self._began_ns, process, type, **said)
        self._index += 1
        self._file.write(self._encoder.encode(operation) + b"\n")

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def load(path: Path) -> list[Operation]:
    """Read the operations of a file, in the order in which they happened."""
    decoder = msgspec.json.Decoder(Operation)
    with path.open("rb") as file:
        return [_with_numbers(decoder.decode(line)) for line in file]


def _with_numbers(operation: Operation) -> Operation:
    """Partitions are keys of an object in JSON, and therefore texts."""
    if operation.f != "poll" or operation.type != "ok":
        return operation
    polled = [
        [verb, {int(partition): rows for partition, rows in found.items()}] for verb, found in operation.value
    ]
    return msgspec.structs.replace(operation, value=polled)


class Pair(NamedTuple):
    """An operation from its invocation to its completion, which is None while it is open."""

    invoked: Operation
    completed: Operation | None

    @property
    def is_ok(self) -> bool:
        return self.completed is not None and self.completed.type == "ok"

    @property
    def has_failed(self) -> bool:
        return self.completed is not None and self.completed.type == "fail"


def pairs(history: Iterable[Operation], *functions: str) -> list[Pair]:
    """Pair each invocation of these functions with its completion, in the order of invocations.

    Raises ValueError if a process has two operations at a time, or goes on after an `info`.
    """
    order: list[Operation] = []
    open_: dict[int | str, Operation] = {}
    ended: dict[int, Operation] = {}
    crashed: set[int | str] = set()
    for operation in history:
        if operation.process == "nemesis":
            continue
        if operation.type == "invoke":
            if operation.process in open_ or operation.process in crashed:
                raise ValueError(f"process {operation.process} is not free at {operation.index}")
            open_[operation.process] = operation
            if operation.f in functions:
                order.append(operation)
            continue
        invoked = open_.pop(operation.process, None)
        if invoked is None or invoked.f != operation.f:
            raise ValueError(f"operation {operation.index} completes nothing")
        ended[invoked.index] = operation
        if operation.type == "info":
            crashed.add(operation.process)
    return [Pair(operation, ended.get(operation.index)) for operation in order]
