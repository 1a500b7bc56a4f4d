"""How long who publishes waits while the window is full."""

from gossipq_client.session.packer import Writer
from gossipq_client.session.sender import Sending
from gossipq_client.values import WHILE_CONFIRMED


class Patience:
    def __init__(
        self, publishing: Sending, writer: Writer, wait_s: float | None, timeout_s: float, now_ms: int
    ) -> None:
        """Of a publish that meets a full window now: it waits `wait_s`, None = for ever; where nobody bounded
        it, until nothing has been confirmed for `timeout_s`."""
        self._publishing, self._writer, self._begun_ms = publishing, writer, now_ms
        self._wait_s = timeout_s if wait_s == WHILE_CONFIRMED else wait_s
        self.silent_s = timeout_s if wait_s == WHILE_CONFIRMED else 0.0  #: without a confirm, when it is over

    def left_s(self, now_ms: int) -> float | None:
        """None = for ever; 0 or less: it is over."""
        if self._wait_s is None:
            return None
        freed_ms = self._publishing.freed_ms(self._writer) if self.silent_s else 0
        return self._wait_s - (now_ms - max(self._begun_ms, freed_ms)) / 1000
