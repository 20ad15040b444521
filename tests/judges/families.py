"""The families of judges by the form of their answer: two good answers of each, and what they score.

Every family is asked about the same trace. ``good`` and ``other`` differ in every score, so that a test can tell
which of two answers counted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from judge_traces import SHORT
from tables import table
from user_judges import BY_NAME, JUDGES

from judges.core.judge import Judge
from judges.forms import yes_no
from tracejudge import Document, Trace

__all__ = ["FAMILIES", "TRACE", "Family", "Scores", "members", "written"]

TRACE = Trace(
    trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    service="support-bot",
    input="How long is the warranty?",
    output="The warranty runs for two years. It is free of charge.",
    context=[
        "All devices come with a warranty of two years. It costs nothing at all.",
        Document("Shops open at nine."),
    ],
    expected_response="Two years, free of charge.",
    guidelines=["Answer in two sentences."],
    tool_calls=SHORT.tool_calls,
    tools=SHORT.tools,
)

Scores = Mapping[str, float]


@dataclass(frozen=True)
class Family:
    """One form of answer.

    Attributes:
        judge: The judge that stands for the family in the tests.
        good: An answer with the best scores; ``parts`` of it are its objects, one but for JSON lines.
        text_key: A key of an answer, or of each of its objects, whose value is free text.
        verdict_key: A key whose value decides about the scores.
    """

    name: str
    judge: Judge
    good: tuple[Mapping[str, object], ...]
    other: tuple[Mapping[str, object], ...]
    good_scores: Scores
    other_scores: Scores
    text_key: str
    verdict_key: str

    @property
    def trace(self) -> Trace:
        """What all families are asked about."""
        return TRACE

    def __str__(self) -> str:
        return self.name

    @property
    def lines(self) -> bool:
        """Whether the answer is JSON lines."""
        return len(self.good) > 1

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of an answer, or of each of its objects."""
        return tuple(self.good[0])

    @property
    def ends_bare(self) -> bool:
        """Whether the last value of an answer stands without quotation marks or brackets that would close it."""
        return isinstance(list(self.good[-1].values())[-1], bool | int | float)

    @property
    def needed(self) -> tuple[str, ...]:
        """The keys that may not be missing; an excerpt that is left out says the same as null."""
        return tuple(key for key in self.keys if key != "excerpt")

    def text(self, **changes: object) -> str:
        """Write the good answer, its objects changed."""
        return written([{**part, **changes} for part in self.good])

    def without(self, *keys: str) -> str:
        """Write the good answer without some keys."""
        return written([{key: value for key, value in part.items() if key not in keys} for part in self.good])


def written(parts: Sequence[Mapping[str, object]]) -> str:
    """Write objects as a good model does, one a line."""
    return "\n".join(json.dumps(part, ensure_ascii=False) for part in parts)


def _families() -> Mapping[str, Family]:
    rows = {}
    for name, row in table("families").items():
        judge, changes = JUDGES[row.pop("judge")], row.pop("settings", None)
        judge = judge.configured(changes) if changes else judge
        rows[name] = Family(name, judge, tuple(row.pop("good")), tuple(row.pop("other")), **row)
    # A judge that users may declare has a form; its answers are in the table.
    assert {each.family for each in BY_NAME.values()} <= set(rows)
    return rows


FAMILIES: Mapping[str, Family] = _families()


def members(family: Family) -> Mapping[str, Judge]:
    """Return the judges of the same form; that of `guidelines` has a list more, which may be missing."""
    read = family.judge.read
    also = {"guidelines"} if read is yes_no.read else set()
    return {name: judge for name, judge in JUDGES.items() if judge.read is read or name in also}
