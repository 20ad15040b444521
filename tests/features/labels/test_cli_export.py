"""Labelled traces that `tracejudge export` saves are rows of `judges test` and `evaluate`."""

import json
from pathlib import Path

import msgspec
from redis import Redis
from support.cli_parts import Run
from support.judged import judged

ROWS = [
    {
        "trace_id": f"{number:032x}",
        "service": "shop",
        "input": "When is my refund paid?",
        "output": output,
        "context": ["Refunds are paid within 14 days."],
    }
    for number, output in enumerate(("Gold coins rain from purple clouds.", "Refunds are paid within 14 days."))
]


def test_exported_traces_with_labels_can_be_tested_and_evaluated(served: Run, redis: Redis, prefix: str) -> None:
    for row in ROWS:
        redis.xadd(f"{prefix}:traces", {"v": "1", "t": json.dumps(row)})
    for verdict in judged(ROWS, ("facts_grounding",)):
        redis.xadd(f"{prefix}:verdicts", {"v": "1", "j": msgspec.json.encode(verdict)})
    labels = [
        {"trace_id": row["trace_id"], "label": label, "judge": "facts_grounding", "drawn": 0.5}
        for row, label in zip(ROWS, ("fail", "pass"), strict=True)
    ]
    Path("labels.jsonl").write_text("\n".join(map(json.dumps, labels)))
    assert served("labels", "import", "labels.jsonl").code == 0
    assert served("export", "--labelled", "--output", "saved.jsonl", "--json").document["traces"] == 2
    measured = served("judges", "test", "facts_grounding", "saved.jsonl", "--label", "facts_grounding.grounded")
    assert measured.code == 0, measured.err
    assert "balanced accuracy: 1.000" in measured.out
    evaluated = served("evaluate", "--judge", "facts_grounding", "saved.jsonl", "--json")
    assert (evaluated.code, "unknown field" in evaluated.err) == (0, False)
