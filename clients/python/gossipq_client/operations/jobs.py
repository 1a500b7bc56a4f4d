"""Records as jobs, and their results, as talks."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gossipq.errors import JobFailed, NoReply
from gossipq.messages import AskJob
from gossipq.messages import Job as Answer
from gossipq.times import known_time, unix_ms_of
from gossipq.values import JobInfo
from gossipq_client.operations.questions import Asking, Talk
from gossipq_client.session import Receipt
from gossipq_client.values import Address, inputs, refs, results

WAIT_MS = 20_000  #: for which one request waits at most


@dataclass(frozen=True, slots=True)
class Job:
    """A record as a job: its state in a group.

    `state` is "scheduled", "waiting", "running" or "retrying"; when the job has ended, it is "succeeded",
    "failed", "cancelled" or "expired".
    """

    ref: str
    group: str  #: "" = no group reads its partition yet
    state: str
    because: str  #: one sentence
    consumer: str  #: that runs it, or ended it
    time: datetime | None  #: since when it runs, when it is due, or when it ended
    attempt: int
    failures: int
    error: str  #: of a failed job, as "ValueError: no such order"
    traceback: str  #: of a failed job: its innermost frames
    kept: float  #: seconds for which the result is still kept; 0: there is none
    progress: float | None  #: the last report of the handler, 0 to 1
    text: str  #: reported with it
    reported: datetime | None  #: when
    kind: str  #: of the result: "json", "text", "bytes", or "" = None
    value: bytes  #: the result as it is stored

    @property
    def ended(self) -> bool:
        """True if the job is over: its state does not change any more, unless an operator requeues it."""
        return self.state in ("succeeded", "failed", "cancelled", "expired")

    def result(self, as_type: Any = None) -> Any:
        """Return what the handler returned, as `as_type` if that is given. Raises JobFailed if the job has
        ended without success, and NoReply if it has not ended."""
        if self.state == "succeeded":
            return results.decoded(self.kind, self.value, as_type)
        if not self.ended:
            raise NoReply(f"{self.ref} has not ended: it is {self.state}", hint=f"gossipq why {self.ref}")
        failed = JobFailed(f"{self.ref} has {self._end}: {self.error or self.because}", hint=self._hint)
        failed.job = self
        raise failed

    @property
    def _end(self) -> str:
        return "been cancelled" if self.state == "cancelled" else self.state

    @property
    def _hint(self) -> str:
        return f"gossipq dlq ls {self.ref.partition('/')[0]}" if self.state == "failed" else ""


def job_of(topic: str, info: JobInfo) -> Job:
    """Return an answer as users see it."""
    error, _, traceback = info.because.partition("\n") if info.state == "failed" else ("", "", "")
    return Job(
        ref=refs.text_of(topic, info.ref),
        group=info.group,
        state=info.state,
        because=error or info.because,
        consumer=info.consumer,
        time=known_time(info.time_ms),
        attempt=info.attempt,
        failures=info.failures,
        error=error,
        traceback=traceback,
        kept=info.kept_ms / 1_000,
        progress=None if info.done < 0 else info.done,
        text=info.text,
        reported=known_time(info.progress_ms),
        kind=info.kind,
        value=info.value,
    )


class Jobs:
    """Asks for the state of jobs."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def ask(self, address: Address, group: str, wait_ms: int = 0, seen_ms: int = -1) -> Talk[Job]:
        """Ask for a job. With `wait_ms`, the answer comes when the job has ended, or after this time. With
        `seen_ms`, it also comes when progress was reported since then."""
        found = yield from self._asking.of_record(
            address, lambda ref: AskJob(ref, group, wait_ms, seen_ms), Answer
        )
        return job_of(found.info.name, found.call.answer(Answer).job)


def named_job(job: str | Receipt) -> Address:
    """Return the record that a receipt or a ref names. Raises BadRequest."""
    return refs.parse(job.ref if isinstance(job, Receipt) else job)


def wait_ms_of(left_s: float, timeout_s: float) -> int:
    """Return for how long the next request waits: the client takes a node for unreachable that is silent for
    `timeout_s`."""
    return max(0, int(min(left_s * 1_000, WAIT_MS, timeout_s * 500)))


def reported_ms(job: Job) -> int:
    """Return when the progress was reported that an answer has; 0: none was."""
    return unix_ms_of(job.reported)


def ends_s(timeout: inputs.Duration | None) -> float:
    """Return a time limit in seconds. Raises BadRequest."""
    found = inputs.limit_s(timeout)
    return float("inf") if found is None else found
