"""Simulated labels, drawn from the traffic or as a golden set, and the shares that they correct."""

import itertools
from typing import NamedTuple

import numpy as np

from judges.agreement.intervals import Interval
from judges.agreement.shares import ClassSums, SessionSums, Sums, estimate_share
from worker.base.lookup.label_store import Label, LabelVerdict
from worker.base.monitor.corrected import Confusion, Corrected, CorrectionRefusedError, Stratum, from_drawn, from_golden
from worker.features.labels.correction import Pair, strata

SENSITIVITY, SPECIFICITY = 0.85, 0.80
DESIGNS = ("uniform", "changed", "failing", "weighted")


class Coverage(NamedTuple):
    """Share of intervals that hold the true share; their mean width beside Rogan-Gladen and beside labels alone."""

    share: float
    beside_rogan_gladen: float
    beside_labels: float


def _verdicts(chance: np.random.Generator, truth: np.ndarray) -> np.ndarray:
    return chance.random(len(truth)) < np.where(truth, SENSITIVITY, 1 - SPECIFICITY)


def confusion(truth: np.ndarray, verdicts: np.ndarray) -> Confusion:
    """Count labels and verdicts."""
    return Confusion(*(float((t & v).sum()) for t in (truth, ~truth) for v in (verdicts, ~verdicts)))


def _width(corrected: Corrected) -> float:
    return corrected.interval.high - corrected.interval.low


def _probabilities(design: str, verdicts: np.ndarray, weights: np.ndarray, labels: int) -> np.ndarray:
    """Return each judged trace's probability of a label."""
    n = len(verdicts)
    relative = {
        "uniform": np.ones(n),
        # Three times as large for one half, as after a change of the rate.
        "changed": np.where(np.arange(n) % 2 == 1, 1.5, 0.5),
        "failing": np.where(verdicts, 1.0, 3.0),
        "weighted": weights,
    }[design]
    return relative * labels / relative.sum()


def drawn(
    seed: int, share: float, runs: int, *, judged: int = 2000, labels: int = 200, design: str = "uniform"
) -> Coverage:
    """Correct by labels drawn from the judged traces.

    Args:
        design: One of DESIGNS, which says what the probability of a label depends on.
    """
    chance = np.random.default_rng(seed)
    covered, widths, alone = 0, [], []
    # With "weighted", one half was judged at a quarter of the rate.
    weights = np.where(np.arange(judged) % 2 == 1, 4.0 if design == "weighted" else 1.0, 1.0)
    effective = weights.sum() ** 2 / (weights**2).sum()
    for _ in range(runs):
        truth = chance.random(judged) < share
        verdicts = _verdicts(chance, truth)
        probability = _probabilities(design, verdicts, weights, labels)
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
        widths.append((_width(corrected), _width(other)))
        alone.append(corrected.beside_labels)
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


def sessions(seed: int, share: float, runs: int, correlation: float, *, judged: int = 400, labelled: int = 40) -> float:
    """Correct by labels of whole sessions of five traces, whose truths and errors correlate; return the coverage."""
    chance = np.random.default_rng(seed)
    size, covered, counted = 5, 0, 0
    for _ in range(runs):
        truth = _alike(chance, np.full((judged, size), share), correlation)
        right = _alike(chance, np.where(truth, SENSITIVITY, SPECIFICITY), correlation)
        verdicts = np.where(right, truth, ~truth)
        passed = verdicts.sum(1)
        whole = ClassSums(judged * size, *map(float, (judged * size, passed.sum(), judged * size, passed.sum())))
        over = SessionSums(judged, *map(float, (judged * size**2, size * passed.sum(), (passed**2).sum())))
        sums = Sums({0: whole}, over)
        pairs = [
            Pair(
                Label(f"{row}.{at}", "j", "j", passed=bool(truth[row, at]), drawn=labelled / judged),
                LabelVerdict(
                    *(f"{row}.{at}", f"{row}.{at}", "live", "v", "m", "s", "scored", 0.0, 1.0),
                    passed=bool(verdicts[row, at]),
                    session_id=str(row),
                ),
            )
            for row in range(labelled)
            for at in range(size)
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
