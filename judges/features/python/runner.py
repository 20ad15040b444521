"""Run a judge in Python behind the ``Judge`` interface.

The worker imports the code to know what the judge needs and returns, but never runs it: that is for separate processes.
"""

import asyncio
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Final, NoReturn

import msgspec
from msgspec import Struct

from judges.core import verdict
from judges.core.judge import RESULT, AnsweredPrompt, Judge, JudgeFailedError, Metric, Reading, has_text
from judges.core.prompt import Prompt
from judges.features.python.api import NotStartedError, Score
from judges.features.python.importing import Loaded
from judges.features.python.process import Limits, Observer, Pool, Program
from judges.features.python.protocol import Start
from tracejudge import Trace
from tracejudge.log import Once

log = logging.getLogger("judges.code")
_PAIR: Final = 2


class Settings(Struct, frozen=True):
    """The settings of a judge in Python, for display only: they are no part of its version."""

    kind: str
    code: str
    time_limit_s: float
    processes: int


class _BoundedSettings(Settings, frozen=True):
    memory_mib: int | None
    environment: tuple[str, ...]


def observe(judge: Judge, observer: Observer) -> None:
    """Notify an observer of each trace of a judge in Python, in pools that are made later."""
    if isinstance(judge.run, _Runner):
        judge.run.observer = observer


def make(name: str, target: str, loaded: Loaded, *, asks: str, limits: Limits | None = None) -> Judge:
    """Make the judge that runs the loaded code in processes, which find it by its target."""
    written = loaded.judge
    path = [*map(str, sys.path), *([loaded.folder] if loaded.folder is not None else [])]
    limits = limits or Limits(written.time_limit_s)
    start = Start(name, path, loaded.text, None if limits.memory_mib is None else limits.memory_mib * (1 << 20))
    runner = _Runner(name, Program(target, start, written.fingerprint, limits))
    return Judge(
        name=name,
        asks=asks,
        metrics=written.metrics_of(name),
        needs=written.needs,
        fixed_parts=(),
        schema={},
        prompts=lambda _trace: (),
        read=_unused,
        score=_unused,
        heuristic=_unused,
        scoring=f"code {written.fingerprint}",
        run=runner,
        close=runner.aclose,
        unit=written.unit,
    )


def _unused(*_: str | Trace | Prompt | Sequence[AnsweredPrompt]) -> NoReturn:
    raise TypeError("a judge in code asks no model")


