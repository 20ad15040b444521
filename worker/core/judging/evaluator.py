"""Run the evaluations of a batch concurrently, and record each verdict as soon as it is final."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

import structlog
from msgspec import structs

from judges.calling.evaluation import evaluate
from judges.calling.runs import internal_error
from judges.core.backoff import backoff_s
from judges.core.combine import metrics_of
from judges.core.judge import Judge
from judges.core.model import CallTotals, ChatModel, Price
from judges.core.verdict import Assessment, Verdict
from judges.requests.redaction import Redaction
from tracejudge import Trace
from worker.core.config.graders import CODE, Graders
from worker.core.config.serving import UserKeys
from worker.core.config.settings import MAX_SEGMENT_VALUE_CHARS, Settings
from worker.core.features import TraceHookContext, build_hooks, find_overrides, installed
from worker.core.queue.batch import FREE, Batch, Evaluation, Item, make_verdict
from worker.core.queue.ledger import DeadLetter, FinalVerdict, Ledger
from worker.core.selection.sampling import Rules
from worker.core.storage.client import StoreError
from worker.core.telemetry.metrics import Metrics

log = structlog.get_logger("tracejudge.judging")
T = TypeVar("T")
R = TypeVar("R")
_MAX_GROUP: Final = 128
_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0
CODE_AT_ONCE: Final = 32  # Concurrent evaluations by one judge in code in one process.
CODE_IN_HAND: Final = 8 * CODE_AT_ONCE
"""Evaluations by all judges in code that one process holds: a slow judge must not fill every slot."""
_NO_CALLS: Final = CallTotals()


def segment_tags(trace: Trace, names: Sequence[str]) -> dict[str, str]:
    """Return the tags of a trace by whose values the monitor keeps segments, cut as it shows them."""
    tags = trace.tags if names else None
    return {name: tags[name][:MAX_SEGMENT_VALUE_CHARS] for name in names if name in tags} if tags else {}


class UnexpectedError(Exception):
    """An evaluation ended by an exception that no code expects; the text names its class only."""


class UnfinishedEvaluation(NamedTuple):
    """An evaluation without a final verdict: parked and tried again, or given up."""

    item: Item
    evaluation: Evaluation
    assessment: Assessment
    verdict: Verdict
    spent: CallTotals = CallTotals()

    @property
    def is_waiting(self) -> bool:
        """Whether a panel only waits for its members: that is no try, and nothing has failed."""
        return bool(self.evaluation.members) and self.assessment.retry_after_s is not None

    @property
    def is_refused(self) -> bool:
        """Whether a cascade's second judging timed out: long traces do, so its share must not wait for the last try."""
        return self.evaluation.cascade is not None and self.assessment.reason == "timeout"

    def dead_letter(self, batch: Batch) -> tuple[DeadLetter, Verdict]:
        """Build the dead letter of this evaluation."""
        evaluation, step = self.evaluation, self.evaluation.cascade
        if step is not None and not step.given_up:
            marked = structs.replace(step, given_up=str(self.assessment.reason))
            evaluation = structs.replace(evaluation, cascade=marked)
        letter = DeadLetter(
            v=evaluation.batch_version,
            evaluation=evaluation,
            grader=batch.grader,
            judge_model=batch.judge_model,
            item=self.item,
            reason=str(self.assessment.reason),
            attempts=self.verdict.attempts,
            chosen_at=batch.created_at,
            given_up_at=time.time(),
            note=self.verdict.note or "",
            spent=self.spent,
        )
        return letter, self.verdict


class _BatchRun(NamedTuple):
    """One run of a batch: arguments of ``BatchEvaluator.run``, and values that all evaluations share."""

    batch: Batch
    tries: Mapping[str, CallTotals]
    on_ended: Callable[[], None]
    count_outcome: Callable[[str, CallTotals, CallTotals], None]
    # The results of ``prepare`` of each assessor.
    prepared: Sequence[object]
    # The key of the hash of end users' ids; empty if no trace names one.
    user_key: str
    # None for panels, judges in code, and models that are not configured here.
    model: ChatModel | None
    price: Price | None


class _RecordItem(NamedTuple):
    final: FinalVerdict
    verdict: Verdict


