"""The call of a handler: what counts as its end, and how it fails."""

import inspect
from functools import cache
from typing import Any

from gossipq_client.handlers.registry import Handler

CANCELLED = "the handler was cancelled"


def called(handler: Handler, arguments: list[Any]) -> Any:
    """Calls the handler and returns its direct result; see `whole`. A StopIteration or
    CancelledError from the handler becomes a RuntimeError, as in Python's coroutines: loops and
    tasks would not take these two for failures.
    """
    try:
        return handler.function(*arguments)
    except StopIteration as error:
        raise RuntimeError("the handler raised StopIteration") from error
    except Exception:
        raise
    except BaseException as error:
        from asyncio import CancelledError  # programs without async handlers do not import asyncio

        if isinstance(error, CancelledError):
            raise RuntimeError(CANCELLED) from error
        raise


def goes_on(result: Any) -> bool:
    """True if a handler's work continues after it returned this; see `awaited`."""
    return result is not None and (inspect.isawaitable(result) or isinstance(result, _future()))


@cache
def _future() -> type:
    """Looked up once, not for each record."""
    from concurrent.futures import Future  # programs without handlers do not import it

    return Future


async def awaited(result: Any) -> Any:
    """The final result of an awaitable or of a pool's Future, however deeply nested. A function
    around an `async def` handler returns its coroutine, which has done nothing yet.
    """
    from asyncio import wrap_future

    while goes_on(result):
        result = await (result if inspect.isawaitable(result) else wrap_future(result))
    return result


def whole(result: Any) -> Any:
    """The result of a handler that has ended. Raises TypeError for a generator, because
    none of its code has run.
    """
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(f"the handler returned a generator ({result.__qualname__}), which nobody runs")
    return result
