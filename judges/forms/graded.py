"""The graded form: a justification first, then a score from 1 to 5 (the graded metrics made known by MLflow).

Besides the requested object, the two lines ``score: n`` and ``justification: ...`` are accepted:

- in either order, with keys in any case, after a bullet, and with key, number or line in bold;
- the score alone on its line; the justification continues to the next such line or the end of the text;
- the last of several pairs counts, and an incomplete pair after it makes the text invalid;
- an object takes precedence over lines, unless it stands within the line of a justification, which then quotes it; if
  both give a score, the scores must be equal;
- lines beside an unreadable object, or beside marks of the material, may be a part of it and are no answer.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct

from judges.core.judge import Answer, Answered, Judge, Metric, Needs, Reading
from judges.core.prompt import MATERIAL_RULES, OBJECT_RULES, Block, Prompt
from judges.core.verdict import Score
from judges.parsing.answer import InvalidAnswerError, object_schema, rating, read_object, refuse_echo, text_field
from tracejudge import Trace

LOWEST: Final = 1
HIGHEST: Final = 5

FORM: Final = f"""\
How to answer
{OBJECT_RULES} The object has these two keys, in this order:
{{
  "justification": "<text>",   // your reasons, in a few sentences: what earns this grade, and what rules the others out
  "score": 1|2|3|4|5           // follows from the justification; one whole number, no quotation marks
}}"""

SCHEMA: Final = object_schema(
    {"justification": {"type": "string"}, "score": {"type": "integer", "enum": list(range(LOWEST, HIGHEST + 1))}}
)
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
    """Settings of a graded judge.

    Attributes:
        pass_at: The lowest score that passes, 1..5.
    """

    pass_at: Annotated[int, Meta(ge=LOWEST, le=HIGHEST)] = 4


def fixed_part(role: str, criterion: str, grades: str, examples: str) -> str:
    """Join role, criterion, the meaning of each grade and worked examples with material rules and answer form."""
    # The examples come before the rules, so that the requested form is read last.
    return "\n\n".join((role, criterion, f"The grades\n{grades}", _EXAMPLES, examples, MATERIAL_RULES, FORM))


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
    """Build a graded judge. Its one metric has its name; 5 is best, and scores from the setting ``pass_at`` pass.

    See ``Judge`` for the arguments. ``heuristic`` returns a score with a reason.
    """

    def guess(trace: Trace, _prompt: Prompt) -> Mapping[str, object]:
        score, justification = heuristic(trace)
        return {"justification": justification, "score": score}

    def configured(settings: Settings) -> Judge:
        pass_at = settings.pass_at

        def score(_trace: Trace, answered: Sequence[Answered]) -> Reading:
            ((_, answer),) = answered
            raw = answer["score"]
            return Reading((Score(name, _normalised(raw), float(raw), passed=raw >= pass_at),), answer["justification"])

        rule = str(pass_at) if pass_at == HIGHEST else f"{pass_at} or more"
        return Judge(
            name=name,
            asks=asks,
            metrics=(Metric(name, f"{LOWEST}..{HIGHEST}", rule, pass_at=_normalised(pass_at)),),
            needs=needs,
            fixed_parts=(fixed,),
            schema=SCHEMA,
            prompts=lambda trace: (Prompt(fixed, blocks(trace)),),
            read=read,
            score=score,
            heuristic=guess,
            scoring=_SCORING,
            settings=settings,
            make=configured,
            cuts=cuts,
        )

    return configured(Settings())


def read(text: str) -> Answer:
    """Parse a graded answer: the requested object, or else the two lines; raises ``AnswerError``."""
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
        # One of them may be quoted from the material, and nothing tells which.
        raise InvalidAnswerError("an object and lines give different scores")
    return {"justification": text_field(answer, "justification").strip(), "score": score}


def grade(share: float, steps: Sequence[float] = _STEPS) -> int:
    """Convert a share, 0..1, to a grade: one more for each step that is reached."""
    return LOWEST + bisect_right(steps, share)


def _normalised(raw: int) -> float:
    return (raw - LOWEST) / (HIGHEST - LOWEST)


def _last_pair(text: str) -> Mapping[str, str] | None:
    """Return the last complete pair of a score line and a justification line, unless a single line follows it."""
    if len(text) > _MAX_LINES_CHARS:
        return None
    marks = list(_KEY_LINE.finditer(text))
    # Lines within an object are parts of a value, often quoted from the material.
    if not marks or _BEGUN.search(text, 0, marks[0].end()):
        return None
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    pair: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=True):
        if len(pair) == len(_KEYS):
            pair = {}
        # A repeated key replaces the value of a pair that was left incomplete.
        key = mark[1].lower()
        pair[key] = _value(key, text[mark.end() : end])
    return pair if len(pair) == len(_KEYS) and all(pair.values()) else None


def _score_lines(text: str) -> Iterator[str]:
    for mark in _KEY_LINE.finditer(text):
        if mark[1].lower() == "score":
            end = text.find("\n", mark.end())
            yield _value("score", text[mark.end() : end if end >= 0 else len(text)])


def _value(key: str, text: str) -> str:
    """Strip bold marks from a score, and the end of a fence from a justification."""
    if key == "score":
        return text.partition("\n")[0].strip().removeprefix("**").removesuffix("**").strip()
    return text.strip().removesuffix("```").rstrip()
