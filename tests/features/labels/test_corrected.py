"""Shares corrected by labels, agreement of judge and labels, and what is refused."""

import pytest
from msgspec.structs import replace
from support.lazy import Lazy

from judges.agreement.shares import ClassSums, SessionSums, Sums
from tests.features.labels import labels
from worker.base.lookup.label_store import Label, Labelled, LabelVerdict, with_places_reached
from worker.base.monitor.corrected import (
    Confusion,
    CorrectionRefusedError,
    Stratum,
    agreement,
    flips,
    from_drawn,
    from_golden,
    method_of,
)
from worker.base.monitor.series import Bucket, Unjudged
from worker.features.labels.correction import Pair, correct, strata

rater, proportion = Lazy("statsmodels.stats.inter_rater"), Lazy("statsmodels.stats.proportion")


def stratum(verdict: int, label_class: int, judged: float, labels: int, passed: int) -> Stratum:
    return Stratum(bool(verdict), label_class, judged, labels, passed)


DRAWN = [stratum(1, 0, 700, 70, 63), stratum(0, 0, 300, 30, 9)]


def test_labels_of_a_perfect_judge_change_nothing_and_others_shift_the_share() -> None:
    same = from_drawn([stratum(1, 0, 800, 80, 80), stratum(0, 0, 200, 20, 0)], 1000)
    assert same.interval.value == pytest.approx(0.8)
    corrected = from_drawn(DRAWN, 1000)
    assert corrected.interval.value == pytest.approx(0.7 * 0.9 + 0.3 * 0.3)
    assert (corrected.method, corrected.labels) == ("ppi", 100)
    assert corrected.beside_labels is not None
    assert corrected.beside_labels < 0.9


def test_classes_of_label_probability_count_by_their_traffic() -> None:
    twice = [stratum(1, 0, 350, 60, 54), stratum(0, 0, 150, 27, 8), stratum(1, 1, 350, 10, 9), stratum(0, 1, 150, 4, 1)]
    corrected = from_drawn(twice, 1000)
    assert corrected.interval.value == pytest.approx(0.35 * 0.9 * 2 + 0.15 * (8 / 27 + 1 / 4))
    assert corrected.interval.high - corrected.interval.low > 0.12


def test_labels_drawn_with_several_probabilities_count_by_the_traces_that_they_stand_for() -> None:
    """All failing verdicts and one of ten passing ones were labelled: the labels' verdicts are not the traffic's."""
    strata = stratum(1, 0, 900, 90, 81), stratum(0, 0, 100, 100, 30)
    corrected = from_drawn([each._replace(represented=each.judged) for each in strata], 1000)
    assert corrected.interval.value == pytest.approx(0.9 * 0.9 + 0.1 * 0.3)
    assert corrected.beside_labels is not None
    assert corrected.beside_labels < 1
    with pytest.raises(CorrectionRefusedError, match="47% of the labelled traces and 90% of the traffic"):
        from_drawn(strata, 1000)


def test_few_traces_without_a_label_widen_the_interval_by_their_share() -> None:
    strata = [stratum(1, 0, 700, 70, 63), stratum(0, 0, 260, 30, 9)]
    corrected = from_drawn([*strata, stratum(0, 1, 40, 0, 0)], 1000)
    assert corrected.interval.value == pytest.approx(0.7 * 0.9 + 0.26 * 0.3 + 0.04 * 0.5)
    certain = from_drawn([*strata, stratum(0, 1, 40, 4000, 2000)], 1000)
    assert corrected.interval.high - corrected.interval.low > certain.interval.high - certain.interval.low
    with pytest.raises(CorrectionRefusedError, match="0 that pass and 60 that fail, of 1,020 judged"):
        from_drawn([*strata, stratum(0, 1, 60, 0, 0)], 1000)


