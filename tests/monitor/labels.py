"""Simulated labels, drawn from the traffic or as a golden set, and the shares that they correct."""

from typing import NamedTuple

import numpy as np

from worker.monitor.corrected import (
    Confusion,
    Corrected,
    CorrectionRefusedError,
    Stratum,
    from_drawn,
    from_golden,
    from_scores,
)

SENSITIVITY, SPECIFICITY = 0.85, 0.80


class Coverage(NamedTuple):
    """How often intervals held the true share; their mean width beside Rogan-Gladen and beside labels alone."""

    share: float
    beside_rogan_gladen: float
    beside_labels: float


def _verdicts(chance: np.random.Generator, truth: np.ndarray) -> np.ndarray:
    return chance.random(len(truth)) < np.where(truth, SENSITIVITY, 1 - SPECIFICITY)


def confusion(truth: np.ndarray, verdicts: np.ndarray) -> Confusion:
    """Count labels and verdicts."""
    return Confusion(*(float((t & v).sum()) for t in (truth, ~truth) for v in (verdicts, ~verdicts)))


def _width(found: Corrected) -> float:
    return found.interval.high - found.interval.low


def drawn(
    seed: int, share: float, runs: int, *, judged: int = 2000, labels: int = 200, unequal: bool = False
) -> Coverage:
    """Correct by labels drawn from the judged traces; `unequal` draws one half three times as often."""
    chance = np.random.default_rng(seed)
    covered, widths, alone = 0, [], []
    for _ in range(runs):
        truth = chance.random(judged) < share
        verdicts = _verdicts(chance, truth)
        # Two classes of label probability, by something that has nothing to do with the verdict.
        classes = (np.arange(judged) % 2) * unequal
        probability = (
            np.where(classes == 1, 1.5, 0.5) * labels / judged if unequal else np.full(judged, labels / judged)
        )
        labelled = chance.random(judged) < probability
        strata = [
            Stratum(
                verdict,
                key,
                float(here.sum()),
                int((here & labelled).sum()),
                int((here & labelled & truth).sum()),
            )
            for verdict in (True, False)
            for key in range(1 + unequal)
            for here in [(verdicts == verdict) & (classes == key)]
        ]
        try:
            found = from_drawn(strata, judged)
        except CorrectionRefusedError:
            continue  # a stratum without a label, about once in ten thousand runs
        covered += found.interval.low <= share <= found.interval.high
        other = from_golden(float(verdicts.sum()), judged, confusion(truth[labelled], verdicts[labelled]))
        widths.append((_width(found), _width(other)))
        alone.append(found.beside_labels)
    return Coverage(covered / len(widths), float(np.divide(*np.mean(widths, 0))), float(np.mean(alone)))


def golden(seed: int, share: float, runs: int, *, judged: int = 2000, labels: int = 200) -> float:
    """Correct by a balanced golden set; return the coverage."""
    chance = np.random.default_rng(seed)
    covered = 0
    for _ in range(runs):
        verdicts = _verdicts(chance, chance.random(judged) < share)
        truth = np.arange(labels) % 2 == 0
        found = from_golden(float(verdicts.sum()), judged, confusion(truth, _verdicts(chance, truth)))
        covered += found.interval.low <= share <= found.interval.high
    return covered / runs


def scores(seed: int, share: float, runs: int, *, judged: int = 2000, labels: int = 200) -> float:
    """Correct a judge that returns probabilities by labels drawn uniformly; return the coverage."""
    chance = np.random.default_rng(seed)
    covered = 0
    for _ in range(runs):
        truth = chance.random(judged) < share
        given = np.where(truth, chance.beta(4, 1.5, judged), chance.beta(1.5, 3, judged))
        chosen = chance.choice(judged, labels, replace=False)
        labelled = list(zip(given[chosen].tolist(), truth[chosen].tolist(), strict=True))
        found = from_scores(labelled, float(given.mean()), float(given.var()), judged)
        covered += found.interval.low <= share <= found.interval.high
    return covered / runs
