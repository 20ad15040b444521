"""Ask a judge until it is answered: what may pass is tried again, at the pace the endpoint bears."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from judges.evaluate import evaluate
from judges.judge import Judge
from judges.models.model import ChatModel
from judges.verdict import Assessment, Call
from tracejudge import Trace
from worker.redaction import Redaction

__all__ = ["Asked", "Asker", "Timing"]

_PASSES_SOON: Final = frozenset({"timeout", "rate_limited", "judge_unavailable"})
"""The other passing reasons, as a refused key, need somebody who acts; a few more seconds would only be lost."""
_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 30.0
_MAX_ASKED_S: Final = 600.0
"""An endpoint that asks for more, as at the end of a day's quota, is not waited for."""
_ANSWERS_PER_PLACE: Final = 8


class Timing(NamedTuple):
    """Where waiting comes from: a steady count of seconds, a sleep, and a draw between two bounds."""

    steady: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[float, float], float] = random.uniform


class Asked(NamedTuple):
    """What a judge found in the end; the calls are those of all tries, the times those of the last."""

    assessment: Assessment
    started_at: float
    duration_s: float


class Asker:
    """Asks one model on behalf of any judge. Use it from one event loop."""

    def __init__(
        self,
        model: ChatModel,
        tries: int,
        timing: Timing = Timing(),  # noqa: B008 - frozen
        waits: Callable[[str, float], None] = lambda _note, _seconds: None,
        redaction: Redaction | None = None,
    ) -> None:
        """Take how often an evaluation is tried at most, and whom to tell of the first pause for a new cause.

        Args:
            redaction: What is done to every trace before any model sees it.
        """
        self._redaction = redaction
        self._waits = waits
        self._told: set[str] = set()
        self._model = model
        self._tries = tries
        self._timing = timing
        self._pace = _Pace(model.settings.max_in_flight, timing)

    async def ask(self, judge: Judge, trace: Trace) -> Asked:
        """Judge a trace; whatever happens comes back as an assessment."""
        calls: tuple[Call, ...] = ()
        number = 1
        while True:
            asked = await self._pace.run(lambda: self._once(judge, trace))
            calls += asked.assessment.calls
            pause_s = self._pause_s(asked.assessment, number)
            if pause_s is None or number == self._tries:
                return asked._replace(assessment=msgspec.structs.replace(asked.assessment, calls=calls))
            self._tell(asked.assessment, pause_s)
            await self._timing.sleep(pause_s)
            number += 1

    def _tell(self, assessment: Assessment, pause_s: float) -> None:
        if str(assessment.reason) not in self._told:
            self._told.add(str(assessment.reason))
            self._waits(assessment.note or str(assessment.reason), pause_s)

    async def _once(self, judge: Judge, trace: Trace) -> Asked:
        started_at, start = time.time(), self._timing.steady()
        try:
            shown = trace if self._redaction is None else await asyncio.to_thread(self._redaction.trace, trace)
            assessment = await evaluate(judge, shown, self._model)
        except Exception as error:  # noqa: BLE001 - one evaluation must not take the others along
            # Only the type: the text of an unforeseen error may quote a trace.
            note = f"unforeseen error {type(error).__name__}"
            assessment = Assessment("unscored", "internal_error", note=note)
        return Asked(assessment, started_at, self._timing.steady() - start)

    def _pause_s(self, assessment: Assessment, number: int) -> float | None:
        """Say how long to wait for the next try; None when there shall be none."""
        asked_s = assessment.retry_after_s or 0.0
        if assessment.reason not in _PASSES_SOON or asked_s > _MAX_ASKED_S:
            return None
        longest_s = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(number - 1, 10))
        return max(asked_s, self._timing.draw(longest_s / 2, longest_s))


class _Pace:
    """How many evaluations go on at once: half as many after a 429, slowly more again with answers.

    Who waits for a place has not asked and has spent no try: a narrow rate limit costs time, not evaluations.
    """

    def __init__(self, most: int, timing: Timing) -> None:
        self._most = self._allowed = most
        self._surplus = 0
        self._places = asyncio.Semaphore(most)
        self._timing = timing
        self._slowed_at = self._resume_at = float("-inf")
        self._answered = 0

    async def run(self, attempt: Callable[[], Awaitable[Asked]]) -> Asked:
        """Run one try when there is a place."""
        await self._places.acquire()
        try:
            while (left_s := self._resume_at - self._timing.steady()) > 0:
                await self._timing.sleep(left_s)
            began = self._timing.steady()
            asked = await attempt()
            self._learn(asked.assessment, began)
            return asked
        finally:
            self._give_place()

    def _learn(self, assessment: Assessment, began: float) -> None:
        if assessment.reason == "rate_limited":
            asked_s = assessment.retry_after_s or _FIRST_PAUSE_S
            if asked_s <= _MAX_ASKED_S:
                self._resume_at = max(self._resume_at, self._timing.steady() + asked_s)
            # Many are turned away at once; only those that began at the present pace say that it is too fast.
            if began >= self._slowed_at:
                self._slow_down()
        elif any(call.status == "ok" for call in assessment.calls):
            self._answered += 1
            if self._answered >= _ANSWERS_PER_PLACE and self._allowed < self._most:
                self._answered = 0
                self._allowed += 1
                self._give_place()

    def _slow_down(self) -> None:
        self._slowed_at = self._timing.steady()
        fewer = max(1, self._allowed // 2)
        self._surplus += self._allowed - fewer
        self._allowed = fewer

    def _give_place(self) -> None:
        if self._surplus:
            self._surplus -= 1
        else:
            self._places.release()
