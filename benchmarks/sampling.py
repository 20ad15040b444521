"""Sampling and budgets: decisions a second with every key of a rule, and what budgets add to an evaluation."""

import time
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.figures import Figure, tell
from benchmarks.judging import cpu_of_an_evaluation
from benchmarks.workers import pipeline
from judges.core.model import ModelSettings
from judges.registry import catalogue
from tracejudge import Trace
from worker.core.config.graders import Graders
from worker.core.config.settings import Rule, Settings, Where
from worker.core.selection.sampling import Rules, Sampler
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.features.budgets.rates import RateAdjuster, Rates

__all__ = ["sampling"]

_TRACES: Final = 50_000
_TURNS: Final = 5
_MODELS: Final = 8
_WHERE: Final = Where(service="shop-*", environment="prod")
_PLAIN: Final = (
    Rule("documents", ("groundedness",), where=_WHERE, rate=0.05, always=("error",)),
    Rule("all", ("safety",), rate=0.05),
)
_EVERY_KEY: Final = (
    Rule.from_keys(
        name="documents",
        judges=("groundedness",),
        where=_WHERE,
        rate=0.05,
        always=("error", "negative_feedback", "slow"),
        stratify=("model",),
        first_per_hour=20,
    ),
    Rule.from_keys(name="all", judges=("safety",), rate=0.05, sample_by="session", first_per_hour=20),
)
_TOKENS: Final = 10**12
"""A limit that is never reached."""


def sampling() -> Iterator[Figure]:
    """Measure CPU time, old and new keys in turns."""
    traces = [_trace(number) for number in range(_TRACES)]
    turns = [
        (_seconds(_sampler(_PLAIN), traces), _seconds(_sampler(_EVERY_KEY, adjusted=True), traces))
        for _ in range(_TURNS)
    ]
    of_plain, of_every = (_TRACES / min(times) for times in zip(*turns, strict=True))
    yield Figure("decisions/s of two rules with a pattern, a rate and `always`, by CPU", f"{of_plain:,.0f}/s")
    what = "the same with `slow`, `stratify`, `first_per_hour`, `sample_by` and the factors of budgets"
    yield Figure(what, f"{of_every:,.0f}/s", f"{of_plain / of_every:.2f} x the CPU", "≥ 200,000/s")
    cpu_ms = {}
    for budgets in ({}, {"all": {"tokens_per_day": _TOKENS}}):
        tell(f"CPU of a worker with {len(budgets)} budgets")
        with pipeline(budgets=budgets) as line:
            cpu_ms[len(budgets)] = cpu_of_an_evaluation(line)
    yield Figure("CPU of the worker per evaluation, without budgets", f"{cpu_ms[0]:.2f} ms")
    yield Figure("the same with one budget", f"{cpu_ms[1]:.2f} ms", f"{cpu_ms[1] / cpu_ms[0]:.2f} x without")


def _trace(number: int) -> Trace:
    return Trace(
        trace_id=f"{number:032x}",
        service=f"shop-{number % 5}",
        output="It is shipped.",
        environment="prod",
        release=f"r{number % 3}",
        model=f"model-{number % _MODELS}",
        session_id=f"session-{number // 5}",
        started_at=1.7e9,
        ended_at=1.7e9 + number % 11,
    )


def _sampler(rules: Sequence[Rule], *, adjusted: bool = False) -> Sampler:
    """Make a sampler; an adjusted one has reduced rates, and only the release r0 is new."""
    settings = Settings(models={"default": ModelSettings(provider="lexical")}, rules=tuple(rules))
    compiled = Rules(settings, Graders(settings, catalogue()))
    if not adjusted:
        return Sampler(compiled)
    # Nothing is exchanged.
    adjuster = RateAdjuster(settings, Store("redis://127.0.0.1:1/0", Keys("unused")))
    segments = {"documents": {f"model-{number}": 0.5 + number / 8 for number in range(_MODELS)}}
    adjuster.rates = Rates({"documents": 0.5, "all": 0.25}, segments)
    adjuster.new_values.known = frozenset(
        f"shop-{number}\nrelease=r{release}" for number in range(5) for release in (1, 2)
    )
    return Sampler(compiled, (adjuster,))


def _seconds(sampler: Sampler, traces: Sequence[Trace]) -> float:
    """Return the CPU time of sampling traces."""
    begin = time.process_time()
    for trace in traces:
        sampler.sample(trace)
    return time.process_time() - begin
