"""GROWTH.md, made of the rows of growth.json. Pure."""

from textwrap import fill
from typing import Any

from report import table

WHAT = {
    "topics": "topics with a group each, of which one is used",
    "groups": "groups on one topic, of which one is used",
    "connections": "connected consumers of other topics, where nothing comes; each pings once in 2 s",
    "partitions": "partitions of the topic that is used",
    "batches": "batches of one record of 100 bytes that are stored, by eight processes",
    "records": "records of 100 bytes that are stored, in batches of 500",
    "nodes": "nodes on this one machine; memory and idle time of the busiest, batches by all together",
}
#: what the curves say, and why
SEEN = {
    "topics": (
        "A topic with its group takes 11 KB, and a thousand of them 0.4 % of a core. A batch costs the same."
    ),
    "groups": "A group takes 10 KB. A batch costs the same.",
    "connections": (
        "A connected consumer takes 33 KB, and each of its pings 55 us of the node's time. A "
        "batch costs no more."
    ),
    "partitions": (
        "One partition is one worker. From two on both workers have turns of their own, half "
        "as full: that is the step. Behind it a fetch gets its records in slices of more "
        "partitions, with a lease and an ack for each."
    ),
    "batches": (
        "A publish costs the same behind a million small batches: the caches of a worker drop their oldest "
        "entry without a scan."
    ),
    "records": (
        "Memory counts pages of the store that are mapped and in the system's cache, which "
        "takes them back when somebody needs memory. A start reads no records."
    ),
    "nodes": ("From two nodes on a batch is stored by two or three of them, and their answers cost turns."),
}
FIGURES = {
    "memory": ("MB", "memory of a node, PSS"),
    "idle": ("% of a core", "processor time while nothing happens"),
    "batch": ("ms", "processor time for a batch of 500, published, fetched and acked"),
    "lone": ("ms", "processor time for a batch of one record, published alone"),
    "start": ("s", "start after kill -9, from exec to the ready line"),
    "takeover": ("s", "longest time without a confirm when the leader is killed"),
    "disk": ("MB", "files of the store"),
}
HEAD = """# Growth

Made by `python perf/growth.py` of growth.json: do not edit. One thing in many sizes, each over a fresh store;
a curve is a ratio to the smallest size, so what is flat stays at 1 and what is linear follows the dashed
line. Node and client share the cores.
"""


SIMULATED = """
## Many nodes, many shards: by simulation

`python -m sim.sizes` (tests/sim/sizes.py) runs real workers, one for each node, over a simulated network
with a clock moved by hand: it counts what they say to each other and the turns that had something to do,
and nothing of it was measured on machines. What frontdoors and Serf's agents say is not in it. Load: 100
batches a second of 50 records of 100 bytes to 16 topics, with three copies.

"""


def simulated(rows: list[dict[str, Any]]) -> str:
    """The table of sizes.json."""
    head = ["nodes", "shards", "led by a node"]
    head += [f"{part}: {what}" for part in ("idle", "load") for what in ("messages/s", "KB/s", "turns/s")]
    cells = []
    for row in rows:
        line = [f"{row['nodes']}", f"{row['shards']}", "{} to {}".format(*row["leads"])]
        for part in (row["idle"], row["load"]):
            line += [f"{part['messages']:,}", f"{part['bytes'] / 1e3:,.0f}", f"{part['turns']:,}"]
        cells.append(line)
    return SIMULATED + table(head, cells)


def page(rows: list[dict[str, Any]], sizes: list[dict[str, Any]]) -> str:
    """GROWTH.md."""
    parts = [HEAD]
    for name in dict.fromkeys(row["what"] for row in rows):
        mine = [row for row in rows if row["what"] == name]
        figures = [figure for figure in FIGURES if any(figure in row for row in mine)]
        head = [name, *(f"{figure}, {FIGURES[figure][0]}" for figure in figures), "measured (UTC)"]
        cells = [
            [f"{row['size']:,}", *(f"{row[each]:,g}" if each in row else "" for each in figures), row["at"]]
            for row in mine
        ]
        parts.append(f"\n## {name.capitalize()}\n\n{WHAT[name].capitalize()}.\n\n{table(head, cells)}")
        parts.append(f"\n{fill(SEEN[name], 110)}\n\n![{name}](growth-{name}.svg)\n")
    means = "; ".join(f"{figure}: {text}" for figure, (_, text) in FIGURES.items())
    return "".join(parts) + f"\n{means}. On {rows[-1]['on']}.\n" + simulated(sizes)
