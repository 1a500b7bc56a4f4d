"""The call of a handler: what counts as its end, and how it fails."""

import inspect
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


async def awaited(result: Any) -> Any:
    """The outcome of what can be awaited, however deep: a function around an `async def` handler returns its
    coroutine, which has done nothing yet."""
    while inspect.isawaitable(result):
        result = await result
    return result


def whole(result: Any) -> Any:
    """The result of a handler that is through. Raises TypeError for a generator: nothing of its work is
    done."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(f"the handler returned a generator ({result.__qualname__}), which nobody runs")
    return result
