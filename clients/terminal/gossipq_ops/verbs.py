"""The verbs that users can execute on rows of a dashboard: one table for all dashboards. Pure.

A verb belongs to one kind of row. Before it is executed, the user reads what it would do, from the
cluster's answer (`actions`), or the question in this table.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gossipq.permissions import CLUSTER, MEND, OBSERVE, OPERATE, PUBLISH
from gossipq_ops.questions import Act, Subject

NAMES = {  #: the names of a row of each kind
    "record": ("ref",),
    "topic": ("topic",),
    "partition": ("topic", "number"),
    "group": ("topic", "group"),
    "dead": ("topic", "group", "reason", "error"),  #: those with the same reason
    "job": ("ref", "group"),
    "error": ("topic", "group", "error"),  #: failed jobs with the same error, by its name
    "schedule": ("topic", "name"),
    "client": ("session",),  #: beginning of its id
    "node": ("node",),
}


class Verb(NamedTuple):
    name: str
    key: str  #: its letter in the menu
    what: str  #: its effect in one line
    #: the equivalent command; {0}, {1} ... are names of the row, {text} is the typed text
    command: str
    asks: str = ""  #: the text that must be typed first; "" = none
    text: str = ""  #: preset of that text
    question: str = ""  #: fixed question; "" = the cluster is asked what the verb would do
    shows: bool = False  #: True if it only shows a result
    needs: str = MEND  #: permission on the topic; for a node or client, on the cluster
    undo: str = ""  #: the verb of the same row that takes it back


REPLAY = "redeliver its dead letters, with fresh attempt counters"
PURGE = "remove its dead letters for good"
ERRORS = "gossipq job errors {0}/{1}"
PLAN = "show which shards the cluster will move, by itself, and where to"

VERBS: Mapping[str, Sequence[Verb]] = {
    "record": (
        Verb(
            "requeue",
            "r",
            "redeliver it to a group",
            "gossipq msg requeue {0} -g {text}",
            "replay for which group:",
            question="redeliver {0} to {text}?",
        ),
        Verb(
            "edit",
            "e",
            "replace its value",
            "gossipq msg edit {0} VALUE",
            "new value:",
            question="replace {0} by {text!r}?",
        ),
        Verb(
            "reschedule",
            "d",
            "change its due time",
            "gossipq msg reschedule {0} --delay {text}",
            "due in (0s, 5m, 1h30m):",
            question="make {0} due in {text}?",
        ),
        Verb(
            "cancel",
            "c",
            "cancel it for every group",
            "gossipq msg cancel {0}",
            question="cancel {0} for every group?",
        ),
        Verb(
            "rm",
            "x",
            "remove it for every group",
            "gossipq msg rm {0}",
            question="remove {0} for every group?",
        ),
    ),
    "group": (
        Verb("replay", "r", REPLAY, "gossipq dlq replay {0} -g {1}"),
        Verb("purge", "x", PURGE, "gossipq dlq purge {0} -g {1}"),
        Verb(
            "pause",
            "p",
            "pause delivery until it is resumed",
            "gossipq group pause {0} {1}",
            needs=OPERATE,
            undo="resume",
        ),
        Verb("resume", "u", "resume delivery", "gossipq group resume {0} {1}", needs=OPERATE, undo="pause"),
        Verb(
            "seek",
            "s",
            "move it to another position",
            "gossipq group seek {0} {1} --to {text}",
            "move to (first, new, an offset, -10m, a time):",
            needs=OPERATE,
        ),
    ),
    "dead": (
        Verb("replay", "r", "redeliver these, with fresh attempt counters", "gossipq dlq ls {0} -g {1}"),
        Verb("purge", "x", "remove these for good", "gossipq dlq ls {0} -g {1}"),
    ),
    "job": (
        Verb(
            "retry",
            "r",
            "redeliver it now, without waiting for its next attempt",
            "gossipq msg requeue {0} -g {1}",
            question="redeliver {0} to {1} now?",
        ),
        Verb(
            "cancel",
            "c",
            "cancel it; its handler is told if it runs",
            "gossipq job cancel {0}",
            question="cancel {0} for every group, also if it runs?",
        ),
    ),
    "error": (
        Verb(
            "replay",
            "r",
            "redeliver exactly these jobs, with fresh attempt counters",
            ERRORS + " --replay {2}",
        ),
    ),
    "schedule": (
        Verb(
            "run-now",
            "n",
            "store its record now, besides its ticks",
            "gossipq schedule run-now {0} {1}",
            question="store a record of {1} in {0} now?",
            needs=PUBLISH,
        ),
        Verb(
            "pause",
            "p",
            "stop its ticks until it is resumed",
            "gossipq schedule pause {0} {1}",
            question="pause schedule {1} of {0}?",
            needs=PUBLISH,
            undo="resume",
        ),
        Verb(
            "resume",
            "u",
            "go on with its next tick",
            "gossipq schedule resume {0} {1}",
            question="resume schedule {1} of {0}?",
            needs=PUBLISH,
            undo="pause",
        ),
        Verb(
            "remove",
            "x",
            "remove it; its records stay",
            "gossipq schedule remove {0} {1}",
            question="remove schedule {1} of {0}?",
            needs=PUBLISH,
        ),
    ),
    "topic": (
        Verb("purge", "x", "remove all records that it has now", "gossipq topic purge {0}", needs=OPERATE),
    ),
    "partition": (
        Verb(
            "purge",
            "x",
            "remove all records that it has now",
            "gossipq topic purge {0} -p {1}",
            needs=OPERATE,
        ),
    ),
    "client": (
        Verb(
            "kick",
            "k",
            "end its session: its unacked records are redelivered",
            "gossipq client kick {0} --for {text}",
            "it may not reconnect for (30s, 10m):",
            "30s",
            needs=OPERATE,
        ),
    ),
    "node": (
        Verb(
            "drain",
            "d",
            "move everything away from it",
            "gossipq cluster drain {0}",
            needs=CLUSTER,
            undo="undrain",
        ),
        Verb(
            "undrain",
            "u",
            "cancel its drain",
            "gossipq cluster drain {0} --undo",
            needs=CLUSTER,
            undo="drain",
        ),
        Verb("rebalance", "b", PLAN, "gossipq cluster rebalance --plan", shows=True, needs=OBSERVE),
    ),
}


def verbs_of(subject: Subject) -> Sequence[Verb]:
    return VERBS.get(subject.kind, ())


def verb_of(act: Act) -> Verb:
    """Return the verb of an act. Raises KeyError."""
    for verb in verbs_of(act.subject):
        if verb.name == act.verb:
            return verb
    raise KeyError(f"{act.verb} of {act.subject.kind}")


def command_of(verb: Verb, subject: Subject, text: str = "") -> str:
    """Return the equivalent command."""
    return verb.command.format(*subject.names, text=text or "...")


def undo_of(act: Act) -> Act | None:
    """Return the act that takes this one back; None if there is none."""
    undo = verb_of(act).undo
    return Act(undo, act.subject) if undo else None


def undo_if(changed: bool, verb: str, kind: str, *names: str) -> Act | None:
    """Return the act that takes a verb back; None if the verb changed nothing."""
    return undo_of(Act(verb, Subject(kind, names))) if changed else None


def seek_back(topic: str, group: str, before: Sequence[int]) -> Act | None:
    """Return the seek that leads a group back to the offset that it had.

    `before` has an offset for each partition. A seek names one place for all of them, so there is no way
    back for a group of several partitions.
    """
    return Act("seek", Subject("group", (topic, group)), str(before[0])) if len(before) == 1 else None


def undo_command(undo: Act | None) -> str:
    return command_of(verb_of(undo), undo.subject, undo.text) if undo else ""


def with_undo(text: str, undo: Act | None) -> str:
    """Return what an act did, and the command that takes it back."""
    return f"{text}; undo: {undo_command(undo)}" if undo else text


def question_of(act: Act) -> str:
    """Return the question before execution; "" if the cluster must be asked."""
    return verb_of(act).question.format(*act.subject.names, text=act.text)


def name_of(subject: Subject) -> str:
    """Return the name of a row, for people."""
    names = subject.names
    if subject.kind == "group":
        return f"{names[1]} on {names[0]}"
    if subject.kind == "dead":
        return f"dead letters of {names[1]} on {names[0]}: {names[3] or names[2]}"
    if subject.kind == "error":
        return f"error {names[2]} of {names[1]} on {names[0]}"
    if subject.kind == "schedule":
        return f"schedule {names[1]} of {names[0]}"
    if subject.kind == "partition":
        return "/".join(names)
    return f"{subject.kind} {names[0]}" if subject.kind in ("node", "client") else names[0]
