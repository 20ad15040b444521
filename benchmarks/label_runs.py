"""Simulated labels, drawn from the traffic or as a golden set, and the shares that they correct."""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from judges.agreement.intervals import Interval
from judges.agreement.shares import ClassSums, SessionSums, Sums, Unjudged, estimate_share
from worker.base.lookup.label_store import Label, Labelled, LabelVerdict, keep_drawn, with_places_reached
from worker.base.monitor.corrected import Confusion, CorrectionRefusedError, Stratum, from_drawn, from_golden
from worker.base.monitor.series import DAY_S, Bucket
from worker.features.labels.correction import Pair, correct, strata

SENSITIVITY, SPECIFICITY = 0.85, 0.80
DESIGNS = ("uniform", "changed", "failing", "weighted")


class Coverage(NamedTuple):
    """Share of intervals that hold the true share; their mean width beside Rogan-Gladen and beside labels alone."""

    share: float
    beside_rogan_gladen: float
    beside_labels: float


def pair(
    number: int,
    at: float = 0.0,
    *,
    drawn: float = 0.1,
    passed: bool = True,
    verdict: bool = True,
    weight: float = 1.0,
    session_id: str | None = None,
) -> Pair:
    """Label a trace, and judge it."""
    label = Label(f"t{number}", "j", "j", passed=passed, drawn=drawn)
    fields: dict[str, Any] = {"passed": verdict, "session_id": session_id}
    return Pair(label, LabelVerdict(f"t{number}", f"e{number}", "live", "v", "m", "s", "scored", at, weight, **fields))


def _verdicts(chance: np.random.Generator, truth: np.ndarray) -> np.ndarray:
    return chance.random(len(truth)) < np.where(truth, SENSITIVITY, 1 - SPECIFICITY)


def confusion(truth: np.ndarray, verdicts: np.ndarray) -> Confusion:
    """Count labels and verdicts."""
    return Confusion(*(float((t & v).sum()) for t in (truth, ~truth) for v in (verdicts, ~verdicts)))


def drawn(
    seed: int, share: float, runs: int, *, judged: int = 2000, labels: int = 200, design: str = "uniform"
) -> Coverage:
    """Correct by labels drawn from the judged traces.

    Args:
        design: One of DESIGNS, which says what the probability of a label depends on.
    """
    chance = np.random.default_rng(seed)
    covered, widths, alone = 0, [], list[float]()
    # With "weighted", one half was judged at a quarter of the rate.
    weights = np.where(np.arange(judged) % 2 == 1, 4.0 if design == "weighted" else 1.0, 1.0)
    effective = weights.sum() ** 2 / (weights**2).sum()
    for _ in range(runs):
        truth = chance.random(judged) < share
        verdicts = _verdicts(chance, truth)
        # The probability of a label; "changed" has three times as large a one for one half, as after a change of rate.
        relative = {
            "uniform": np.ones(judged),
            "changed": np.where(np.arange(judged) % 2 == 1, 1.5, 0.5),
            "failing": np.where(verdicts, 1.0, 3.0),
            "weighted": weights,
        }[design]
        probability = relative * labels / relative.sum()
        labelled = chance.random(judged) < probability
        strata = []
        for verdict, weight in itertools.product((True, False), np.unique(weights)):
            here = (verdicts == verdict) & (weights == weight)
            of_labels = 1 / probability[here & labelled]
            total = float(of_labels.sum())
            number = total**2 / float((of_labels**2).sum()) if total else 0.0
            rate = float((of_labels * truth[here & labelled]).sum()) / total if total else 0.0
            strata.append(Stratum(verdict, int(weight), float(weights[here].sum()), number, number * rate, total))
        try:
            corrected = from_drawn(strata, effective)
        except CorrectionRefusedError:
            continue  # a stratum without a label, about once in ten thousand runs
        covered += corrected.interval.low <= share <= corrected.interval.high
        other = from_golden(float(verdicts.sum()), judged, confusion(truth[labelled], verdicts[labelled]))
        widths.append([each.interval.high - each.interval.low for each in (corrected, other)])
        alone.append(corrected.beside_labels or math.nan)
    return Coverage(covered / len(widths), float(np.divide(*np.mean(widths, 0))), float(np.mean(alone)))


