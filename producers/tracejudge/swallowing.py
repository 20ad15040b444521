"""Where the exceptions end that must not reach the host.

A fire-and-forget SDK hides its own faults well. So everything it swallows passes here, where tests look on.
"""

from collections.abc import Callable

observer: Callable[[BaseException], None] | None = None
"""Sees every swallowed exception; unset in production."""


def swallow(error: BaseException) -> None:
    """End an exception here, which must be counted or logged by who calls."""
    if observer is not None:
        observer(error)