def test_methods_that_do_not_fit_the_labels_are_refused() -> None:
    assert (method_of("drawn"), method_of("golden")) == ("ppi", "rogan_gladen")
    for origin, asked in (("golden", "ppi"), ("drawn", "rogan_gladen"), ("queue", None)):
        with pytest.raises(CorrectionRefusedError):
            method_of(origin, asked)
    balanced = [stratum(1, 0, 9000, 105, 85), stratum(0, 0, 1000, 95, 15)]
    with pytest.raises(CorrectionRefusedError, match="52% of the labelled traces and 90% of the traffic"):
        from_drawn(balanced, 10_000)
    for refused in ([], [stratum(1, 0, 900, 90, 80), stratum(0, 0, 100, 0, 0)]):
        with pytest.raises(CorrectionRefusedError):
            from_drawn(refused, 1000)
    with pytest.raises(CorrectionRefusedError, match="hardly"):
        from_golden(500, 1000, Confusion(50, 50, 48, 52))
    with pytest.raises(CorrectionRefusedError, match="golden set needs"):
        from_golden(500, 1000, Confusion(50, 50, 0, 0))


def test_a_golden_set_corrects_the_share() -> None:
    corrected = from_golden(0.7 * 5000, 5000, Confusion(90, 10, 20, 80))
    assert corrected.interval.value == pytest.approx((0.7 + 0.8 - 1) / (0.9 + 0.8 - 1))
    assert (corrected.method, corrected.beside_labels) == ("rogan_gladen", None)
    for passed in (5000, 0):
        edge = from_golden(passed, 5000, Confusion(90, 10, 20, 80)).interval
        assert 0 <= edge.low < edge.high <= 1, passed


def test_agreement_is_that_of_the_textbooks() -> None:
    seen = Confusion(81, 9, 12, 48)
    corrected = agreement(seen)
    oracle = rater.cohens_kappa([[81, 9], [12, 48]])
    assert corrected.kappa == pytest.approx((oracle.kappa, oracle.kappa_low, oracle.kappa_upp), abs=1e-4)
    for interval, part, whole in (
        (corrected.sensitivity, 81, 90),
        (corrected.specificity, 48, 60),
        (corrected.agreement, 129, 150),
    ):
        assert interval is not None
        assert interval.value == part / whole
        assert interval[1:] == pytest.approx(proportion.proportion_confint(part, whole, method="wilson"), abs=1e-4)
    one_sided = agreement(Confusion(10, 0, 0, 0))
    assert (one_sided.specificity, one_sided.kappa) == (None, None)
    for alike in (Confusion(40, 0, 0, 13), Confusion(78, 4, 0, 0)):
        # Without a disagreement, or with one kind of verdict, the standard error is 0 and the interval is not.
        interval = agreement(alike).kappa
        assert interval is not None
        assert interval.low < interval.value <= interval.high, alike
        assert interval.high - interval.low > 0.05, alike
    rate, kappa = flips(Confusion(880, 30, 20, 70))
    assert rate.value == 0.05
    assert kappa is not None
    assert kappa.value == pytest.approx(rater.cohens_kappa([[880, 30], [20, 70]]).kappa)
    for empty in (agreement, flips):
        with pytest.raises(ValueError, match=r"^no "):
            empty(Confusion(0, 0, 0, 0))


def pair(
    number: int, at: float, *, drawn: float = 0.1, passed: bool = True, judged: bool = True, session: str | None = None
) -> Pair:
    texts = f"t{number}", f"e{number}", "live", "v", "m", "s", "scored"
    verdict = LabelVerdict(*texts, at, 1.0, passed=judged, session_id=session)
    return Pair(Label(f"t{number}", "j", "j", passed=passed, drawn=drawn), verdict)


