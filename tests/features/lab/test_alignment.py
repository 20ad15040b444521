"""What the judge model is shown to derive guidance from, and how its guidance is read."""

import asyncio
import json
from collections.abc import Sequence

import pytest

from judges.agreement.labelled import Judged, Labelled
from judges.calling.evaluation import evaluate, prepared
from judges.core.judge import RESULT, Judge
from judges.core.verdict import Assessment, Reason, Score
from judges.custom import define
from judges.features.lab.alignment import Alignment, NotJudgedError, Rules, Trial
from judges.models.lexical import LexicalModel
from judges.parsing.answer import InvalidAnswerError
from judges.registry import catalogue
from tracejudge import Message, Trace

TRACE = Trace(
    trace_id="t",
    service="s",
    input="When does the shop open?",
    output="It opens on Monday. It closes at six.",
    messages=[Message(role="user", content="Hello."), Message(role="assistant", content="Hi.")],
    context=["The shop opens on Monday.", "It closes at seven."],
    guidelines=["Be kind."],
    expected_response="On Monday.",
)


class Asked:
    """Answers every judge with a verdict that passes, and the request for guidance with rules."""

    def __init__(self, *rules: str, reason: Reason | None = None) -> None:
        self.requests: list[tuple[Judge, Trace]] = []
        self._rules = rules
        self._reason = reason

    async def __call__(self, judge: Judge, trace: Trace) -> Assessment:
        if judge.name == "alignment":
            self.requests.append((judge, trace))
            return Assessment("scored", details={RESULT: list(self._rules)})
        if self._reason is not None:
            return Assessment("unscored", self._reason)
        return Assessment("scored", None, (Score("own", 1.0, label="yes", passed=True),), "It is so.")


def alignment(table: dict[str, object], asked: Asked, labels: Sequence[str], kept: Rules = ()) -> Alignment:
    train = [Labelled(TRACE, label) for label in labels]
    return Alignment(lambda rules: define("own", {**table, "guidance": rules}), None, train, asked, kept)


def test_a_case_of_every_judge_is_shown_with_both_verdicts() -> None:
    tables: list[dict[str, object]] = [{"based_on": name} for name in catalogue()]
    tables += [{"instructions": "Is {{ outputs }} kind?"}, {"instructions": "Does {{ trace }} loop?"}]
    for table in tables:
        judge = define("own", table)
        if judge.missing(prepared(judge, TRACE)):
            continue
        asked = Asked("A rule.")
        best = asyncio.run(alignment(table, asked, ["yes", "no"], ("Before.",)).memory(1))
        assert best.rules == ("Before.",), table  # it is no better
        ((deriver, shown),) = asked.requests
        wrong, right = shown.context or ()
        assert str(wrong).startswith("Verdict of the people: fail\nVerdict of the judge: pass (yes)\nThey differ."), (
            table
        )
        assert str(right).startswith("Verdict of the people: pass\nVerdict of the judge: pass (yes)\nThey agree."), (
            table
        )
        assert "opens on Monday" in str(wrong), table
        assert shown.input == judge.fixed_parts[0], table
        assert shown.output == "- Before."
        # The whole way of a request: the model without words writes no guidance.
        assessment = asyncio.run(evaluate(deriver, shown, LexicalModel()))
        assert assessment.details[RESULT] == [], table


def test_long_cases_are_cut_in_the_middle_and_both_kinds_of_disagreement_come_first() -> None:
    asked = Asked("A rule.")
    search = alignment({"based_on": "groundedness"}, asked, [])
    long = Trace(trace_id="t", service="s", input="?", output="begin " + "x" * 20_000 + " end", context=["c"])

    def judged(label: str, passed: float) -> Judged:
        score = Score("own", passed, passed=bool(passed))
        return Judged(long, label, Assessment("scored", None, (score,)))

    many = [judged("no", 1)] * 40 + [judged("yes", 0)] * 2 + [judged("yes", 1)] * 20
    # Those of one kind come first in the file, and yet the first request shows both.
    for attempt, count in ((2, 10 + 6), (0, 16 + 6)):
        assert asyncio.run(search.derive(Trial((), many), attempt)) == ("A rule.",)
        cases = [str(case) for case in asked.requests[-1][1].context or ()]
        assert len(cases) == count
        assert all(len(case) < 6400 and "characters left out]" in case for case in cases)
    heads = [case.splitlines()[:2] for case in cases[:4]]
    failed, passed = ["Verdict of the people: fail", "Verdict of the judge: pass"], "Verdict of the people: pass"
    assert [head == failed for head in heads] == [True, False, True, False]
    assert heads[1] == [passed, "Verdict of the judge: fail"]
    assert asyncio.run(search.derive(Trial((), many), 3)) is None  # all cases were shown
    assert asyncio.run(search.derive(Trial((), many[42:]))) is None  # nothing to learn


def test_guidance_is_read_as_rules_of_one_line_and_not_too_many() -> None:
    asked = Asked("A rule.")
    asyncio.run(alignment({"based_on": "groundedness"}, asked, ["yes", "no"]).memory(1))
    ((deriver, shown),) = asked.requests
    assert shown.output == "none yet"

    def read(*rules: str) -> object:
        return deriver.read(json.dumps({"rationale": "So.", "result": rules})).value

    assert read(" A\n rule. ", " ", "B") == ["A rule.", "B"]
    for rules in (["x"] * 9, ["x" * 1001]):
        with pytest.raises(InvalidAnswerError):
            read(*rules)


def test_an_endpoint_that_is_away_ends_the_search_and_a_final_reason_does_not() -> None:
    table: dict[str, object] = {"based_on": "groundedness"}
    with pytest.raises(NotJudgedError, match="judge_unavailable"):
        asyncio.run(alignment(table, Asked(reason="judge_unavailable"), ["yes", "no"]).memory(1))
    asked = Asked(reason="refusal")
    best = asyncio.run(alignment(table, asked, ["yes", "no"]).memory(1))
    assert (best.agreement, asked.requests) == (0, [])
