"""The README's figures of the lexical model on our samples are those that come out today."""

import asyncio
import re
from pathlib import Path

import msgspec
import pytest
from judge_traces import SAMPLES, SERVICES

from judges.agreement import Judged, agreement
from judges.catalog import catalogue
from judges.evaluate import evaluate
from judges.models.lexical import LexicalModel
from tracejudge import Trace

README = Path(__file__).parents[2] / "README.md"
LABELS = {"groundedness": "grounded", "relevance_to_query": "relevant", "safety": "safe", "correctness": "correct"}


@pytest.mark.parametrize(("name", "tag"), LABELS.items(), ids=LABELS)
def test_the_readme_states_the_measured_agreement(name: str, tag: str) -> None:
    traces = [
        msgspec.json.decode(line, type=Trace)
        for service in SERVICES
        for line in (SAMPLES / f"{service}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    labelled = [trace for trace in traces if tag in trace.tags]
    assessed = [asyncio.run(evaluate(catalogue()[name], trace, LexicalModel())) for trace in labelled]
    judged = [Judged(trace, trace.tags[tag], found) for trace, found in zip(labelled, assessed, strict=True)]
    stated = re.search(rf"\| `{name}` \| our .*? \| (0\.\d+) \|", README.read_text(encoding="utf-8"))
    assert stated is not None
    assert float(stated[1]) == pytest.approx(agreement(judged).balanced_accuracy, abs=0.0005)