def golden(seed: int, share: float, runs: int, *, judged: int = 2000, labels: int = 200) -> float:
    """Correct by a balanced golden set; return the coverage."""
    chance = np.random.default_rng(seed)
    covered = 0
    for _ in range(runs):
        verdicts = _verdicts(chance, chance.random(judged) < share)
        truth = np.arange(labels) % 2 == 0
        estimate = from_golden(float(verdicts.sum()), judged, confusion(truth, _verdicts(chance, truth)))
        covered += estimate.interval.low <= share <= estimate.interval.high
    return covered / runs


def sessions(
    seed: int,
    share: float,
    runs: int,
    correlation: float,
    *,
    errors: float | None = None,
    judged: int = 400,
    labelled: int = 40,
) -> float:
    """Correct by labels of whole sessions of five traces, whose truths and errors correlate; return the coverage.

    The errors correlate as the truths do unless ``errors`` says how much.
    """
    chance = np.random.default_rng(seed)
    size, covered, counted = 5, 0, 0
    for _ in range(runs):
        truth = _alike(chance, np.full((judged, size), share), correlation)
        alike = correlation if errors is None else errors
        right = _alike(chance, np.where(truth, SENSITIVITY, SPECIFICITY), alike)
        verdicts = np.where(right, truth, ~truth)
        passed = verdicts.sum(1)
        whole = ClassSums(judged * size, *map(float, (judged * size, passed.sum(), judged * size, passed.sum())))
        over = SessionSums(judged, *map(float, (judged * size**2, size * passed.sum(), (passed**2).sum())))
        sums = Sums({0: whole}, over)
        pairs = [
            pair(n, drawn=labelled / judged, passed=bool(t), verdict=bool(v), session_id=str(n // size))
            for n, (t, v) in enumerate(zip(truth[:labelled].flat, verdicts[:labelled].flat, strict=True))
        ]
        raw = estimate_share(sums)
        assert raw is not None
        try:
            corrected: Interval = from_drawn(strata(pairs, sums), raw.effective).interval
        except CorrectionRefusedError:
            continue
        counted += 1
        covered += corrected.low <= share <= corrected.high
    return covered / counted


def _alike(chance: np.random.Generator, share: np.ndarray, correlation: float) -> np.ndarray:
    """Draw values for sessions, which are rows: a part of them are the session's own draw, compared with each share."""
    own = chance.random((len(share), 1))
    is_own = chance.random(share.shape) < np.sqrt(correlation)
    return np.where(is_own, own, chance.random(share.shape)) < share


DAYS = 28
STEP_S = 6 * 3600


class Timed(NamedTuple):
    """What came of windows of 28 days: shares of all runs, and of those with a share the part that holds the truth."""

    refused: float
    covered: float  # Nan if all were refused.
    offered: float  # Of the refused ones, those that offer the share of the labelled time.
    offered_covered: float


def in_time(seed: int, runs: int, design: str, *, judged: int = 2000) -> Timed:
    """Correct the share of 28 days, which falls from .95 to .80.

    Args:
        design: When labels were drawn, and when the share falls: `all of the time`, `first days` (of the three first
            days alone), `changed rate` (a third of the rate in the second half) and `weighted` (the second half was
            judged at a twentieth of the rate) half-way. With `falling order` the share falls after the first day, all
            verdicts of this day were answered on the board, and later a tenth of those that a rate of .05 draws.
            With `queue file` disagreeing traces are imported as `queue` after all were drawn.
    """
    chance = np.random.default_rng(seed)
    results = [_correct_in_time(chance, design, judged) for _ in range(runs)]
    refused = [result for result in results if result[0] is None]
    offers = [offer for _, _, offer in refused if offer is not None]
    covered = [
        low <= share <= high for interval, share, _ in results if interval is not None for low, high in (interval,)
    ]
    return Timed(
        len(refused) / runs,
        float(np.mean(covered)) if covered else float("nan"),
        len(offers) / len(refused) if refused else 0.0,
        float(np.mean(offers)) if offers else float("nan"),
    )


def _correct_in_time(
    chance: np.random.Generator, design: str, judged: int
) -> tuple[tuple[float, float] | None, float, bool | None]:
    """Return the interval, the true share, and whether an offered interval holds the share of its time."""
    is_board = design == "falling order"
    begin, end = 0.0, float(DAYS * DAY_S)
    falls = DAY_S if is_board else end / 2
    at = np.sort(chance.random(judged)) * end
    weights = np.where((at >= falls) & (design == "weighted"), 20.0, 1.0)
    if design == "weighted":
        kept = chance.random(judged) < 1 / weights
        at, weights = at[kept], weights[kept]
    truth = chance.random(len(at)) < np.where(at < falls, 0.95, 0.80)
    verdicts = _verdicts(chance, truth)
    places = chance.random(len(at))
    chosen: list[tuple[int, float, tuple[float, float] | None]]
    if is_board:
        first, later = at < DAY_S, np.flatnonzero((at >= DAY_S) & (places < 0.05))
        answered = later[np.argsort(places[later])][: max(1, len(later) // 10)]
        chosen = [(int(i), float(places[i]), (begin, float(DAY_S))) for i in np.flatnonzero(first)]
        chosen += [(int(i), float(places[i]), (begin, end)) for i in answered]
    else:
        rates = {
            "first days": np.where(at < 3 * DAY_S, 200 / judged * DAYS / 3, 0.0),
            "changed rate": np.where(at < falls, 150, 50) / len(at) * 2,
        }.get(design, np.full(len(at), 200 / len(at)))
        chosen = [(int(i), float(rates[i]), None) for i in np.flatnonzero(places < rates)]
    labelled = []
    for i, drawn, reached in chosen:
        fields: dict[str, Any] = {"passed": bool(truth[i]), "verdict": bool(verdicts[i]), "weight": float(weights[i])}
        label, verdict = pair(i, float(at[i]), drawn=drawn, **fields)
        label = replace(label, reached=reached)
        if design == "queue file" and truth[i] != verdicts[i]:
            label = keep_drawn(label, replace(label, drawn="queue", reached=None))
        labelled.append(Labelled(label, (verdict,)))
    pairs = [Pair(label, of_label[0]) for label, of_label in with_places_reached(labelled) if label.origin == "drawn"]
    buckets = _buckets(at, verdicts, weights)
    correction = correct("drawn", pairs, buckets, (begin, end), STEP_S)
    if correction.corrected is not None:
        return correction.corrected.interval[1:], float(np.average([0.95, 0.80], weights=[falls, end - falls])), None
    offer = correction.offered
    if offer is None or offer.corrected is None:
        return None, 0.0, None
    before = min(1.0, max(0.0, (falls - offer.since) / (offer.until - offer.since)))
    return None, 0.0, offer.corrected.interval.low <= 0.80 + 0.15 * before <= offer.corrected.interval.high


def _buckets(at: np.ndarray, verdicts: np.ndarray, weights: np.ndarray) -> list[Bucket]:
    buckets = []
    for number in np.unique(at // STEP_S):
        here = at // STEP_S == number
        classes = {}
        for weight in np.unique(weights[here]):
            n, k = int((here & (weights == weight)).sum()), float((here & (weights == weight) & verdicts).sum())
            classes[math.frexp(weight)[1] - 1] = ClassSums(n, n * weight, k * weight, n * weight**2, k * weight**2)
        total, passed = (float((weights[here] ** 2 * each).sum()) for each in (1, verdicts[here]))
        buckets.append(
            Bucket(
                number * STEP_S,
                Sums(classes, SessionSums(int(here.sum()), total, passed, passed)),
                Unjudged(),
                Unjudged(),
            )
        )
    return buckets
