"""Run the evaluations of a batch together, and record each as soon as it is final."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import structlog

from judges.combine import metrics_of
from judges.evaluate import evaluate
from judges.judge import Judge
from judges.models.model import ChatModel, Price
from judges.verdict import Assessment, Verdict
from tracejudge import Trace
from worker.batches import Batch, Evaluation, Item
from worker.judging.panels import Heard, Panels
from worker.judging.recorder import Recorder
from worker.judging.verdicts import NO_PRICE, make_verdict
from worker.ledger import DeadLetter, Finished, Ledger
from worker.redaction import Redaction
from worker.sampling import Sampler
from worker.seats import CODE, Seats
from worker.settings import Settings

__all__ = ["CODE_AT_ONCE", "CODE_IN_HAND", "Evaluations", "Unfinished"]

log = structlog.get_logger("tracejudge.judging")

CODE_AT_ONCE: Final = 32
"""Evaluations by one judge in code that run at the same time in one process."""
CODE_IN_HAND: Final = 8 * CODE_AT_ONCE
"""Evaluations by all judges in code that one process takes: a slow judge shall not fill every place."""


class Unfinished(NamedTuple):
    """An evaluation whose reason may pass: to be tried again, or to be given up."""

    item: Item
    evaluation: Evaluation
    assessment: Assessment
    verdict: Verdict

    @property
    def waits(self) -> bool:
        """Tell whether it only waits for the verdicts that it combines: no try, and nothing has failed."""
        return bool(self.evaluation.members) and self.assessment.retry_after_s is not None

    def letter(self, batch: Batch) -> tuple[DeadLetter, Verdict]:
        """Write the dead letter of this evaluation."""
        letter = DeadLetter(
            v=self.evaluation.batch_version,
            evaluation=self.evaluation,
            model=batch.model,
            judge_model=batch.judge_model,
            item=self.item,
            reason=str(self.assessment.reason),
            attempts=self.verdict.attempts,
            chosen_at=batch.created_at,
            given_up_at=time.time(),
        )
        return letter, self.verdict


class _Round(NamedTuple):
    """One run of a batch.

    Attributes:
        batch: What is left of it.
        tries: Calls of earlier rounds by evaluation id.
        ended: Whom to tell of each end.
        heard: What was heard of those whose verdicts are combined.
        model: Whom to ask; nobody for a panel, for judges in code, and where the configuration lacks the model.
    """

    batch: Batch
    tries: Mapping[str, int]
    ended: Callable[[], None]
    heard: Heard
    model: ChatModel | None


class Evaluations:
    """Evaluations under one configuration; lives in the event loop of its process."""

    def __init__(
        self, settings: Settings, judges: Mapping[str, Judge], models: Mapping[str, ChatModel], ledger: Ledger
    ) -> None:
        """Take judges by name and models by the name of their settings."""
        self._settings = settings
        self._judges = judges
        self._models = models
        self._recorder = Recorder(ledger)
        self._redaction = Redaction.of(settings.redact)
        self._seats = Seats(settings, judges)
        self._sampler = Sampler(settings, self._seats)
        self._panels = Panels(ledger, settings)
        self._code_places = {name: asyncio.Semaphore(CODE_AT_ONCE) for name in self._seats.code}

    async def run(self, batch: Batch, tries: Mapping[str, int], ended: Callable[[], None]) -> list[Unfinished]:
        """Judge a batch; return what could not be judged for a reason that may pass.

        Args:
            batch: What is not finished yet.
            tries: Calls of earlier rounds, by evaluation id.
            ended: Called as each evaluation ends, whichever way.
        """
        traces = await self._redacted(batch.items)
        this = _Round(batch, tries, ended, await self._panels.hear(batch), self._model(batch))
        wanted = [
            (item, trace, evaluation)
            for item, trace in zip(batch.items, traces, strict=True)
            for evaluation in item.evaluations
        ]
        # What was tried least goes first: one that always fails must not be the endpoint's only probe.
        wanted.sort(key=lambda one: tries.get(one[2].id, 0))
        results = await asyncio.gather(*(self._one(this, *one) for one in wanted))
        return [result for result in results if result is not None]

    async def aclose(self) -> None:
        """Write what is ready and give back connections."""
        await self._recorder.drain()
        self._recorder.close()
        for model in self._models.values():
            await model.aclose()
        for judge in self._judges.values():
            if judge.close is not None:
                await judge.close()

    async def _redacted(self, items: Sequence[Item]) -> list[Trace | Exception]:
        """Give the traces as judges may see them, or why one could not be redacted."""
        redaction = self._redaction
        if redaction is None:
            return [item.trace for item in items]
        # In a thread: large traces take longer than the event loop may be held.
        return await asyncio.to_thread(lambda: [_redact(redaction, item.trace) for item in items])

    async def _one(
        self, this: _Round, item: Item, trace: Trace | Exception, evaluation: Evaluation
    ) -> Unfinished | None:
        started_at, start = time.time(), time.perf_counter()
        batch = this.batch
        assessment = await self._assess(this, item, trace, evaluation)
        this.ended()
        make = partial(
            make_verdict,
            item=item,
            evaluation=evaluation,
            metrics=self._metrics(evaluation),
            judge_model=batch.judge_model,
            price=self._price(this),
            user_key=self._settings.sampling_key,
            earlier_calls=this.tries.get(evaluation.id, 0),
            started_at=started_at,
            duration_s=time.perf_counter() - start,
        )
        try:
            verdict = make(assessment)
            finished = Finished.of(verdict, keep=evaluation.keep)
            if assessment.is_final:
                _log(verdict, fresh=await self._recorder.record(finished))
                return None
        except Exception as error:  # noqa: BLE001 - what cannot be written must not take its batch along
            assessment = _faulty(evaluation, error)
            verdict = make(assessment)
        return Unfinished(item, evaluation, assessment, verdict)

    def _model(self, batch: Batch) -> ChatModel | None:
        """Find whom to ask: what bears the name of its settings may be another judge model by now."""
        named = self._models.get(batch.model)
        same = (model for model in self._models.values() if model.settings.judge_model == batch.judge_model)
        return named if named and named.settings.judge_model == batch.judge_model else next(same, None)

    def _metrics(self, evaluation: Evaluation) -> tuple[str, ...]:
        judge = self._judges.get(evaluation.judge)
        if judge is None:
            return (evaluation.judge,)
        return tuple(one.name for one in metrics_of(judge.metrics)) if evaluation.members else judge.metric_names

    def _price(self, this: _Round) -> Price | None:
        if this.batch.judge_model in self._seats.panels:
            return NO_PRICE
        return this.model.settings.price if this.model else None

    async def _assess(self, this: _Round, item: Item, trace: Trace | Exception, evaluation: Evaluation) -> Assessment:
        judge, judge_model = self._judges.get(evaluation.judge), this.batch.judge_model
        if judge is None or judge.version != evaluation.version or not self._can_ask(judge, this):
            note = "this worker does not have this version of the judge, or not its model"
            return Assessment("unscored", "unknown_judge_version", note=note)
        try:
            if evaluation.members:
                return this.heard.assess(self._seats.panels[judge_model], judge, evaluation)
            if not self._sampler.allows(item.trace, judge_model):
                # Chosen before the rule came, or under other rules.
                note = "a rule keeps this trace to other models (egress)"
                return Assessment("unscored", "judge_rejected", note=note)
            if isinstance(trace, Exception):
                return _faulty(evaluation, trace)
            return await self._ask(judge, trace, this.model, this.tries.get(evaluation.id, 0))
        except Exception as error:  # noqa: BLE001 - one evaluation must not take its batch along
            return _faulty(evaluation, error)

    def _can_ask(self, judge: Judge, this: _Round) -> bool:
        """Tell whether those are here who judge a batch."""
        if judge.run is not None:
            return this.batch.judge_model == CODE.judge_model
        return this.batch.judge_model in self._seats.panels or this.model is not None

    async def _ask(self, judge: Judge, trace: Trace, model: ChatModel | None, earlier_calls: int) -> Assessment:
        if judge.run is None:
            limit_s = self._settings.evaluation_timeout
            return await evaluate(judge, trace, model, deadline_s=limit_s, earlier_calls=earlier_calls)
        async with self._code_places[judge.name]:
            return await evaluate(judge, trace, None)


def _redact(redaction: Redaction, trace: Trace) -> Trace | Exception:
    try:
        return redaction.trace(trace)
    except Exception as error:  # noqa: BLE001 - what cannot be redacted is not judged, and takes nothing along
        return error


def _faulty(evaluation: Evaluation, error: Exception) -> Assessment:
    # Only the type: the text of an unforeseen error may quote a trace.
    kind = type(error).__name__
    log.error("unforeseen error", judge=evaluation.judge, evaluation_id=evaluation.id, error=kind)
    return Assessment("unscored", "internal_error", note=f"unforeseen error {kind}")


def _log(verdict: Verdict, *, fresh: bool) -> None:
    """Tell of a verdict in one line that joins logs, traces and metrics, and quotes nothing."""
    log.info(
        "verdict",
        trace_id=verdict.trace_id,
        span_id=verdict.span_id,
        evaluation_id=verdict.evaluation_id,
        service=verdict.service,
        judge=verdict.judge,
        judge_model=verdict.judge_model,
        outcome=verdict.outcome,
        reason=verdict.reason,
        scores={score.metric: score.value for score in verdict.scores},
        seconds=round(verdict.duration_s, 4),
        fresh=fresh,
    )
