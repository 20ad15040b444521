"""The built-in model: word overlap answers every judge in its own form, deterministically."""

import asyncio
import json
from typing import Any

import pytest
from judge_traces import ASKING, HOSTILE, LONG, SHORT, YES_NO, all_samples, filled, served
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge
from judges.core.model import ChatRequest, ChatResponse, ModelSettings
from judges.core.verdict import Assessment
from judges.models.lexical import LexicalModel
from judges.parsing.sentences import content_words, coverage, numbers
from judges.registry import catalogue
from tracejudge import Trace

LABELS = {"correctness": "correct", "groundedness": "grounded", "relevance_to_query": "relevant", "safety": "safe"}
"""The tag of the samples that says what each judge should find."""

every_judge = pytest.mark.parametrize("judge", ASKING.values(), ids=ASKING)


def judged(judge: Judge, traces: list[Trace]) -> list[Assessment]:
    async def all_in_turn() -> list[Assessment]:
        model = LexicalModel()
        return [await evaluate(judge, trace, model) for trace in traces]

    return asyncio.run(all_in_turn())


def guesses(judge: Judge, trace: Trace) -> list[Any]:
    """Return the heuristic answers to all requests of a judge for a trace."""
    prepared = judge.prepare(served(judge, trace))
    return [judge.heuristic(prepared, prompt) for prompt in judge.prompts(prepared)]


class TestEveryJudge:
    @every_judge
    def test_each_sample_is_scored_unless_an_input_is_missing(self, judge: Judge) -> None:
        traces = [served(judge, trace) for trace in [SHORT, LONG, *all_samples()]]
        assert judge.missing(judge.prepare(traces[0])) is None
        for trace, assessment in zip(traces, judged(judge, traces), strict=True):
            missing = judge.missing(judge.prepare(trace))
            if missing is None:
                assert (assessment.outcome, assessment.reason) == ("scored", None)
                # supported_share is absent where no sentence needs support, completeness where none is relevant.
                metrics = {score.metric for score in assessment.scores}
                assert {*judge.metric_names} - metrics <= {"supported_share", "completeness"}
                assert assessment.rationale
                assert not assessment.rationale.startswith("Let's think")
                assert {(call.status, call.response_model) for call in assessment.calls} == {("ok", "lexical")}
            else:
                assert assessment == Assessment("unscored", "missing_input", note=missing)

    @every_judge
    def test_answers_in_the_form_that_was_asked(self, judge: Judge) -> None:
        for trace in [SHORT, LONG, *(trace for text in HOSTILE.values() for trace in filled(text))]:
            for answer in guesses(judge, trace):
                judge.read(answer if isinstance(answer, str) else json.dumps(answer))
                assert isinstance(answer, str) or list(answer) == judge.schema["required"]

    @each_case("judge", YES_NO.values(), ids=YES_NO)
    def test_answers_yes_or_no_with_the_opening_that_was_asked_for(self, judge: Judge) -> None:
        for trace in [SHORT, LONG, *all_samples()]:
            (answer,) = guesses(judge, trace)
            assert answer["result"] in {"yes", "no"}
            assert str(answer["rationale"]).startswith("Let's think step by step. ")

    @every_judge
    def test_the_same_trace_gives_the_same_answer(self, judge: Judge) -> None:
        traces = [trace for trace in all_samples() if judge.missing(judge.prepare(trace)) is None]
        once = [guesses(judge, trace) for trace in traces]
        assert once == [guesses(judge, trace) for trace in reversed(traces)][::-1]

    @each_case(("name", "tag"), LABELS.items())
    def test_agrees_with_the_labels_of_the_samples_above_chance(self, name: str, tag: str) -> None:
        """A bound far below what it reaches: the figure itself is printed in the documentation."""
        judge = catalogue()[name]
        traces = [trace for trace in all_samples() if tag in (trace.tags or {})]
        right: dict[str, list[bool]] = {"yes": [], "no": []}
        for trace, assessment in zip(traces, judged(judge, traces), strict=True):
            label = (trace.tags or {})[tag]
            right[label].append(assessment.scores[0].label == label)
        assert all(len(match) >= 5 for match in right.values())
        assert sum(sum(match) / len(match) for match in right.values()) / 2 >= 0.75

    def test_correctness_writes_the_sentence_that_is_asked_for_facts(self) -> None:
        judge = catalogue()["correctness"]
        facts = [trace for trace in all_samples() if trace.expected_facts]
        for trace in facts:
            (answer,) = guesses(judge, trace)
            text = "The response is correct." if answer["result"] == "yes" else "The response is not correct."
            assert str(answer["rationale"]).endswith(text)
        (answer,) = guesses(judge, SHORT)
        assert "The response is" not in str(answer["rationale"])


class TestModel:
    def test_answers_with_the_judges_heuristic_and_costs_nothing(self) -> None:
        request = ChatRequest((), "j", {}, lambda: {"rationale": "„So“\n", "result": "no"})
        assert asyncio.run(LexicalModel().complete(request)) == ChatResponse(
            '{"rationale":"„So“\\n","result":"no"}', model="lexical"
        )

    def test_bears_the_label_of_its_settings(self) -> None:
        assert LexicalModel().settings.judge_model == "lexical"
        assert LexicalModel(ModelSettings(provider="lexical", label="words")).settings.judge_model == "words"

    def test_takes_traces_of_any_length(self) -> None:
        model = LexicalModel(ModelSettings(provider="lexical", max_input_tokens=1))
        assert asyncio.run(evaluate(catalogue()["safety"], SHORT, model)).outcome == "scored"

    def test_can_be_closed(self) -> None:
        asyncio.run(LexicalModel().aclose())


class TestWords:
    @each_case(
        ("text", "words"),
        [
            ("", set()),
            ("The and of it's", set()),
            ("Refunds REFUND refunded refunding", {"refund"}),
            ("bus gas", {"bus", "gas"}),
            ("user_name, v2, 2024", {"user_name", "v2", "2024"}),
            ("Größe 返品 возврат", {"grösse", "返品", "возврат"}),
        ],
        ids=["nothing", "words without content", "one stem", "too short for a stem", "word characters", "scripts"],
    )
    def test_content_words(self, text: str, words: set[str]) -> None:
        assert content_words(text) == words

    @each_case(
        ("text", "found"),
        [
            ("none", set()),
            ("1,250.50 EUR in 30 days, v2", {"1250.50", "30", "2"}),
            ("1250.50", {"1250.50"}),
            ("On 3.4., at 5.", {"3.4", "5"}),
        ],
        ids=["none", "thousands", "the same without a separator", "ends of sentences"],
    )
    def test_numbers(self, text: str, found: set[str]) -> None:
        assert numbers(text) == found

    def test_coverage(self) -> None:
        assert coverage({"a", "b", "c", "d"}, {"a", "x"}) == 0.25
        assert coverage(set(), {"a"}) == coverage(set(), set()) == 1.0
        assert coverage({"a"}, set()) == 0.0
