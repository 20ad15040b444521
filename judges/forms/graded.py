"""The graded form: a justification first, then a score from 1 to 5 (the graded metrics that MLflow made known).

Besides the object that is asked for, two lines are read, ``score: n`` and ``justification: ...``:

- in either order, the keys in any case, with a bullet before them or bold around key, number or line;
- the score alone on its line; the justification goes on to the next such line or the end of the text;
- where several pairs stand in the text the last one counts, and one that breaks off behind it makes the text invalid;
- an object counts before lines, unless it stands within the line of a justification, which only quotes it then; where
  both give a score, it must be the same;
- lines beside an object that was begun and cannot be read may be a part of it, and lines beside marks of the
  material may be a part of that: neither are an answer.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from judges.answer import InvalidAnswerError, rating, read_object, refuse_echo, text_field
from judges.judge import Answer, Answered, Judge, Metric, Needs, Reading
from judges.prompt import MATERIAL_RULES, OBJECT_RULES, Block, Prompt
from judges.verdict import Score
from tracejudge import Trace

__all__ = ["FORM", "HIGHEST", "LOWEST", "SCHEMA", "Example", "Settings", "fixed_part", "grade", "make", "read"]

LOWEST: Final = 1
HIGHEST: Final = 5

FORM: Final = f"""\
How to answer
{OBJECT_RULES} The object has these two keys, in this order:
{{
  "justification": "<text>",   // your reasons, in a few sentences: what earns this grade, and what rules the others out
  "score": 1|2|3|4|5           // follows from the justification; one whole number, no quotation marks
}}"""

SCHEMA: Final[Mapping[str, object]] = {
    "type": "object",
    "properties": {
        "justification": {"type": "string"},
        "score": {"type": "integer", "enum": list(range(LOWEST, HIGHEST + 1))},
    },
    "required": ["justification", "score"],
    "additionalProperties": False,
}

_KEYS: Final = ("justification", "score")
_SCORING: Final = "graded/1"
_EXAMPLES: Final = "Examples\nThey show how to weigh. Their material is not yours to assess."
_STEPS: Final = (0.2, 0.4, 0.6, 0.8)

_MAX_LINES_CHARS: Final = 64_000
_KEY_LINE: Final = re.compile(
    r"^ {0,3}(?:[-*\u2022] +)?(?:\*\*)?(score|justification)(?:\*\*)? *:(?:\*\*)?", re.IGNORECASE | re.MULTILINE
)
_QUOTING_LINE: Final = re.compile(r"^[ *\u2022-]*justification[ *]*:[^\n]*\{[^\n]*", re.IGNORECASE | re.MULTILINE)
_BEGUN: Final = re.compile(r"\{\s*(?:[\"'\u201c\u201e]|//|/\*|(?:score|justification)\s*:)", re.IGNORECASE)


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a graded judge.

    Attributes:
        pass_at: The lowest score that passes, 1..5.
    """

    pass_at: Annotated[int, Meta(ge=LOWEST, le=HIGHEST)] = 4


class Example(NamedTuple):
    """A worked example of a fixed part: a heading, material as pairs of name and text, and the answer to it."""

    heading: str
    material: tuple[tuple[str, str], ...]
    justification: str
    score: int


def fixed_part(role: str, criterion: str, grades: str, examples: Sequence[Example]) -> str:
    """Put a fixed part together.

    Args:
        role: Who the model is.
        criterion: What it decides, and how to weigh.
        grades: What each grade means, one a line, from the lowest to the highest.
        examples: Worked examples; they come before the rules, so that the asked form is read last.
    """
    shown = (_EXAMPLES, *map(_shown, examples))
    return "\n\n".join((role, criterion, f"The grades\n{grades}", *shown, MATERIAL_RULES, FORM))


