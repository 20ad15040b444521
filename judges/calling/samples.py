"""Ask one judge several times about one trace, and join the answers into one assessment with all their calls."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from statistics import median
from typing import Any

from msgspec import structs

from judges.core.combine import describe_vote
from judges.core.judge import Judge, Metric
from judges.core.verdict import Assessment, Score


async def ask_repeatedly(judge: Judge, ask: Callable[[Judge], Coroutine[Any, Any, Assessment]]) -> Assessment:
    """Ask side by side, at the judge's own temperature, or at 1, because at 0 all answers would be alike.

    The limits of an exploration in tokens and USD hold for all askings together.
    """
    number, exploration = judge.samples, judge.exploration
    if exploration is not None:
        tokens, usd = exploration.limits.max_tokens // number, exploration.limits.max_usd
        limits = structs.replace(exploration.limits, max_tokens=tokens, max_usd=usd and usd / number)
        exploration = structs.replace(exploration, limits=limits)
    single = dataclasses.replace(judge, samples=1, temperature=judge.temperature or 1.0, exploration=exploration)
    async with asyncio.TaskGroup() as group:
        askings = [group.create_task(ask(single)) for _ in range(number)]
    return join_samples([asking.result() for asking in askings], judge.metrics)


def join_samples(askings: Sequence[Assessment], metrics: Sequence[Metric]) -> Assessment:
    """Join assessments of one trace: of classes the majority counts, of grades and shares the median.

    If fewer than half of them have an answer, the result is unscored for the commonest reason. Without a majority it is
    ``disagreement``, unless an asking without an answer may have one later: then its reason, which leads to a retry.
    Rationale and details are of the first asking that agrees with the result.
    """
    scored = [asking for asking in askings if asking.outcome == "scored"]
    abstained = [asking for asking in askings if asking.outcome == "abstained"]
    unscored = [asking for asking in askings if asking.outcome == "unscored"]
    every = [score for asking in scored for score in asking.scores]
    ratings = {metric: [score for score in every if score.metric == metric.name] for metric in metrics}
    # Most askings may leave out a metric that has no value for this trace.
    votes = [_vote(*item) for item in ratings.items() if 2 * len(item[1]) > len(scored) > len(abstained)]
    scores = tuple(score for score in votes if score is not None)
    if 2 * len(unscored) > len(askings):
        ((commonest, _),) = Counter(asking.reason for asking in unscored).most_common(1)
        joined = next(asking for asking in unscored if asking.reason == commonest)
    elif len(abstained) > len(scored):
        joined = abstained[0]
    elif scores and len(scores) == len(votes):
        joined = structs.replace(min(scored, key=lambda asking: _distance(asking, scores)), scores=scores)
    else:
        note = f"{len(scored) + len(abstained)} answers of {len(askings)} askings have no majority"
        disagreement = Assessment("unscored", "disagreement", note=note)
        joined = next((asking for asking in unscored if not asking.is_final), disagreement)
    values = {metric.name: [score.value for score in each] for metric, each in ratings.items() if each}
    spread = {name: max(each) - min(each) for name, each in values.items()}
    return structs.replace(
        joined,
        details={**joined.details, "samples": list(map(describe_vote, askings)), "spread": spread},
        calls=tuple(call for asking in askings for call in asking.calls),
        refusals=max(asking.refusals for asking in askings),
    )


def _vote(metric: Metric, ratings: Sequence[Score]) -> Score | None:
    """Return the score by most ratings; None if as many pass as fail, or no class has a majority."""
    passes = [score.passed for score in ratings if score.passed is not None]
    if passes and 2 * sum(passes) == len(passes):
        return None
    if ".." not in metric.scale or "|" in metric.scale:
        ((chosen, count),) = Counter((score.value, score.label) for score in ratings).most_common(1)
        agreeing = (score for score in ratings if (score.value, score.label) == chosen)
        return next(agreeing) if 2 * count > len(ratings) else None
    middle, passed = median(score.value for score in ratings), 2 * sum(passes) > len(passes) if passes else None
    nearest = min(ratings, key=lambda score: (score.value != middle, score.passed != passed))
    if (nearest.value, nearest.passed) == (middle, passed):
        return nearest
    raw = [score.raw for score in ratings if isinstance(score.raw, int | float)]
    return Score(metric.name, middle, median(raw) if raw else None, passed=passed)


def _distance(asking: Assessment, scores: Sequence[Score]) -> float:
    """Return how far the answer of an asking is from the result."""
    own = {score.metric: score for score in asking.scores}
    pairs = ((score, own.get(score.metric, Score(score.metric, 2.0))) for score in scores)
    return sum(abs(score.value - other.value) + (score.label != other.label) for score, other in pairs)
