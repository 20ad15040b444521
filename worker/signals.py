"""What SIGTERM and Ctrl-C do to a worker: the first stops it in order, the second at once, the third ends it.

Celery's own handling comes to the stages up to seconds after the first, cannot stop their threads at the second, and
breaks off their stop with it. So Celery is only asked to end, and the stages begin to stop at once.
"""

import os
import signal
import threading
from contextlib import suppress
from typing import Final, Protocol

from celery.worker import state

__all__ = ["Signals"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_HURRY: Final = 2
"""Which signal asks for it."""
_HURRY_S: Final = 1.8


class _Stages(Protocol):
    def stop(self) -> None:
        """Stop in order, with a grace for what is under way."""

    def hurry(self) -> None:
        """Cut that grace short."""


class Signals:
    """Counts the signals. All of it runs in the main thread, and only the stages' stop in one of its own."""

    def __init__(self, stages: _Stages) -> None:
        """Take nothing yet."""
        self._stages = stages
        self._count = 0
        self._are_running = False
        self._are_stopping = False
        self._stop: threading.Thread | None = None
        self._last_resort: threading.Timer | None = None

    def take(self) -> None:
        """Take the signals from now on; what comes before ``started`` has its effect then."""
        self._count = int(state.should_stop is not None)  # Celery may have had one
        for number in _SIGNALS:
            signal.signal(number, self._signalled)

    def started(self) -> None:
        """Let signals stop the stages from now on: half-way through its start that would leave some of them running."""
        self._are_running = True
        if self._count:
            self._act()

    def stop(self) -> None:
        """Stop the stages if no signal has, and wait until they have stopped."""
        self._are_stopping = True
        if self._stop is None:
            self._stages.stop()
        else:
            self._stop.join()

    def _signalled(self, *_: object) -> None:
        self._count += 1
        if self._count > _HURRY:
            os._exit(1)
        self._act()

    def _act(self) -> None:
        """Do what so many signals ask for; what they asked for before is under way."""
        state.should_stop = os.EX_OK
        if not self._are_running:
            return
        with suppress(RuntimeError):  # no room for a thread: then Celery comes to `stop`
            if self._stop is None and not self._are_stopping:
                self._begin()
            if self._count == _HURRY and self._last_resort is None:
                self._hurry()

    def _begin(self) -> None:
        # Not a daemon: whatever becomes of Celery, the process lives until its work is given back.
        thread = threading.Thread(target=self._stages.stop, name="tracejudge-stop")
        thread.start()
        self._stop = thread

    def _hurry(self) -> None:
        self._stages.hurry()
        # Leases are given back within moments; an exporter may hang on its receiver, and the outbox keeps what it has.
        self._last_resort = threading.Timer(_HURRY_S, os._exit, (1,))
        self._last_resort.daemon = True
        self._last_resort.start()
