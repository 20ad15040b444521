"""Agreement with labels: the confusion matrix, and the traces without a score."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each_case

from judges.agreement.labelled import Agreement, Judged, Share, agreement, is_known_label, shares
from judges.core.verdict import REASONS, Assessment, Score
from tracejudge import Trace

TRACE = Trace(trace_id="1", service="s", output="o")


def scored(*outcomes: str, value: float = 0.5) -> Assessment:
    passed = {"pass": True, "fail": False, "unrated": None}
    scores = tuple(Score(f"metric {number}", value, passed=passed[each]) for number, each in enumerate(outcomes))
    return Assessment("scored", scores=scores)


PASS, FAIL, UNRATED = scored("pass"), scored("fail"), scored("unrated")
ABSTAINED = Assessment("abstained")


def unscored(reason: Any) -> Assessment:
    return Assessment("unscored", reason)


def judged(*pairs: tuple[str, Assessment]) -> list[Judged]:
    return [Judged(TRACE, label, assessment) for label, assessment in pairs]


# --- one trace ---


@each_case(
    ("assessment", "passed"),
    [
        (PASS, True),
        (FAIL, False),
        (UNRATED, None),
        (ABSTAINED, None),
        (unscored("refusal"), None),
        (scored("unrated", "fail", "pass"), False),
        (scored("pass", "fail"), True),
    ],
    ids=["pass", "fail", "unrated", "abstained", "unscored", "first rated", "first of two"],
)
def test_the_first_rated_metric_decides(assessment: Assessment, passed: bool | None) -> None:  # noqa: FBT001
    assert Judged(TRACE, "yes", assessment).passed is passed


@each_case(
    ("metric", "passed"),
    [("metric 0", True), ("metric 1", False), ("metric 2", None)],
    ids=["first", "second", "absent"],
)
def test_the_metric_that_is_named_decides(metric: str, passed: bool | None) -> None:  # noqa: FBT001
    assert Judged(TRACE, "yes", scored("pass", "fail"), metric).passed is passed


def test_a_verdict_without_the_metric_is_left_out_as_unrated() -> None:
    assert Judged(TRACE, "yes", scored("pass"), "metric 1").left_out == "unrated"


@each_case("label", ["yes", "YES", "true", "True", "1", "pass", "no", "False", "0", "FAIL"])
def test_labels_that_say_yes_or_no_are_known(label: str) -> None:
    assert is_known_label(label)


@each_case("label", ["", " yes", "y", "maybe", "2", "good", "passed"])
def test_other_labels_are_not(label: str) -> None:
    assert not is_known_label(label)


# --- agreement ---


def test_every_trace_is_in_one_cell_or_unscored() -> None:
    got = agreement(
        judged(
            *[("yes", PASS)] * 4,
            *[("no", PASS)] * 3,
            *[("no", FAIL)] * 2,
            ("yes", FAIL),
            ("yes", ABSTAINED),
            ("no", ABSTAINED),
            ("yes", unscored("refusal")),
            ("no", unscored("timeout")),
            ("no", unscored("timeout")),
            ("yes", UNRATED),
        )
    )
    assert got == Agreement(
        true_pass=4,
        false_pass=3,
        true_fail=2,
        false_fail=1,
        unscored={"abstained": 2, "refusal": 1, "timeout": 2, "unrated": 1},
        mean_yes=0.5,
        mean_no=0.5,
    )
    assert got.balanced_accuracy == pytest.approx((4 / 5 + 2 / 5) / 2)


@each_case(("yes", "no"), [("yes", "no"), ("TRUE", "False"), ("1", "0"), ("Pass", "fail")])
def test_all_ways_to_write_yes_and_no_mean_the_same(yes: str, no: str) -> None:
    pairs = [(yes, PASS), (yes, PASS), (yes, FAIL), (no, FAIL)]
    assert agreement(judged(*pairs)) == Agreement(2, 0, 1, 1, {}, 0.5, 0.5)


def test_values_are_averaged_by_label_over_what_passes_or_fails() -> None:
    got = agreement(
        judged(
            ("yes", scored("pass", value=1.0)),
            ("yes", scored("fail", value=0.25)),
            ("no", scored("pass", value=0.75)),
            ("no", UNRATED),
            ("no", unscored("timeout")),
        )
    )
    assert (got.mean_yes, got.mean_no) == (0.625, 0.75)
    assert (agreement(judged(("yes", PASS))).mean_no, agreement(judged(("no", PASS))).mean_yes) == (None, None)


def test_agreement_of_nothing_is_nothing() -> None:
    got = agreement([])
    assert got == Agreement(0, 0, 0, 0, {})
    assert got.balanced_accuracy is None


@each_case("reason", REASONS)
def test_every_reason_is_counted_by_its_name(reason: str) -> None:
    assert agreement(judged(("yes", unscored(reason)))) == Agreement(0, 0, 0, 0, {reason: 1})


BALANCED = {
    "perfect": (Agreement(9, 0, 1, 0, {}), 1.0),
    "always wrong": (Agreement(0, 1, 0, 9, {}), 0.0),
    "passes everything": (Agreement(90, 10, 0, 0, {}), 0.5),
    "fails everything": (Agreement(0, 0, 10, 90, {}), 0.5),
    "small group counts as much": (Agreement(99, 1, 0, 0, {}), 0.5),
    "in between": (Agreement(3, 1, 1, 1, {}), 0.625),
    "no good ones": (Agreement(0, 1, 5, 0, {}), None),
    "no bad ones": (Agreement(5, 0, 0, 1, {}), None),
    "all unscored": (Agreement(0, 0, 0, 0, {"timeout": 3}), None),
}


@each_case(("found", "accuracy"), BALANCED.values(), ids=BALANCED.keys())
def test_balanced_accuracy_is_the_mean_over_both_groups(found: Agreement, accuracy: float | None) -> None:
    assert found.balanced_accuracy == accuracy


pairs = st.lists(
    st.tuples(st.sampled_from(["yes", "no"]), st.sampled_from([PASS, FAIL, UNRATED, ABSTAINED, unscored("refusal")]))
)


@settings(deadline=None)
@given(pairs)
def test_cells_and_unscored_add_up_to_all_traces(labelled: Sequence[tuple[str, Assessment]]) -> None:
    got = agreement(judged(*labelled))
    assert sum(got[:4]) + sum(got.unscored.values()) == len(labelled)
    assert got.balanced_accuracy is None or 0 <= got.balanced_accuracy <= 1


# --- shares ---


def test_shares_are_counted_per_label_in_order() -> None:
    got = shares(
        judged(
            ("en", PASS),
            ("de", FAIL),
            ("en", FAIL),
            ("en", PASS),
            ("de", ABSTAINED),
            ("de", unscored("timeout")),
            ("fr", unscored("timeout")),
        )
    )
    assert list(got.items()) == [
        ("de", Share(passed=0, scored=1, unscored={"abstained": 1, "timeout": 1}, rated=1, mean=0.5)),
        ("en", Share(passed=2, scored=3, unscored={}, rated=3, mean=0.5)),
        ("fr", Share(passed=0, scored=0, unscored={"timeout": 1}, rated=0, mean=None)),
    ]
    assert [share.share for share in got.values()] == [0.0, pytest.approx(2 / 3), None]


def test_a_metric_without_a_pass_rule_has_a_mean_and_no_share() -> None:
    judged = [Judged(TRACE, "en", scored("unrated", value=value), "metric 0") for value in (0.25, 0.75)]
    (share,) = shares([*judged, Judged(TRACE, "en", ABSTAINED, "metric 0")]).values()
    assert share == Share(passed=0, scored=2, unscored={"abstained": 1}, rated=0, mean=0.5)
    assert share.share is None


def test_labels_of_shares_are_taken_as_they_are() -> None:
    assert set(shares(judged(("yes", PASS), ("Yes", PASS), ("", PASS)))) == {"yes", "Yes", ""}


def test_shares_of_nothing_are_none() -> None:
    assert shares([]) == {}
