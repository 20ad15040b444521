"""Agreement with labels and grades: matrices, shares, pairs, calibration, and the intervals of all of them."""

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import table

from judges.agreement import cascade_share, pass_share
from judges.agreement.cascade import CascadeSums, estimate_cascade, plain_is_as_good, second_floor
from judges.agreement.intervals import wilson
from judges.agreement.labelled import (
    Agreement,
    Judged,
    Labelled,
    Scale,
    Share,
    agreement,
    grades,
    is_known_label,
    scale_of,
    shares,
)
from judges.agreement.paired import Cells, Preference, balanced, halves, improvement, least_shown
from judges.agreement.reliability import Row, ThresholdNotFoundError, fit, reliability, threshold
from judges.agreement.shares import ShareEstimate
from judges.core.decision import Calibration, logit
from judges.core.verdict import REASONS, Assessment, Score
from judges.custom import define
from judges.registry import catalogue
from tracejudge import Trace

TABLES = table("agreement")
TRACE = Trace(trace_id="1", service="s", output="o")
ABSTAINED = Assessment("abstained")


def scored(*outcomes: str, value: float = 0.5) -> Assessment:
    passed = {"pass": True, "fail": False, "unrated": None}
    scores = tuple(Score(f"metric {number}", value, passed=passed[each]) for number, each in enumerate(outcomes))
    return Assessment("scored", scores=scores)


PASS, FAIL, UNRATED = scored("pass"), scored("fail"), scored("unrated")


def unscored(reason: Any) -> Assessment:
    return Assessment("unscored", reason)


def judged(*pairs: tuple[str, Assessment]) -> list[Judged]:
    return [Judged(TRACE, label, assessment) for label, assessment in pairs]


class TestMatrix:
    def test_the_first_rated_metric_decides_or_the_one_that_is_named(self) -> None:
        two = scored("pass", "fail")
        cases: list[tuple[Assessment, str | None, bool | None]] = [
            (PASS, None, True), (FAIL, None, False), (UNRATED, None, None), (ABSTAINED, None, None),
            (unscored("refusal"), None, None), (scored("unrated", "fail", "pass"), None, False), (two, None, True),
            (two, "metric 0", True), (two, "metric 1", False), (two, "metric 2", None),
        ]  # fmt: skip
        assert [Judged(TRACE, "yes", each, metric).passed for each, metric, _ in cases] == [row[2] for row in cases]
        assert Judged(TRACE, "yes", scored("pass"), "metric 1").left_out == "unrated"

    def test_labels_that_say_yes_or_no_are_known_and_others_are_not(self) -> None:
        known = ["yes", "YES", "true", "True", "1", "pass", "no", "False", "0", "FAIL"]
        assert [label for label in known if not is_known_label(label)] == []
        assert [label for label in ("", " yes", "y", "maybe", "2", "good", "passed") if is_known_label(label)] == []
        for yes, no in (("yes", "no"), ("TRUE", "False"), ("1", "0"), ("Pass", "fail")):
            pairs = [(yes, PASS), (yes, PASS), (yes, FAIL), (no, FAIL)]
            assert agreement(judged(*pairs)) == Agreement(2, 0, 1, 1, {}, 0.5, 0.5), yes

    def test_every_trace_is_in_one_cell_or_unscored_and_values_are_averaged_over_what_passes_or_fails(self) -> None:
        rows = [*[("yes", PASS)] * 4, *[("no", PASS)] * 3, *[("no", FAIL)] * 2, ("yes", FAIL), ("yes", ABSTAINED)]
        rows += [("no", ABSTAINED), ("yes", unscored("refusal")), *[("no", unscored("timeout"))] * 2, ("yes", UNRATED)]
        got = agreement(judged(*rows))
        counts = {"abstained": 2, "refusal": 1, "timeout": 2, "unrated": 1}
        assert got == Agreement(4, 3, 2, 1, counts, mean_yes=0.5, mean_no=0.5)
        assert (got.true_pass, got.false_pass, got.true_fail, got.false_fail) == (4, 3, 2, 1)
        yes = (("yes", scored("pass", value=1.0)), ("yes", scored("fail", value=0.25)))
        got = agreement(judged(*yes, ("no", UNRATED)))
        assert (got.mean_yes, got.mean_no) == (0.625, None)
        assert agreement([]) == Agreement(0, 0, 0, 0, {})

    def test_balanced_accuracy_is_the_mean_over_both_groups(self) -> None:
        for name, (cells, left_out, accuracy) in TABLES["balanced"].items():
            assert Agreement(*cells, left_out).balanced_accuracy == accuracy, name

    outcomes = st.sampled_from([PASS, FAIL, UNRATED, ABSTAINED, *map(unscored, REASONS)])

    @settings(deadline=None)
    @given(st.lists(st.tuples(st.sampled_from(["yes", "no"]), outcomes)))
    def test_cells_and_unscored_add_up_to_all_traces(self, labelled: Sequence[tuple[str, Assessment]]) -> None:
        got = agreement(judged(*labelled))
        assert sum(got[:4]) + sum(got.unscored.values()) == len(labelled)
        for reason in REASONS:
            assert got.unscored.get(reason, 0) == sum(each.reason == reason for _, each in labelled)
        assert got.balanced_accuracy is None or 0 <= got.balanced_accuracy <= 1

    def test_shares_are_counted_per_label_in_order_and_as_it_is_written(self) -> None:
        german = [("de", FAIL), ("de", ABSTAINED), ("de", unscored("timeout"))]
        got = shares(judged(("en", PASS), *german, ("en", FAIL), ("en", PASS), ("fr", unscored("timeout"))))
        assert list(got.items()) == [
            ("de", Share(passed=0, scored=1, unscored={"abstained": 1, "timeout": 1}, rated=1, mean=0.5)),
            ("en", Share(passed=2, scored=3, unscored={}, rated=3, mean=0.5)),
            ("fr", Share(passed=0, scored=0, unscored={"timeout": 1}, rated=0, mean=None)),
        ]
        assert [share.share for share in got.values()] == [0.0, pytest.approx(2 / 3), None]
        assert set(shares(judged(("yes", PASS), ("Yes", PASS), ("", PASS)))) == {"yes", "Yes", ""}
        assert shares([]) == {}
        rows = [Judged(TRACE, "en", scored("unrated", value=value), "metric 0") for value in (0.25, 0.75)]
        (share,) = shares([*rows, Judged(TRACE, "en", ABSTAINED, "metric 0")]).values()
        assert share == Share(passed=0, scored=2, unscored={"abstained": 1}, rated=0, mean=0.5)
        assert share.share is None, "a metric without a pass rule has a mean and no share"


