"""The corpus of divided texts: each text has the units that a careful reader expects."""

import json
from pathlib import Path
from typing import Any

from judges.parsing.sentences import split, units

CASES: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "corpora" / "sentences.jsonl").read_text("utf-8").splitlines()
]


def test_texts_divide_into_the_expected_units() -> None:
    wrong = {}
    for case in CASES:
        expected = tuple(" ".join(unit.split()) for unit in case["units"])
        if split(case["text"]) != expected:
            wrong[case["id"]] = {"expected": expected, "found": split(case["text"])}
    assert not wrong, f"{len(wrong)} of {len(CASES)}: {json.dumps(wrong, indent=2, ensure_ascii=False)}"


def test_rows_are_shown_with_their_header() -> None:
    """Each cell of the header stands in the shown form; other units are shown as they are."""
    wrong = {}
    for case in CASES:
        headers = case.get("header", [])
        names = [name for each in ([headers] if isinstance(headers, str) else headers) for name in _cells(each)]
        shown = [unit.shown for unit in units(case["text"])]
        apart = [unit.text for unit in units(case["text"]) if unit.shown != unit.text]
        if not all(any(name in form for form in shown) for name in names) or bool(names) != bool(apart):
            wrong[case["id"]] = shown
    assert not wrong, json.dumps(wrong, indent=2, ensure_ascii=False)


def _cells(header: str) -> list[str]:
    for mark in ("|", "\t", ";", ",", " "):
        if mark in header:
            return [cell.strip() for cell in header.strip("| ").split(mark)]
    return [header]
