"""Feed each decoder inputs that a coverage-guided fuzzer makes (Atheris, which is libFuzzer for Python).

    python -m attacks.guided [--minutes 10] [--only NAME]

Each decoder runs in a process of its own. An input that makes a decoder raise what no caller handles is kept
in `tests/attacks/vectors/decoders`, and the tests feed it from then on. Counts of inputs are added up in
`guided.json`, for each commit. Atheris is no dependency of the project: `make fuzz` installs it.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HOME = Path(__file__).resolve().parent
COUNTS, VECTORS = HOME / "guided.json", HOME / "vectors" / "decoders"
CORPORA = HOME.parents[1] / "build" / "fuzz"
INPUT_BYTES_MAX = 16_384
EXECUTED = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
COVERED = re.compile(r"cov: (\d+) ft: (\d+)")
SOURCES = ["gossipq", "gossipq_node", "gossipq_client", "gossipq_gateway", "email", "json"]


def counts() -> dict[str, dict[str, int]]:
    """By commit, oldest first, and by decoder."""
    found: dict[str, dict[str, int]] = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
    return found


def vectors(name: str) -> Iterator[bytes]:
    """Inputs that this decoder once could not take."""
    for path in sorted(VECTORS.glob(f"{name}-*")):
        yield path.read_bytes()


def fuzz(name: str, seconds: int) -> None:
    """Runs libFuzzer in this process, and ends it."""
    import atheris

    with atheris.instrument_imports(include=SOURCES):
        from attacks.decoders import DECODERS
    decoder = DECODERS[name]
    corpus = CORPORA / name
    corpus.mkdir(parents=True, exist_ok=True)
    VECTORS.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate([*decoder.seeds(), *vectors(name)]):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = [
        sys.argv[0],
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={VECTORS}/{name}-",
        str(corpus),
    ]

    def feed(raw: bytes) -> None:
        decoder.feed(raw)

    atheris.Setup(options, feed)
    atheris.Fuzz()


def run(name: str, seconds: int) -> tuple[int, str]:
    """Fuzz one decoder in a process. Returns the number of inputs, and the output if it failed."""
    line = [sys.executable, "-m", "attacks.guided", "--only", name, "--here", str(seconds)]
    done = subprocess.run(line, capture_output=True, text=True, errors="replace", check=False)
    said = done.stdout + done.stderr
    executed, covered = EXECUTED.search(said), COVERED.findall(said)
    if executed is None:
        raise RuntimeError(f"{name}: the fuzzer did not run: {said[-2_000:]}")
    told = "edges {}, features {}".format(*covered[-1]) if covered else "no coverage"
    print(f"{name}: {int(executed[1]):,} inputs, {told}, exit {done.returncode}", flush=True)
    return int(executed[1]), said if done.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m attacks.guided")
    parser.add_argument("--minutes", type=float, default=10.0, help="of all decoders together")
    parser.add_argument("--only", metavar="NAME")
    parser.add_argument("--here", type=int, metavar="SECONDS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here is not None:
        fuzz(given.only, given.here)  # does not return
    from attacks.decoders import DECODERS
    from attacks.fuzzing import commit_of_the_tree

    names = [given.only] if given.only else [*DECODERS]
    by_commit, crashes = counts(), 0
    fed = by_commit.setdefault(commit_of_the_tree(), {})
    for name in names:
        executed, said = run(name, max(1, round(60 * given.minutes / len(names))))
        fed[name] = fed.get(name, 0) + executed
        COUNTS.write_text(json.dumps(by_commit, indent=1) + "\n")  # kept even if the run is ended early
        if said:
            crashes += 1
            print(said[said.find("Uncaught") :][:3_000], file=sys.stderr)
    print(f"{sum(fed.values()):,} inputs so far; {crashes} decoders failed now")
    return 1 if crashes else 0


if __name__ == "__main__":
    sys.exit(main())
