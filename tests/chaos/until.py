"""Random faults until the runs of this commit add up to so many hours: what was run before counts, so it can
be ended at any time and goes on with the next call.

    python -m chaos.until HOURS [--minutes 10]
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from chaos import results
from chaos.runs import COMMIT
from conftest import HOME


def minutes_run(rows: list[dict[str, object]], commit: str) -> float:
    """Of whole runs with faults of all kinds."""
    return sum(float(str(row["minutes"])) for row in rows if row["commit"] == commit and "minutes" in row)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.until", description=__doc__)
    parser.add_argument("hours", type=float)
    parser.add_argument("--minutes", type=float, default=10.0, help="of one run, over 3 and 5 nodes")
    given = parser.parse_args()
    if COMMIT.endswith("-dirty"):
        print(f"{COMMIT} cannot be checked out again: commit first", file=sys.stderr)
        return 2
    kept = Path(os.environ.get("GOSSIPQ_RESULTS", results.RESULTS))
    line = [sys.executable, "-m", "pytest", str(HOME / "tests" / "chaos" / "test_chaos.py"), "-s"]
    while (ran := minutes_run(results.runs(kept) if kept.exists() else [], COMMIT)) < 60 * given.hours:
        print(f"{COMMIT}: {ran:.0f} of {60 * given.hours:.0f} minutes", flush=True)
        done = subprocess.run(
            line, env={**os.environ, "GOSSIPQ_MINUTES": str(given.minutes)}, cwd=HOME, check=False
        )
        if done.returncode:
            return done.returncode
    print(f"{COMMIT}: {ran:.0f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
