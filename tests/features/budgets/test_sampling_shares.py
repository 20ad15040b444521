"""The statistical promise of sampling: whatever reduces or divides rates, weighted shares are those of all traces."""

import math
import random
from collections import Counter, defaultdict

from support.stage_parts import make_trace, sampler_of

from judges.core.model import ModelSettings
from tracejudge import Trace
from worker.core.config.settings import Rule, Settings
from worker.core.selection.sampling import Sampler
from worker.core.storage.client import Store
from worker.core.storage.keys import Keys
from worker.features.budgets.control import segment_factors
from worker.features.budgets.feature import STRATIFY
from worker.features.budgets.rates import RateAdjuster, Rates

MODELS = {"large": (0.90, 0.95), "small": (0.09, 0.70), "tiny": (0.01, 0.40)}
"""The share of the traffic, and how many of its traces pass."""
TRACES = 60_000
ERRORS = 4


def traffic(seed: int) -> list[tuple[Trace, bool]]:
    """Make traces of three models in conversations of five, and whether each passes. Slow ones fail more often."""
    chance, made = random.Random(seed), []
    for number in range(TRACES):
        (model,) = chance.choices(list(MODELS), [share for share, _ in MODELS.values()])
        seconds = chance.expovariate(0.5)
        does_pass = chance.random() < MODELS[model][1] - (0.3 if seconds > 6 else 0.0)
        trace = make_trace(
            number,
            trace_id=f"{chance.getrandbits(128):032x}",
            model=model,
            session_id=f"session {seed} {number // 5}",
            started_at=1e9,
            ended_at=1e9 + seconds,
        )
        made.append((trace, does_pass))
    return made


def settings_of(rule: Rule) -> Settings:
    return Settings(rules=(rule,), models={"default": ModelSettings(provider="lexical")})


def sampler(rule: Rule) -> Sampler:
    return sampler_of(settings_of(rule))


def adjusted(rule: Rule, rates: Rates) -> tuple[Sampler, RateAdjuster]:
    """Make a sampler by these rates, and the hook that has them; nothing is exchanged."""
    adjuster = RateAdjuster(settings_of(rule), Store("redis://127.0.0.1:1/0", Keys("unused")))
    adjuster.rates = rates
    return sampler_of(settings_of(rule), adjuster), adjuster


def within(estimated: float, true: float, variance: float, what: object) -> None:
    assert abs(estimated - true) < ERRORS * math.sqrt(variance), f"{what}: {estimated:.4f}, true {true:.4f}"


def test_weighted_shares_are_unbiased_under_every_kind_of_rule() -> None:
    traces = traffic(18)
    truth = sum(does_pass for _, does_pass in traces) / TRACES
    counts = Counter(trace.model or "" for trace, _ in traces)
    rules = {
        "rate": Rule("one", ("safety",), rate=0.2),
        "slow": Rule("one", ("safety",), rate=0.1, always=("slow",), slow_s=6.0),
        "session": Rule("one", ("safety",), rate=0.2, sample_by="session"),
        "stratify": Rule.from_keys(name="one", judges=("safety",), rate=0.1, stratify=("model",)),
        "first": Rule.from_keys(name="one", judges=("safety",), rate=0.1, first_per_hour=500),
        "all": Rule.from_keys(
            name="one",
            judges=("safety",),
            rate=0.2,
            always=("slow",),
            slow_s=6.0,
            stratify=("model",),
            first_per_hour=500,
            sample_by="session",
        ),
    }
    for name, rule in rules.items():
        segments = {"one": segment_factors(rule.rate, counts)} if STRATIFY.read(rule) else {}
        under_test, factors = adjusted(rule, Rates({"one": 0.5}, segments))
        total = passed = variance = 0.0
        by_session: dict[str, list[float]] = defaultdict(lambda: [0.0, 1.0])
        probabilities = set()
        for number, (trace, does_pass) in enumerate(traces):
            if number == TRACES // 2:
                # A budget recovers. The rate of a trace is that of the moment when it is read.
                factors.rates = Rates({}, segments)
                under_test.clear()
            for choice in under_test.sample(trace).choices:
                weight = 1 / choice.probability
                probabilities.add(choice.probability)
                total, passed = total + weight, passed + weight * does_pass
                sums = by_session[trace.session_id or ""] if rule.sample_by == "session" else by_session[trace.trace_id]
                sums[0] += weight * (does_pass - truth)
                sums[1] = choice.probability
        assert len(probabilities) >= 2, name
        # Horvitz and Thompson: the variance of what independent choices add up to.
        variance = sum(deviation**2 * (1 - probability) for deviation, probability in by_session.values())
        within(passed / total, truth, variance / total**2, name)
        assert abs(total / TRACES - 1) < 0.1, f"{name}: the weights stand for {total:.0f} of {TRACES} traces"


def test_a_divided_rate_evens_out_the_precision_of_segments() -> None:
    traces = traffic(19)
    counts = Counter(trace.model or "" for trace, _ in traces)
    lengths = {}
    for stratify in ((), ("model",)):
        rule = Rule.from_keys(name="one", judges=("safety",), rate=0.03, stratify=stratify)
        segments = {"one": segment_factors(rule.rate, counts)} if stratify else {}
        under_test, _ = adjusted(rule, Rates({}, segments))
        chosen = Counter(trace.model or "" for trace, _ in traces if under_test.sample(trace).choices)
        # The length of an interval for the same share in each segment.
        lengths[bool(stratify)] = {model: 1 / math.sqrt(chosen[model]) for model in MODELS}
        assert abs(sum(chosen.values()) / TRACES - rule.rate) < 0.003, "the mean rate remains"
    for divides, most in ((False, 6.0), (True, 1.15)):
        ratio = max(lengths[divides].values()) / min(lengths[divides].values())
        assert (ratio <= most) if divides else (ratio > most), f"divided: {divides}, the longest is {ratio:.2f} times"


def test_all_workers_choose_the_same_conversations_whole() -> None:
    rule = Rule("one", ("safety",), rate=0.2, sample_by="session")
    workers = [sampler(rule) for _ in range(3)]
    chance, chosen = random.Random(1), defaultdict(set)
    for trace, _ in traffic(20)[:5_000]:
        choices = chance.choice(workers).sample(trace).choices
        chosen[trace.session_id].add(bool(choices))
        assert all(choice.probability == rule.rate for choice in choices)
    assert all(len(result) == 1 for result in chosen.values()), "a conversation is divided"
    assert abs(sum(names == {True} for names in chosen.values()) / len(chosen) - rule.rate) < 0.06
