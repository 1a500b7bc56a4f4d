# Made by clients/python/make_twins.py from api/aio/farewell.py: change that, then run it.
"""The end of a client: what it owes is sent before its session ends. A closed client can connect again."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gossipq.errors import ClientClosed, GossipqError

if TYPE_CHECKING:
    from gossipq_client.api.sync.driver import Driver


def flush(driver: "Driver", seconds: float | None) -> None:
    """Wait until every publish up to now is confirmed and every ack is stored, as `Facade.flush` says."""
    driver.let_others()
    driver.posts_sent(seconds)
    _settle(driver, driver.step(driver.engine.session.mark), seconds)


def _settle(driver: "Driver", settled: Callable[[], bool], seconds: float | None) -> None:
    if not driver.until(settled, seconds):
        raise driver.engine.lost()
    failure = driver.unsent_error() or driver.engine.session.failure()
    if failure is not None:
        raise failure


def close(driver: "Driver", seconds: float) -> None:
    """Flush for this time at most, give back the records that fetches took ahead, and end the session. Raises
    the errors of `flush`."""
    driver.over = True
    engine = driver.made
    if engine is None:
        driver.asked.release()
        return
    if engine.forked or engine.ended:
        return
    try:
        if driver.put_off(seconds):
            return
        if seconds:
            for fetcher in list(engine.parts.get("fetchers", {}).values()):
                driver.step(engine.session.consuming.close, fetcher.state)
            driver.exchange()
            driver.posts_sent(seconds)
            _settle(driver, driver.step(engine.take_leave), seconds)
        driver.shut()
    except ClientClosed:  # by somebody else meanwhile
        driver.shut()
        if driver.unconfirmed():
            raise engine.lost() from None
    except GossipqError:
        driver.shut()
        raise
    except BaseException:  # an interrupt: it can be closed again, and is at the end of the program
        if driver.kept:  # others may go on with that
            driver.shut()
        raise


def reopen(driver: "Driver") -> None:
    """Let a closed client connect again. The rest of its earlier life fails: receipts without a confirm, held
    records, loops."""
    engine = driver.made
    if not (driver.over and driver.asked.can_reopen) or (engine is not None and not engine.ended):
        return
    if engine is not None:
        engine.session.publishing.give_up(engine.lost())
        engine.session.consuming.abandon(ClientClosed("this client was closed, and connected anew"))
        driver.drop()
    driver.reset()
    driver.over = False
