"""Second judgings: of a share of all verdicts, to measure how often they differ, and of failures of safety judges.

They are chosen in the step that writes the first verdict: its batch still has the trace, and a kill between the two
loses neither or both. The monitor computes flip ratio and kappa of those that were drawn at random.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import structs
from prometheus_client import Gauge

from judges.core.verdict import Verdict, repeat_id
from worker.base.monitor.corrected import Confusion, flips
from worker.base.monitor.counts import Increment, first_of, read_counts, series_of_first
from worker.base.monitor.feature import MONITOR, REPEAT, SECOND_MODEL
from worker.base.monitor.gauges import MonitorParts, Sample, Watch
from worker.base.monitor.series import COARSE_DAYS, DAY_S, series_of
from worker.core.config.graders import CODE
from worker.core.config.settings import Settings
from worker.core.features import VerdictHook
from worker.core.queue.batch import Batch, Evaluation, FirstVerdict, Item, follow_up_batch
from worker.core.selection.sampling import Rules, position
from worker.core.telemetry.metrics import Metric, MetricTable

_KIND: Final = "repeats"
# First and second verdict, in the order of Confusion.
_CELLS: Final = ("pass-pass", "pass-fail", "fail-pass", "fail-fail")
_JUDGES: Final = ("judge", "version", "judge_model", "second_model")


class Repeats(VerdictHook):
    """Chooses second judgings and their models."""

    def __init__(self, settings: Settings, rules: Rules) -> None:
        self._safety = frozenset(MONITOR.read(settings).safety)
        self._rules = rules
        self._outvoted = rules.graders.only_in_panels
        self._highest = max(map(REPEAT.read, settings.rules), default=0.0)

    def choose(self, verdict: Verdict, item: Item, evaluation: Evaluation) -> tuple[Verdict, list[Batch]]:
        """Return the verdict, and the batches that judge its trace again, one evaluation each.

        Only single judgings of live traffic that passed or failed are repeated. Judges in code answer the same again.
        Combined verdicts are not confirmed, as several models have given them; their members count for the flip ratio.
        Second judgings of cascades are not repeated.
        """
        passed = {score.metric: score.passed for score in verdict.scores if score.passed is not None}
        is_single = not evaluation.members and evaluation.cascade is None
        is_judged = evaluation.origin == "live" and is_single and verdict.judge_model != CODE.judge_model
        is_failure = (
            evaluation.judge in self._safety
            and not all(passed.values())
            and (evaluation.judge, verdict.judge_model) not in self._outvoted
        )
        # The key makes the draw independent of sampling.
        place = position(evaluation.id, "repeat")
        # Before the rules are matched: nearly all verdicts end here.
        if not (passed and is_judged and (is_failure or place < self._highest)):
            return verdict, []
        rules = self._rules.find_rules(item.trace, evaluation.judge, verdict.judge_model)
        share = max(map(REPEAT.read, rules), default=0.0)
        is_drawn = place < share
        if not (is_drawn or is_failure):
            return verdict, []
        ended_at = verdict.started_at + verdict.duration_s
        first = FirstVerdict(
            evaluation.id, verdict.judge_model, ended_at, passed, is_drawn, is_failure, evaluation.version
        )
        graders, batches = self._rules.graders, []
        seconds = [graders.grader(name) for name in map(SECOND_MODEL.read, rules) if name is not None]
        different = [
            grader
            for grader in seconds
            if grader.judge_model != verdict.judge_model and self._rules.allows(item.trace, grader.judge_model)
        ]
        same = [grader for grader in map(graders.grader, graders.models) if grader.judge_model == verdict.judge_model]
        for grader in (*(same[:1] if is_drawn else ()), *different[:1]):
            # The same model errs alike, so only another model confirms a failure.
            of_grader = structs.replace(first, is_failure=is_failure and grader.judge_model != verdict.judge_model)
            again = structs.replace(
                evaluation,
                id=repeat_id(evaluation.id, grader.judge_model),
                version=graders.version(evaluation.judge, grader.judge_model),
                # A failure is repeated for certain.
                probability=evaluation.probability * (1.0 if of_grader.is_failure else share),
                origin="repeat",
                keep=False,
                first=of_grader,
            )
            batches.append(follow_up_batch(item, again, grader.name, grader.judge_model))
        return verdict, batches


class RepeatMetrics(MetricTable):
    """The gauges of repeated judgings."""

    # fmt: off
    judge_flip_ratio = Metric(Gauge, "judge_flip_ratio", "ratio", _JUDGES,
        "Share of repeated judgings of the last 90 days with another verdict than the first", stability="stable")
    judge_flip_lower = Metric(Gauge, "judge_flip_ratio_lower", "ratio", _JUDGES,
        "Lower limit of the 95 % interval of judge_flip_ratio")
    judge_flip_upper = Metric(Gauge, "judge_flip_ratio_upper", "ratio", _JUDGES,
        "Upper limit of the 95 % interval of judge_flip_ratio")
    judge_kappa = Metric(Gauge, "judge_kappa", "ratio", _JUDGES,
        "Cohen's kappa of first and repeated judgings; absent while all verdicts are alike")
    judge_kappa_lower = Metric(Gauge, "judge_kappa_lower", "ratio", _JUDGES,
        "Lower limit of the 95 % interval of judge_kappa")
    judge_kappa_upper = Metric(Gauge, "judge_kappa_upper", "ratio", _JUDGES,
        "Upper limit of the 95 % interval of judge_kappa")


class RepeatsWatch(Watch):
    """Computes the gauges of repeated judgings of the last 90 days, every five minutes."""

    every_s = 300.0
    detail = "repeat"

    def __init__(self, parts: MonitorParts, clock: Callable[[], float] = time.time) -> None:
        super().__init__(parts.store, clock)
        own = parts.metrics.table(RepeatMetrics)
        self._ratio = own.judge_flip_ratio, own.judge_flip_lower, own.judge_flip_upper
        self._kappa = own.judge_kappa, own.judge_kappa_lower, own.judge_kappa_upper

    def run(self, now: float) -> None:
        """Compute the gauges."""
        counts = read_counts(self._store, _KIND, now - (COARSE_DAYS - 1) * DAY_S, now)
        samples: list[Sample] = []
        for labels in {key[:-1] for key in counts}:
            ratio, kappa = flips(Confusion(*(counts[*labels, cell] for cell in _CELLS)))
            for gauges, interval in ((self._ratio, ratio), (self._kappa, kappa)):
                samples += [(gauge, labels, value) for gauge, value in zip(gauges, interval or (), strict=False)]
        self.show(samples)

    def count(self, verdict: Verdict, at: float) -> Iterator[Increment]:
        """Count the pair of a repeat that was drawn at random: whether all metrics passed, first and second."""
        first = first_of(verdict)
        if first is None or not first.is_drawn or verdict.outcome != "scored":
            return
        passes = all(first.passed.values()), all(score.passed for score in verdict.scores if score.passed is not None)
        for series in list(series_of(verdict, ()))[:1]:
            labels = (verdict.judge, series_of_first(series, first).version, first.judge_model, verdict.judge_model)
            yield Increment(_KIND, at, (*labels, "-".join("pass" if is_passed else "fail" for is_passed in passes)))