class TestGrades:
    def test_a_grade_is_worth_what_a_score_is(self) -> None:
        for grade, value in TABLES["grade values"]:
            assert Scale(1, 5).value(grade) == value, grade
        assert Scale(0, 10, is_lower_good=True).value("3") == pytest.approx(0.7)

    def test_a_judge_has_the_scale_that_it_declares_and_built_in_metrics_have_theirs(self) -> None:
        def scale(result: object) -> Scale | None:
            judge = define("mine", {"instructions": "Is {{ outputs }} so?", "result": result})
            return scale_of(judge, judge.metrics[0])

        assert scale({"integer": [-1, 5]}) == Scale(-1, 5)
        assert scale({"number": [0, 0.5], "direction": "lower"}) == Scale(0, 0.5, is_lower_good=True)
        for none in ("yes/no", "boolean", {"labels": {"1..2": 1, "3": 0}}):
            assert scale(none) is None
        scales = {judge.name: scale_of(judge, judge.metrics[0]) for judge in catalogue().values()}
        assert (scales["faithfulness"], scales["ragbench"], scales["safety"]) == (Scale(1, 5), Scale(0, 1), None)

    def test_distance_and_order_are_compared(self) -> None:
        for name, (pairs, expected) in TABLES["pairs"].items():
            found = grades(list(map(tuple, pairs)), Scale(1, 5))
            assert list(found) == [None if each is None else pytest.approx(each) for each in expected], name


