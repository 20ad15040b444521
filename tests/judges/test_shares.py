"""The public shares of verdicts in arrays: their vectors, and what they say of verdicts that are not known."""

import math
from typing import Any

import numpy as np
import pytest

from judges.agreement import cascade_share, pass_share
from judges.agreement.cascade import CascadeSums, estimate_cascade, plain_is_as_good, second_floor
from judges.agreement.intervals import wilson
from judges.agreement.shares import ShareEstimate

SESSIONS = ((1, 1), (1, 0), (2, 2), (2, 2), (3, 3), (3, 2), (4, 4), (5, 5), (8, 7), (30, 21))
"""Verdicts of sessions, and how many of them pass."""
# Side and class: N, W, WW; n, U, Z, S of the second verdicts.
CLASSES = {
    (False, 1): (30, 30, 0, 14, 31, 11, 70),
    (False, 3): (6, 6, 0, 1, 8, 0, 64),
    (True, 1): (60, 60, 0, 27, 60, 42, 140),
    (True, 2): (104, 104, 0, 22, 104, 99, 500),
    (True, 3): (800, 800, 0, 82, 810, 800, 8100),
}


def test_a_window_without_a_history_has_the_interval_of_its_vector() -> None:
    passed = [number < passes for count, passes in SESSIONS for number in range(count)]
    session = [name for name, (count, _) in enumerate(SESSIONS) for _ in range(count)]
    share = pass_share(passed, session=session)
    assert share is not None
    assert share.design_effect == pytest.approx(4.2885, abs=5e-5)
    assert (round(share.low, 3), round(share.high, 3)) == (0.412, 0.956)
    # Weights of another unit change nothing, and verdicts without a session are independent.
    heavy = pass_share(np.array(passed), session=session, weight=np.full(59, 16.0))
    assert heavy is not None
    assert heavy.interval == pytest.approx(share.interval)
    alone = pass_share(passed)
    assert alone is not None
    assert alone.design_effect == 1
    assert alone.interval == pytest.approx(wilson(47 / 59, 59, 2.0017), abs=1e-4)


def test_a_cascade_has_the_interval_of_its_vector() -> None:
    for weight, expected in ((1, (0.94128, 0.89717, 0.95678)), (10, (0.94128, 0.89183, 0.96039))):
        classes = {}
        for (side, level), (first, w, _, n, u, z, s) in CLASSES.items():
            sums = CascadeSums(
                first, w * weight, first * weight * (weight - 1), n, u * weight, z * weight, s * weight**2
            )
            classes[side, level + 3 * (weight > 1)] = sums
        share = estimate_cascade([classes])
        assert share is not None
        assert share.interval == pytest.approx(expected, abs=5e-6), weight
        assert share.judgements == 146
    assert estimate_cascade([{(True, 3): CascadeSums(100, 100, 0, 9, 100, 90, 1200)}]) is None, "nine are too few"


def test_the_least_probability_of_a_second_judging_falls_with_the_fails() -> None:
    cases = {0: 0.85, 5: 0.85, 20: 3 / math.sqrt(20), 36: 0.5, 4000: 0.5}
    assert {fails: second_floor(fails) for fails in cases} == pytest.approx(cases)
    for arguments, reason in {
        (0.05,): "its rate of 0.05 is below 0.1",
        (0.2, 150): "150 second verdicts a day are fewer than 200",
        (0.2, 900, 0.992): "its share of 99.2% is 99% or more",
        (0.2, 900, 0.9): "",
        (0.2,): "",
    }.items():
        assert plain_is_as_good(*arguments).endswith(reason), arguments
        assert bool(plain_is_as_good(*arguments)) == bool(reason), arguments


def test_unknown_verdicts_allow_a_range() -> None:
    for refused, is_known, says in (
        (2, True, ""),
        (10, True, "4.8% of the verdicts are not known"),
        (50, False, "not known, "),
    ):
        share = pass_share([True] * 180 + [False] * 20 + [None] * refused)
        assert share is not None
        assert share.share == 0.9
        assert share.unknown == pytest.approx(refused / (200 + refused))
        assert share.known is is_known
        assert share.unknown_text().startswith(says), share.unknown_text()
        assert bool(share.unknown_text()) is bool(says)
        for limit, passes in ((share.lowest, 180), (share.highest, 180 + refused)):
            z = 1.972  # Student's t for 199 sessions.
            interval = wilson(passes / (200 + refused), 200 + refused, z)
            assert limit == pytest.approx(interval.low if passes == 180 else interval.high, abs=2e-4), refused
    assert "90.0% of 80% of the traffic" in share.unknown_text()
    assert pass_share([None, None]) is None


