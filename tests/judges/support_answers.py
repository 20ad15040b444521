"""Answers of a good model to the two RAGBench judges, and a way to score them without a model."""

import json
from collections.abc import Sequence

import msgspec

from judges.core.judge import AnsweredPrompt, Judge, Reading
from tracejudge import Document, Trace


def trace(context: Sequence[Document | str], output: str = "It is so.") -> Trace:
    return Trace(trace_id="1", service="s", input="How is it?", output=output, context=list(context))


def answer(entries: Sequence[object] = (), **changes: object) -> dict[str, object]:
    """Write an answer object with its keys in order."""
    return {
        "relevance_explanation": "Document one helps.",
        "all_relevant_sentence_keys": [],
        "overall_supported_explanation": "All is said there.",
        "overall_supported": True,
        "sentence_support_information": list(entries),
        "all_utilized_sentence_keys": [],
    } | changes


def of_response(key: object, supporting: object = (), *, full: object = True) -> dict[str, object]:
    """Write an entry of ``ragbench``."""
    return {
        "response_sentence_key": key,
        "explanation": "It says so.",
        "supporting_sentence_keys": supporting if isinstance(supporting, str) else list(supporting),
        "fully_supported": full,
    }


def of_source(key: object, *, supported: object = True) -> dict[str, object]:
    """Write an entry of ``ragbench_sources``."""
    return {"sentence_key": key, "is_supported": supported, "explanation": "It says so."}


def scored(judge: Judge, asked: Trace, message: object) -> Reading:
    """Read and score one answer, as an evaluation does."""
    (prompt,) = judge.prompts(asked)
    text = message if isinstance(message, str) else json.dumps(message)
    return judge.score(asked, [AnsweredPrompt(prompt, judge.read(text))])


def figures(reading: Reading) -> dict[str, float]:
    return {score.metric: score.value for score in reading.scores}


def with_ids(*ids: str | None) -> list[Document]:
    """Build one document per id, with the id in its text."""
    return [msgspec.structs.replace(Document(f"Text {rank}."), id=each) for rank, each in enumerate(ids, 1)]