class TestPreference:
    @staticmethod
    def preference(wins: int, ties: int, losses: int) -> Preference:
        return Preference(Counter(win=wins, tie=ties, loss=losses))

    def test_the_interval_of_wins_and_half_of_the_ties_holds_the_truth_as_often_as_it_says(self) -> None:
        def covered(pairs: int, win: float, tie: float, loss: float) -> float:
            """Sum the probabilities of all results whose interval holds the true mean."""
            truth, result = win + tie / 2, 0.0
            for wins in range(pairs + 1):
                for ties in range(pairs - wins + 1):
                    losses = pairs - wins - ties
                    interval = self.preference(wins, ties, losses).points
                    assert interval is not None
                    if interval.low <= truth <= interval.high:
                        ways = math.comb(pairs, wins) * math.comb(pairs - wins, ties)
                        result += ways * win**wins * tie**ties * loss**losses
            return result

        reached = {(pairs, *each): covered(pairs, *each) for pairs in (20, 35) for each in TABLES["drawn"]}
        assert {key: value for key, value in reached.items() if not 0.925 <= value <= 0.99} == {}

    def test_figures(self) -> None:
        difference = self.preference(6, 2, 2)
        assert difference.points is not None
        assert (difference.pairs, difference.points.value, difference.share("win")) == (10, 0.7, wilson(0.6, 10))
        assert difference.points.low < 0.5 < difference.points.high
        better = self.preference(48, 30, 22).points
        assert better is not None
        assert (round(better.low, 3), round(better.high, 3)) == (0.55, 0.704)
        empty = self.preference(0, 0, 0)
        assert (empty.points, empty.share("win"), empty.bias) == (None, None, None)
        for only in ("win", "tie", "loss"):
            alone = Preference(Counter({only: 20})).points
            assert alone is not None
            assert alone.high - alone.low > 0.05, "one outcome alone is not certain"
            assert 0.0 <= alone.low <= alone.value <= alone.high <= 1.0
        # Bias is a share of the pairs that were compared.
        assert Preference(Counter(win=2, tie=8), Counter(first=3, second=1), equal=2).bias == wilson(0.5, 8)


def verdict(label: str, passed: str | None) -> Judged:
    if passed is None:
        return Judged(TRACE, label, unscored("refusal"))
    return Judged(TRACE, label, scored("pass" if passed == "yes" else "fail"))


class TestPaired:
    """Agreement before and after on the same traces: halves, intervals, and what a number of traces can show."""

    def test_the_half_of_a_trace_depends_on_its_session_or_id_alone(self) -> None:
        sessions = [f"{n // 3}" if n < 300 else None for n in range(1000)]
        fields = [{"trace_id": f"{n}", "session_id": session} for n, session in enumerate(sessions)]
        traces = [Labelled(Trace(service="s", output="o", **each), "yes") for each in fields]  # type: ignore[arg-type]
        train, held_out = halves(traces)
        assert 400 < len(train) < 600
        assert len(train) + len(held_out) == 1000
        one, other = ({sample.trace.session_id for sample in half} - {None} for half in (train, held_out))
        assert not one & other
        assert set(map(id, halves([*reversed(traces[::7])]).train)) <= set(map(id, train))

    def test_intervals_are_the_published_ones(self) -> None:
        # Newcombe's example of 1998, and Wilson's interval of the same source for one share.
        difference = Cells(both=36, after=12, before=2, neither=0).difference
        assert [round(figure, 3) for figure in difference] == [0.2, 0.057, 0.34]
        assert [round(figure, 4) for figure in wilson(81 / 263, 263)] == [0.308, 0.2553, 0.3662]
        assert (wilson(0, 10).low, wilson(1, 10).high) == (0, 1)

    def test_the_agreement_is_balanced_and_a_trace_without_a_verdict_is_wrong(self) -> None:
        before = [verdict("yes", "yes")] * 90 + [verdict("no", "yes")] * 10
        assert balanced(before).value == 0.5
        after = [verdict("yes", "yes")] * 90 + [verdict("no", "no")] * 8 + [verdict("no", None)] * 2
        assert balanced(after).value == pytest.approx(0.9)
        gain = improvement(before, after)
        assert gain.value == pytest.approx(0.4)
        assert 0.15 < gain.low < gain.value < gain.high <= 0.5
        assert improvement(before, before).low < 0

    def test_the_interval_covers_and_rarely_shows_an_improvement_where_there_is_none(self) -> None:
        chance = random.Random(7)
        for before, after in (((0.6, 0.6), (0.6, 0.6)), ((0.7, 0.5), (0.8, 0.8))):
            truth = (sum(after) - sum(before)) / 2
            covered = shown = 0
            for _ in range(150):
                ends: list[list[Judged]] = [[], []]
                for label, share, later in zip(("yes", "no"), before, after, strict=True):
                    for _ in range(20):
                        # Verdicts of two versions on one trace go together half of the time.
                        first, second = chance.random(), chance.random()
                        second = first if chance.random() < 0.5 else second
                        other = "no" if label == "yes" else "yes"
                        ends[0].append(verdict(label, label if first < share else other))
                        ends[1].append(verdict(label, label if second < later else other))
                difference = improvement(*ends)
                covered += difference.low <= truth <= difference.high
                shown += difference.low > 0
            assert covered / 150 > 0.93, before
            assert truth or shown / 150 < 0.05

    def test_fewer_than_a_hundred_labels_show_only_improvements_of_about_25_points(self) -> None:
        assert all(0.19 <= (least_shown(25, 24, before) or 1) <= 0.29 for before in (0.5, 0.6, 0.7, 0.8))
        assert (least_shown(250, 250, 0.7) or 1) < 0.1
        assert least_shown(5, 5, 0.6) is None


