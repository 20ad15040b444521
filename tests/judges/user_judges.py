"""Judges as users define them, one of each kind that can be declared: hostile traces and broken answers go through all.

A new kind is one more entry in ``BY_NAME``, made from the table a user would write.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from judges.core.judge import Judge
from judges.custom import define
from judges.registry import catalogue

__all__ = ["BY_NAME", "JUDGES", "UserJudge"]


@dataclass(frozen=True)
class UserJudge:
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


_MANY_TOKENS = 100_000_000
"""The scripted model counts each character as a token, and some hostile answers are long."""
_POLITE = "Is {{ outputs }} a polite answer to {{ inputs }}? Mind what {{ expectations }} ask for."

BY_NAME: Mapping[str, UserJudge] = {
    "politeness": UserJudge("instructions: yes/no", {"instructions": _POLITE}, "yes", "no", 1.0, 0.0),
    "brevity": UserJudge(
        "instructions: boolean",
        {"instructions": "Is {{ outputs }} short?", "result": "boolean"},
        good=True,
        other=False,
        good_score=1.0,
        other_score=0.0,
    ),
    "helpfulness": UserJudge(
        "instructions: whole number",
        {"instructions": "How much does {{ outputs }} help?", "result": {"integer": [1, 5], "pass_at": 4}},
        4,
        2,
        0.75,
        0.25,
    ),
    "certainty": UserJudge(
        "instructions: number",
        {"instructions": "How sure is {{ outputs }} of itself?", "result": {"number": [0, 1], "pass_at": 0.7}},
        0.875,
        0.25,
        0.875,
        0.25,
    ),
    "tone": UserJudge(
        "instructions: labels with numbers",
        {
            "instructions": "Rate the tone in {{ conversation }}, given {{ expectations }}.",
            "result": {"labels": {"good": 2, "fair": 1, "poor": 0}, "pass": ["good"]},
        },
        "good",
        "fair",
        1.0,
        0.5,
    ),
    "kind_of_request": UserJudge(
        "instructions: labels",
        {
            "instructions": "What is {{ inputs }}?",
            "result": {"labels": ["bug report", "question"], "pass": ["question"]},
        },
        "question",
        "bug report",
        1.0,
        0.0,
    ),
    "formality": UserJudge(
        "custom_prompt",
        {"custom_prompt": "Is {{ outputs }} [[formal]] or [[casual]]?", "values": {"formal": 1, "casual": 0}},
        "formal",
        "casual",
        1.0,
        0.0,
    ),
    "detours": UserJudge(
        "instructions: trace",
        {
            "instructions": "How many needless steps are in {{ trace }}?",
            "result": {"integer": [0, 8], "pass_at": 2, "direction": "lower"},
            "max_tokens": _MANY_TOKENS,
        },
        2,
        6,
        0.75,
        0.25,
    ),
    "thoroughness": UserJudge(
        "instructions: trace and inputs",
        {"instructions": "Was {{ inputs }} looked up thoroughly in {{ trace }}?", "max_tokens": _MANY_TOKENS},
        "yes",
        "no",
        1.0,
        0.0,
    ),
    "accuracy": UserJudge(
        "template",
        {
            "template": {
                "file": "accuracy.yaml",
                "text": "prompt: {template: 'Rate {{ response }} to {{question}}.', "
                "template_variables: [question, response]}",
            },
            "result": {"integer": [1, 3], "pass_at": 3},
        },
        3,
        2,
        1.0,
        0.5,
    ),
}

JUDGES: Mapping[str, Judge] = {
    **{name: judge for name, judge in catalogue().items() if judge.run is None},
    **{name: define(name, each.table) for name, each in BY_NAME.items()},
}
"""The built-in judges and these."""