def test_a_stretch_of_the_traffic_without_a_label_is_refused_and_the_labelled_part_offered() -> None:
    """100 labels: (ln 100 + 5) / 100 = .096 of the traffic may have none."""
    buckets = [
        Bucket(3600.0 * hour, Sums({0: ClassSums(10, 10, 8, 10, 8)}, SessionSums(10, 10, 8, 8)), Unjudged(), Unjudged())
        for hour in range(100)
    ]
    span = 0.0, 360_000.0
    for hours, drawn, is_refused in (
        (range(91), [0.1], False),
        (range(90), [0.1], True),
        (range(10, 100), [0.1], True),
        ([hour for hour in range(100) if not 40 <= hour < 50], [0.1], True),
        # With unequal probabilities: an effective number of 57.8, which allows .157.
        (range(90), [0.1, 0.1, 0.1, 0.02], False),
        (range(80), [0.1, 0.1, 0.1, 0.02], True),
    ):
        pairs = [
            pair(n, 3600.0 * hours[n % len(hours)], drawn=drawn[n % len(drawn)], judged=n % 5 > 0) for n in range(100)
        ]
        correction = correct("drawn", pairs, buckets, span, 3600)
        assert (correction.corrected is None) is is_refused, (hours, drawn)
        if is_refused:
            first, last = 3600.0 * min(hours), 3600.0 * (max(hours) + 1)
            offered = correction.offered
            # Where the stretch is between labels, no part of the time is labelled as a whole.
            assert (offered is None) is (last - first == span[1]), hours
            assert "of the judged traffic. Label verdicts that are drawn from all of the time" in correction.refused
            if offered is not None:
                assert offered.corrected is not None
                assert (offered.since, offered.until) == (first, last)
                assert offered.corrected.interval.percent in correction.refused
    assert "1970-01-05T00:00Z to 1970-01-05T04:00Z" not in correction.refused
    assert "1970-01-04T08:00Z to 1970-01-05T04:00Z, which has 20% of" in correction.refused


def test_the_probability_of_a_label_of_the_board_is_the_place_reached() -> None:
    """On the first day all were answered, later those up to .02; a judge of another service has an order of its own."""

    def drawn(
        number: int, at: float, place: float, reached: tuple[float, float] | None, service: str = "s"
    ) -> Labelled:
        label, verdict = pair(number, at, drawn=place)
        return Labelled(replace(label, reached=reached), (replace(verdict, service=service),))

    day, month = (0.0, 1.0), (0.0, 30.0)
    given = [
        (drawn(1, 0.2, 0.3, day), 0.9),
        (drawn(2, 0.5, 0.9, day), 0.9),
        (drawn(3, 0.9, 0.001, month), 0.9),
        (drawn(4, 9.0, 0.01, month), 0.02),
        (drawn(5, 20.0, 0.02, (3.0, 30.0)), 0.02),
        (drawn(6, 20.0, 0.015, (19.0, 25.0)), 0.02),
        (drawn(7, 20.0, 0.5, day, "other"), 0.5),
        (drawn(8, 0.5, 0.05, None), 0.05),
    ]
    labelled = with_places_reached([item for item, _ in given])
    assert [item.label.drawn for item in labelled] == [expected for _, expected in given]
    assert with_places_reached([Labelled(given[0][0].label)])[0].label.drawn == 0.3  # without a verdict


def test_labels_of_a_session_agree_by_a_quarter_at_least() -> None:
    """Twenty labels of sessions of five whose truths do not agree count as ten: 1 + (5 - 1) / 4 = 2."""
    sums = Sums({0: ClassSums(500, 500, 400, 500, 400)}, SessionSums(100, 2500, 2000, 1620))
    pairs = [pair(n, 0.0, passed=n // 5 != n % 5, session=str(n // 5)) for n in range(20)]
    assert [each.labels for each in strata(pairs, sums)] == pytest.approx([10.0, 0.0])


def test_corrected_shares_cover_in_short() -> None:
    assert labels.in_time(46, 20, "first days")[:3:2] == (1.0, 1.0)
    # Counted by the configured rate these labels reach 2 %.
    assert labels.in_time(47, 60, "falling order", judged=4000).covered >= 0.86
    for share in (0.5, 0.95):
        corrected = labels.drawn(41, share, 400)
        assert 0.92 <= corrected.share <= 0.98, share
        assert corrected.beside_rogan_gladen <= 0.7, share
        assert 0.92 <= labels.golden(42, share, 400) <= 0.98, share
    for design in labels.DESIGNS[1:]:
        assert 0.92 <= labels.drawn(44, 0.8, 300, design=design).share <= 0.98, design
    # As independent labels these sessions reach 79 %.
    assert 0.91 <= labels.sessions(45, 0.5, 200, 0.5) <= 0.99
