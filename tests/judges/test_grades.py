"""Agreement with grades on the judge's own scale."""

import pytest
from support.cases import each_case

from judges.agreement.labelled import Grades, Scale, grades, scale_of
from judges.custom import define
from judges.registry import catalogue

ONE_TO_FIVE = Scale(1, 5)


@each_case(
    ("grade", "value"),
    [("1", 0.0), ("4", 0.75), ("4.5", 0.875), (" 5 ", 1.0), ("0", None), ("6", None), ("four", None), ("nan", None)],
)
def test_a_grade_is_worth_what_a_score_is(grade: str, value: float | None) -> None:
    assert ONE_TO_FIVE.value(grade) == value


def test_a_low_grade_is_worth_more_where_low_is_good() -> None:
    assert Scale(0, 10, is_lower_good=True).value("3") == pytest.approx(0.7)


def scale(result: object) -> Scale | None:
    judge = define("mine", {"instructions": "Is {{ outputs }} so?", "result": result})
    return scale_of(judge, judge.metrics[0])


def test_a_judge_has_the_scale_that_it_declares() -> None:
    assert scale({"integer": [-1, 5]}) == Scale(-1, 5)
    assert scale({"number": [0, 0.5], "direction": "lower"}) == Scale(0, 0.5, is_lower_good=True)
    for none in ("yes/no", "boolean", {"labels": {"1..2": 1, "3": 0}}):
        assert scale(none) is None


def test_built_in_metrics_have_theirs() -> None:
    scales = {judge.name: scale_of(judge, judge.metrics[0]) for judge in catalogue().values()}
    assert (scales["faithfulness"], scales["ragbench"], scales["safety"]) == (Scale(1, 5), Scale(0, 1), None)


PAIRS = {
    "alike": ([(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)], Grades(0.0, 1.0)),
    "the other way round": ([(0.0, 1.0), (1.0, 0.0)], Grades(4.0, -1.0)),
    "always higher": ([(0.0, 0.25), (0.5, 0.75)], Grades(1.0, 1.0)),
    "with ties": ([(0.0, 0.0), (0.0, 0.5), (0.5, 0.5), (1.0, 0.5)], Grades(1.0, 0.5443310539518174)),
    "always the same": ([(0.0, 0.5), (1.0, 0.5)], Grades(2.0, None)),
    "one": ([(0.0, 0.5)], Grades(2.0, None)),
    "none": ([], Grades(None, None)),
}


@each_case(("pairs", "found"), PAIRS.values(), ids=PAIRS.keys())
def test_distance_and_order_are_compared(pairs: list[tuple[float, float]], found: Grades) -> None:
    error, order = grades(pairs, ONE_TO_FIVE)
    assert error == (None if found[0] is None else pytest.approx(found[0]))
    assert order == (None if found[1] is None else pytest.approx(found[1]))
