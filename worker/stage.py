"""A thread that does one thing over and over, survives a Redis that is away, and can be asked how it fares."""

import random
import threading
import time
from abc import ABC, abstractmethod
from typing import Final

import structlog

from worker.logs import where
from worker.readiness import Pulse
from worker.store import StoreError

__all__ = ["Stage"]

log = structlog.get_logger("tracejudge.stage")

_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0


class Stage(ABC):
    """One stage's thread. Subclasses say what to prepare and what one turn is.

    A turn must end within about a second: it is what stopping waits for, and what ``progressed_at`` tells of.
    """

    role: str

    def __init__(self, name: str) -> None:
        """Make the thread; ``start`` begins."""
        self.stopping = threading.Event()
        self.progressed_at = time.monotonic()
        self.name = name
        self._begun = False
        self._trouble: str | None = None
        self._troubled_at = 0.0
        self._backoff_s = _FIRST_BACKOFF_S
        self._thread = threading.Thread(target=self._run, name=f"tracejudge-{name}", daemon=True)

    @property
    def pulse(self) -> Pulse:
        """How it fares; any thread may ask."""
        dead = self._thread.ident is not None and not self._thread.is_alive() and not self.stopping.is_set()
        return Pulse(self.progressed_at, self._begun, dead, self._trouble, self._troubled_at)

    @abstractmethod
    def prepare(self) -> None:
        """Do what turns rely on: before the first, and again after Redis was away; called until it succeeds."""

    @abstractmethod
    def turn(self) -> None:
        """Do one piece of work."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end and wait for it; True when it did."""
        self.stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def held_up(self, trouble: str) -> None:
        """Say what this turn waits for, in words that a probe may show; forgotten when a turn ends."""
        if self._trouble is None:
            self._troubled_at = time.monotonic()
        self._trouble = trouble

    def stumbled(self, error: Exception) -> None:
        """Say that something is away, and wait a little longer each time, with jitter."""
        self.held_up(str(error))
        log.warning("waiting", stage=self.name, error=str(error), seconds=round(self._backoff_s, 2))
        self.stopping.wait(self._backoff_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
        self._backoff_s = min(_MAX_BACKOFF_S, self._backoff_s * 2)

    def _run(self) -> None:
        prepared = False
        while not self.stopping.is_set():
            try:
                if not prepared:
                    self.prepare()
                    prepared = True
                self.turn()
            except StoreError as error:
                # Redis may come back without what was prepared in it.
                prepared = False
                self.stumbled(error)
            except Exception as error:  # noqa: BLE001 - a stage that ends silently is the worst of all failures
                # Only the type: the text of an unforeseen error may quote a trace.
                log.error("unforeseen error", stage=self.name, error=type(error).__name__, where=where(error))  # noqa: TRY400
                self.stumbled(RuntimeError(type(error).__name__))
            else:
                self.progressed_at = time.monotonic()
                self._begun, self._trouble = True, None
                self._backoff_s = _FIRST_BACKOFF_S