def sigmoid(odds: float) -> float:
    return 1 / (1 + math.exp(-odds))


def drawn_rows(count: int, seed: int, slope: float, intercept: float) -> list[Row]:
    """Draw probabilities whose truth is ``sigmoid(slope * logit(p) + intercept)``."""
    generator = random.Random(seed)
    rows = []
    for _ in range(count):
        probability = sigmoid(generator.gauss(0.8, 1.8))
        truth = sigmoid(slope * logit(probability) + intercept)
        rows.append(Row(round(probability, 4), generator.random() < truth))
    return rows


class TestReliability:
    """Calibration error, maps and thresholds of probabilities, by simulated labels with a known truth."""

    # Slope and intercept of the planted error.
    PLANTED = (("calibrated", 1.0, 0.0), ("overconfident", 0.4, 0.0), ("biased", 1.0, -1.2))

    def test_isotonic_maps(self) -> None:
        """The other kind of map, and thresholds of planted errors, are in ``test_label_commands.py``."""
        for name, slope, intercept in self.PLANTED:
            fitted = fit(drawn_rows(2_000, 4, slope, intercept), "isotonic")
            held_out = [row.probability for row in drawn_rows(300, 77, slope, intercept)]
            wrong = [abs(fitted.apply(p) - sigmoid(slope * logit(p) + intercept)) for p in held_out]
            assert sum(wrong) / len(wrong) < 0.06, f"{name}: {sum(wrong) / len(wrong):.3f}"
            calibrated = [fitted.apply(step / 100) for step in range(101)]
            assert calibrated == sorted(calibrated), name
            assert all(0 <= value <= 1 for value in calibrated), name

    def test_a_threshold_keeps_the_precision_that_is_asked_for(self) -> None:
        rows = drawn_rows(300, 5, 1.0, -1.2)
        assert sum(each.labels for each in reliability(rows).bins) == len(rows)
        balanced, strict = threshold(rows), threshold(rows, 0.9)
        assert strict.precision is not None
        assert strict.precision.value >= 0.9
        assert strict.value.value > balanced.value.value - 0.2
        with pytest.raises(ThresholdNotFoundError, match=r"99\.0%"):
            threshold([Row(0.9, passed=False), Row(0.2, passed=True)], 0.99)

    def test_extremes(self) -> None:
        with pytest.raises(ValueError, match="all labels say the same"):
            fit([Row(0.3, passed=True)] * 5)
        separable = [Row(0.0, passed=False)] * 20 + [Row(1.0, passed=True)] * 20
        for kind in ("platt", "isotonic"):
            fitted = fit(separable, kind)
            assert fitted.apply(0.0) < 0.1, kind
            assert fitted.apply(1.0) > 0.9, kind
        assert threshold(separable).value.value == 0.5
        assert threshold([Row(0.5, passed=False)] * 3).value.value > 0.5
        falling = fit([Row(0.1, passed=True)] * 30 + [Row(0.9, passed=False)] * 30, "platt")
        assert falling.apply(0.1) == falling.apply(0.9)
        assert Calibration(isotonic=((0.2, 0.1), (0.6, 0.5))).apply(0.4) == pytest.approx(0.3)
        # A row of weight 5 counts as five rows.
        heavy = [Row(0.3, passed=False, weight=5.0), Row(0.6, passed=True, weight=1.0)]
        assert reliability(heavy).brier.value == pytest.approx((5 * 0.09 + 0.16) / 6)


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


def share_of(*arguments: Any, **more: Any) -> ShareEstimate:
    share = pass_share(*arguments, **more)
    assert share is not None
    return share


