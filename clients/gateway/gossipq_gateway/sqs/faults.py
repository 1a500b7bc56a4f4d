"""Errors in the form of SQS."""

from gossipq import errors
from gossipq.errors import GossipqError
from gossipq_gateway.problems import is_forbidden


class SqsFault(Exception):
    """`kind` is the error in the JSON protocol, `code` its name in the older query protocol.

    Client libraries still compare the code.
    """

    def __init__(self, kind: str, message: str, code: str = "", status: int = 400) -> None:
        super().__init__(message)
        self.kind, self.message, self.code, self.status = kind, message, code or kind, status


def no_queue(name: str) -> SqsFault:
    return SqsFault(
        "QueueDoesNotExist",
        f"The specified queue does not exist: {name}.",
        "AWS.SimpleQueueService.NonExistentQueue",
    )


def bad_value(message: str) -> SqsFault:
    return SqsFault("InvalidParameterValue", message)


def bad_attribute(name: str, value: object) -> SqsFault:
    return SqsFault("InvalidAttributeValue", f"Invalid value for the parameter {name}: {value!r}.")


def unsigned(message: str, code: str = "SignatureDoesNotMatch") -> SqsFault:
    return SqsFault(code, message, status=403)


def bad_handle(handle: str, why: str = "it is none of this gateway") -> SqsFault:
    return SqsFault("ReceiptHandleIsInvalid", f"The input receipt handle is invalid: {why}: {handle[:200]}.")


def fault_of(error: GossipqError) -> SqsFault:
    """Convert a refusal of the cluster."""
    if isinstance(error, errors.UnknownTopic):
        return no_queue(error.message)
    if is_forbidden(error):
        return SqsFault("AccessDenied", error.message, status=403)
    if isinstance(error, errors.Refused) and not error.retryable:
        return bad_value(error.message)
    if isinstance(error, errors.Busy | errors.Backpressure | errors.TopicFull):
        return SqsFault("RequestThrottled", error.message, "RequestThrottled", 503)
    return SqsFault("ServiceUnavailable", error.message, "ServiceUnavailable", 503)
