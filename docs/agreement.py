"""The page of agreement: how far models agree with the labels of the sample traces and of traces of agents, per judge.

The built-in lexical model is measured whenever the page is written. `make agreement MODEL=NAME` measures a
`[models.NAME]` of the configuration, and keeps its section of the page in ``agreement.json``.
"""

import asyncio
import datetime as dt
import importlib
import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import structs

import judges
from judges.agreement.labelled import Judged, agreement, says_yes
from judges.calling.runs import JudgeRunner
from judges.endpoints.client import OFFLINE_PATIENCE_S, OFFLINE_TRIES, DelayNotes
from judges.models.lexical import LexicalModel
from judges.registry import catalogue
from tracejudge import Trace
from worker.core.config.loading import load
from worker.features.lab.offline import open_model

__all__ = ["ASKED", "Asked", "page"]

_SAMPLES: Final = Path(judges.__file__).parent / "samples"
_TESTS: Final = Path(__file__).parent.parent / "tests"
_SECTIONS: Final = Path(__file__).with_name("agreement.json")
_INTRODUCTION: Final = """\
# Agreement with labels

Each row is one judge over those of [our sample traces](../../judges/samples/README.md) with the label; the last six
are of 12 traces of agents each. `yes / no` counts the labels of those with a score; `balanced accuracy` is the mean of
the shares recognised in both label groups, 0.5 is chance. The samples are few and were written for this project.

## `lexical`

The built-in model compares words and numbers and understands nothing. Some heuristics were tuned with these samples in
sight: the figures flatter. What it reaches on public data is in
[its own page](../several-models.md#the-built-in-heuristic).
"""
_TABLE: Final = """
| judge | metric | label | yes / no | without a score | balanced accuracy |
| --- | --- | --- | --- | --- | --- |
"""
_ENDING: Final = """
Measure a model of your own with `make agreement MODEL=NAME`, the name of its `[models.NAME]` in `tracejudge.toml`, or a
row of the sample traces with `tracejudge judges test JUDGE FILES --label LABEL`; the files are `judges/samples/*.jsonl`
and `judges/samples/references/*.jsonl`.
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
    # Traces of agents, each labelled for one judge.
    *(Asked(judge, judge, judge) for judge in ("tool_selection", "tool_arguments", "tool_result_use")),
    *(Asked(judge, judge, judge) for judge in ("task_completion", "plan_adherence", "step_efficiency")),
)


def page() -> str:
    """Write the page; the lexical model is measured in about two seconds."""
    lexical = asyncio.run(_measure(JudgeRunner(LexicalModel()), sys.maxsize))
    return "".join((_INTRODUCTION, lexical, *msgspec.json.decode(_SECTIONS.read_bytes()).values(), _ENDING))


async def _measure(runner: JudgeRunner, most: int, *, shows_progress: bool = False) -> str:
    """Measure all rows, with the first ``most`` traces of each label; a model of the network takes up to hours."""
    traces, rows = _traces(), _TABLE
    for asked in ASKED:
        judge = catalogue()[asked.judge]
        labelled = [trace for trace in traces if asked.label in (trace.tags or {}) and judge.missing(trace) is None]
        pairs = [(trace, (trace.tags or {})[asked.label]) for trace in labelled]
        groups = ([pair for pair in pairs if says_yes(pair[1]) is is_yes] for is_yes in (True, False))
        chosen = [pair for group in groups for pair in group[:most]]
        timed = await asyncio.gather(*(runner.ask(judge, trace) for trace, _ in chosen))
        found = agreement(
            Judged(*pair, each.assessment, asked.metric) for pair, each in zip(chosen, timed, strict=True)
        )
        if "judge_unavailable" in found.unscored:
            raise SystemExit(f"{asked.judge}: the endpoint of {runner.judge_model} is away; nothing is written")
        yes, no = found.true_pass + found.false_fail, found.false_pass + found.true_fail
        accuracy = "-" if found.balanced_accuracy is None else f"{found.balanced_accuracy:.3f}"
        named = f"`{asked.judge}` | `{asked.metric}` | `{asked.label}`"
        row = f"| {named} | {yes} / {no} | {sum(found.unscored.values())} | {accuracy} |\n"
        if shows_progress:
            sys.stderr.write(row)
        rows += row
    await runner.aclose()
    return rows


def _traces() -> list[Trace]:
    """Read the sample traces, and those of agents with their label as a tag of the judge's name."""
    files = (*sorted(_SAMPLES.glob("*.jsonl")), *sorted(_SAMPLES.glob("references/*.jsonl")))
    lines = (line for file in files for line in file.read_text(encoding="utf-8").split("\n"))
    sys.path += [str(folder) for folder in (_TESTS, _TESTS / "judges") if str(folder) not in sys.path]
    of_agents = importlib.import_module("agent_traces").labelled()
    return [
        *(msgspec.json.decode(line, type=Trace) for line in lines if line),
        *(structs.replace(row.trace, tags={row.judge: "yes" if row.passes else "no"}) for row in of_agents),
    ]


def main() -> None:
    """Measure the model of a name, with so many traces of each label, and keep its section with a note."""
    name, most, note = sys.argv[1:]
    notes = DelayNotes(OFFLINE_PATIENCE_S)
    runner = JudgeRunner(open_model(load(os.environ, needs_rules=False), name, OFFLINE_TRIES, notes.bind))
    rows = asyncio.run(_measure(runner, int(most), shows_progress=True))
    span = f"Measured on {dt.datetime.now(dt.UTC):%Y-%m-%d} on at most {int(most):,} of the traces of each label."
    section = f"\n## `{runner.judge_model}`\n\n{span} {note}".rstrip() + f"\n{rows}"
    sections = msgspec.json.decode(_SECTIONS.read_bytes()) | {runner.judge_model: section}
    _SECTIONS.write_bytes(msgspec.json.format(msgspec.json.encode(sections)) + b"\n")


if __name__ == "__main__":
    main()
