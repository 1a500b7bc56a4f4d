"""The options that a publish gives to a record, each declared once.

A row says what the option takes, its bounds and what it means. The checks of the client, the options of
`gossipq pub` and the fields of its JSON lines follow from this table. Tests compare it with the docstring of
`publish`, the fields of the HTTP API and their reference.
"""

from typing import Literal, NamedTuple

from gossipq import limits

OptionKind = Literal["choice", "duration", "moment", "text", "until", "whole"]
BACKOFF_MS_MAX = 2**32 - 1  #: a column of 4 bytes


class RecordOption(NamedTuple):
    """`low` and `high` are the bounds of a whole number, or of a duration in milliseconds."""

    name: str
    kind: OptionKind
    help: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    plural: str = ""  #: the option of a list that has one for each record
    placeholder: str = ""  #: in help


AT_HELP = "due time: consumers get it then, 2026-11-21T09:00Z, or 2026-11-21 09:00 of this machine"
CONFLICT_HELP = "another record has the unique name: keep that one (default), replace it by this one, or fail"
LEVEL_HELP = "stored: wait until it is on disk. none: do not wait. Default: the topic's"
PRIORITY_HELP = (
    f"priority, 0 to {limits.PRIORITY_MAX}: the higher one comes first. Default: {limits.PRIORITY}"
)
ID_HELP = "deduplication id: publishing the same id again stores nothing"
UNIQUE_HELP = "unique name: one record has it at a time, until it is done"
UNTIL_HELP = "time for which the name is taken. Default: acked by every group"
TTL_HELP = "time to live: it expires this long after it is due"
LEASE_HELP = "lease: it is redelivered after this silence of its consumer"
FLOW_HELP = "flow, such as a customer: groups of order fair serve flows in turn"
ROUTE_HELP = "route: dotted words that consumers filter by, as eu.fr"
KEEP_RESULT_HELP = "how long its result is kept: `gossipq job wait REF`"

#: in the order in which help shows them
RECORD_OPTIONS = (
    RecordOption("level", "choice", LEVEL_HELP, choices=("stored", "none")),
    RecordOption(
        "delay", "duration", "delay until consumers get it", 0, limits.DELAY_MS_MAX, plural="delays"
    ),
    RecordOption("at", "moment", AT_HELP),
    RecordOption("ttl", "duration", TTL_HELP, 1, limits.DELAY_MS_MAX),
    RecordOption("id", "text", ID_HELP, plural="ids", placeholder="ID"),
    RecordOption("unique", "text", UNIQUE_HELP, plural="uniques", placeholder="NAME"),
    RecordOption("until", "until", UNTIL_HELP, 1, limits.DELAY_MS_MAX),
    RecordOption("conflict", "choice", CONFLICT_HELP, choices=("keep", "replace", "error")),
    RecordOption("route", "text", ROUTE_HELP),
    RecordOption("lease", "duration", LEASE_HELP, 1, limits.LEASE_TOTAL_MS_MAX),
    RecordOption(
        "attempts_max", "whole", "failures after which it is a dead letter", 1, limits.ATTEMPTS_HARD_MAX
    ),
    RecordOption("backoff", "duration", "pause after each of its failures", 1, BACKOFF_MS_MAX),
    RecordOption("flow", "text", FLOW_HELP, plural="flows"),
    RecordOption("priority", "whole", PRIORITY_HELP, 0, limits.PRIORITY_MAX, plural="priorities"),
    RecordOption("keep_result", "duration", KEEP_RESULT_HELP, 1, limits.RESULT_KEPT_MS_MAX),
)
BOUNDS = {each.name: (each.low, each.high) for each in RECORD_OPTIONS}
CHOICES = {each.name: each.choices for each in RECORD_OPTIONS}
