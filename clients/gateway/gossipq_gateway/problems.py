"""Errors over HTTP: problem+json (RFC 9457) with a code, a hint and a command.

Only this module maps errors to status codes.
"""

import re

import msgspec
from starlette.responses import Response

from gossipq import errors
from gossipq.errors import GossipqError

MEDIA_TYPE = "application/problem+json"
#: the first matching class decides
_STATUS: tuple[tuple[type[GossipqError], int], ...] = (
    (errors.OffsetOutOfRange, 410),
    (errors.UnknownTopic, 404),
    (errors.UnknownRecord, 404),
    (errors.TopicExists, 409),
    (errors.WrongState, 409),
    (errors.NotUnique, 409),
    (errors.LeaseLost, 409),
    (errors.SchemaMismatch, 422),
    (errors.TooLarge, 413),
    (errors.TopicFull, 507),
    (errors.StoreFull, 507),
    (errors.Forbidden, 403),
    (errors.BadName, 400),
    (errors.BadRequest, 400),
    (errors.Internal, 500),
    (errors.Busy, 503),
    (errors.OutOfSequence, 503),
    (errors.Refused, 422),
    (errors.NotConfirmed, 504),
    (errors.NoReply, 504),
    (errors.JobFailed, 422),
    (errors.NotLeader, 503),
    (errors.Backpressure, 503),
    (errors.Unreachable, 503),
    (errors.ClientClosed, 503),
)
_NEXT = {
    errors.UnknownTopic.code: "gossipq topic ls",
    errors.TopicExists.code: "gossipq topic ls",
    errors.UnknownRecord.code: "gossipq msg find TOPIC",
    errors.WrongState.code: "gossipq why REF",
    errors.NotUnique.code: "gossipq why REF",
    errors.Forbidden.code: "gossipq user whoami",
    errors.Unreachable.code: "gossipq status",
    errors.NoQuorum.code: "gossipq status",
    errors.StoreFull.code: "gossipq status",
    errors.NotConfirmed.code: "gossipq sub TOPIC --from -1m --exit-at-end",
    "unauthorized": "gossipq user rotate NAME",
}
_COMMAND = re.compile(r"`(gossipq [^`]+)`")


class Problem(msgspec.Struct, omit_defaults=True):
    """The body of an error response. `next` is a command to paste."""

    title: str
    status: int
    detail: str
    code: str
    hint: str = ""
    next: str = ""
    retry_after_ms: int = 0
    lost: list[str] = []  #: the lost ones of several leases


class Refusal(GossipqError):
    """An HTTP error with its status."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.status, self.word = status, code


def is_forbidden(error: GossipqError) -> bool:
    """True also if the cluster refused the client of a caller."""
    away = isinstance(error, errors.TurnedAway) and error.why == errors.Forbidden.code
    return away or isinstance(error, errors.Forbidden)


def problem(error: GossipqError, lost: list[str] | None = None) -> Problem:
    if is_forbidden(error):
        error = errors.Forbidden(error.message, error.hint)
    if isinstance(error, Refusal):
        status, code = error.status, error.word
    else:
        code = error.code
        status = next((number for kind, number in _STATUS if isinstance(error, kind)), 500)
    command = _COMMAND.search(error.hint)
    return Problem(
        code.replace("_", " "),
        status,
        error.message or code.replace("_", " "),
        code,
        error.hint,
        command[1] if command else _NEXT.get(code, ""),
        error.retry_after_ms,
        lost or [],
    )


def response(found: Problem) -> Response:
    headers = {}
    if found.status in (503, 507):
        headers["retry-after"] = str(max(1, -(-found.retry_after_ms // 1000)))
    if found.status == 401:
        headers["www-authenticate"] = 'Bearer realm="gossipq"'
    return Response(msgspec.json.encode(found), found.status, headers, MEDIA_TYPE)


def internal() -> Problem:
    """An error of the gateway itself: its log has the details."""
    return Problem(
        "internal", 500, "internal error of the gateway", "internal", "the gateway's log has the details"
    )
