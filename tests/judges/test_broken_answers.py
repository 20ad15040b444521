"""No broken answer becomes a score: each has the outcome stated in its table, in a complete evaluation."""

import asyncio
from collections.abc import Mapping

import json_repair
import pytest
from broken_answers import CASES, Case, Outcome
from explorations import Looking, looks
from families import FAMILIES, TRACE, Family, members
from family_answers import SPECIFIC, Specific
from msgspec import structs
from support.cases import each_case
from user_judges import JUDGES

from judges.calling.evaluation import evaluate
from judges.core.verdict import Assessment
from judges.models.scripted import Step

ALL = {what: case for table in CASES.values() for what, case in table.items()}
UNSCORED = {
    Outcome.ASKED: ("invalid_answer", 2),
    Outcome.EMPTY: ("invalid_answer", 1),
    Outcome.OFF: ("out_of_range", 1),
    Outcome.OFF_ASKED: ("out_of_range", 2),
    Outcome.INCOMPLETE: ("incomplete", 2),
    Outcome.REFUSAL: ("refusal", 1),
    Outcome.FILTER: ("content_filter", 1),
    Outcome.TRUNCATED: ("truncated", 2),
}


def evaluated(family: Family, answer: str | Step | tuple[str | Step, str | Step]) -> Assessment:
    """Evaluate an answer; the call by which a judge looks at the trace first is left out."""
    steps = answer if isinstance(answer, tuple) else (answer, answer)
    assessment = asyncio.run(evaluate(family.judge, TRACE, Looking(steps)))
    return structs.replace(assessment, calls=assessment.calls[looks(family.judge) :])


def scores(assessment: Assessment) -> Mapping[str, float]:
    return {score.metric: score.value for score in assessment.scores}


@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
@each_case("family", FAMILIES.values(), ids=FAMILIES)
def test_a_broken_answer_has_its_stated_outcome(case: Case, family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    repaired: list[str] = []
    loads = json_repair.loads
    monkeypatch.setattr(json_repair, "loads", lambda text: repaired.append(text) or loads(text))
    outcome = case.outcome_for(family)
    for answer in case.answers(family):
        repaired.clear()
        assessment = evaluated(family, answer)
        seen = (assessment.outcome, assessment.reason, scores(assessment), len(assessment.calls))
        if outcome in UNSCORED:
            reason, calls = UNSCORED[outcome]
            if isinstance(answer, tuple):
                calls = 2
            assert seen == ("unscored", reason, {}, calls), answer
            continue
        calls = 2 if outcome is Outcome.SECOND else 1
        assert seen == ("scored", None, pytest.approx(family.good_scores), calls), answer
        assert (outcome is Outcome.READ) <= (not repaired), answer
        assert (outcome is Outcome.MENDED) <= bool(repaired), answer


def test_every_judge_belongs_to_a_family() -> None:
    assert {name for family in FAMILIES.values() for name in members(family)} == set(JUDGES)


ONES = {
    f"{family}: {what}": (FAMILIES[family], case) for family, table in SPECIFIC.items() for what, case in table.items()
}


def test_each_case_can_be_met_by_a_family() -> None:
    assert [what for what, case in ALL.items() if not any(map(case.answers, FAMILIES.values()))] == []


@each_case(("family", "case"), ONES.values(), ids=ONES)
def test_an_answer_that_only_one_family_can_meet_has_its_stated_outcome(family: Family, case: Specific) -> None:
    for answer in case.answers:
        assessment = evaluated(family, answer)
        seen = (assessment.outcome, assessment.reason, scores(assessment), len(assessment.calls))
        if case.outcome in UNSCORED:
            reason, calls = UNSCORED[case.outcome]
            assert seen == ("unscored", reason, {}, calls), answer
        elif case.outcome is Outcome.ABSTAINED:
            assert seen == ("abstained", None, {}, 1), answer
        else:
            assert seen == ("scored", None, pytest.approx(case.scores), 1), answer
            assert {key: assessment.details[key] for key in case.details} == case.details, answer
