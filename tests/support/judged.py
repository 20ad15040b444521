"""Real verdicts of the built-in model on traces, made in this process."""

import asyncio
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from judges.calling.evaluation import evaluate
from judges.core.verdict import Verdict
from judges.models.lexical import LexicalModel
from judges.registry import catalogue
from support.stage_parts import make_verdict
from tracejudge import Trace


def judged(rows: Sequence[Mapping[str, Any]], judges: Iterable[str]) -> list[Verdict]:
    """Judge traces, as live traffic."""
    model, verdicts = LexicalModel(), []
    for number, (row, name) in enumerate(itertools.product(rows, judges)):
        judge, trace = catalogue()[name], msgspec.convert(row, Trace)
        assessment = asyncio.run(evaluate(judge, trace, model))
        fields = {field: getattr(assessment, field) for field in ("outcome", "reason", "scores", "rationale")}
        verdicts.append(
            make_verdict(
                number,
                **fields,
                details=assessment.details,
                calls=assessment.calls,
                trace_id=trace.trace_id,
                span_id=trace.span_id,
                service=trace.service,
                metrics=judge.metric_names,
                judge=name,
                judge_version=judge.version,
                started_at=time.time(),
                attempts=1,
                weight=1.0,
            )
        )
    return verdicts
