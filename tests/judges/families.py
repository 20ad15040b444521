"""Families of judges by the form of their answer, with judges as users define them and with templates.

All are asked about one trace. ``good`` and ``other`` answers differ in every score, so that a test can tell which of
two counted. A new kind of user's judge is one more row of ``data/user_judges.json``: hostile traces and broken
answers go through all.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from judge_traces import SHORT, table
from support.cases import in_parts

from judges.core.judge import Judge
from judges.custom import define
from judges.custom.template import KNOWN
from judges.forms import yes_no
from judges.registry import catalogue
from tracejudge import Document, Trace


class UserJudge(NamedTuple):
    """A definition, two results of different worth that its model may give, and what each scores.

    Attributes:
        family: The name under which the tables of broken answers speak of its form.
    """

    family: str
    table: Mapping[str, object]
    good: object
    other: object
    good_score: float
    other_score: float


BY_NAME = {name: UserJudge(*row) for name, row in table("user_judges")["judges"].items()}
JUDGES: Mapping[str, Judge] = {
    **{name: judge for name, judge in catalogue().items() if judge.run is None},
    **{name: define(name, each.table) for name, each in BY_NAME.items()},
}
"""The built-in judges and these."""


_FORMALITY = {"labels": ["formal", "semi_formal", "informal", "not applicable"], "pass": ["formal"]}
OF_ANSWERS: Mapping[str, Judge] = {
    **catalogue(),
    "formality": define("formality", {"instructions": "How formal is {{ outputs }}?", "result": _FORMALITY}),
    "politeness": define("politeness", {"instructions": "Rate {{ outputs }}.", "result": {"integer": [1, 10]}}),
}
"""The judges of ``corpora/answers.jsonl``."""

FACTS = (Path(__file__).parent / "templates" / "facts.yaml").read_text(encoding="utf-8")
"""A file in the published form, with the three variables of FACTS."""


def yaml(template: object, variables: Sequence[str], **more: object) -> str:
    """Write a template file; JSON is YAML."""
    return json.dumps({"prompt": {"template": template, "template_variables": list(variables), **more}})


def judge(text: str, table: Mapping[str, object] | None = None, name: str = "mine") -> Judge:
    return define(name, {"template": {"file": "mine.yaml", "text": text}, **(table or {})})


def asking(*variables: str, **table: object) -> Judge:
    """Make a judge whose template names each variable once."""
    return judge(yaml(" ".join(f"{{{{{name}}}}}" for name in variables), variables), table)


FACTS_FORM = {"answer": {"as": "facts_grounding"}}
BY_TEMPLATE: Mapping[str, Judge] = {
    "as facts": judge(FACTS, FACTS_FORM),
    "as facts in its own form": judge(FACTS, {"answer": {"as": "facts_grounding", "form": "template"}}),
    "all but references": asking(*(name for name in KNOWN if name not in {"doc", "ground_truth", "expected_output"})),
    "graded in its own form": asking("history", "answer", answer={"as": "graded", "form": "template"}),
    "three grades": asking("history", "input", "output", answer={"as": "relevance_truth_completeness"}),
    "one document": asking("question", "doc", result="boolean"),
}

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


in_elevenths = in_parts(11, rarely=range(2, 11))
"""Parts of a product of two tables; eleven divides the length of none, so that each part has all rows of both."""
