"""The yes/no form: a rationale first, then ``yes`` or ``no`` (the family that MLflow's judges made known)."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from judges.answer import choice, read_object, text_field
from judges.judge import Answer, Answered, Judge, Metric, Needs, Reading
from judges.prompt import MATERIAL_RULES, OBJECT_RULES, Block, Prompt
from judges.verdict import Score
from tracejudge import Trace

__all__ = [
    "FORM",
    "MENU",
    "OPENING",
    "RESULT_SCHEMA",
    "SCHEMA",
    "SCORING",
    "Blocks",
    "fixed_part",
    "guess",
    "make",
    "read",
    "without_opening",
]

Blocks = Callable[[Trace], tuple[Block, ...]]
Heuristic = Callable[[Trace], tuple[bool, str]]

OPENING: Final = "Let's think step by step"
"""What a rationale is asked to begin with; it is not stored."""

FORM: Final = f"""\
How to answer
{OBJECT_RULES} The object has these two keys, in this order:
{{
  "rationale": "<text>",   // your reasons, which begin with: {OPENING}
  "result": "yes|no"       // follows from the reasons; write yes or no, nothing else
}}"""

RESULT_SCHEMA: Final[Mapping[str, object]] = {"type": "string", "enum": ["yes", "no"]}
SCHEMA: Final[Mapping[str, object]] = {
    "type": "object",
    "properties": {"rationale": {"type": "string"}, "result": RESULT_SCHEMA},
    "required": ["rationale", "result"],
    "additionalProperties": False,
}

_OPENING: Final = re.compile(
    r"\A[\s*_\"\u201c]*let(?:['\u2018\u2019\u02bc]s|\s+us)\s+think\s+step\s+by\s+step(?!\w)[*_\"\u201d]*"
    # A hyphen before a digit is a sign of the number that follows, and signs that open a quotation stay with it.
    r"(?:[\s.,:;!?*_\u2013\u2014\u2026\u3001\u3002\uff01\uff0c\uff1a]|-(?!\d))*",
    re.IGNORECASE,
)
MENU: Final = ("yes", "no", "unknown")
"""What may be read; ``unknown`` is never offered."""
SCORING: Final = "yes_no/1"
"""Revision of the reading and scoring here; part of the version of every judge of this form."""


def fixed_part(role: str, criterion: str) -> str:
    """Put a fixed part together: who the model is, what it decides by, how the material and the answer look."""
    return f"{role}\n\n{criterion}\n\n{MATERIAL_RULES}\n\n{FORM}"


def make(
    *,
    name: str,
    asks: str,
    needs: Needs,
    fixed: Mapping[str, str],
    choose: Callable[[Trace], str],
    blocks: Blocks,
    heuristic: Heuristic,
    cuts: tuple[str, ...] = (),
) -> Judge:
    """Build a yes/no judge: its one metric bears its name, 1 is yes, and yes passes.

    Args:
        fixed: The fixed parts by a short name.
        choose: Which of them a trace is judged with.
        blocks: The material of a trace, in the order it is shown.
        heuristic: Yes or no, with a reason, by word overlap: the answer of the lexical model.
        cuts: Trace fields of which parts may be left out when a trace is too long.
    """

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        return (Prompt(fixed[choose(trace)], blocks(trace)),)

    def score(_trace: Trace, answered: Sequence[Answered]) -> Reading:
        ((_, answer),) = answered
        rationale = str(answer["rationale"])
        if answer["result"] == "unknown":
            return Reading((), rationale)
        passed = answer["result"] == "yes"
        label = "yes" if passed else "no"
        return Reading((Score(name, float(passed), float(passed), label, passed),), rationale)

    def answer_by_words(trace: Trace, _prompt: Prompt) -> Mapping[str, object]:
        return guess(*heuristic(trace))

    return Judge(
        name=name,
        asks=asks,
        metrics=(Metric(name, "0 or 1", "yes"),),
        needs=needs,
        fixed_parts=tuple(fixed.values()),
        schema=SCHEMA,
        prompts=prompts,
        read=read,
        score=score,
        heuristic=answer_by_words,
        scoring=SCORING,
        cuts=cuts,
    )


def guess(result: bool, reason: str) -> Mapping[str, object]:  # noqa: FBT001 - a heuristic's finding, handed on
    """Write an answer of the lexical model in this form."""
    return {"rationale": f"{OPENING}. {reason}", "result": "yes" if result else "no"}


def read(text: str) -> Answer:
    """Read a yes/no answer; its rationale loses the opening that was asked for.

    Raises:
        AnswerError: The text is no such answer.
    """
    answer = read_object(text, ("rationale", "result"))
    rationale = text_field(answer, "rationale")
    result = choice(answer, "result", MENU)
    return {"rationale": without_opening(rationale), "result": result}


def without_opening(rationale: str) -> str:
    """Take from a rationale the opening that was asked for, with the punctuation and blanks behind it."""
    return _OPENING.sub("", rationale, count=1).strip()
