"""Ask a judge offline. What may pass is tried again by the model, at the pace that its endpoint bears."""

import asyncio
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from judges.evaluate import evaluate
from judges.judge import Judge
from judges.models.model import ChatModel, ModelError, Price
from judges.verdict import Assessment
from tracejudge import Trace
from worker.limits.retries import may_pass
from worker.redaction import Redaction
from worker.seats import CODE, Seat

__all__ = ["Asked", "Asker", "Waiting"]

_BEGUN: Final = 2
"""Evaluations begun, per call in flight."""
_CODE_IN_FLIGHT: Final = 64
"""Traces that judges in code have together: none runs in more processes."""


class Asked(NamedTuple):
    """What a judge found, and when it was asked."""

    assessment: Assessment
    started_at: float
    duration_s: float


class Waiting:
    """Hears why calls wait, and tells of the first wait for each reason."""

    def __init__(self, longest_s: float, tell: Callable[[str, float], object] = lambda _note, _seconds: None) -> None:
        """Take whom to tell.

        Args:
            longest_s: Longer waits are not waited for, and not told.
            tell: Called with the cause and the seconds.
        """
        self._longest_s = longest_s
        self._tell = tell
        self._told: set[str] = set()

    def opened(self, error: ModelError, seconds: float) -> None:
        """Tell, if this is waited for at all: a rejection is not."""
        if may_pass(error):
            self.waits(error, seconds)

    def closed(self, seconds: float) -> None:
        """Go on in silence."""

    def waits(self, error: ModelError, seconds: float) -> None:
        """Tell once for each reason."""
        if error.reason not in self._told and may_pass(error) and seconds <= self._longest_s:
            self._told.add(error.reason)
            self._tell(str(error), seconds)


class Asker:
    """Asks one model on behalf of any judge, or lets judges in code judge. Use it from one event loop.

    Only so many evaluations are begun as may soon be asked: each that waits holds its whole prompt.
    """

    def __init__(
        self,
        model: ChatModel | None,
        redaction: Redaction | None = None,
        steady: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Take a model that keeps to its limits and tries again by itself.

        Args:
            model: Absent for judges in code, which ask nobody.
            redaction: What is done to every trace before any model sees it.
            steady: A steady count of seconds.
        """
        self._redaction = redaction
        self._model = model
        self._steady = steady
        self.max_in_flight = _CODE_IN_FLIGHT if model is None else model.settings.max_in_flight
        self._places = asyncio.Semaphore(_BEGUN * self.max_in_flight)

    @property
    def seat(self) -> Seat:
        """Who judges, as verdicts name it."""
        return CODE if self._model is None else Seat("", self._model.settings.judge_model)

    @property
    def judge_model(self) -> str:
        """The judge model of its verdicts."""
        return self.seat.judge_model

    @property
    def price(self) -> Price | None:
        """What tokens cost; None where nobody says it, or nothing is asked."""
        return None if self._model is None else self._model.settings.price

    @property
    def is_free(self) -> bool:
        """Tell whether nobody is paid: code is not asked, and the built-in model asks no endpoint."""
        return self._model is None or self._model.settings.provider == "lexical"

    async def aclose(self) -> None:
        """Give back the model's connections."""
        if self._model is not None:
            await self._model.aclose()

    async def ask(self, judge: Judge, trace: Trace) -> Asked:
        """Judge a trace; whatever happens comes back as an assessment."""
        async with self._places:
            return await self._ask(judge, trace)

    async def _ask(self, judge: Judge, trace: Trace) -> Asked:
        started_at, start = time.time(), self._steady()
        try:
            shown = trace if self._redaction is None else await asyncio.to_thread(self._redaction.trace, trace)
            assessment = await evaluate(judge, shown, self._model)
        except Exception as error:  # noqa: BLE001 - one evaluation must not take the others along
            # Only the type: the text of an unforeseen error may quote a trace.
            note = f"unforeseen error {type(error).__name__}"
            assessment = Assessment("unscored", "internal_error", note=note)
        return Asked(assessment, started_at, self._steady() - start)
