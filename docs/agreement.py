"""The page of agreement: how far the built-in lexical model agrees with the labels of the sample traces, per judge."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

import judges
from judges.agreement.labelled import Agreement, Judged, agreement
from judges.calling.evaluation import evaluate
from judges.models.lexical import LexicalModel
from judges.registry import catalogue
from tracejudge import Trace

__all__ = ["ASKED", "Asked", "measured", "page"]

_SAMPLES: Final = Path(judges.__file__).parent / "samples"
_INTRODUCTION: Final = """\
# Agreement of the lexical model with the sample traces

`lexical` compares words and numbers. It answers every judge in its own form, so that everything can be tried without a
model; it understands nothing. Each row is one judge over those of [our sample traces](../../judges/samples/README.md)
that bear the label; `balanced accuracy` is the mean of the shares recognised in both label groups, 0.5 is chance. The
samples are few and were written for this project, and some heuristics were tuned with them in sight: the figures
flatter. What `lexical` reaches on public data is in [its own page](../several-models.md#the-built-in-heuristic).

| judge | metric | label | yes / no | balanced accuracy |
| --- | --- | --- | --- | --- |
"""
_ENDING: Final = """
Reproduce a row with `tracejudge judges test JUDGE FILES --label LABEL` (and `--metric METRIC` for judges with several);
the files are `judges/samples/*.jsonl` and `judges/samples/references/*.jsonl`.
"""


class Asked(NamedTuple):
    """A metric of a judge, and the label that says what it should find."""

    judge: str
    metric: str
    label: str


ASKED: Final = (
    Asked("groundedness", "groundedness", "grounded"),
    Asked("faithfulness", "faithfulness", "grounded"),
    Asked("facts_grounding", "grounded", "grounded"),
    Asked("ragbench", "adherence", "grounded"),
    Asked("ragbench_sources", "adherence", "grounded"),
    Asked("relevance_to_query", "relevance_to_query", "relevant"),
    Asked("answer_relevance", "answer_relevance", "relevant"),
    Asked("relevance_truth_completeness", "relevance", "relevant"),
    Asked("relevance", "relevance", "relevant"),
    Asked("relevance_truth_completeness", "completeness", "complete"),
    Asked("relevance_truth_completeness", "truth", "correct"),
    Asked("correctness", "correctness", "correct"),
    Asked("answer_correctness", "answer_correctness", "correct"),
    Asked("answer_similarity", "answer_similarity", "same_meaning"),
    Asked("equivalence", "equivalence", "equivalent"),
    Asked("context_sufficiency", "context_sufficiency", "sufficient"),
    Asked("retrieval_relevance", "precision", "retrieved"),
    Asked("guidelines", "guidelines", "obeys"),
    Asked("safety", "safety", "safe"),
)


def measured() -> Iterator[tuple[Asked, Agreement]]:
    """Measure all rows; about two seconds."""
    traces = _traces()
    for asked in ASKED:
        yield asked, asyncio.run(_measure(asked, traces))


def page() -> str:
    """Write the page."""
    return _INTRODUCTION + "".join(map(_row, *zip(*measured(), strict=True))) + _ENDING


async def _measure(asked: Asked, traces: Sequence[Trace]) -> Agreement:
    judge, model = catalogue()[asked.judge], LexicalModel()
    labelled = [trace for trace in traces if asked.label in (trace.tags or {}) and judge.missing(trace) is None]
    found = [await evaluate(judge, trace, model) for trace in labelled]
    await model.aclose()
    return agreement(
        Judged(trace, (trace.tags or {})[asked.label], assessment, asked.metric)
        for trace, assessment in zip(labelled, found, strict=True)
    )


def _traces() -> list[Trace]:
    files = (*sorted(_SAMPLES.glob("*.jsonl")), *sorted(_SAMPLES.glob("references/*.jsonl")))
    lines = (line for file in files for line in file.read_text(encoding="utf-8").split("\n"))
    return [msgspec.json.decode(line, type=Trace) for line in lines if line]


def _row(asked: Asked, found: Agreement) -> str:
    yes, no = found.true_pass + found.false_fail, found.false_pass + found.true_fail
    accuracy = found.balanced_accuracy
    said = "-" if accuracy is None else f"{accuracy:.3f}"
    return f"| `{asked.judge}` | `{asked.metric}` | `{asked.label}` | {yes} / {no} | {said} |\n"
