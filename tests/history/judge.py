"""Check a recorded history, and write it as EDN for other checkers.

    PYTHONPATH=tests python -m history.judge HISTORY.jsonl

writes beside it, with the same beginning of their names: `.edn` (all operations), `.log.edn` (for
`jepsen.tests.kafka/checker`), `.queue.edn` (for `jepsen.checker/total-queue`) and `.TOPIC.register.edn` (for
Knossos with `(model/register 0)`).
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from history import edn
from history.holders import lease_failures
from history.ids import id_failures
from history.logs import lost_failures, offset_failures, poll_failures, send_failures
from history.queues import account, acked_failures, queue_failures
from history.record import Operation, load, pairs
from history.registers import register_failures
from history.timers import timer_failures

Checker = Callable[[list[Operation]], Iterator[str]]
CHECKERS: tuple[Checker, ...] = (
    queue_failures,
    acked_failures,
    offset_failures,
    lost_failures,
    poll_failures,
    send_failures,
    id_failures,
    lease_failures,
    timer_failures,
    register_failures,
)


def failures(history: list[Operation]) -> list[str]:
    pairs(history)  # raises ValueError unless the history is well-formed
    return [text for checker in CHECKERS for text in checker(history)]


def counts(history: list[Operation]) -> dict[str, int]:
    """Completed operations by function, and the account of the queue."""
    found = Counter(operation.f for operation in history if operation.type == "ok")
    queue = account(history)
    told = {name: len(value) if isinstance(value, list) else value for name, value in queue._asdict().items()}
    return dict(sorted(found.items())) | told


def write_edn(history: list[Operation], path: Path) -> list[Path]:
    """`path`: of the JSON; returns the files."""
    base = path.with_suffix("")
    written = {base.with_suffix(".edn"): iter(history)}
    written[base.with_suffix(".log.edn")] = edn.log_of(history)
    written[base.with_suffix(".queue.edn")] = edn.queue_of(history)
    for topic in sorted({operation.topic for operation in history if operation.f in ("read", "write")}):
        written[base.with_suffix(f".{topic}.register.edn")] = edn.register_of(history, topic)
    for file, operations in written.items():
        edn.write(operations, file)
    return list(written)


def main() -> int:
    path = Path(sys.argv[1])
    history = load(path)
    found = failures(history)
    print(*(f"{name}: {count:,}" for name, count in counts(history).items()), sep="\n")
    print(*write_edn(history, path), sep="\n")
    print(*found, f"{len(found)} failures", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
