"""A corpus of 317 answers in the forms that judge models write: plain verdicts are read as meant, no other scores."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from judges.core.judge import AnsweredPrompt, Judge, Reading
from judges.custom import instructions
from judges.parsing.answer import AnswerError, without_thinking
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


def read(case: Mapping[str, Any]) -> tuple[Trace, Judge, Any]:
    judge = JUDGES[case["judge"]]
    trace = Trace(trace_id="1", service="s", **TRACES.get(case.get("trace"), {"output": "It is so."}))
    return trace, judge, judge.read(without_thinking(case["answer"]))


def scored(trace: Trace, judge: Judge, answer: Any) -> Reading:
    prompts = judge.prompts(judge.prepare(trace)) if trace.context else [None]
    return judge.score(trace, [AnsweredPrompt(prompts[0], answer)])  # type: ignore[arg-type]


def found(case: Mapping[str, Any]) -> Mapping[str, object] | None:
    """Return the verdict in the terms of the corpus; None where the answer does not score."""
    try:
        trace, judge, answer = read(case)
    except AnswerError:
        return None
    reading = scored(trace, judge, answer)
    if not reading.scores:
        return None
    details = reading.details
    match case["judge"]:
        case "relevance_truth_completeness":
            return {score.metric: score.raw for score in reading.scores}
        case "ragbench" | "ragbench_sources":
            return {
                "relevant": details["relevant"],
                "utilized": details["utilized"],
                "supported": reading.scores[-1].passed,
            }
        case "facts_grounding":
            return {"labels": [each["label"] for each in details["sentences"]]}  # type: ignore[attr-defined]
    (key,) = case["expect"] or {"any": None}
    score = reading.scores[0]
    return {key: score.raw if isinstance(score.raw, float) and key in {"score", "number"} else score.label}


def failures(cases: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    return {case["id"]: seen for case in cases if (seen := found(case)) != case["expect"]}


def test_plain_verdicts_are_read_as_meant() -> None:
    plain = [case for case in CASES if case["expect"] is not None and case["judge"] not in SUPPORT]
    wrong = failures(plain)
    assert len(wrong) <= 0.02 * len(plain), wrong
    assert [case for case, seen in wrong.items() if seen is not None] == []


def test_answers_without_a_verdict_do_not_score() -> None:
    none = [case for case in CASES if case["expect"] is None and case["judge"] not in SUPPORT]
    assert failures(none) == {}


def test_objects_about_sentences_are_read() -> None:
    """Which keys and sentences exist is tested with their judges; here every whole object is read."""
    unread = []
    for case in CASES:
        if case["expect"] is not None and case["judge"] in SUPPORT:
            try:
                read(case)
            except AnswerError:
                unread.append(case["id"])
    # A text in place of a list of keys is not read.
    assert set(unread) <= {"llama-rag-002"}


def test_the_corpus_is_complete() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) == 317
    assert sum(case["expect"] is not None for case in CASES) >= 200
