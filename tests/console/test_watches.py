"""The gateway's watches for signed-in users: how many at once, and for how long."""

import asyncio
from typing import Any

import pytest

from gossipq.clock import SystemClock
from gossipq.errors import Forbidden, GossipqError, TurnedAway
from gossipq_cli.means import means
from gossipq_client import Client
from gossipq_gateway.console import watches
from gossipq_gateway.console.watches import Watches
from gossipq_ops.rows import Snapshot


class Gathering:
    """Finds at once that there is nothing."""

    error: Exception | None = None

    def __init__(self, *told: Any) -> None: ...

    def __enter__(self) -> "Gathering":
        return self

    def __exit__(self, *told: object) -> None: ...

    def next(self) -> Snapshot:
        return Snapshot(time_ms=SystemClock().now().wall_ms)


class Raw:
    @staticmethod
    def whoami() -> Any:
        class Said:
            closed, user = False, "ada"

        return Said


class Admin:
    raw = Raw


class Connected:
    admin = Admin

    def close(self) -> None: ...


def connect(endpoint: str, token: bytes | None) -> Client:
    return Connected()  # type: ignore[return-value]


def test_who_made_room_for_others_is_not_looked_for_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if its page is still open: that asks for a new one."""
    monkeypatch.setattr(watches, "Gathering", Gathering)
    monkeypatch.setattr(watches, "WATCHES_MAX", 1)

    async def scene() -> None:
        known = Watches(connect, "here", means, SystemClock())
        first = await known.of(b"1")
        second = await known.of(b"2")
        assert (first.closed, second.closed) == (True, False)
        first.touch()  # by a page that has not ended yet
        assert first._task is not None
        assert first._task.done()
        again = await known.of(b"1")
        assert again is not first
        await known.close()
        assert second.closed

    asyncio.run(scene())


@pytest.mark.parametrize("kind", [Forbidden, TurnedAway])
def test_who_is_refused_meanwhile_does_not_see_the_last_snapshot(
    monkeypatch: pytest.MonkeyPatch, kind: type[GossipqError]
) -> None:
    """However many pages are open: they end, and the next request asks who that is."""
    monkeypatch.setattr(watches, "Gathering", Gathering)

    error = kind("no user has the token that was shown")
    if isinstance(error, TurnedAway):
        error.why = Forbidden.code

    async def scene() -> None:
        known = Watches(connect, "here", means, SystemClock())
        first = await known.of(b"1")
        assert first.history.count
        with monkeypatch.context() as patch:
            patch.setattr(Gathering, "error", error)
            while not first.closed:
                first.touch()  # by a page that stays open
                await asyncio.sleep(0)
            patch.setattr(Raw, "whoami", staticmethod(refuse))
            with pytest.raises(kind):
                await known.of(b"1")
            assert first._task is not None
            assert first._task.done()
        again = await known.of(b"1")
        assert again is not first
        await known.close()

    def refuse() -> Any:
        raise error

    asyncio.run(scene())