def cascade(end: Any, side: Any = lambda number: number % 4) -> ShareEstimate:
    """Return the share of 24 hours of 250 in which every fifth first verdict is drawn, its end by hour and number."""
    rows = [(hour, number) for hour in range(24) for number in range(250)]
    first = [0.9 if side(number) else 0.2 for _, number in rows]
    ends = [None if number % 5 else end(hour, number // 5) for hour, number in rows]
    share = cascade_share(first, [0.2] * len(rows), ends, hour=[hour for hour, _ in rows])
    assert share is not None
    return share


class TestShares:
    """The public shares of verdicts in arrays: their vectors, and what they say of verdicts that are not known."""

    def test_a_window_without_a_history_has_the_interval_of_its_vector(self) -> None:
        passed = [number < passes for count, passes in SESSIONS for number in range(count)]
        session = [name for name, (count, _) in enumerate(SESSIONS) for _ in range(count)]
        share = share_of(passed, session=session)
        assert share.design_effect == pytest.approx(4.2885, abs=5e-5)
        assert (round(share.low, 3), round(share.high, 3)) == (0.412, 0.956)
        # Weights of another unit change nothing, and verdicts without a session are independent.
        heavy = share_of(np.array(passed), session=session, weight=np.full(59, 16.0))
        assert heavy.interval == pytest.approx(share.interval)
        assert share_of(passed).design_effect == 1
        assert share_of(passed).interval == pytest.approx(wilson(47 / 59, 59, 2.0017), abs=1e-4)

    def test_a_cascade_has_the_interval_of_its_vector(self) -> None:
        for weight, expected in ((1, (0.94128, 0.89717, 0.95678)), (10, (0.94128, 0.89183, 0.96039))):
            classes = {}
            for (side, level), (first, w, _, n, u, z, s) in CLASSES.items():
                second = (n, u * weight, z * weight, s * weight**2)
                sums = CascadeSums(first, w * weight, first * weight * (weight - 1), *second)
                classes[side, level + 3 * (weight > 1)] = sums
            share = estimate_cascade([classes])
            assert share is not None
            assert share.interval == pytest.approx(expected, abs=5e-6), weight
            assert share.judgements == 146
        assert estimate_cascade([{(True, 3): CascadeSums(100, 100, 0, 9, 100, 90, 1200)}]) is None, "nine are too few"

    def test_the_least_probability_of_a_second_judging_falls_with_the_fails(self) -> None:
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

    def test_unknown_verdicts_allow_a_range(self) -> None:
        known = [True] * 180 + [False] * 20
        for refused, is_known, says in (
            *((2, True, ""), (10, True, "4.8% of the verdicts are not known")),
            (50, False, "not known, "),
        ):
            share = share_of([*known, *[None] * refused])
            assert (share.share, share.known) == (0.9, is_known)
            assert share.unknown == pytest.approx(refused / (200 + refused))
            assert share.unknown_text().startswith(says), share.unknown_text()
            assert bool(share.unknown_text()) is bool(says)
            for limit, passes in ((share.lowest, 180), (share.highest, 180 + refused)):
                # Student's t for 199 sessions.
                interval = wilson(passes / (200 + refused), 200 + refused, 1.972)
                assert limit == pytest.approx(interval.low if passes == 180 else interval.high, abs=2e-4), refused
        assert "90.0% of 80% of the traffic" in share.unknown_text()
        assert pass_share([None, None]) is None

    def test_second_verdicts_that_are_away_or_refused_are_unknown(self) -> None:
        def end(_: int, number: int) -> str:
            return "fail" if number % 10 == 0 else "pass"

        complete = cascade(end)
        assert (complete.unknown, complete.unknown_text(0.0)) == (0, "")
        away = cascade(lambda hour, number: "waiting" if hour == 10 else end(hour, number))
        assert away.unknown == pytest.approx(1 / 24)
        assert away.low < complete.low - 0.03
        assert away.high > complete.high
        assert away.share == pytest.approx(complete.share, abs=1e-9)
        assert away.unknown_text(0.0).startswith("4.2% of the verdicts are not known")
        long_away = cascade(lambda hour, number: "waiting" if 6 <= hour < 12 else end(hour, number))
        assert not long_away.known
        assert "of 75% of the traffic" in long_away.unknown_text(0.0)
        # A few that wait in every hour are made up for by the others of the hour; refused ones never are.
        for kind, unknown in (("waiting", 0.0), ("refused", 0.04)):
            missing = cascade(lambda hour, number, kind=kind: kind if (number + hour) % 25 == 7 else end(hour, number))
            assert missing.unknown == pytest.approx(unknown, abs=0.002), kind
        # They wait where the first model expects a fail.
        dependent = cascade(
            lambda hour, number: "waiting" if number % 4 == 0 and hour % 2 else end(hour, number), lambda n: n % 20
        )
        assert dependent.unknown > 0.1
        none = cascade(lambda *_: "waiting")
        assert (none.low, none.high, none.known, none.judgements) == (0.0, 1.0, False, 0)

    def test_wrong_arguments_are_named(self) -> None:
        for share, rows in ((pass_share, TABLES["wrong shares"]), (cascade_share, TABLES["wrong cascades"])):
            for arguments, more, error in rows:
                with pytest.raises(ValueError, match=re.escape(error)):
                    share(*arguments, **more)
        with pytest.raises(ValueError, match=r"passed\[0\] is array"):
            pass_share(np.ones((2, 2)))
        assert cascade_share([], [], []) is pass_share([]) is None
