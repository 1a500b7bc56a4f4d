"""Makes the modules of the sync client from those of the asyncio one, so that both are written once.

    python clients/python/make_twins.py     writes them; a test fails when they are not what this would write

What really differs stays by hand: how each waits (`driver`, `aio_driver`) and runs handlers (`running`,
`aio_running`).
"""

import re
import subprocess
import sys
from pathlib import Path

ROOM = Path(__file__).resolve().parent / "gossipq_client"
NAMES = ("producer", "consumer", "reader", "topics", "workers", "mending", "operators")
WORDS = (
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(Iterator|Generator|Iterable)\b", r"\1"),
    (r"\b__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\baio_(\w+)", r"\1"),
)
HEADING = "# Made by clients/python/make_twins.py from {source}: change that, then run it.\n"


def twin(source: Path) -> str:
    """The sync text of an asyncio module, formatted."""
    text = source.read_text()
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    for arguments in (
        ["check", "--fix", "--unsafe-fixes", "--select", "I,UP028,C416", "--quiet"],
        ["format", "--quiet"],
    ):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(ROOM / "twin.py"), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return HEADING.format(source=source.name) + text


def main() -> None:
    for name in NAMES:
        (ROOM / f"{name}.py").write_text(twin(ROOM / f"aio_{name}.py"))


if __name__ == "__main__":
    main()
