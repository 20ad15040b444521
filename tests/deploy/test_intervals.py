"""The intervals hold what they promise, by simulation; the seeds are fixed."""

from random import Random

import pytest
from figures import Z_OF_FALLS, least_fall, share

REPEATS = 1500


def sample(random: Random, n: int, passes: float, probabilities: list[float]) -> tuple[list[float], list[float]]:
    """Judge `n` traces, each sampled with one of the probabilities and so with the weight 1 / probability."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(n):
        found[random.random() >= passes].append(1 / random.choice(probabilities))
    return found


@pytest.mark.parametrize(
    ("n", "passes", "probabilities"),
    [
        pytest.param(100, 0.8, [1.0], id="equal weights"),
        pytest.param(100, 0.8, [1.0, 0.05], id="1 and 20"),
        pytest.param(400, 0.9, [1.0, 0.05], id="1 and 20, many"),
        pytest.param(200, 0.8, [1.0, 0.5, 0.1], id="1, 2 and 10"),
        pytest.param(300, 0.5, [1.0, 0.01], id="1 and 100"),
    ],
)
def test_coverage(n: int, passes: float, probabilities: list[float]) -> None:
    """An interval of 95 % holds the true share in 93 to 97 of 100 samples of unequal weights."""
    random = Random(8)
    held = 0
    for _ in range(REPEATS):
        found = share(*sample(random, n, passes, probabilities))
        held += found.lower <= passes <= found.upper
    assert 0.93 <= held / REPEATS <= 0.97


def test_coverage_where_errors_are_always_judged() -> None:
    """It holds also where what mostly fails has the weight 1, and what mostly passes another."""
    random = Random(9)
    errors, others = 0.1, 0.9
    truth = errors * 0.3 + others * 0.95
    held, repeats = 0, 500
    for _ in range(repeats):
        passes: list[float] = []
        fails: list[float] = []
        for is_error in random.choices((True, False), (errors, others), k=3000):
            if is_error or random.random() < 0.1:
                passed = random.random() < (0.3 if is_error else 0.95)
                (passes if passed else fails).append(1.0 if is_error else 10.0)
        found = share(passes, fails)
        held += found.lower <= truth <= found.upper
    assert 0.93 <= held / repeats <= 0.97


def test_few_failures_of_small_weight_do_not_make_it_sure() -> None:
    """Without the bound by the number of judgements this interval held in 71 of 100 samples."""
    random = Random(10)
    held = 0
    for _ in range(REPEATS):
        found = share(*sample(random, 30, 0.95, [1.0, 0.05]))
        held += found.lower <= 0.95 <= found.upper
    assert held / REPEATS >= 0.93


@pytest.mark.parametrize(
    ("now", "at_least", "at_most"), [(0.9, 0.0, 0.002), (0.6, 0.97, 1.0)], ids=["none", "a large one"]
)
def test_falls(now: float, at_least: float, at_most: float) -> None:
    """Of hours in which nothing changed, each with 100 judgements, none in 500 is a fall; a large fall is seen."""
    random = Random(11)
    falls = 0
    for _ in range(REPEATS):
        before, after = (
            share(*sample(random, n, passes, [1.0, 0.2]), z=Z_OF_FALLS) for n, passes in ((600, 0.9), (100, now))
        )
        falls += least_fall(before, after) > 0.05
    assert at_least <= falls / REPEATS <= at_most
