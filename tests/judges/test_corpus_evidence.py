"""The corpus of excerpts: each is found in its source, or not, as a careful reader expects."""

import json
from pathlib import Path
from typing import Any

import pytest

from judges.parsing import evidence
from judges.parsing.evidence import Source

CASES: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "corpora" / "evidence.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("searched", [None, 0], ids=["by searches", "by index"])
def test_excerpts_are_found_where_a_reader_finds_them(searched: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if searched is not None:
        monkeypatch.setattr(evidence, "_SEARCHED_CHARS", searched)
    wrong = {
        case["id"]: f"{case['why']}: found should be {case['found']}: {case['excerpt']}"
        for case in CASES
        if Source([case["source"]]).holds(case["excerpt"]) is not case["found"]
    }
    assert not wrong, f"{len(wrong)} of {len(CASES)}: {json.dumps(wrong, indent=2, ensure_ascii=False)}"
