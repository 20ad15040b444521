"""Ctrl-C, SIGTERM and a closed terminal: the demo ends in order, once, and leaves nothing running."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

__all__ = ["ending_on_signals", "no_more_signals"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STATUS_OF_SIGNALS: Final = 128


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """Let a signal leave the block, with the exit code that shells give it: 130 for Ctrl-C."""
    former = [(number, signal.signal(number, _end)) for number in _SIGNALS]
    try:
        yield
    finally:
        for number, handler in former:
            signal.signal(number, handler)


def no_more_signals() -> None:
    """Ignore signals from here on: what tidies up takes some seconds at most, and must not stop half-way."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end(number: int, _: FrameType | None) -> NoReturn:
    no_more_signals()
    # Not KeyboardInterrupt: click makes an "Aborted!" and exit code 1 of it.
    raise SystemExit(_STATUS_OF_SIGNALS + number)
