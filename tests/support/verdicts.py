"""Verdicts for the tests of what reads them: three weeks, those of the built-in model, filters."""

import asyncio
import itertools
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from judges.calling.evaluation import evaluate
from judges.core.verdict import Score, Verdict
from judges.models.lexical import LexicalModel
from judges.registry import catalogue
from support.passes import quality_sums, read_outbox
from support.stages import Keyspace, make_judged, make_verdict
from tracejudge import Trace
from worker.base.lookup.verdict_filter import FAILED, VerdictFilter
from worker.base.monitor.feature import Monitor
from worker.core.config.settings import Settings

DAY_S = 86_400
NOW = float(int(time.time()) // 3600 * 3600)
"""A whole hour of the present: buckets of hours older than 90 days, and of five minutes older than 3, are gone."""
WEIGHTS = (1.0, 1.0, 4.0, 20.0)


def verdict(number: int, at: float, **fields: Any) -> Verdict:
    """A verdict that was made at a time."""
    ids = {"evaluation_id": f"{number:032x}", "trace_id": f"{number:032x}"}
    return make_judged(number, **ids | {"started_at": at - 0.5} | fields)


def three_weeks(count: int = 3_000, seed: int = 18) -> list[Verdict]:
    """Verdicts of two services, in order; of each kind that the report must add, leave out, or tell apart."""
    random_ = random.Random(seed)
    times = sorted(round(NOW - random_.random() * 21 * DAY_S, 3) for _ in range(count))
    verdicts = []
    for number, at in enumerate(times):
        outcome = random_.choices(["scored", "abstained", "unscored"], [16, 1, 2])[0]
        weight = random_.choice(WEIGHTS)
        passed = random_.random() < (0.9 if at < NOW - 7 * DAY_S else 0.8)
        scores = (Score("safety", float(passed), passed=passed), Score("tone", 0.5))
        verdicts.append(
            verdict(
                number,
                at,
                outcome=outcome,
                reason=None if outcome != "unscored" else "missing_input" if number % 4 else "refusal",
                scores=scores if outcome == "scored" else (),
                metrics=("safety", "tone"),
                service=random_.choice(["shop", "bot"]),
                environment=random_.choice([None, "prod"]),
                release=random_.choice([None, "1.0", "1.1"]),
                session_id=random_.choice([None, *(f"s{each}" for each in range(40))]),
                origin=random_.choices(["live", "replay"], [9, 1])[0],
                judge_version="0123456789abcdef" if at < NOW - 3 * DAY_S else "fedcba9876543210",
                weight=weight,
                probability=1 / weight,
                cost_usd=random_.choice([None, 0.001, 0.002]),
            )
        )
    return verdicts


def publish(keyspace: Keyspace, verdicts: Sequence[Verdict], **monitor: Any) -> None:
    """Write verdicts into the outbox at their times, and have the monitor add them."""
    settings = Settings.from_keys(prefix=keyspace.prefix, redis_url=keyspace.url, monitor=Monitor(**monitor))
    sums = quality_sums(keyspace, settings)
    with keyspace.client.pipeline(transaction=False) as pipe:
        for number, each in enumerate(sorted(verdicts, key=lambda each: each.started_at)):
            entry_id = f"{round((each.started_at + each.duration_s) * 1000)}-{number}"
            pipe.xadd(keyspace.keys.verdicts, {"v": 1, "j": msgspec.json.encode(each)}, id=entry_id)
        pipe.execute()
    while entries := read_outbox(keyspace, 500):
        sums.deliver(entries)


def write_archive(path: Path, verdicts: Iterable[Verdict]) -> Path:
    """Write verdicts as lines of JSON."""
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in verdicts))
    return path


class Expected(NamedTuple):
    """Figures of some verdicts, added up one by one."""

    judgements: int
    share: float
    abstained: float
    unscored: float
    per_thousand: float


