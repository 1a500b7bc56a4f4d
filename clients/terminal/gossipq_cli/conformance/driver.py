"""A client in another language, told what to do line by line.

A driver reads a JSON object from each line of its input, does what `do` says with its client, and writes one
object as a line of its output: the answer, or {"error": CODE, "message": TEXT}. Bytes are in base64. It has
no protocol of its own: what it cannot do by a public verb of the client is missing there.

    connect    servers, [token], [door]       -> {}; a second one makes another client in place of the first
    publish    topic, records: [{value, key, headers, id}], [route], [delay_ms], [timeout_ms], [apart]
                                              -> {places: [[partition, offset]]}, when stored; scheduled: -1.
                                                 apart: by a call for each record, all at the same time
    subscribe  topic, group                   -> {}
    next       wait_ms                        -> {record: null}, or {record: {partition, offset, attempt,
                                                 value, key, headers, id, route}}
    ack        partition, offset, [wait]      -> {}, when stored; error lease_lost: others have the record by
                                                 now. wait false: -> {} as soon as the client's verb returns
    nack       partition, offset, reason      -> {}; the same
    close                                     -> {}, and it ends
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

ANSWER_S = 90.0  #: a takeover, and what a client waits before it believes in one
END_S = 10.0


class Taken(NamedTuple):
    """A record that the driver's client got."""

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
        """Raises Failure when the program cannot be started."""
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
        """Without waiting for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Failure("driver", f"{self._command} has ended: {error}") from None

    def hear(self, wait_s: float = ANSWER_S) -> dict[str, Any]:
        """The answer to what was said. Raises the GossipqError that the client raised, and Failure when there
        is none."""
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

    # --- in terms of records

    def publish(self, topic: str, *records: dict[str, Any], **how: Any) -> list[tuple[int, int]]:
        """(partition, offset) of each, when all are stored. how: route, delay_ms, timeout_ms."""
        return [(place[0], place[1]) for place in self.ask(**publication(topic, *records), **how)["places"]]

    def next(self, wait_s: float) -> Taken | None:
        """The next record of the subscription, if one comes in time."""
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

    def nack(self, record: Taken, reason: str) -> None:
        self.ask("nack", partition=record.partition, offset=record.offset, reason=reason)

    def refused(self, do: str, **fields: Any) -> str:
        """The code of the error that this ends with; "" = none."""
        try:
            self.ask(do, **fields)
        except GossipqError as error:
            return error.code
        return ""


def publication(topic: str, *records: dict[str, Any]) -> dict[str, Any]:
    """`do` and its fields."""
    return {"do": "publish", "topic": topic, "records": [_text(record) for record in records]}


def _text(record: dict[str, Any]) -> dict[str, Any]:
    """With its bytes in base64."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found[name] = {each: b64encode(raw).decode() for each, raw in value.items()}
        else:
            found[name] = b64encode(value).decode()
    return found