def cascade(hours: int, per_hour: int, end: Any, side: Any = lambda number: number % 4) -> ShareEstimate | None:
    """Return the share of hours in which every fifth first verdict is drawn, with an end by hour and number."""
    rows = [(hour, number) for hour in range(hours) for number in range(per_hour)]
    return cascade_share(
        [0.9 if side(number) else 0.2 for _, number in rows],
        [0.2] * len(rows),
        [None if number % 5 else end(hour, number // 5) for hour, number in rows],
        hour=[hour for hour, _ in rows],
    )


def test_second_verdicts_that_are_away_or_refused_are_unknown() -> None:
    def end(_: int, number: int) -> str:
        return "fail" if number % 10 == 0 else "pass"

    complete = cascade(24, 250, end)
    assert complete is not None
    assert complete.unknown == 0
    assert complete.unknown_text(0.0) == ""
    away = cascade(24, 250, lambda hour, number: "waiting" if hour == 10 else end(hour, number))
    assert away is not None
    assert away.unknown == pytest.approx(1 / 24)
    assert away.low < complete.low - 0.03
    assert away.high > complete.high
    assert away.share == pytest.approx(complete.share, abs=1e-9)
    assert away.unknown_text(0.0).startswith("4.2% of the verdicts are not known")
    long_away = cascade(24, 250, lambda hour, number: "waiting" if 6 <= hour < 12 else end(hour, number))
    assert long_away is not None
    assert not long_away.known
    assert "of 75% of the traffic" in long_away.unknown_text(0.0)
    # A few that wait in every hour are made up for by the others of the hour; refused ones never are.
    for kind, unknown in (("waiting", 0.0), ("refused", 0.04)):
        missing = cascade(
            24, 250, lambda hour, number, kind=kind: kind if (number + hour) % 25 == 7 else end(hour, number)
        )
        assert missing is not None
        assert missing.unknown == pytest.approx(unknown, abs=0.002), kind
    # They wait where the first model expects a fail.
    dependent = cascade(
        24, 250, lambda hour, number: "waiting" if number % 4 == 0 and hour % 2 else end(hour, number), lambda n: n % 20
    )
    assert dependent is not None
    assert dependent.unknown > 0.1
    none = cascade(24, 250, lambda *_: "waiting")
    assert none is not None
    assert (none.low, none.high, none.known, none.judgements) == (0.0, 1.0, False, 0)


def test_wrong_arguments_are_named() -> None:
    nan = float("nan")
    for call, message in (
        (lambda: pass_share([True, 2]), r"passed\[1\] is 2, and not True, False or None"),
        (lambda: pass_share([True, nan]), r"passed\[1\] is nan"),
        (lambda: pass_share([True], weight=[1.0, 2.0]), "weight has 2 values, and not 1"),
        (lambda: pass_share([True, True], weight=[1.0, 0.5]), r"weight\[1\] is 0.5"),
        (lambda: pass_share([True], weight=[nan]), r"weight\[0\] is nan"),
        (lambda: pass_share([True], session=[]), "session has 0 values"),
        (lambda: pass_share([True, True], session=["a", nan]), r"session\[1\] is nan, and not a name or None"),
        (lambda: pass_share([True], session=[[1]]), r"session\[0\] is \[1\]"),
        (lambda: pass_share(np.ones((2, 2))), r"passed\[0\] is array"),
        (lambda: pass_share([True], weight=[1e60]), r"weight\[0\] is 1e\+60, and not from 1 to 1e9"),
        (lambda: cascade_share([0.5], [1e-160], [None]), r"chosen\[0\] is 1e-160"),
        (lambda: cascade_share([0.5] * 2, [0.5, 1.0], [None] * 2), r"outcome\[1\] is None, although chosen\[1\] is 1"),
        (lambda: cascade_share([0.5, 1.1], [0.5, 0.5], [None, None]), r"first\[1\] is 1.1, and not from 0 to 1"),
        (lambda: cascade_share([nan], [0.5], [None]), r"first\[0\] is nan"),
        (lambda: cascade_share(["a"], [0.5], [None]), r"first\[0\] is 'a'"),
        (lambda: cascade_share([0.5], [0.0], [None]), r"chosen\[0\] is 0.0"),
        (lambda: cascade_share([0.5], [0.5], ["no"]), r"outcome\[0\] is 'no'"),
        (lambda: cascade_share([0.5], [0.5], [None, None]), "outcome has 2 values"),
        (lambda: cascade_share([0.5], [0.5], [None], hour=[1, 2]), "hour has 2 values"),
        (lambda: cascade_share([0.5], [0.5], [None], session=[1, 2]), "session has 2 values"),
    ):
        with pytest.raises(ValueError, match=message):
            call()  # type: ignore[no-untyped-call]
    assert cascade_share([], [], []) is pass_share([]) is None