def expected(verdicts: Iterable[Verdict], metric: str = "safety") -> Expected:
    """Compute the figures of live verdicts without the product."""
    live = [each for each in verdicts if each.origin == "live"]
    rated = [
        (each.weight, score.passed)
        for each in live
        for score in each.scores
        if score.metric == metric and score.passed is not None
    ]
    without = {kind: sum(each.weight for each in live if each.outcome == kind) for kind in ("abstained", "unscored")}
    total = sum(weight for weight, _ in rated)
    whole = total + sum(without.values())
    costs = [each.cost_usd for each in live if each.cost_usd is not None]
    return Expected(
        len(rated),
        sum(weight for weight, passed in rated if passed) / total if total else 0.0,
        without["abstained"] / whole,
        without["unscored"] / whole,
        1000 * sum(costs) / len(costs),
    )


# --- verdicts of the built-in model ---
def judged(rows: Sequence[Mapping[str, Any]], judges: Iterable[str]) -> list[Verdict]:
    """Judge traces, as live traffic."""
    model, verdicts = LexicalModel(), []
    for number, (row, name) in enumerate(itertools.product(rows, judges)):
        judge, trace = catalogue()[name], msgspec.convert(row, Trace)
        assessment = asyncio.run(evaluate(judge, trace, model))
        fields = {field: getattr(assessment, field) for field in ("outcome", "reason", "scores", "rationale")}
        verdicts.append(
            make_verdict(
                number,
                **fields,
                details=assessment.details,
                calls=assessment.calls,
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                service=trace.service,
                metrics=judge.metric_names,
                judge=name,
                judge_version=judge.version,
                started_at=time.time(),
                attempts=1,
                weight=1.0,
            )
        )
    return verdicts


# --- filters ---
PASSED, FAILING = (
    {"outcome": "scored", "scores": (Score("safety", value, passed=bool(value)),)} for value in (1.0, 0.0)
)
VERDICTS = [
    make_verdict(1, **PASSED),
    make_verdict(2, **FAILING, service="shop-2", origin="replay"),
    make_verdict(3, service="shop[2]", judge="groundedness"),
    make_verdict(4, outcome="unscored", reason="refusal", trace_id="order-1"),
    make_verdict(5, **PASSED, service="Shop", trace_id="order-12"),
]


CASES = [
    (VerdictFilter(), [1, 2, 3, 4, 5]),
    (VerdictFilter(services=("shop",)), [1, 4]),
    (VerdictFilter(services=("shop*",)), [1, 2, 3, 4]),
    (VerdictFilter(services=("shop-?", "Shop")), [2, 5]),
    (VerdictFilter(services=("shop[[]2]",)), [3]),
    (VerdictFilter(services=("[!s]hop",)), [5]),
    (VerdictFilter(judges=("ground*",)), [3]),
    (VerdictFilter(origin="replay"), [2]),
    (VerdictFilter(outcomes=FAILED), [2, 3, 4]),
    (VerdictFilter(outcomes=("passed",), services=("shop",)), [1]),
    (VerdictFilter(traces=("order-1",)), [4, 5]),
    (VerdictFilter(traces=("order-12", f"{3:032x}")), [2, 5]),
    (VerdictFilter(trace_ids=frozenset({"order-1", f"{3:032x}"})), [2, 4]),
    (VerdictFilter(since_ms=4), [4, 5]),
    (VerdictFilter(since_ms=2, until_ms=3), [2, 3]),
]


def write_verdicts(keyspace: Keyspace) -> None:
    for number, verdict in enumerate(VERDICTS, 1):
        keyspace.client.xadd(keyspace.keys.verdicts, {"v": "1", "j": msgspec.json.encode(verdict)}, id=f"{number}-0")


def entry_ids(numbers: list[int]) -> list[str]:
    """Return the ids of these verdicts, the newest first."""
    return [f"{number}-0" for number in reversed(numbers)]
