"""Options that are described once, in a TypedDict, and shown at every function that takes them.
help() and editors show each option as a keyword with its description.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def shows(checker: Callable[..., Any], *described: type) -> Callable[[Function], Function]:
    """For a function with `**options`: adds the keys of these TypedDicts to its signature, with the
    types and defaults of `checker`, and their descriptions to its docstring.
    """
    names = {name for options in described for name in options.__annotations__}
    found = inspect.signature(checker).parameters
    keywords = [found[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in found if name in names]
    texts = [inspect.cleandoc(options.__doc__ or "") for options in described]

    def show(function: Function) -> Function:
        own = inspect.signature(function)
        kept = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        taken = {each.name for each in kept}
        added = [each for each in keywords if each.name not in taken]
        function.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        function.__doc__ = "\n\n".join([inspect.cleandoc(function.__doc__ or ""), *texts])
        return function

    return show
