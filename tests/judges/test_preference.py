"""The interval of wins and half of the ties holds the truth about 95 times out of 100."""

import math
from collections import Counter

from support.cases import each_case

from judges.agreement.intervals import wilson
from judges.agreement.paired import Preference


def preference(wins: int, ties: int, losses: int) -> Preference:
    return Preference(Counter(win=wins, tie=ties, loss=losses))


def covered(pairs: int, win: float, tie: float, loss: float) -> float:
    """Sum the probabilities of all results whose interval holds the true mean."""
    truth, result = win + tie / 2, 0.0
    for wins in range(pairs + 1):
        for ties in range(pairs - wins + 1):
            losses = pairs - wins - ties
            interval = preference(wins, ties, losses).points
            assert interval is not None
            if interval.low <= truth <= interval.high:
                ways = math.comb(pairs, wins) * math.comb(pairs - wins, ties)
                result += ways * win**wins * tie**ties * loss**losses
    return result


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    shares = ((0.5, 0.0, 0.5), (0.4, 0.2, 0.4), (0.6, 0.2, 0.2), (0.1, 0.8, 0.1), (0.2, 0.75, 0.05), (0.9, 0.05, 0.05))
    reached = {(pairs, *each): covered(pairs, *each) for pairs in (20, 50) for each in shares}
    assert {key: value for key, value in reached.items() if not 0.925 <= value <= 0.99} == {}


def test_figures_of_a_preference() -> None:
    difference = preference(6, 2, 2)
    assert difference.points is not None
    assert (difference.pairs, difference.points.value, difference.share("win")) == (10, 0.7, wilson(0.6, 10))
    assert difference.points.low < 0.5 < difference.points.high
    better = preference(48, 30, 22).points
    assert better is not None
    assert (round(better.low, 3), round(better.high, 3)) == (0.55, 0.704)
    empty = preference(0, 0, 0)
    assert (empty.points, empty.share("win"), empty.bias) == (None, None, None)


@each_case("only", ["win", "tie", "loss"])
def test_one_outcome_alone_is_not_certain(only: str) -> None:
    difference = Preference(Counter({only: 20})).points
    assert difference is not None
    assert difference.high - difference.low > 0.05
    assert 0.0 <= difference.low <= difference.value <= difference.high <= 1.0


def test_bias_is_a_share_of_the_pairs_that_were_compared() -> None:
    difference = Preference(Counter(win=2, tie=8), Counter(first=3, second=1), equal=2)
    assert difference.bias == wilson(0.5, 8)
