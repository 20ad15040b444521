"""The corpus of excerpts: each is found in its source, or not, as a careful reader expects."""

import json
from pathlib import Path
from typing import Any

import pytest

from judges.parsing import evidence
from judges.parsing.evidence import Source

CORPORA = Path(__file__).parent / "corpora"
CASES: list[dict[str, Any]] = [
    case | {"id": case["why"], "documents": case.get("documents") or [case["source"]]}
    for name in ("evidence.jsonl", "seams.jsonl")
    for case in map(json.loads, (CORPORA / name).read_text("utf-8").splitlines())
]


@pytest.mark.parametrize("searched", [None, 0], ids=["by searches", "by index"])
def test_excerpts_are_found_where_a_reader_finds_them(searched: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if searched is not None:
        monkeypatch.setattr(evidence, "_SEARCHED_CHARS", searched)
    wrong = {
        case["id"]: f"found should be {case['found']}: {case['excerpt']}"
        for case in CASES
        if Source(case["documents"], case.get("names", ())).holds(case["excerpt"]) is not case["found"]
    }
    assert not wrong, f"{len(wrong)} of {len(CASES)}: {json.dumps(wrong, indent=2, ensure_ascii=False)}"
