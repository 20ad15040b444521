"""What judges of a user's own send, to the letter, for a short trace and a long one.

The files in ``golden_custom/`` are the expectation. After a change that is meant, write them anew, look at the diff:

    UPDATE_GOLDEN=1 .venv/bin/pytest tests/judges -k golden
"""

import os
from pathlib import Path

import msgspec
from judge_traces import LONG, SHORT
from support.cases import each_case
from user_judges import JUDGES

from judges.core.prompt import render

GOLDEN = Path(__file__).with_name("golden_custom")
NAMES = ("politeness", "tone", "certainty", "formality", "detours", "thoroughness")
CASES = {"short": SHORT, "long": LONG}
UPDATES = os.environ.get("UPDATE_GOLDEN") == "1"


@each_case("case", CASES)
@each_case("name", NAMES)
def test_messages_are_those_of_the_golden_file(name: str, case: str) -> None:
    judge, path = JUDGES[name], GOLDEN / f"{name}.{case}.txt"
    (prompt,) = judge.prompts(judge.prepare(CASES[case]))
    messages = "\n\n".join(f"=== {message.role}\n{message.content}" for message in render(prompt))
    schema = msgspec.json.format(msgspec.json.encode(judge.schema), indent=2).decode()
    actual = f"{messages}\n\n=== schema\n{schema}\n"
    if UPDATES:
        path.write_bytes(actual.encode())
    assert actual == path.read_bytes().decode()


def test_no_golden_file_is_left_over() -> None:
    expected = {f"{name}.{case}.txt" for name in NAMES for case in CASES}
    left_over = sorted(path for path in GOLDEN.iterdir() if path.name not in expected)
    if UPDATES:
        for path in left_over:
            path.unlink()
    else:
        assert left_over == []