class _Runner:
    """Sends traces to the processes of one pool per event loop."""

    def __init__(self, name: str, program: Program, clock: Callable[[], float] = time.monotonic) -> None:
        self.observer: Observer | None = None
        self._name = name
        self._program = program
        self._logged = Once(clock, period_s=600.0)
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        limits = self._program.limits
        declared = ("code", self._program.target, limits.time_s, limits.processes)
        if limits.memory_mib is None and not limits.environment:
            return Settings(*declared)
        return _BoundedSettings(*declared, limits.memory_mib, limits.environment)

    async def __call__(self, trace: Trace) -> Reading:
        """Judge one trace; the errors are those of ``Pool.ask``."""
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            for closed in [pool for pool in list(self._pools) if pool.is_closed()]:
                self._pools.pop(closed).abandon()
            self._pools[loop] = Pool(self._program, observer=self.observer)
        try:
            return await self._pools[loop].ask(trace)
        except NotStartedError as error:
            # Once, and not for each trace that waits for the judge.
            if self._logged.take(f"{error}"):
                log.error("the judge %s cannot judge: %s", self._name, error)  # noqa: TRY400 - the text says all
            raise

    async def aclose(self) -> None:
        """Stop the processes of this event loop; a later trace starts others."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()


def reading_of(result: object, metrics: Sequence[Metric], labels: Mapping[str, float] = {}) -> Reading:
    """Convert the return value of a judge with these metrics and labels, or raise ``JudgeFailedError``."""
    returned = _returned(result)
    for item in returned:
        if not isinstance(item, Score):
            raise JudgeFailedError(f"gave a list that holds {_kind(item)}, where each is to be a Score")
    if len(returned) == 1 and returned[0].value is None and not labels:
        # A label or text if the judge declares no labels is stored, and has no value.
        (only,) = returned
        if not isinstance(only.label, str) or not has_text(only.label):
            raise JudgeFailedError("gave a score without a value and without a label")
        if len(metrics) > 1 or only.passed is not None:
            raise JudgeFailedError("gave a label without a value; declare labels, or give Score a value")
        return Reading((), only.rationale, {RESULT: str(only.label)})
    scores = tuple(_score(_valued(score, labels), metrics) for score in returned)
    if len({score.metric for score in scores}) < len(scores):
        raise JudgeFailedError("gave two scores for one metric")
    if len(scores) == 1:
        # As for other judges: the rationale of a single score becomes the verdict's.
        return Reading((msgspec.structs.replace(scores[0], rationale=None),), scores[0].rationale)
    return Reading(scores)


def _returned(result: object) -> Sequence[Score]:
    """Return the scores of a result: it may be a value or a label, either of them with its reasons, or scores."""
    reasons = None
    if isinstance(result, tuple) and len(result) == _PAIR and isinstance(result[1], str):
        result, reasons = result
    if isinstance(result, Real):
        return (Score(result, rationale=reasons),)  # type: ignore[arg-type] # checked where it is scored
    if isinstance(result, str):
        return (Score(label=result, rationale=reasons),)
    if result is None or isinstance(result, Score):
        return () if result is None else (result,)
    if not isinstance(result, Sequence) or isinstance(result, bytes):
        raise JudgeFailedError(
            f"gave {_kind(result)}, where true, false, a number, a label, a Score or None is required"
        )
    return result


def _valued(score: Score, labels: Mapping[str, float]) -> Score:
    """Fill in, for a score with a label alone, the value that the judge declares for it."""
    if score.value is not None:
        return score
    if score.label is None or score.label not in labels:
        raise JudgeFailedError("gave a label that it does not declare")
    raw = score.label if score.raw is None else score.raw
    return msgspec.structs.replace(score, value=labels[score.label], raw=raw)


def _score(score: Score, metrics: Sequence[Metric]) -> verdict.Score:
    if score.metric is None and len(metrics) > 1:
        raise JudgeFailedError("gave a score that names no metric, where it has several")
    metric = next((metric for metric in metrics if score.metric in {None, metric.name}), None)
    if metric is None:
        raise JudgeFailedError("gave a score for a metric that it does not declare")
    value = _checked(score.value, metric.name)
    raw = value if score.raw is None else score.raw
    if isinstance(raw, float) and not math.isfinite(raw):
        raise JudgeFailedError(f"gave no finite number as the raw value of {metric.name}")
    passed = score.passed
    if metric.pass_rule is None and passed is not None:
        raise JudgeFailedError(f"says whether {metric.name} passed, for which it declares no pass rule")
    if metric.pass_at is not None and passed is None:
        passed = value >= metric.pass_at
    elif metric.pass_rule is not None and passed is None and isinstance(score.value, bool):
        passed = score.value
    made = verdict.Score(metric.name, value, raw, score.label, passed, rationale=score.rationale)
    try:
        return msgspec.convert(msgspec.structs.asdict(made), verdict.Score)
    except msgspec.ValidationError as error:
        raise JudgeFailedError(f"gave a score of a wrong type: {error}") from error


def _checked(value: object, metric: str) -> float:
    if not isinstance(value, Real):
        raise JudgeFailedError(f"gave {_kind(value)} as the value of {metric}, where a number is required")
    number = float(value)
    if math.isnan(number):
        raise JudgeFailedError(f"gave no number (NaN) as the value of {metric}")
    if not 0 <= number <= 1:
        raise JudgeFailedError(f"gave a value of {metric} outside 0..1")
    return number


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