class GroupCommit(Generic[T, R]):
    """Runs a blocking function for one loop's coroutines; items submitted during a run share the next round trip."""

    def __init__(
        self, name: str, commit: Callable[[list[T]], Sequence[R | Exception]], *, repeats: bool = False
    ) -> None:
        """Prepare a thread; ``commit`` returns results or errors, and is repeated at ``StoreError`` if so wanted."""
        self._commit = commit
        self._repeats = repeats
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._running: asyncio.Task[None] | None = None
        # One thread, so that the event loop never blocks on Redis and groups stay in order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, item: T) -> "asyncio.Future[R]":
        """Return the future result of an item, or its error."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return future

    async def aclose(self) -> None:
        """Wait until nothing is left to run, and end the thread."""
        while self._running is not None:
            await asyncio.wait([self._running])
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:_MAX_GROUP], self._waiting[_MAX_GROUP:]
                results: Sequence[R | Exception]
                try:
                    results = await self._commit_repeatedly([item for item, _ in group])
                except Exception as error:  # noqa: BLE001 - the waiting coroutines handle it, else they wait for ever
                    results = [error] * len(group)
                for (_, future), result in zip(group, results, strict=True):
                    # A cancelled coroutine waits no longer; its item is committed all the same.
                    if future.done():
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            self._running = None

    async def _commit_repeatedly(self, items: list[T]) -> Sequence[R | Exception]:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            try:
                return await loop.run_in_executor(self._thread, self._commit, items)
            except StoreError as error:
                if not self._repeats:
                    raise
                # The verdicts are paid for, and the script is idempotent.
                log.warning("verdicts not written, retrying", error=str(error), verdicts=len(items))
                await asyncio.sleep(backoff_s(failures, _FIRST_BACKOFF_S, _MAX_BACKOFF_S))
                failures += 1


def code_slots(graders: Graders) -> dict[str, asyncio.Semaphore]:
    """Make the semaphores that bound the concurrent evaluations of each judge in code in one process."""
    return {name: asyncio.Semaphore(CODE_AT_ONCE) for name in graders.code_judges}


async def close_all(models: Mapping[str, ChatModel], judges: Mapping[str, Judge]) -> None:
    """Close the connections of models and judges."""
    for model in models.values():
        await model.aclose()
    for judge in judges.values():
        if judge.close is not None:
            await judge.close()


class BatchEvaluator:
    """Evaluates batches of one partition under one configuration; lives in the event loop of its process."""

    def __init__(
        self,
        settings: Settings,
        judges: Mapping[str, Judge],
        models: Mapping[str, ChatModel],
        ledger: Ledger,
        *,
        rules: Rules,
        metrics: Metrics | None = None,
        slots: Mapping[str, asyncio.Semaphore] | None = None,
    ) -> None:
        """Build the hooks of features. Evaluators that share ``slots`` share models and judges, and close neither."""
        self._settings = settings
        self._closes = slots is None
        self._judges = judges
        self._models = models
        self._ledger = ledger
        self._recorder = GroupCommit[_RecordItem, bool]("tracejudge-recorder", self._write, repeats=True)
        self._redaction = Redaction.from_settings(settings.redact)
        self._rules = rules
        self._graders = rules.graders
        self._tags = settings.verdict_tags
        # The keys of users belong to the installation, and not to a partition.
        self._user_keys = UserKeys(settings, ledger.store.first)
        features = installed()
        context = TraceHookContext(settings, metrics, ledger, rules)
        self._assessors = build_hooks((feature.assess for feature in features), context)
        self._wrappers = build_hooks((feature.wrap_model for feature in features), context)
        self._verdict_hooks = build_hooks((feature.after_verdict for feature in features), context)
        self._refreshes = find_overrides(self._verdict_hooks, "refresh")
        self._code_slots = code_slots(rules.graders) if slots is None else slots

    async def run(
        self,
        batch: Batch,
        tries: Mapping[str, CallTotals],
        on_ended: Callable[[], None],
        count_outcome: Callable[[str, CallTotals, CallTotals], None] = lambda *_: None,
    ) -> list[UnfinishedEvaluation]:
        """Evaluate a batch; return the evaluations without a final verdict.

        ``tries`` has calls and cost of earlier rounds; ``count_outcome`` receives those of each evaluation before and
        after this round. ``UnexpectedError`` if one ended without an outcome; all others have ended as well.
        """
        traces = await self._redact(batch.items)
        user_key = ""
        if any(item.trace.user_id is not None for item in batch.items):
            # Read the key before any call, because without it the verdict cannot be written, and the call is wasted.
            cached = self._user_keys.known
            user_key = cached if cached is not None else await asyncio.to_thread(self._user_keys.current)
        for refresh in self._refreshes:
            await refresh()
        prepared = [await assessor.prepare(batch) for assessor in self._assessors]
        # The name in the settings may mean another judge model by now.
        candidates = (self._models.get(batch.grader), *self._models.values())
        model = next((other for other in candidates if other and other.settings.judge_model == batch.judge_model), None)
        price = FREE if batch.judge_model in self._graders.panels else model.settings.price if model else None
        run = _BatchRun(batch, tries, on_ended, count_outcome, prepared, user_key, model, price)
        calls = [
            (item, trace, evaluation)
            for item, trace in zip(batch.items, traces, strict=True)
            for evaluation in item.evaluations
        ]
        # Those with the fewest tries go first, because one that always fails must not be the only probe.
        calls.sort(key=lambda call: tries.get(call[2].id, _NO_CALLS).calls)
        results = await asyncio.gather(*(self._run_one(run, *call) for call in calls), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                # A cancellation here was raised by a judge itself, because ours ends the wait above.
                raise UnexpectedError(type(result).__name__) from result
        return [result for result in results if isinstance(result, UnfinishedEvaluation)]

    async def aclose(self) -> None:
        """Write the verdicts that are ready, and close connections and judges."""
        await self._recorder.aclose()
        for wrapper in self._wrappers:
            await wrapper.aclose()
        if self._closes:
            await close_all(self._models, self._judges)

    def _write(self, group: Sequence[_RecordItem]) -> list[bool]:
        fresh = self._ledger.record([item.final for item in group])
        _log([item.verdict for item in group], self._settings.log_verdicts, fresh)
        return fresh

    async def _redact(self, items: Sequence[Item]) -> list[Trace | Exception]:
        """Return the redacted traces; in place of one that could not be redacted, its error."""
        redaction = self._redaction
        if redaction is None:
            return [item.trace for item in items]

        def redact(trace: Trace) -> Trace | Exception:
            try:
                return redaction.trace(trace)
            except Exception as error:  # noqa: BLE001 - such a trace is not judged, and must not fail its batch
                return error

        # A thread redacts, because large traces take longer than the event loop may be blocked.
        return await asyncio.to_thread(lambda: [redact(item.trace) for item in items])

    async def _run_one(
        self, run: _BatchRun, item: Item, trace: Trace | Exception, evaluation: Evaluation
    ) -> UnfinishedEvaluation | None:
        """Judge one evaluation and record its verdict; return it if that is not final."""
        started_at, start = time.time(), time.perf_counter()
        judge = self._judges.get(evaluation.judge)
        metrics = (evaluation.judge,) if judge is None else judge.metric_names
        if judge is not None and evaluation.members:
            metrics = tuple(metric.name for metric in metrics_of(judge.metrics))
        batch, earlier = run.batch, run.tries.get(evaluation.id, _NO_CALLS)
        assessment = await self._assess(run, item, trace, evaluation)
        run.on_ended()
        build = partial(
            make_verdict,
            item=item,
            evaluation=evaluation,
            metrics=metrics,
            judge_model=batch.judge_model,
            price=run.price,
            user_key=run.user_key,
            tags={} if isinstance(trace, Exception) else segment_tags(trace, self._tags),
            earlier=earlier,
            started_at=started_at,
            duration_s=time.perf_counter() - start,
        )
        try:
            verdict, spent = build(assessment)
            if assessment.is_final:
                batches: list[Batch] = []
                for hook in self._verdict_hooks:
                    verdict, further = hook.choose(verdict, item, evaluation)
                    batches.extend(further)
                final = FinalVerdict.encode(
                    verdict, evaluation.period, keep=evaluation.keep, batch_id=batch.id, follow_ups=batches
                )
                await self._recorder.submit(_RecordItem(final, verdict))
                run.count_outcome(verdict.outcome, earlier, spent)
                return None
        except Exception as error:  # noqa: BLE001 - a verdict that cannot be written must not fail its batch
            assessment = _internal_error(evaluation, error)
            verdict, spent = build(assessment)
        run.count_outcome("unfinished", earlier, spent)
        return UnfinishedEvaluation(item, evaluation, assessment, verdict, spent)

    async def _assess(self, run: _BatchRun, item: Item, trace: Trace | Exception, evaluation: Evaluation) -> Assessment:
        judge_model = run.batch.judge_model
        judge = self._graders.judge_form(evaluation.judge, judge_model)
        has_model = judge_model in self._graders.panels or run.model is not None
        if judge is not None and judge.run is not None:
            has_model = judge_model == CODE.judge_model
        if judge is None or judge.version != evaluation.version or not has_model:
            note = "this worker does not have this version of the judge, or not its model"
            return Assessment("unscored", "unknown_judge_version", note=note)
        try:
            for assessor, prepared in zip(self._assessors, run.prepared, strict=True):
                if (assessment := assessor.assess(prepared, judge, evaluation, judge_model)) is not None:
                    return assessment
            if not self._rules.allows(item.trace, judge_model):
                # The evaluation was chosen before the rule came, or under other rules.
                note = "a rule keeps this trace to other models (egress)"
                return Assessment("unscored", "judge_rejected", note=note)
            if isinstance(trace, Exception):
                return _internal_error(evaluation, trace)
            tools = self._rules.matching(item.trace).context_tools
            if (model := run.model) is not None:
                for wrapper in self._wrappers:
                    # The rules match the published trace, not the redacted one.
                    model = wrapper.wrap(model, item.trace, evaluation)
                run = run._replace(model=model) if self._wrappers else run
            return await self._evaluate(run, judge, trace, evaluation, tools)
        except Exception as error:  # noqa: BLE001 - one evaluation must not fail its batch
            return _internal_error(evaluation, error)

    async def _evaluate(
        self, run: _BatchRun, judge: Judge, trace: Trace, evaluation: Evaluation, context_tools: Sequence[str]
    ) -> Assessment:
        if judge.run is not None:
            async with self._code_slots[judge.name]:
                return await evaluate(judge, trace, None, context_tools=context_tools)
        earlier = run.tries.get(evaluation.id, _NO_CALLS)
        return await evaluate(
            *(judge, trace, run.model),
            deadline_s=self._settings.evaluation_timeout,
            evaluation=evaluation.id,
            earlier_calls=earlier.calls,
            refusals=earlier.refusals,
            context_tools=context_tools,
        )


def _internal_error(evaluation: Evaluation, error: Exception) -> Assessment:
    # Log only the type, because the text of an unexpected error may quote a trace.
    kind = type(error).__name__
    log.error("unexpected error", judge=evaluation.judge, evaluation_id=evaluation.id, error=kind)
    return internal_error(error)


def _log(verdicts: Sequence[Verdict], which: str, fresh: Sequence[bool]) -> None:
    """Log verdicts, each in one line that joins logs, traces and metrics, and quotes no text."""
    rows = [
        {
            "trace_id": verdict.trace_id,
            "span_id": verdict.span_id,
            "evaluation_id": verdict.evaluation_id,
            "service": verdict.service,
            "judge": verdict.judge,
            "judge_model": verdict.judge_model,
            "outcome": verdict.outcome,
            "reason": verdict.reason,
            "scores": {score.metric: score.value for score in verdict.scores},
            "seconds": round(verdict.seconds, 4),
            "waited_seconds": round(verdict.duration_s - verdict.seconds, 4),
            "fresh": is_fresh,
        }
        for verdict, is_fresh in zip(verdicts, fresh, strict=True)
        if which == "all" or (which == "failed" and any(score.passed is False for score in verdict.scores))
    ]
    if rows:
        log.info("verdict", rows=rows)
