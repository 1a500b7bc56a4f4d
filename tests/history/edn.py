"""Write histories as EDN (https://github.com/edn-format/edn), as the checkers of Jepsen, Knossos and Elle
read them.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from history.record import Operation, pairs

KEYWORDS = {"send", "poll", "start", "stop"}  #: first elements of vectors that Jepsen knows as keywords


def text(value: Any) -> str:
    """The EDN of None, booleans, numbers, texts, lists and maps."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(key)} {text(each)}" for key, each in value.items()) + "}"
    if value and isinstance(value[0], str) and value[0] in KEYWORDS:
        return f"[:{' '.join([value[0], *map(text, value[1:])])}]"
    return "[" + " ".join(map(text, value)) + "]"


def line(operation: Operation) -> str:
    process = operation.process if isinstance(operation.process, int) else f":{operation.process}"
    said = [
        f":index {operation.index}",
        f":time {operation.time}",
        f":process {process}",
        f":type :{operation.type}",
        f":f :{operation.f}",
        f":value {text(operation.value)}",
    ]
    said += [
        f":{name} {text(getattr(operation, name))}"
        for name in ("client", "topic", "error")
        if getattr(operation, name)
    ]
    return "{" + ", ".join(said) + "}"


def write(history: Iterable[Operation], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line(operation)}\n" for operation in history)


def log_of(history: Iterable[Operation]) -> Iterator[Operation]:
    """The operations that `jepsen.tests.kafka/checker` reads."""
    return (operation for operation in history if operation.f in ("send", "poll"))


def queue_of(history: list[Operation]) -> Iterator[Operation]:
    """The operations that `jepsen.checker/total-queue` reads: one `enqueue` for each record that was sent,
    and one `dequeue` for each that a consumer got. Each has a process of its own."""
    rows: list[tuple[int, str, str, Any, int]] = []  # (time, type, f, value, process)
    process = 0
    for pair in pairs(history, "send", "fetch"):
        invoked, completed = pair
        if invoked.f == "send":
            for _, partition, name in invoked.value:
                rows.append((invoked.time, "invoke", "enqueue", f"{partition}/{name}", process))
                if completed is not None:
                    rows.append((completed.time, completed.type, "enqueue", f"{partition}/{name}", process))
                process += 1
        elif pair.is_ok and completed is not None:
            for partition, _, name, _ in completed.value:
                rows.append((invoked.time, "invoke", "dequeue", None, process))
                rows.append((completed.time, "ok", "dequeue", f"{partition}/{name}", process))
                process += 1
    rows.sort(key=lambda row: row[0])  # stable, so a completion stays behind its invocation
    for index, (time, type, f, value, number) in enumerate(rows):
        yield Operation(index, time, number, type, f, value)  # type: ignore[arg-type]


def register_of(history: Iterable[Operation], topic: str) -> Iterator[Operation]:
    """The operations on one policy, which Knossos reads with its model of a register."""
    return (
        operation for operation in history if operation.f in ("read", "write") and operation.topic == topic
    )
