"""FACTS grounding: a label and an excerpt for each sentence, and the check of the excerpts."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from judge_traces import LONG, SHORT, all_samples
from support.cases import each_case
from tables import outcome, table

from judges.calling.evaluation import evaluate
from judges.catalog.facts_grounding import JUDGE, Settings, make
from judges.core.judge import AnsweredPrompt, Judge, Reading
from judges.core.verdict import Score
from judges.forms.sentence_labels import Line
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel, Step
from judges.parsing.answer import InvalidAnswerError, OutOfRangeError
from tracejudge import Trace

TABLES = table("facts_grounding")
V2 = make(Settings(labels="v2"))
TRACE = Trace(
    trace_id="1",
    service="s",
    input="How long is the warranty?",
    output="Hello! The warranty runs for two years. It covers the battery.",
    context=["All devices come with a warranty of two years.", "Batteries are not covered by it."],
)
HELLO = ("Hello!", "no_rad", "A greeting.", None)
YEARS = ("The warranty runs for two years.", "supported", "The length is given.", "a warranty of two years")
BATTERY = ("It covers the battery.", "contradictory", "It does not.", "Batteries are not covered by it.")
SILENT = ("It covers the battery.", "unsupported", "Nothing is said.", None)
NONE = {
    **dict.fromkeys(("check_differs", "fabricated_evidence", "missing_evidence", "uncovered_sentences"), 0),
    **dict.fromkeys(("invented_sentences", "repeated_sentences"), 0),
}
"""What the details count."""
both_sets = each_case("judge", [JUDGE, V2], ids=["v1", "v2"])


def line(sentence: str, label: str, rationale: str = "r", excerpt: object = None) -> str:
    return json.dumps({"sentence": sentence, "label": label, "rationale": rationale, "excerpt": excerpt})


def read_and_score(
    *lines: tuple[str, str, str, str | None], judge: Judge = JUDGE, trace: Trace = TRACE
) -> tuple[list[float], Reading, Mapping[str, Any]]:
    """Read lines as a model writes them, and score them; return the values, the reading and its details."""
    answer = judge.read("\n".join(line(*each) for each in lines))
    reading = judge.score(trace, [AnsweredPrompt(judge.prompts(trace)[0], answer)])
    names = ("grounded", "supported_share")
    for name, score in zip(names, reading.scores, strict=False):
        passed = bool(score.value) if name == "grounded" else None
        assert score == Score(name, score.value, score.value, passed=passed)
    return [score.value for score in reading.scores], reading, reading.details


class TestReading:
    def test_of_a_line(self) -> None:
        for name, (text, expected) in TABLES["lines"].items():
            found = outcome(JUDGE.read, text)
            assert found == (expected if isinstance(expected, str) else (Line(*expected),)), name

    def test_the_second_label_set_has_its_own_menu(self) -> None:
        lines = V2.read(line("A.", "NOT_SUPPORTED") + line("B.", "no_rad"))
        assert [each.label for each in lines] == ["not_supported", "no_rad"]
        with pytest.raises(OutOfRangeError):
            V2.read(line("A.", "contradictory"))
        with pytest.raises(InvalidAnswerError):
            V2.read('{"sentence": "A.", "rationale": "r", "excerpt": null}')

    def test_the_label_sets_are_judges_of_their_own_and_others_are_refused(self) -> None:
        assert JUDGE.configured({"labels": "v1"}).version == JUDGE.version
        assert JUDGE.configured({"labels": "v2"}).version == V2.version != JUDGE.version
        for values in ({"labels": "v3"}, {"label": "v1"}, {"min_covered": 1.5}):
            with pytest.raises(msgspec.ValidationError):
                JUDGE.configured(values)


class TestScore:
    def test_values_rationale_and_details_of_lines(self) -> None:
        for name, (fields, lines, expected, rationale, counted) in TABLES["scores"].items():
            trace = msgspec.convert({**msgspec.to_builtins(TRACE), **fields}, Trace)
            values, reading, details = read_and_score(*lines, trace=trace)
            assert expected in (None, values), name
            assert rationale in (None, reading.rationale), name
            assert {key: details[key] for key in counted} == counted, name
        _, reading, details = read_and_score(YEARS, (*BATTERY[:3], "Batteries are never covered."))
        assert "unsupported: 1" in (reading.rationale or "")
        left_out = read_and_score(HELLO, YEARS, ("Shipping is free.", "unsupported", "r", None))[2]
        assert (len(left_out["sentences"]), {*details} - {*NONE}) == (2, {"grounded_as_labelled", "sentences"})

    def test_the_reason_of_every_sentence_that_does_not_pass_is_kept_within_bounds(self) -> None:
        four = msgspec.structs.replace(TRACE, output=" ".join((HELLO[0], SILENT[0], YEARS[0], "It covers it all.")))
        lines = [(SILENT[0], "unsupported", "r" * 600, None), HELLO, YEARS, ("It covers it all.", *BATTERY[1:])]
        kept = [entry.get("rationale") for entry in read_and_score(*lines, trace=four)[2]["sentences"]]
        assert kept == [f"{'r' * 499}\u2026", None, None, BATTERY[2]]
        sentences = [f"Sentence number {number}." for number in range(200)]
        trace = msgspec.structs.replace(TRACE, output=" ".join(sentences))
        long = [(sentence, "unsupported", "r" * 600, None) for sentence in sentences]
        entries = read_and_score(*long, trace=trace)[2]["sentences"]
        assert len(entries) == 200
        assert sum(len(entry.get("rationale", "")) for entry in entries) == 20_000

    def test_the_second_label_set_has_one_label_for_what_lacks_support(self) -> None:
        lines = (HELLO, (*YEARS[:3], "an invented excerpt"), (SILENT[0], "not_supported", "r", "x"))
        values, _, details = read_and_score(*lines, judge=V2)
        assert values == [0.0, 0.0]
        assert [entry["label"] for entry in details["sentences"]] == ["no_rad", "not_supported", "not_supported"]
        assert (details["grounded_as_labelled"], details["fabricated_evidence"]) == (False, 1)


class TestCoverage:
    @staticmethod
    def checked(*sentences: str, output: str = TRACE.output, labels: str = "", judge: Judge = JUDGE) -> str:
        """Check lines with these sentences; ``labels`` has a letter for each, u for unsupported."""
        kinds = {"u": "unsupported", " ": "no_rad"}
        lines = judge.read("\n".join(map(line, sentences, map(kinds.__getitem__, labels.ljust(len(sentences))))))
        trace = msgspec.structs.replace(TRACE, output=output)
        assert judge.check is not None
        try:
            judge.check(trace, judge.prompts(trace)[0], lines)
        except InvalidAnswerError as error:
            return type(error).__name__
        return "whole"

    def test_what_lines_leave_out_and_add_is_counted(self) -> None:
        def counted(*sentences: str, trace: Trace = TRACE) -> list[int]:
            details = read_and_score(*((each, "no_rad", "r", None) for each in sentences), trace=trace)[2]
            return [details["uncovered_sentences"], details["invented_sentences"]]

        for name, (sentences, *expected) in TABLES["covered"].items():
            assert counted(*sentences) == expected, name
        items = msgspec.structs.replace(TRACE, output="Steps:\n\n1. Open the app.\n2. Choose a device.\n- Wait.")
        assert counted("Steps:", "Open the app.", "Choose a device.", "Wait.", trace=items) == [0, 0]

    def test_an_answer_that_leaves_words_out_is_incomplete(self) -> None:
        for name, (sentences, output, is_complete) in TABLES["complete"].items():
            expected = "whole" if is_complete else "IncompleteAnswerError"
            assert self.checked(*sentences, output=output) == expected, name

    def test_courtesies_in_ten_languages_may_be_left_out(self) -> None:
        texts = {text: self.checked("It is free.", output=f"{text} It is free.") for text in TABLES["courtesies"]}
        assert texts == dict.fromkeys(texts, "whole")
        for claim in ("Of course not.", "Certainly dogs are free.", "Sure, the pool is closed."):
            assert self.checked("It is free.", output=f"{claim} It is free.") == "IncompleteAnswerError", claim

    def test_the_share_that_must_be_covered_is_a_setting(self) -> None:
        judge = JUDGE.configured({"min_covered": 0.5})
        assert self.checked(YEARS[0], judge=judge) == "whole"
        assert self.checked(HELLO[0], judge=judge) == "IncompleteAnswerError"
        assert judge.version != JUDGE.version

    def test_a_line_that_is_repeated_counts_once_unless_its_label_differs(self) -> None:
        whole = (HELLO[0], YEARS[0], SILENT[0])
        assert self.checked(*whole, *whole) == "whole"
        assert self.checked(*whole, *whole, labels="     u") == "InvalidAnswerError"
        # The response itself may say something twice, and the context may support it once.
        assert self.checked("It is so.", "It is so.", output="It is so. It is so.", labels=" u") == "whole"

    def test_an_incomplete_answer_is_requested_once_more_and_then_unscored(self) -> None:
        part, whole = line(YEARS[0], "unsupported"), "\n".join(line(each[0], "unsupported") for each in (YEARS, SILENT))
        model = ScriptedModel([part, whole])
        assert asyncio.run(evaluate(JUDGE, TRACE, model)).outcome == "scored"
        demand = model.requests[1].messages[-1].content
        assert "the lines cover 60% of the words of the response, 2 of its sentences have none" in demand
        assessment = asyncio.run(evaluate(JUDGE, TRACE, ScriptedModel([part])))
        assert (assessment.outcome, assessment.reason, len(assessment.calls)) == ("unscored", "incomplete", 2)


class TestCutOff:
    def test_the_complete_lines_are_kept(self) -> None:
        both = [line(YEARS[0], "unsupported"), line(SILENT[0], "unsupported")]
        assert JUDGE.whole_lines is not None
        for text in ("\n".join(both), f'{{"sentences": [{", ".join(both)}', f"[{both[0]},\n{both[0]},\n{both[1]}"):
            assert JUDGE.whole_lines(text + ', {"sentence": "It co') == "\n".join(both)
        assert JUDGE.whole_lines('{"sentence": "It co') == ""
        for draft in (f"<think>{text}\n", f"<thought>{text}</thought>", f"<|channel|>analysis<|message|>{text}\n"):
            assert JUDGE.whole_lines(draft + '{"sentence": "It co') == ""

    def test_only_the_rest_is_requested(self) -> None:
        first, second = (line(each[0], "unsupported") for each in (YEARS, SILENT))
        for form in ("{}", '{{"sentences": [{}]}}'):
            cut = form.format(first).removesuffix("]}") + ', {"sentence": "It'
            model = ScriptedModel([Step(cut, finish_reason="length"), form.format(second)])
            details: Any = asyncio.run(evaluate(JUDGE, TRACE, model)).details
            assert [each["sentence"] for each in details["sentences"]] == [YEARS[0], SILENT[0]]
            assert model.requests[1].messages[-2].content == first

    def test_the_bound_grows_with_the_response(self) -> None:
        long = msgspec.structs.replace(TRACE, output="The warranty runs for two years. " * 50)
        bounds = [JUDGE.output_tokens(trace, JUDGE.prompts(trace)[0]) for trace in (TRACE, long)]
        text = "\n".join(line(YEARS[0], "supported", "The length is given.", YEARS[3]) for _ in range(50))
        assert len(text.encode()) / 3 < bounds[1] < 4 * len(text.encode()) / 3
        assert 1024 < bounds[0] < 2048


class TestHeuristic:
    @both_sets
    def test_labels_each_sentence_by_its_words(self, judge: Judge) -> None:
        output = "Hello! All devices have two years of warranty. It costs 20 EUR. Shipping abroad is free. Any more?"
        lacking = "unsupported" if judge is JUDGE else "not_supported"
        labels = ["no_rad", "supported", lacking, lacking, "no_rad"]
        for text, expected in ((output, labels), ("\u3000", ["no_rad"])):
            trace = msgspec.structs.replace(TRACE, output=text)
            answer = judge.read(str(judge.heuristic(trace, judge.prompts(trace)[0])))
            assert [each.label for each in answer] == expected
            found = "All devices come with a warranty of two years."
            assert [each.excerpt for each in answer] == [found if label == "supported" else None for label in expected]

    def test_its_excerpts_are_found_and_its_sentences_are_those_of_the_answer(self) -> None:
        for trace in [SHORT, LONG, *(trace for trace in all_samples() if JUDGE.missing(trace) is None)]:
            details = asyncio.run(evaluate(JUDGE, trace, LexicalModel())).details
            assert {details[name] for name in NONE} == {0}
            assert set(details) == {*NONE, "sentences", "grounded_as_labelled"}
