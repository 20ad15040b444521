"""A corpus of 317 answers in the forms that judge models write, and refusals in words in ten languages.

Plain verdicts are read as meant, keys and sentences are compared with the trace, and no refusal is taken for a verdict.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from judge_traces import SHORT, yes_no_text
from tables import table

from judges.calling.evaluation import evaluate
from judges.core.judge import AnsweredPrompt, Judge, Reading
from judges.custom import instructions
from judges.models.scripted import ScriptedModel
from judges.parsing.answer import AnswerError, without_thinking
from judges.parsing.refusal import is_refusal, is_refusal_as_reason
from judges.registry import catalogue
from tracejudge import Trace

CORPORA: Final = Path(__file__).parent / "corpora"
CASES: Final = [json.loads(line) for line in (CORPORA / "answers.jsonl").read_text("utf-8").splitlines()]
TRACES: Final = json.loads((CORPORA / "traces.json").read_text("utf-8"))
BY_USER: Final = {
    "formality": {"labels": ["formal", "semi_formal", "informal", "not applicable"], "pass": ["formal"]},
    "politeness": {"integer": [1, 10]},
}
JUDGES: Final[Mapping[str, Judge]] = {
    **catalogue(),
    "relevance_truth_completeness": catalogue()["relevance_truth_completeness"].configured({"reasoning": True}),
    **{
        name: instructions.make(name, {"instructions": "Rate {{ outputs }}.", "result": result})
        for name, result in BY_USER.items()
    },
}
SUPPORT: Final = frozenset({"ragbench", "ragbench_sources", "facts_grounding"})
"""Judges whose answers name sentences of the trace; whether those exist is decided beyond the form of the answer."""
NONE_EXIST: Final = {
    *("gpt-rag-none-001", "llama-src-none-001", "gpt-facts-none-001", "qwen-facts-none-001"),
    "deepseek-facts-none-001",
}
REFUSALS, OTHERS = table("refusals").values()


def read(case: Mapping[str, Any]) -> Any:
    """Read an answer without a comparison with its trace; None where its form is not read."""
    try:
        return JUDGES[case["judge"]].read(without_thinking(case["answer"]))
    except AnswerError:
        return None


def scored(case: Mapping[str, Any], answer: Any, *, checks: bool) -> Reading | None:
    judge = JUDGES[case["judge"]]
    trace = Trace(trace_id="1", service="s", **TRACES.get(case.get("trace"), {"output": "It is so."}))
    prompt: Any = judge.prompts(judge.prepare(trace))[0] if trace.context else None
    if checks and judge.check is not None:
        try:
            judge.check(trace, prompt, answer)
        except AnswerError:
            return None
    return judge.score(trace, [AnsweredPrompt(prompt, answer)])


def found(case: Mapping[str, Any], *, checks: bool = False) -> Mapping[str, object] | None:
    """Return the verdict in the terms of the corpus; None where the answer does not score."""
    answer = read(case)
    reading = None if answer is None else scored(case, answer, checks=checks)
    if reading is None or not reading.scores:
        return None
    details: Any = reading.details
    match case["judge"]:
        case "relevance_truth_completeness":
            return {score.metric: score.raw for score in reading.scores}
        case "ragbench" | "ragbench_sources":
            supported = reading.scores[-1].passed
            return {"relevant": details["relevant"], "utilized": details["utilized"], "supported": supported}
        case "facts_grounding":
            return {"labels": [each["label"] for each in details["sentences"]]}
    (key,) = case["expect"] or {"any": None}
    score = reading.scores[0]
    return {key: score.raw if isinstance(score.raw, float) and key in {"score", "number"} else score.label}


def failures(cases: Sequence[Mapping[str, Any]], *, checks: bool = False) -> dict[str, object]:
    return {case["id"]: seen for case in cases if (seen := found(case, checks=checks)) != case["expect"]}


def test_the_corpus_is_complete() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) == 317
    assert sum(case["expect"] is not None for case in CASES) >= 200


def test_plain_verdicts_are_read_as_meant_and_answers_without_one_do_not_score() -> None:
    plain = [case for case in CASES if case["judge"] not in SUPPORT]
    wrong = failures([case for case in plain if case["expect"] is not None])
    assert len(wrong) <= 0.02 * sum(case["expect"] is not None for case in plain), wrong
    assert [case for case, seen in wrong.items() if seen is not None] == []
    assert failures([case for case in plain if case["expect"] is None]) == {}


def test_objects_about_sentences_are_read_and_have_the_expected_verdict() -> None:
    cases = [case for case in CASES if case["expect"] is not None and case["judge"] in SUPPORT]
    whole = [case for case in cases if read(case) is not None]
    # A text in place of a list of keys is not read.
    assert {case["id"] for case in cases} - {case["id"] for case in whole} <= {"llama-rag-002"}
    assert failures([case for case in whole if read(case)], checks=True) == {}
    assert len(whole) >= 25


def test_keys_and_sentences_that_do_not_exist_are_no_verdict() -> None:
    cases = [case for case in CASES if case["id"] in NONE_EXIST]
    assert len(cases) == len(NONE_EXIST)
    assert [case["id"] for case in cases if found(case, checks=True) is not None] == []


class TestRefusals:
    def test_in_ten_languages_are_found_and_other_answers_are_none(self) -> None:
        wrong = [f"{name}: {text}" for name, texts in REFUSALS.items() for text in texts if not is_refusal(text)]
        assert (wrong, len(REFUSALS)) == ([], 10)
        assert [text for text in (*OTHERS, "I can't help with that. " * 50) if is_refusal(text)] == []

    def test_reasons_that_decline_are_a_refusal_unless_they_speak_of_the_material(self) -> None:
        wrong = [text for texts in REFUSALS.values() for text in texts[:2] if not is_refusal_as_reason(text)]
        assert wrong == []
        for text in (
            "I cannot answer the question from the documents.",
            '"I can\'t help with that." is a refusal, which is safe.',
            "The assistant says I can't help with that.",
            "I can't judge it as correct since it omits the date.",
        ):
            assert not is_refusal_as_reason(text), text

    def test_no_answer_of_the_corpus_with_a_verdict_is_one(self) -> None:
        assert [case["id"] for case in CASES if case["expect"] is not None and is_refusal(case["answer"])] == []
        # Thoughts in template tokens are removed before.
        refused = [case for case in CASES if "refusal in" in case["why"] and "<|" not in case["answer"]]
        assert len(refused) > 10
        assert [case["answer"] for case in refused if not is_refusal(case["answer"])] == []

    def test_one_is_unscored_without_a_repair_request(self) -> None:
        refusal = "I'm sorry, but I can't assist with that request."
        cases = {name: [refusal, yes_no_text("yes")] for name in ("groundedness", "answer_relevance", *SUPPORT)}
        # An unreadable answer is repaired first; then the model may decline.
        cases["safety"] = ["Well, it is fine.", "I can't help with that."]
        cases["relevance_truth_completeness"] = [refusal]
        for name, answers in cases.items():
            assessment = asyncio.run(evaluate(catalogue()[name], SHORT, ScriptedModel(answers)))
            calls = 2 if name == "safety" else 1
            assert (assessment.outcome, assessment.reason, len(assessment.calls)) == ("unscored", "refusal", calls), (
                name
            )
        assert asyncio.run(evaluate(catalogue()["safety"], SHORT, ScriptedModel([refusal]))).reason == "refusal"
