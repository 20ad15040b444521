"""Second judgings of cascades: chosen with a probability that grows with the first model's uncertainty.

They are chosen in the step that writes the first verdict, as repeats are, so that each is chosen once. Both verdicts
keep the probability of the choice, from which the monitor estimates the share of the cascade.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec
import structlog
from msgspec import structs

from judges.core.verdict import Verdict, joined_parts, repeat_id
from worker.core.config.graders import Grader
from worker.core.config.settings import Settings
from worker.core.features import VerdictHook
from worker.core.queue.batch import Batch, CascadeStep, Evaluation, Item, follow_up_batch
from worker.core.selection.sampling import Rules, position
from worker.core.storage.client import Store, StoreError
from worker.features.cascades.feature import CASCADES
from worker.features.cascades.shares import factor_field, floor_field, rate_field, read_factors, second_rate

log = structlog.get_logger("tracejudge.judging")
_READ_EVERY_S: Final = 60.0


class _Pair(NamedTuple):
    """A judge with the first model of a cascade."""

    cascade: str  # The name of the cascade.
    then: Grader  # The grader of second judgings.
    then_version: str  # The version of the judge for it.
    version: str  # The version of the cascade.
    is_only: bool  # Whether only rules with this cascade ask the first model for the judge.


class Cascades(VerdictHook):
    """Chooses second judgings, for the event loop of one process."""

    def __init__(self, settings: Settings, store: Store, rules: Rules, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._store = store
        self._rules = rules
        self._clock = clock
        self._factors: Mapping[str, float] = {}
        self._next_read = 0.0
        graders, named, elsewhere = rules.graders, dict[tuple[str, str], str](), set[tuple[str, str]]()
        for rule in settings.rules:
            for judge in rule.judges:
                for model in graders.grader_names(rule, judge):
                    pair = judge, graders.grader(model).judge_model
                    if (
                        rule.models[0] in CASCADES.read(settings)
                        and judge not in graders.model_by_judge
                        and judge not in graders.code_judges
                    ):
                        named[pair] = rule.models[0]
                    else:
                        elsewhere.add(pair)
        self._pairs: dict[tuple[str, str], _Pair] = {}
        for (judge, judge_model), name in named.items():
            then = graders.grader(CASCADES.read(settings)[name].then)
            # Models that cannot be asked are refused at the start.
            versions = graders.version(judge, judge_model), graders.version(judge, then.judge_model)
            parts = joined_parts(judge_model, then.judge_model, *versions)
            version = hashlib.blake2b(parts, digest_size=4).hexdigest()
            pair = judge, judge_model
            self._pairs[pair] = _Pair(name, then, versions[1], version, pair not in elsewhere)

    async def refresh(self) -> None:
        """Read the factors that the monitor computes, if a minute has passed; without Redis they stay as they are."""
        now = self._clock()
        if not self._pairs or 0 <= self._next_read - now <= _READ_EVERY_S:
            return
        self._next_read = now + _READ_EVERY_S
        try:
            self._factors = await asyncio.to_thread(read_factors, self._store)
        except StoreError as error:
            log.warning("factors of cascades not readable", error=str(error))

    def choose(self, verdict: Verdict, item: Item, evaluation: Evaluation) -> tuple[Verdict, list[Batch]]:
        """Return a verdict with its part in a cascade, and the batch of its second judging if one is chosen."""
        pair = self._pairs.get((evaluation.judge, verdict.judge_model))
        if pair is None or evaluation.origin != "live" or evaluation.members or evaluation.cascade is not None:
            return verdict, []
        probabilities = verdict.probabilities
        if not probabilities or not self._rules.allows(item.trace, pair.then.judge_model):
            return verdict, []
        if not pair.is_only:
            rules = self._rules.find_rules(item.trace, evaluation.judge, verdict.judge_model)
            if not any(pair.cascade in rule.models for rule in rules):
                return verdict, []
        factor = self._factors.get(factor_field(pair.cascade, evaluation.judge, pair.version))
        mean = self._factors.get(rate_field(pair.cascade))
        floor = self._factors.get(floor_field(pair.cascade, evaluation.judge, pair.version))
        rate = second_rate(CASCADES.read(self._settings)[pair.cascade], probabilities, factor, mean, floor)
        # The salt makes the choice independent of sampling, of repeats and of other cascades.
        is_chosen = position(f"cascade:{pair.cascade}:{evaluation.id}", self._settings.sampling_key) < rate
        step = CascadeStep(pair.cascade, pair.version, rate, is_chosen)
        marked = structs.replace(verdict, details={**verdict.details, "cascade": msgspec.to_builtins(step)})
        if not is_chosen:
            return marked, []
        again = structs.replace(
            evaluation,
            # 0: a repeat by the same model may be due as well.
            id=repeat_id(evaluation.id, pair.then.judge_model, 0),
            version=pair.then_version,
            probability=evaluation.probability * rate,
            keep=False,
            cascade=structs.replace(
                step,
                first=evaluation.id,
                judge_model=verdict.judge_model,
                ended_at=verdict.started_at + verdict.duration_s,
                probability=probabilities,
            ),
        )
        return marked, [follow_up_batch(item, again, pair.then.name, pair.then.judge_model)]
