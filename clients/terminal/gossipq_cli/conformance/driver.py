"""A client in another language, controlled line by line.

A driver reads a JSON object from each line of its input and does what `do` says with its client. It
writes one line of output: the answer, or {"error": CODE, "message": TEXT}. Bytes are in base64. It
has no protocol code of its own. If a public function is missing in the client, the command fails.

    connect    servers, [token], [door]       -> {}; a second one replaces the client
    publish    topic, records: [{value, key, headers, id}], [route], [delay_ms], [timeout_ms], [apart]
                                              -> {places: [[partition, offset]]}, when stored; -1 if
                                                 scheduled. apart: one call for each record, at once
    subscribe  topic, group                   -> {}
    next       wait_ms                        -> {record: null}, or {record: {partition, offset, attempt,
                                                 value, key, headers, id, route}}
    ack        partition, offset, [wait]      -> {}, when stored; error lease_lost: another consumer has
                                                 the record. wait false: -> {} when the call returns
    nack       partition, offset, reason      -> {}; likewise
    release    partition, offset              -> {}; likewise
    close                                     -> {}, and the driver ends
"""

import json
import queue
import shlex
import subprocess
import threading
from base64 import b64decode, b64encode
from types import TracebackType
from typing import Any, NamedTuple

from gossipq.errors import GossipqError, from_code
from gossipq_cli.failures import Failure

ANSWER_S = 90.0  #: a takeover, and the time after which a client notices one
END_S = 10.0


class Taken(NamedTuple):
    """A record that the driver's client received."""

    partition: int
    offset: int
    attempt: int
    value: bytes
    key: bytes
    headers: dict[str, bytes]
    id: bytes
    route: str = ""


class Driver:
    def __init__(self, command: str) -> None:
        """Raises Failure if the program cannot be started."""
        self._command = command
        try:
            self._process = subprocess.Popen(
                shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except (OSError, ValueError) as error:
            raise Failure("driver", f"cannot start {command}: {error}") from None
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def another(self) -> "Driver":
        """Start a second driver with the same command."""
        return Driver(self._command)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def __enter__(self) -> "Driver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(END_S)
        except (subprocess.TimeoutExpired, OSError):
            self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def say(self, do: str, **fields: Any) -> None:
        """Send a command without waiting for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Failure("driver", f"{self._command} has ended: {error}") from None

    def hear(self, wait_s: float = ANSWER_S) -> dict[str, Any]:
        """Return the next answer. Raises the client's GossipqError, and
        Failure without an answer.
        """
        try:
            line = self._lines.get(timeout=wait_s)
        except queue.Empty:
            raise Failure("driver", f"{self._command} has not answered within {wait_s:g} s") from None
        try:
            answer = json.loads(line)
        except ValueError:
            said = line.strip() or "nothing, and ended"
            raise Failure("driver", f"{self._command} said {said}") from None
        if "error" in answer:
            raise from_code(str(answer["error"]), str(answer.get("message", "")))
        found: dict[str, Any] = answer
        return found

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        self.say(do, **fields)
        return self.hear()

    # --- records

    def publish(self, topic: str, *records: dict[str, Any], **how: Any) -> list[tuple[int, int]]:
        """Publish records. Returns (partition, offset) of each when all are stored.

        `how`: route, delay_ms, timeout_ms.
        """
        return [(place[0], place[1]) for place in self.ask(**publication(topic, *records), **how)["places"]]

    def next(self, wait_s: float) -> Taken | None:
        """Return the next record of the subscription, or None if none arrives in time."""
        row = self.ask("next", wait_ms=int(wait_s * 1_000))["record"]
        if row is None:
            return None
        headers = {name: b64decode(value) for name, value in row.get("headers", {}).items()}
        value, key, name = (b64decode(row.get(field, "")) for field in ("value", "key", "id"))
        return Taken(
            row["partition"], row["offset"], row["attempt"], value, key, headers, name, row.get("route", "")
        )

    def ack(self, record: Taken, wait: bool = True) -> None:
        how: dict[str, bool] = {} if wait else {"wait": False}
        self.ask("ack", partition=record.partition, offset=record.offset, **how)

    def release(self, record: Taken) -> None:
        self.ask("release", partition=record.partition, offset=record.offset)

    def nack(self, record: Taken, reason: str) -> None:
        self.ask("nack", partition=record.partition, offset=record.offset, reason=reason)

    def refused(self, do: str, **fields: Any) -> str:
        """Return the code of the error of a command; "" = it succeeded."""
        try:
            self.ask(do, **fields)
        except GossipqError as error:
            return error.code
        return ""


def publication(topic: str, *records: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a publish command."""
    return {"do": "publish", "topic": topic, "records": [_text(record) for record in records]}


def _text(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its bytes in base64."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found[name] = {each: b64encode(raw).decode() for each, raw in value.items()}
        else:
            found[name] = b64encode(value).decode()
    return found
