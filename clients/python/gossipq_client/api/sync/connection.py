# Made by clients/python/make_twins.py from api/aio/connection.py: change that, then run it.
"""Requests to nodes, their answers, and the clean end of a client, over a driver."""

from collections.abc import Callable
from types import TracebackType

from gossipq.errors import ClientClosed, GossipqError
from gossipq.types import ShardId
from gossipq.values import Message as Request
from gossipq_client.api.sync.driver import Driver
from gossipq_client.io import CLOSE_SECONDS, ERROR_CLOSE_SECONDS, forked, log
from gossipq_client.operations import Result, Talk, go_on
from gossipq_client.session import Answer, Call
from gossipq_client.values import inputs


class Connection(Driver):
    """The part of a client that asks, flushes and closes."""

    def _require(self, ready: Callable[[], bool], timeout: float) -> None:
        if not self._until(ready, timeout):
            raise self._engine.unreachable()

    def _answered(self, call: Call, timeout: float) -> None:
        try:
            self._require(lambda: call.done or self._engine.in_vain(call), timeout)
            if not call.done:
                raise self._engine.unreachable()
        except BaseException:
            self._engine.session.calls.cancel(call)
            raise

    def _ask(self, request: Request, shard: ShardId, kind: type[Answer]) -> Answer:
        call = self._do(self._engine.session.calls.ask, request, shard)
        self._answered(call, self._timeout)
        return call.answer(kind)

    def _talk(self, talk: Talk[Result]) -> Result:
        """Waits for each call of a talk, until its end."""
        while True:
            step, end = self._do(go_on, talk)
            if step is None:
                return end  # type: ignore[return-value]
            if isinstance(step, Call):
                self._answered(step, self._timeout)
            else:
                self._await_flights([step], self._timeout)

    # --- farewell

    _can_reopen = True

    def _in_child(self) -> None:
        """A forked child that uses this client connects anew. Records in flight, loops and receipts stay with
        the parent. A spool and an embedded node belong to the parent, so their clients refuse to work.
        """
        super()._in_child()
        engine = self.__dict__.get("_engine")
        if engine is None or self._kept or self._key or not self._can_reopen:
            return
        try:
            engine.session.consuming.disown(forked())
        except Exception:  # another thread of the parent was amid a step: the client refuses to work
            return
        self.__dict__.pop("_engine", None)
        self._reset()

    def _reopen(self) -> None:
        """Lets a closed client connect again. The rest of its earlier life fails: receipts without
        a confirm, held records, loops.
        """
        engine = self.__dict__.get("_engine")
        if not (self._over and self._can_reopen) or (engine is not None and not engine.ended):
            return
        if engine is not None:
            engine.session.publishing.give_up(engine.lost())
            engine.session.consuming.abandon(ClientClosed("this client was closed, and connected anew"))
            self.__dict__.pop("_engine", None)
        self._reset()
        self._over = False

    def flush(self, timeout: inputs.Duration | None = None) -> None:
        """Waits until every publish up to now is confirmed and every ack is stored. Publishes and
        acks that others make meanwhile are not waited for.

        Raises NotConfirmed when `timeout` (seconds, or "5s") is over, the error of a failed publish
        whose receipt was never looked at, and LeaseLost when acks came too late since the last
        flush: `error.refs` names the records. The log reports the acks of handlers.
        """
        seconds = inputs.limit_s(timeout)
        self._let_others()
        self._posts_sent(seconds)
        self._flush(self._do(self._engine.session.mark), seconds)

    def _flush(self, settled: Callable[[], bool], seconds: float | None) -> None:
        if not self._until(settled, seconds):
            raise self._engine.lost()
        failure = self._unsent_error() or self._engine.session.failure()
        if failure is not None:
            raise failure

    def close(self, flush: bool = True) -> None:
        """Ends the session; records that the user holds are given back without counting a
        failure. Before that it calls `flush`, for half a minute at most, and raises its error
        once the client is closed.

        In a signal handler that interrupts the sync client at work it returns at once, and the
        client is closed right afterwards.
        """
        self._close(CLOSE_SECONDS if flush else 0.0)

    def _before_flush(self) -> None:
        """Gives records back before the last flush."""

    def _close(self, seconds: float) -> None:
        self._over = True
        if "_engine" not in self.__dict__:
            self._let_go()
            return
        if self._engine.forked or self._engine.ended:
            return
        try:
            if self._put_off(seconds):
                return
            if seconds:
                self._before_flush()
                self._posts_sent(seconds)
                self._flush(self._do(self._engine.take_leave), seconds)
            self._shut()
        except ClientClosed:  # by somebody else meanwhile
            self._shut()
            if self._unconfirmed():
                raise self._engine.lost() from None
        except GossipqError:
            self._shut()
            raise
        except BaseException:  # an interrupt: it can be closed again, and is at the end of the program
            if self._kept:  # others may go on with that
                self._shut()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            self._close(ERROR_CLOSE_SECONDS)
        except GossipqError as lost:
            log.error("while closing: %s", lost)
