"""Work that must not hold the event loop, in a thread where it may take long."""

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

__all__ = ["LARGE_CHARS", "apart"]

P = ParamSpec("P")
Result = TypeVar("Result")

LARGE_CHARS: Final = 200_000
"""More than that may take long to look through."""


async def apart(
    is_large: bool,  # noqa: FBT001 - stands before the call it decides about
    function: Callable[P, Result],
    *arguments: P.args,
    **keywords: P.kwargs,
) -> Result:
    """Call a function, in a thread where it may take long: seconds of counting must not stop the event loop."""
    if is_large:
        return await asyncio.to_thread(function, *arguments, **keywords)
    return function(*arguments, **keywords)