def make(
    *,
    name: str,
    asks: str,
    needs: Needs,
    fixed: str,
    blocks: Callable[[Trace], tuple[Block, ...]],
    heuristic: Callable[[Trace], tuple[int, str]],
    cuts: tuple[str, ...] = (),
) -> Judge:
    """Build a graded judge: its one metric bears its name, 5 is best, and what reaches the pass mark passes.

    Args:
        fixed: The one fixed part.
        blocks: The material of a trace, in the order it is shown.
        heuristic: A score with a reason, by word overlap: the answer of the lexical model.
        cuts: Trace fields of which parts may be left out when a trace is too long.
    """

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        return (Prompt(fixed, blocks(trace)),)

    def guess(trace: Trace, _prompt: Prompt) -> Mapping[str, object]:
        score, justification = heuristic(trace)
        return {"justification": justification, "score": score}

    def configured(settings: Settings) -> Judge:
        rule = _pass_rule(settings.pass_at)
        return Judge(
            name=name,
            asks=asks,
            metrics=(Metric(name, f"{LOWEST}..{HIGHEST}", rule, pass_at=_normalised(settings.pass_at)),),
            needs=needs,
            fixed_parts=(fixed,),
            schema=SCHEMA,
            prompts=prompts,
            read=read,
            score=_scoring(name, settings.pass_at),
            heuristic=guess,
            scoring=_SCORING,
            settings=settings,
            make=configured,
            cuts=cuts,
        )

    return configured(Settings())


def read(text: str) -> Answer:
    """Read a graded answer: the object that was asked for, or else the two lines.

    Raises:
        AnswerError: The text is no such answer.
    """
    lines = _last_pair(text)
    outside = text if lines is None else _QUOTING_LINE.sub("", text)
    try:
        answer = read_object(outside, _KEYS)
    except InvalidAnswerError:
        if lines is None or _BEGUN.search(outside):
            raise
        refuse_echo(outside)
        answer = lines
    score = rating(answer, "score", LOWEST, HIGHEST)
    if answer is not lines and any(line != str(score) for line in _score_lines(text)):
        # One of them may be a quotation of the material, and nothing tells which.
        raise InvalidAnswerError("an object and lines give different scores")
    return {"justification": text_field(answer, "justification").strip(), "score": score}


def grade(share: float, steps: Sequence[float] = _STEPS) -> int:
    """Turn a share, 0..1, into a grade: one more for each step that is reached."""
    return LOWEST + bisect_right(steps, share)


def _scoring(name: str, pass_at: int) -> Callable[[Trace, Sequence[Answered]], Reading]:
    def score(_trace: Trace, answered: Sequence[Answered]) -> Reading:
        ((_, answer),) = answered
        raw = answer["score"]
        return Reading((Score(name, _normalised(raw), float(raw), passed=raw >= pass_at),), answer["justification"])

    return score


def _normalised(raw: int) -> float:
    return (raw - LOWEST) / (HIGHEST - LOWEST)


def _pass_rule(pass_at: int) -> str:
    return str(pass_at) if pass_at == HIGHEST else f"{pass_at} or more"


def _shown(example: Example) -> str:
    material = "\n".join(f"{name}: {text}" for name, text in example.material)
    answer = json.dumps({"justification": example.justification, "score": example.score}, ensure_ascii=False)
    return f"Example: {example.heading}\n{material}\nYour reply:\n{answer}"


def _last_pair(text: str) -> Mapping[str, str] | None:
    """Find the last whole pair of a score line and a justification line, unless another line follows it alone."""
    if len(text) > _MAX_LINES_CHARS:
        return None
    marks = list(_KEY_LINE.finditer(text))
    # Within an object such lines are parts of a value, often a quotation from the material.
    if not marks or _BEGUN.search(text, 0, marks[0].end()):
        return None
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    pair: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=True):
        if len(pair) == len(_KEYS):
            pair = {}
        key = mark[1].lower()
        # Of two lines with the same key side by side, the first one was left without its other half.
        pair = {**pair, key: _value(key, text[mark.end() : end])}
    return pair if len(pair) == len(_KEYS) and all(pair.values()) else None


def _score_lines(text: str) -> Iterator[str]:
    for mark in _KEY_LINE.finditer(text):
        if mark[1].lower() == "score":
            end = text.find("\n", mark.end())
            yield _value("score", text[mark.end() : end if end >= 0 else len(text)])


def _value(key: str, text: str) -> str:
    """Take what stands behind a key, without bold marks and the end of a fence."""
    if key == "score":
        return text.partition("\n")[0].strip().removeprefix("**").removesuffix("**").strip()
    return text.strip().removesuffix("```").rstrip()
