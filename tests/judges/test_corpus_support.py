"""The corpus of answers for the judges whose answers name sentences: keys and sentences are compared with the trace."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from judges.core.judge import AnsweredPrompt
from judges.parsing.answer import AnswerError, without_thinking
from judges.registry import catalogue
from tracejudge import Trace

CORPORA: Final = Path(__file__).parent / "corpora"
TRACES: Final = json.loads((CORPORA / "traces.json").read_text("utf-8"))
JUDGES: Final = {name: catalogue()[name] for name in ("ragbench", "ragbench_sources", "facts_grounding")}


def read(case: Mapping[str, Any]) -> Any:
    """Read an answer without a comparison with its trace; None where its form is not read."""
    try:
        return JUDGES[case["judge"]].read(without_thinking(case["answer"]))
    except AnswerError:
        return None


def found(case: Mapping[str, Any], answer: Any) -> Mapping[str, object] | None:
    """Return the verdict in the terms of the corpus; None where the answer does not score."""
    judge = JUDGES[case["judge"]]
    trace = Trace(trace_id="1", service="s", **TRACES[case["trace"]])
    (prompt,) = judge.prompts(trace)
    assert judge.check is not None
    try:
        judge.check(trace, prompt, answer)
    except AnswerError:
        return None
    scores, _, details = judge.score(trace, [AnsweredPrompt(prompt, answer)])
    if judge.name == "facts_grounding":
        return {"labels": [each["label"] for each in details["sentences"]]}  # type: ignore[attr-defined]
    return {"relevant": details["relevant"], "utilized": details["utilized"], "supported": scores[-1].passed}


def test_every_answer_whose_form_is_read_has_the_expected_verdict() -> None:
    """Which forms are read is tested with the reader."""
    cases = [json.loads(text) for text in (CORPORA / "answers.jsonl").read_text("utf-8").splitlines()]
    answers = [(case, read(case)) for case in cases if case["judge"] in JUDGES and case["expect"] is not None]
    wrong = {case["id"]: seen for case, answer in answers if answer and (seen := found(case, answer)) != case["expect"]}
    assert not wrong
    assert sum(answer is not None for _, answer in answers) >= 25


def test_keys_and_sentences_that_do_not_exist_are_no_verdict() -> None:
    ids = {
        "gpt-rag-none-001",
        "llama-src-none-001",
        "gpt-facts-none-001",
        "qwen-facts-none-001",
        "deepseek-facts-none-001",
    }
    cases = [json.loads(text) for text in (CORPORA / "answers.jsonl").read_text("utf-8").splitlines()]
    of_sentences = [case for case in cases if case["id"] in ids]
    assert len(of_sentences) == len(ids)
    scored = {case["id"] for case in of_sentences if (answer := read(case)) and found(case, answer) is not None}
    assert not scored
