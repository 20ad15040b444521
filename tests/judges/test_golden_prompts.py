"""What each judge sends, to the letter, for a short trace and a long one.

The files in ``golden/`` are the expectation. After a change that is meant, write them anew and look at the diff:

    UPDATE_GOLDEN=1 .venv/bin/pytest tests/judges/test_golden_prompts.py
"""

import difflib
import hashlib
import os
import re
from pathlib import Path

import pytest
from judge_traces import ASKING, LONG, SHORT, served
from support.cases import each_case

from judges.core.judge import Judge
from judges.core.prompt import render
from judges.registry import catalogue, load_judges
from tracejudge import Trace

GOLDEN = Path(__file__).with_name("golden")
CASES = {"short": SHORT, "long": LONG}
UPDATES = os.environ.get("UPDATE_GOLDEN") == "1"


def written(judge: Judge, trace: Trace) -> str:
    """Lay out all requests on a trace, each message under a line with its role."""
    requests = [
        "\n\n".join(f"=== {message.role}\n{message.content}" for message in render(prompt))
        for prompt in judge.prompts(judge.prepare(trace))
    ]
    return "\n\n=== next request\n\n".join(requests) + "\n"


def questions_of(judge: Judge, trace: Trace) -> str:
    """Lay out the fixed part and the typed questions of the form for decision models."""
    form = judge.for_decisions({})
    parts = []
    for prompt in form.prompts(form.prepare(trace)):
        parts.append(f"=== fixed\n{prompt.fixed}")
        parts.append("=== material\n" + "\n".join(block.name for block in prompt.blocks))
        for question in prompt.questions:
            pair = "" if question.pair is None else " with a pair"
            options = (f"- {value}: {meaning}" for value, meaning in question.options)
            parts.append("\n".join((f"=== {question.kind}{pair}", question.instructions, *options)))
    return "\n\n".join(parts) + "\n"


@each_case("case", CASES)
@each_case("judge", ASKING.values(), ids=ASKING)
def test_messages_are_those_of_the_golden_file(judge: Judge, case: str) -> None:
    compare(GOLDEN / f"{judge.name}.{case}.txt", written(judge, served(judge, CASES[case])))
    if judge.decision_form is not None:
        compare(GOLDEN / f"{judge.name}.{case}.questions.txt", questions_of(judge, served(judge, CASES[case])))


VARIANTS = {
    GOLDEN.with_name("golden_short"): catalogue()["relevance_truth_completeness"].configured({"reasoning": False}),
    GOLDEN.with_name("golden_v2"): catalogue()["facts_grounding"].configured({"labels": "v2"}),
}


def test_messages_of_the_variants_are_those_of_their_golden_files() -> None:
    for folder, judge in VARIANTS.items():
        for case, trace in CASES.items():
            compare(folder / f"{judge.name}.{case}.txt", written(judge, trace))


RUN_WORDS = 8
RUNS = Path(__file__).parent.joinpath("corpora", "published_runs.bin").read_bytes()
"""Digests of 5 bytes, one for each run of eight words of the prompts of MLflow 3.18 and 2.22: no text of them."""


def test_no_prompt_has_eight_words_in_a_row_in_common_with_a_published_one() -> None:
    published = {RUNS[start : start + 5] for start in range(0, len(RUNS), 5)}
    own = {"own": {"instructions": "{{ inputs }} {{ outputs }}"}, "steps": {"instructions": "{{ trace }}"}}
    shared = set()
    for judge in load_judges(own).values():
        form = judge.decision_form
        for text in (*judge.fixed_parts, *(form.fixed_parts if form is not None else ())):
            words = re.findall(r"\w+(?:['\u2019]\w+)?", text.lower())
            for start in range(len(words) - RUN_WORDS + 1):
                run = " ".join(words[start : start + RUN_WORDS])
                if hashlib.blake2b(run.encode(), digest_size=5).digest() in published:
                    shared.add((judge.name, run))
    assert shared == set()


def compare(path: Path, actual: str) -> None:
    if UPDATES:
        path.write_bytes(actual.encode())
    expected = path.read_bytes().decode() if path.exists() else ""
    if actual != expected:
        diff = difflib.unified_diff(
            expected.split("\n"), actual.split("\n"), f"golden/{path.name}", "rendered now", lineterm=""
        )
        pytest.fail("\n".join(("the prompt has changed; if it should have: UPDATE_GOLDEN=1", *diff)), pytrace=False)


def test_no_golden_file_is_left_over() -> None:
    expected = {f"{name}.{case}.txt" for name in catalogue() for case in CASES}
    asked = [name for name, judge in catalogue().items() if judge.decision_form is not None]
    expected |= {f"{name}.{case}.questions.txt" for name in asked for case in CASES}
    left_over = sorted(path for path in GOLDEN.iterdir() if path.name not in expected)
    if UPDATES:
        for path in left_over:
            path.unlink()
    else:
        assert left_over == []
