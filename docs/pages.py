"""Assembles the pages of the documentation site, for MkDocs.

    python docs/pages.py build/pages
    python docs/pages.py --keep        writes the pages of KEPT into docs/

Copies docs/ and the documents of other folders, rewrites links between them, copies linked source files, and
writes the reference from code: commands, options, errors, alarms, metrics, permissions, HTTP operations, and
the Python client. Ends with 1 if a link does not lead to a file.
"""

import importlib
import inspect
import json
import posixpath
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click

import gossipq_client
from gossipq import alarms, errors, next_steps, permissions, verbs
from gossipq_cli import failures
from gossipq_cli.main import root
from gossipq_gateway.v1 import openapi
from gossipq_gateway.v1.table import OPERATIONS

HOME = Path(__file__).resolve().parent.parent
#: document outside docs/ -> its page
ELSEWHERE = {
    "PROTOCOL.md": "reference/protocol.md",
    "ARCHITECTURE.md": "internals/architecture.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "perf/README.md": "internals/benchmarks.md",
    "perf/GROWTH.md": "internals/growth.md",
    "perf/RESULTS.md": "internals/results.md",
    "spark/README.md": "how-to/spark.md",
    "clients/integrations/gossipq_celery/README.md": "how-to/celery.md",
    "clients/integrations/gossipq_dramatiq/README.md": "how-to/dramatiq.md",
    "clients/integrations/gossipq_taskiq/README.md": "how-to/taskiq.md",
    "clients/integrations/gossipq_outbox/README.md": "how-to/outbox.md",
    "clients/integrations/gossipq_starlette/README.md": "how-to/starlette.md",
    "clients/integrations/gossipq_django/README.md": "how-to/django.md",
    "clients/c/README.md": "reference/clients/c.md",
    "clients/go/README.md": "reference/clients/go.md",
    "clients/java/README.md": "reference/clients/java.md",
    "clients/javascript/README.md": "reference/clients/javascript.md",
    "nodes/gossipq_node/deploy/README.md": "operate/deploy.md",
    "README.md": "readme.md",
}
MODULES = (
    "facade",
    "consumer",
    "records",
    "admin",
    "handles",
    "schedules",
)
EXAMPLES = HOME / "clients" / "python" / "examples"
#: the central parts of an example, which pages show
EXCERPT = re.compile(r"^ *# -- in the guide\n(.*?)^ *# --\n", re.DOTALL | re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!\\)(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")
MODULE = re.compile(r"\b(?:gossipq|gossipq_client|collections|typing)(?:\.\w+)*\.(?=[A-Z])")
QUOTED = re.compile(r": '([^']*)'")  #: an annotation that is evaluated when it is asked for
FENCE = re.compile(r"^ {0,3}(```|~~~)")
#: the fields in the source of a dataclass, up to its methods
FIELDS = re.compile(r"^    (?:#:|\w+: ).*?(?=\n+    (?:@|def )|\Z)", re.MULTILINE | re.DOTALL)
LIST = re.compile(r"^(?:[-*+]|\d+\.) ")
TREE = re.compile(r"^[ |]*\+-- (.*)")
#: made pages that are also in the repository, because written pages link to them; a test compares them
KEPT = ("configuration", "errors", "alarms", "metrics", "permissions")
UNSEARCHED = {"internals/results.md"}  #: its rows would fill the results of a search

#: the classes that programs import
PUBLIC = [
    name
    for name in gossipq_client.__all__
    if isinstance(kind := getattr(gossipq_client, name), type) and issubclass(kind, errors.GossipqError)
]
#: error code -> what its reader can do
REMEDIES = {
    "protocol": "Update the older of client and node; a client of your own has a fault.",
    "wrong_version": "Update the older of client and node.",
    "unknown_verb": "Update the node, or use a verb that it knows.",
    "bad_batch": "Look for a fault in the client, or in the network between both.",
    "refused": "Read the message: it says what to change.",
    "not_found": "Check the name of the topic, or the ref of the record.",
    "unknown_topic": "Check the name with `gossipq topic ls`, or create the topic.",
    "wrong_shard": "Ask for the topic again. The clients do so by themselves.",
    "topic_exists": "Use the topic, or pass `if_not_exists=True`.",
    "bad_name": "Use letters, digits, `.`, `_` and `-`; the message names the bad character.",
    "too_large": "Split the value, or store it elsewhere and publish its address.",
    "topic_full": "Wait for consumers, or raise `--bytes-max` of the topic.",
    "flow_full": "Publish again when some of its records are done, or raise `--flow-backlog` of the group.",
    "offset_out_of_range": "Start at `first`: retention has removed the record.",
    "bad_request": "Change the request as the message says.",
    "no_session": "Send HELLO again. The clients do so by themselves.",
    "no_subscription": "Subscribe again. The clients do so by themselves.",
    "schema_mismatch": "Change the value, or declare a new version of the schema.",
    "unknown_record": "Check the ref: TOPIC/PARTITION/OFFSET.",
    "not_unique": '`gossipq why REF` shows the record that has the name. `conflict="keep"` is no error.',
    "wrong_state": "`gossipq why REF` shows the state of the record.",
    "not_admitted": "Start the node with the options and the secret of its cluster, or invite it again.",
    "forbidden": "`gossipq user whoami` shows your permissions; ask an admin for the missing one.",
    "busy": "Try again after `retry_after_ms`. The clients do so by themselves.",
    "store_full": "Free disk space, or shorten retention.",
    "joining": "Wait until the node has joined: `gossipq status --wait-healthy 1m`.",
    "internal": "Read the node's log, and report the fault.",
    "out_of_sequence": "Send the missing batches first. The clients do so by themselves.",
    "not_confirmed": "Publish the record again with the same `id`.",
    "not_leader": "Ask the leader. The clients do so by themselves.",
    "lease_lost": "Make the handler idempotent; use a longer lease, or `extend()`.",
    "backpressure": "Wait for receipts; look for a slow disk or a missing leader with `gossipq status`.",
    "no_reply": "Check that a handler of the topic runs; allow more time.",
    "job_failed": "Read the error; `gossipq job show REF` has more, and `gossipq dlq replay` runs it again.",
    "unreachable": "Start a node, or correct the address; `gossipq doctor` examines the host.",
    "no_quorum": "Start the missing nodes: `gossipq cluster ls` names them.",
    "turned_away": "Correct what the message names: the token, the key, or the version.",
    "config": "Correct the option that the message names; `gossipq config check` tries it.",
    "no_place": "Free the address or the directory, or wait until it exists.",
    "store": "Read the message; `gossipq store verify --data DIR` examines the directory.",
    "out_of_memory": "Give the node more memory; its data is intact.",
    "corrupt_log": "Replace the copy, as the [runbook](../operate/runbooks.md#a-node-is-gone-for-good) says.",
    "unknown_kind": "Upgrade the node to the version of the others.",
    "export": "Read the message: it names the file or the option.",
    "torn_export": "Export again, into an empty directory.",
    "export_version": "Read the export with a newer version.",
    "data_loss": "Export more often than retention removes records.",
    "closed": "Keep the client open as long as it is used.",
    "forked": "Call `connect()` in the child process.",
    "error": "Read the message.",
}

_BY_OTHERS = "With three nodes a takeover of about 2 s; with one node, requests wait until it is over."
#: alarm -> what clients notice, and when the alarm is over
NOTICED = {
    "lag": ("Records arrive late.", "the group is behind by less than `alarm_lag`"),
    "dead_letters": (
        "The group gets these records no more, until they are replayed.",
        "no record became a dead letter for some minutes",
    ),
    "store_full": (
        "Publishes raise StoreFull. Acks and consuming continue.",
        "more than the reserve is free",
    ),
    "disk_low": ("Nothing yet.", "more than twice the reserve is free"),
    "write_failed": (_BY_OTHERS, "the store is open again"),
    "out_of_memory": (_BY_OTHERS, "the store is open again"),
    "slow_disk": ("Confirms and acks take longer.", "a commit takes less than 100 ms on average"),
    "shard_damaged": (
        "Nothing if another node has a copy. Otherwise NoQuorum for the topics of the shard.",
        "the copy was replaced or restored",
    ),
    "unaccounted": ("Nothing.", "the counters add up"),
    "worker_down": (_BY_OTHERS, "the process runs"),
    "worker_hangs": (_BY_OTHERS, "the process responds"),
    "worker_restarts": ("A short pause.", "ten minutes passed without a restart"),
    "insecure": ("Nothing.", "the node listens on loopback, or authenticates its clients"),
    "last_copy": ("Receipts have `copies=1`.", "a second copy is in sync"),
    "copy_behind": ("Nothing.", "the copy is in sync"),
    "clock": ("Nothing.", "the clock is less than 2 s off"),
    "pair": ("Nothing, until one of the nodes fails: then NoQuorum.", "a witness or a third node joined"),
    "gossip": ("Nothing.", "the agent runs and finds other nodes"),
}


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def table(head: list[str], rows: Iterator[list[str]] | list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell(each) for each in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


# --- the reference, made from code


def commands_page() -> str:
    """Every command with its help, as `--help` prints it."""
    text = ["# Commands\n\nEach command prints this text with `--help`.\n"]

    def walk(command: click.Command, path: str, parent: click.Context | None) -> None:
        ctx = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent, terminal_width=100)
        if not command.hidden:
            text.append(f"{'##' if path.count(' ') < 2 else '###'} {path}\n")
            text.append("```text\n" + click.unstyle(command.get_help(ctx)).rstrip() + "\n```\n")
        if isinstance(command, click.Group):
            for name in command.list_commands(ctx):
                if found := command.get_command(ctx, name):
                    walk(found, f"{path} {name}", ctx)

    walk(root, "gossipq", None)
    return "\n".join(text)


def options_page() -> str:
    """Every option of a node with default and meaning, as cluster.toml lists them."""
    text, rows = (
        ["# Configuration\n\nThe options of `cluster.toml`, with their defaults.\n"],
        list[list[str]](),
    )
    for line in [*(HOME / "cluster.toml").read_text("utf-8").splitlines(), "[end]"]:
        section = re.match(r"\[(\w+(?:\.\w+)*)\]\s*(?:# (.*))?", line)
        if section:
            if rows:
                text.append(table(["option", "default", "meaning"], rows))
            rows = []
            if section[1] != "end":
                text.append(f"## {section[1]}\n\n{section[2] or ''}\n")
        elif found := re.match(r"(\w+) = (.*?)\s*(?:# (.*))?$", line):
            rows.append([f"`{found[1]}`", f"`{found[2]}`", found[3] or ""])
        elif rows and (more := re.match(r"\s+# (.*)", line)):
            rows[-1][2] += " " + more[1]
    return "\n".join(text)


def error_classes(
    top: type[errors.GossipqError] = errors.GossipqError,
) -> Iterator[type[errors.GossipqError]]:
    yield top
    for below in top.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from error_classes(below)


def errors_page() -> str:
    """Every error with its code, exit code, meaning and remedy."""
    notes = dict[str, str]()
    for line in (errors.__doc__ or "").splitlines():
        if branch := TREE.match(line):
            names, _, note = branch[1].partition("  ")
            if "," not in names:
                notes[names.strip()] = note.strip()

    def rows() -> Iterator[list[str]]:
        for kind in error_classes():
            meaning = notes.get(kind.__name__) or inspect.cleandoc(vars(kind).get("__doc__") or "")
            told = failures.explain(kind("x"))
            yield [
                f"`{kind.__name__}`",
                f"`{kind.code}`",
                "yes" if kind.retryable else "no",
                str(told.exit_code),
                meaning.partition("\n\n")[0],
                REMEDIES[kind.code],
            ]

    codes = table(["exit code", "meaning"], [[str(code), text] for code, text in failures.EXIT_CODES.items()])
    head = ["class", "code", "retry", "exit code", "meaning", "what to do"]
    return (
        "# Errors\n\n"
        "A program needs twelve classes, which can be imported from `gossipq`: "
        + ", ".join(f"`{name}`" for name in PUBLIC)
        + ". The others are below them; `code` tells them apart. "
        "An error has `code`, `message`, `hint` and `retryable`.\n"
        "*Retry* says if the same request can succeed later. "
        "[Troubleshooting](../operate/troubleshooting.md) starts from symptoms.\n\n"
        + table(head, rows())
        + "## Exit codes\n\n"
        + codes
    )


def alarms_page() -> str:
    text = [
        "# Alarms\n\n"
        "A node raises an alarm when an operator should look, and clears it when the cause is gone. "
        "[Monitoring](../operate/monitoring.md#alarms) says where alarms are shown, and "
        "`gossipq help alarm-NAME` prints meaning, question and command.\n"
    ]
    for name, kind in alarms.KINDS.items():
        seen, over = NOTICED[name]
        text.append(
            f"## {name}\n\n*{kind.severity}.* {kind.meaning}\n\n{kind.check}\n\n    {kind.verb}\n\n"
            f"*Clients notice:* {seen} *Over when* {over}.\n"
        )
    return "\n".join(text)


def metrics_page() -> str:
    from prometheus_client.core import CounterMetricFamily

    from gossipq_node.adapters import metrics

    def rows() -> Iterator[list[str]]:
        for labels, families in (
            ("topic, partition", metrics.OF_PARTITION),
            ("topic, group, partition", metrics.OF_GROUP),
            ("worker", metrics.OF_WORKER),
        ):
            for family, name, text, _ in families:
                counter = family is CounterMetricFamily
                yield [
                    f"`{name}{'_total' if counter else ''}`",
                    "counter" if counter else "gauge",
                    labels,
                    text,
                ]
        for name, text, _ in metrics.OF_FRONTDOOR:
            yield [f"`{name}_total`", "counter", "", text]
        for name, text in metrics.DURATIONS.values():
            yield [f"`{name}`", "histogram", "worker", text]

    return (
        "# Metrics\n\n"
        "A node serves them at `/metrics`. "
        "[Monitoring](../operate/monitoring.md#pages-of-a-node) explains the health metrics.\n\n"
        + table(["metric", "kind", "labels", "meaning"], rows())
    )


def permissions_page() -> str:
    needs = {name: list[str]() for name in permissions.PERMISSIONS}
    for kind, need in sorted(verbs.NEEDS.items(), key=lambda pair: pair[0].__name__):
        if need.permission in needs:
            needs[need.permission].append(f"{permissions.verb_of(kind)} (on {need.on})")
    rows = [[f"`{name}`", ", ".join(found)] for name, found in needs.items()]
    return "# Permissions\n\nEach permission and the requests that need it.\n\n" + table(
        ["permission", "requests"], rows
    )


def states_page() -> str:
    """Every state that `gossipq why` shows, with the command that changes it."""

    def rows(steps: dict[str, next_steps.NextStep]) -> list[list[str]]:
        return [
            [state, f"`{step.command}`" if step.command else "", step.effect] for state, step in steps.items()
        ]

    head = ["state", "next command", "what it does"]
    return (
        "# States\n\n"
        "`gossipq why` shows the state of a record or a group, its reason, and the command "
        "that changes it.\n\n"
        "## Of a record in a group\n\n"
        "A record that is `ready` waits for its group: the second table has its next command.\n\n"
        + table(head, rows(next_steps.OF_RECORD))
        + "## Of a group in a partition\n\n"
        + table(head, rows(next_steps.OF_GROUP))
    )


def http_page() -> str:
    rows = [
        [f"`{method.upper()} {where}`", operation["description"]]
        for where, operations in json.loads(openapi.document(OPERATIONS))["paths"].items()
        for method, operation in operations.items()
        if isinstance(operation, dict) and "description" in operation
    ]
    text = (
        "`GET /v1/openapi.json` has them with their fields; `python -m gossipq_gateway.v1.openapi` prints it."
    )
    return f"# HTTP operations\n\n{text}\n\n" + table(["operation", "meaning"], rows)


def excerpts(source: str) -> list[str]:
    """The marked parts of an example, as pages show them."""
    return [textwrap.dedent(lines).rstrip() + "\n" for lines in EXCERPT.findall(source)]


def folded(path: Path) -> str:
    """The whole program of a file, folded."""
    program = textwrap.indent(f"```python\n{path.read_text('utf-8')}```\n", "    ")
    return f'\n??? example "The whole program: {path.name}"\n\n{program}'


@cache
def unshown() -> list[Path]:
    """Examples of which no page shows a part."""
    pages = "".join((HOME / name).read_text("utf-8") for name in sources())
    found = [(path, path.read_text("utf-8")) for path in sorted(EXAMPLES.glob("*.py"))]
    return [path for path, source in found if not any(part in pages for part in (source, *excerpts(source)))]


def with_programs(text: str) -> str:
    """Add whole programs, folded: below the last part that the page shows, and at the end of the page for a
    linked program of which no page shows a part.
    """
    below = dict[str, str]()
    for path in sorted(EXAMPLES.glob("*.py")):
        source = path.read_text("utf-8")
        shown = [part for part in excerpts(source) if f"```python\n{part}```\n" in text]
        if shown:
            last = max(shown, key=lambda part: text.index(f"```python\n{part}```\n"))
            below[last] = folded(path)
    text += "".join(folded(path) for path in unshown() if f"examples/{path.name})" in text)
    return PYTHON.sub(lambda found: found[0] + "\n" + below.get(found[1], ""), text) if below else text


def signature(name: str, found: Callable[..., Any]) -> str:
    """The call with its types, on one line or a line for each argument."""
    whole = inspect.signature(found)
    arguments, keyword = list[str](), False
    for each in whole.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not keyword:
            arguments.append("*")
        keyword |= each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        if each.name != "self":
            arguments.append(MODULE.sub("", QUOTED.sub(r": \1", str(each))))
    result = whole.return_annotation
    result = result if isinstance(result, str) else inspect.formatannotation(result)
    told = "" if whole.return_annotation is whole.empty else " -> " + MODULE.sub("", result)
    line = f"{name}({', '.join(arguments)}){told}"
    return line if len(line) <= 90 else f"{name}(\n    " + ",\n    ".join(arguments) + f",\n){told}"


def described(name: str, found: Any) -> list[str]:
    """A class with its public methods, or a function, with docstrings."""
    text = inspect.cleandoc(found.__doc__ or "")
    if not inspect.isclass(found):
        return [f"## {name}\n", "```python", signature(name, found), "```\n", text, ""]
    lines = [f"## {name}\n", text, ""]
    for verb, method in vars(found).items():
        inner = getattr(method, "__func__", method)
        if not verb.startswith("_") and inspect.isfunction(inner):
            lines += [f"### {name}.{verb}\n", "```python", signature(verb, inner), "```\n"]
            lines += [inspect.cleandoc(inner.__doc__ or ""), ""]
    return lines


def module_page(path: str) -> str:
    """Public classes and functions of a module, with their docstrings."""
    module = importlib.import_module(path)
    lines = [f"# {path.rpartition('.')[2]}\n", inspect.cleandoc(module.__doc__ or ""), ""]
    for name, found in vars(module).items():
        public = not name.startswith("_") and getattr(found, "__module__", "") == path
        if public and (inspect.isclass(found) or inspect.isfunction(found)):
            lines += described(name, found)
    return "\n".join(lines)


def names_page() -> str:
    """Every public name of `gossipq_client`. Classes that have a page of their own are linked."""
    module = importlib.import_module("gossipq_client")
    lines = ["# gossipq_client\n", inspect.cleandoc(module.__doc__ or ""), ""]
    pages = {f"gossipq_client.api.sync.{name}": f"{name}.md" for name in MODULES}
    for name in sorted(module.__all__):
        found = getattr(module, name)
        home = getattr(found, "__module__", "")
        if home in pages:
            lines += [f"## {name}\n", f"See [{name}]({pages[home]}#{name.lower()}).\n"]
        elif home == errors.__name__:
            lines += [f"## {name}\n", "See [Errors](../errors.md).\n"]
        elif callable(found):
            lines += described(name, found)
        else:
            lines += [f"## {name}\n", f"A value: `{found!r}`.\n"]
    return "\n".join(lines)


def answers_page() -> str:
    """Every class of `gossipq.answers`, with its fields as in its source."""
    module = importlib.import_module("gossipq.answers")
    lines = ["# gossipq.answers\n", inspect.cleandoc(module.__doc__ or ""), ""]
    for name in module.__all__:
        found = getattr(module, name)
        fields = FIELDS.search(inspect.getsource(found))
        assert fields is not None, f"{name} has fields"
        lines += [f"## {name}\n", inspect.cleandoc(found.__doc__ or ""), "\n```python"]
        lines += [inspect.cleandoc(f"\n{fields[0]}"), "```\n"]
    return "\n".join(lines)


def made() -> dict[str, str]:
    """Path of each made page -> its text."""
    pages = {
        "reference/commands.md": commands_page(),
        "reference/configuration.md": options_page(),
        "reference/errors.md": errors_page(),
        "reference/alarms.md": alarms_page(),
        "reference/metrics.md": metrics_page(),
        "reference/permissions.md": permissions_page(),
        "reference/states.md": states_page(),
        "reference/http-operations.md": http_page(),
        "reference/python/names.md": names_page(),
        "reference/python/answers.md": answers_page(),
    }
    for name in MODULES:
        pages[f"reference/python/{name}.md"] = module_page(f"gossipq_client.api.sync.{name}")
    for name in ("embedded", "testing", "lake"):
        pages[f"reference/python/{name}.md"] = module_page(f"gossipq_client.{name}")
    return pages


# --- written pages, and the links between them


def sources() -> dict[str, str]:
    """Path of each document in the repository -> its page."""
    kept = {f"docs/reference/{name}.md" for name in KEPT}
    here = {str(path.relative_to(HOME)) for path in (HOME / "docs").rglob("*.md")} - kept
    return {name: name.removeprefix("docs/") for name in sorted(here)} | {
        name: page for name, page in ELSEWHERE.items() if (HOME / name).exists()
    }


def separated(text: str) -> str:
    """Add the empty lines that MkDocs needs before a list or a table that follows a paragraph."""
    lines, fenced, last = list[str](), False, ""
    for line in text.splitlines():
        if FENCE.match(line):
            fenced = not fenced
        starts = (LIST.match(line) and not LIST.match(last) and not last.startswith(" ")) or (
            line.startswith("|") and not last.startswith("|")
        )
        if starts and last and not fenced:
            lines.append("")
        lines.append(line)
        last = line
    return "\n".join(lines) + "\n"


class Site:
    """The pages in a directory. `broken` are links of documents that lead nowhere."""

    def __init__(self, out: Path) -> None:
        self.out, self.broken = out, list[str]()
        self.pages, self.made = sources(), made()

    def write(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        for path, text in self.made.items():
            self._put(path, text)
        shutil.copy(HOME / "docs" / "search-worker.js", self.out)
        for name, page in self.pages.items():
            front = "---\nsearch:\n  exclude: true\n---\n\n" if page in UNSEARCHED else ""
            self._put(page, front + with_programs(separated(self._linked(name, page))))

    def _put(self, path: str, text: str) -> None:
        (self.out / path).parent.mkdir(parents=True, exist_ok=True)
        (self.out / path).write_text(text, "utf-8")

    def _linked(self, name: str, page: str) -> str:
        """The text of a document, with links that work from its page."""

        def linked(found: re.Match[str]) -> str:
            label, target = found[1], found[2]
            path, mark, anchor = target.partition("#")
            if ":" in path or not path:
                return found[0]
            whole = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
            there = self.pages.get(whole) or self._reference(whole)
            if not there and (HOME / whole).is_file():
                there = whole.removeprefix("docs/") if whole.startswith("docs/") else f"files/{whole}"
                (self.out / there).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(HOME / whole, self.out / there)
            elif not there and (HOME / whole).is_dir():
                return label[1:-1]
            elif not there:
                self.broken.append(f"{name}: {target}")
                return found[0]
            return f"{label}({posixpath.relpath(there, posixpath.dirname(page) or '.')}{mark}{anchor})"

        parts = re.split(r"(^```.*?^```)", (HOME / name).read_text("utf-8"), flags=re.M | re.S)
        return "".join(part if part.startswith("```") else LINK.sub(linked, part) for part in parts)

    def _reference(self, whole: str) -> str:
        """The made page that a document links to, or ""."""
        page = whole.removeprefix("docs/")
        return page if whole.startswith("docs/") and page in self.made else ""


def kept() -> dict[Path, str]:
    """File of each made page that is also in the repository -> its text."""
    pages = made()
    return {HOME / "docs" / name: pages[name] for name in (f"reference/{each}.md" for each in KEPT)}


def main(argv: list[str]) -> int:
    if argv == ["--keep"]:
        for path, text in kept().items():
            path.write_text(text, "utf-8")
        return 0
    site = Site(Path(argv[0] if argv else "build/pages"))
    site.write()
    for broken in site.broken:
        print(f"error: no such file: {broken}", file=sys.stderr)
    return 1 if site.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
