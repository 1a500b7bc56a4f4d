"""The command that changes the state of a record or a group, for each state: `why` ends with it.

A command that only asks is no next step. States of records that are gone have none.
"""

from shlex import quote
from typing import NamedTuple


class NextStep(NamedTuple):
    effect: str  #: for people: what the command does
    command: str  #: with the names of its arguments in braces


_REQUEUE = "gossipq msg requeue {ref} --group {group}"
_CONSUME = "gossipq sub {topic} --group {group}"

#: state of a record in a group, as in `Standing.state`
OF_RECORD = {
    "scheduled": NextStep("makes it ready now", "gossipq msg reschedule {ref} --delay 0s"),
    "in_flight": NextStep(
        "ends the session of its consumer, so that another one gets it", "gossipq client kick {session}"
    ),
    "retrying": NextStep("delivers it now", _REQUEUE),
    "parked": NextStep("delivers it now, before earlier records of its key", _REQUEUE),
    "dead": NextStep(
        "delivers it again, with fresh attempts", "gossipq dlq replay {topic} --group {group} {at}"
    ),
    "acked": NextStep("delivers it again", _REQUEUE),
    "skipped": NextStep("lets the group begin there", "gossipq group seek {topic} {group} --to {offset}"),
    "voided": NextStep("nothing: it is gone, publish it again", ""),
    "removed": NextStep("nothing: it is gone, publish it again", ""),
}

#: state of a group in a partition, and why a ready record is not delivered
OF_GROUP = {
    "paused": NextStep("resumes the delivery", "gossipq group resume {topic} {group}"),
    "no group": NextStep(
        "makes a group that gets all records that the topic has", "gossipq sub {topic} --group NAME"
    ),
    "no consumer": NextStep("starts a consumer", _CONSUME),
    "no credit": NextStep("starts another consumer", _CONSUME),
    "window full": NextStep(
        "lets more records be in flight", "gossipq group set {topic} {group} --in-flight-max {count}"
    ),
    "limited": NextStep(
        "ends the limit that it waits for; the group keeps the others",
        "gossipq group set {topic} {group} --{limit} {off}",
    ),
    "keys blocked": NextStep(
        "lets more records wait behind others of their key",
        "gossipq group set {topic} {group} --parked-max {count}",
    ),
    "unmatched": NextStep("starts a consumer of the route", _CONSUME + " --route {route}"),
    "working": NextStep("starts another consumer", _CONSUME),
    "moving": NextStep("starts another consumer", _CONSUME),
    "idle": NextStep("publishes a record for it", "gossipq pub {topic} VALUE"),
}


def of_record(state: str, **names: object) -> str:
    """Return the command for a record in this state."""
    return _filled(OF_RECORD[state], names)


def of_group(state: str, **names: object) -> str:
    """Return the command for a group in this state."""
    return _filled(OF_GROUP[state], names)


def _filled(step: NextStep, names: dict[str, object]) -> str:
    return step.command.format(**{name: quote(str(value)) for name, value in names.items()})
