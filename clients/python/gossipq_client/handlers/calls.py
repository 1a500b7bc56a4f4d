"""The call of a handler: what counts as its end, and how it fails."""

import inspect
from functools import cache
from typing import Any

from gossipq_client.handlers.registry import Handler

CANCELLED = "the handler was cancelled"


def called(handler: Handler, arguments: list[Any]) -> Any:
    """What the function returns at once; see `whole`. A StopIteration or CancelledError that it raises
    becomes a RuntimeError, as Python itself does in a coroutine: loops and tasks take both for something
    else than a failure."""
    try:
        return handler.function(*arguments)
    except StopIteration as error:
        raise RuntimeError("the handler raised StopIteration") from error
    except Exception:
        raise
    except BaseException as error:
        from asyncio import CancelledError  # who has no async handlers does without asyncio until here

        if isinstance(error, CancelledError):
            raise RuntimeError(CANCELLED) from error
        raise


def goes_on(result: Any) -> bool:
    """Whether the work of a handler is not done when it returns this: see `awaited`."""
    return result is not None and (inspect.isawaitable(result) or isinstance(result, _future()))


@cache
def _future() -> type:
    """Looked up once, not for each record."""
    from concurrent.futures import Future  # who has no handlers does without

    return Future


async def awaited(result: Any) -> Any:
    """The outcome of what can be awaited, and of the Future of a pool, however deep: a function around an
    `async def` handler returns its coroutine, which has done nothing yet."""
    from asyncio import wrap_future

    while goes_on(result):
        result = await (result if inspect.isawaitable(result) else wrap_future(result))
    return result


def whole(result: Any) -> Any:
    """The result of a handler that is through. Raises TypeError for a generator: nothing of its work is
    done."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(f"the handler returned a generator ({result.__qualname__}), which nobody runs")
    return result
