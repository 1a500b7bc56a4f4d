"""Makes the modules of the sync client from those of the asyncio one, so that both are written once.

    python clients/python/make_twins.py     writes them; a test fails when they are not what this would write

What really differs stays by hand: how each waits (`driver`), runs handlers (`runner`) and begins (`client`).
"""

import re
import subprocess
import sys
from pathlib import Path

ROOM = Path(__file__).resolve().parent / "gossipq_client" / "api"
NAMES = (
    "farewell",
    "publisher",
    "consumer",
    "reader",
    "jobs",
    "records",
    "schedules",
    "schemas",
    "requester",
    "runs",
    "operator",
    "handles",
    "raw",
    "admin",
    "facade",
)
WORDS = (
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(Iterator|Generator|Iterable)\b", r"\1"),
    (r"\b__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\bCoroutine\[Any, Any, (\w+)\]", r"\1"),
    (r"\bapi\.aio\b", "api.sync"),
)
HEADING = "# Made by clients/python/make_twins.py from api/aio/{source}: change that, then run it.\n"


def twin(source: Path) -> str:
    """The sync text of an asyncio module, formatted."""
    text = source.read_text()
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    for arguments in (
        ["check", "--fix", "--unsafe-fixes", "--select", "I,F401,UP028,C416", "--quiet"],
        ["format", "--quiet"],
    ):
        command = [
            sys.executable,
            "-m",
            "ruff",
            *arguments,
            "--stdin-filename",
            str(ROOM / "sync" / "twin.py"),
            "-",
        ]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return HEADING.format(source=source.name) + text


def main() -> None:
    for name in NAMES:
        (ROOM / "sync" / f"{name}.py").write_text(twin(ROOM / "aio" / f"{name}.py"))


if __name__ == "__main__":
    main()
