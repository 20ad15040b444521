"""How relevant, how true and how complete is the answer? Three grades from one request, with reasons or without."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from judges.answer import OutOfRangeError, rating, read_object, text_field, text_list
from judges.forms.three_steps import STEPS, Step
from judges.forms.three_steps_guess import guesses
from judges.judge import Answered, Judge, Metric, Reading
from judges.prompt import MATERIAL_RULES, OBJECT_RULES, Block, Prompt, conversation
from judges.verdict import Score
from tracejudge import Trace

NAMES: Final = {1: "Unacceptable", 2: "Poor", 3: "Average", 4: "Good", 5: "Exceptional"}
NO_HISTORY: Final = "No earlier messages."

ROLE: Final = """\
You grade an answer that an assistant gave to a user. You give three grades, one after the other, and let none of them \
colour another."""

TASK: Final = f"""\
What to decide
The material has three parts:
- history: the messages before the query, oldest first. Each message begins at the start of a line with its role, or \
name and role, in square brackets; its further lines are indented. `{NO_HISTORY}` stands there when none is shown.
- query: the message of the user that had to be answered.
- answer: what the assistant answered. This alone is graded.
The request is what the user wants with the query, understood in the light of the history. Take the three steps below \
in their order. Each ends in a grade, a whole number: \
{", ".join(f"{grade} {name}" for grade, name in NAMES.items())}."""

LONG_FORM: Final = f"""\
How to answer
{OBJECT_RULES} The object has these nine keys, in this order:
{{
  "relevance": 1|2|3|4|5,               // the grade of step 1, a bare number
  "relevanceReasoning": "<text>",       // why it is not higher, in fewer than 100 words, the weightiest reason first
  "relevanceReasons": ["<code>"],       // every code of step 1 that applies, written in full
  "truth": 1|2|3|4|5,                   // the grade of step 2
  "truthReasoning": "<text>",           // as above, for step 2
  "truthReasons": ["<code>"],           // codes of step 2 only
  "completeness": 1|2|3|4|5,            // the grade of step 3
  "completenessReasoning": "<text>",    // as above, for step 3
  "completenessReasons": ["<code>"]     // codes of step 3 only
}}
With a grade of 5, write "" for its reasoning and [] for its codes."""

SHORT_FORM: Final = f"""\
How to answer
{OBJECT_RULES} The object has these three keys, in this order:
{{
  "relevance": 1|2|3|4|5,      // the grade of step 1, a bare number
  "truth": 1|2|3|4|5,          // the grade of step 2
  "completeness": 1|2|3|4|5    // the grade of step 3
}}"""

_LOWEST: Final = 1
_HIGHEST: Final = 5
_PASSES_AT: Final = 4


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """What can be configured.

    Attributes:
        reasoning: Ask for a reasoning and reason codes with each grade; without them an answer has three numbers.
    """

    reasoning: bool = True


class Grade(NamedTuple):
    """One grade as it was read, with its known codes and the number of those we do not know."""

    metric: str
    rating: int
    reasoning: str | None = None
    reasons: tuple[str, ...] = ()
    unknown_reasons: int = 0


def make(settings: Settings) -> Judge:
    """Build the judge in the long or the short form."""
    reasoning = settings.reasoning
    fixed = _fixed_part(reasoning=reasoning)

    def prompts(trace: Trace) -> tuple[Prompt, ...]:
        return (Prompt(fixed, _blocks(trace)),)

    return Judge(
        name="relevance_truth_completeness",
        asks="How much of the answer is about the request, how true is it, and how much of what is needed is there?",
        metrics=tuple(Metric(step.metric, "1..5", "4 or more", pass_at=_value(_PASSES_AT)) for step in STEPS),
        needs=("input", "output"),
        fixed_parts=(fixed,),
        schema=_schema(reasoning=reasoning),
        prompts=prompts,
        read=_read_long if reasoning else _read_short,
        score=_score,
        heuristic=_long_guess if reasoning else _short_guess,
        scoring="relevance_truth_completeness/1",
        settings=settings,
        make=make,
        cuts=("messages",),
    )


def _fixed_part(*, reasoning: bool) -> str:
    steps = (f"{step.rubric}\n{_codes(step)}" if reasoning else step.rubric for step in STEPS)
    return "\n\n".join((ROLE, TASK, *steps, MATERIAL_RULES, LONG_FORM if reasoning else SHORT_FORM))


def _codes(step: Step) -> str:
    reasons = (f"- {reason.code}: {reason.meaning} Example: {reason.example}" for reason in step.reasons)
    return "\n".join((f"Codes for what keeps {step.metric} below {_HIGHEST}:", *reasons))


def _blocks(trace: Trace) -> tuple[Block, ...]:
    # A message always begins with a bracket: no history can imitate the sentence that there is none.
    history = conversation(trace) or NO_HISTORY
    return (Block("history", history), Block("query", trace.input or ""), Block("answer", trace.output))


def _schema(*, reasoning: bool) -> Mapping[str, object]:
    properties: dict[str, object] = {}
    for step in STEPS:
        properties[step.metric] = {"type": "integer", "enum": list(NAMES)}
        if reasoning:
            codes = [reason.code for reason in step.reasons]
            properties[f"{step.metric}Reasoning"] = {"type": "string"}
            properties[f"{step.metric}Reasons"] = {"type": "array", "items": {"type": "string", "enum": codes}}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_LONG_KEYS: Final = tuple(f"{step.metric}{ending}" for step in STEPS for ending in ("", "Reasoning", "Reasons"))
_SHORT_KEYS: Final = tuple(step.metric for step in STEPS)


def _read_long(text: str) -> tuple[Grade, ...]:
    """Read an answer of nine keys.

    Raises:
        AnswerError: The text is no such answer, or one of its grades is off the scale.
    """
    answer = read_object(text, _LONG_KEYS)
    written = [
        (text_field(answer, f"{step.metric}Reasoning"), text_list(answer, f"{step.metric}Reasons")) for step in STEPS
    ]
    return tuple(
        _grade(step, found, *texts) for step, found, texts in zip(STEPS, _ratings(answer), written, strict=True)
    )


def _read_short(text: str) -> tuple[Grade, ...]:
    """Read an answer of three keys.

    Raises:
        AnswerError: The text is no such answer, or one of its grades is off the scale.
    """
    ratings = _ratings(read_object(text, _SHORT_KEYS))
    return tuple(Grade(step.metric, found) for step, found in zip(STEPS, ratings, strict=True))


def _ratings(answer: Mapping[str, object]) -> list[int]:
    found: list[int] = []
    off_the_scale: OutOfRangeError | None = None
    for step in STEPS:
        try:
            found.append(rating(answer, step.metric, _LOWEST, _HIGHEST))
        except OutOfRangeError as error:
            # Only what can be read throughout is off the scale: a wrong type further on comes first.
            off_the_scale = off_the_scale or error
    if off_the_scale is not None:
        raise off_the_scale
    return found


def _grade(step: Step, found: int, reasoning: str, labels: Sequence[str]) -> Grade:
    if found == _HIGHEST:
        return Grade(step.metric, found, step.perfect)
    given = dict.fromkeys(label.strip().removesuffix(".").rstrip().casefold() for label in labels)
    allowed = {reason.code for reason in step.reasons}
    known = tuple(code for code in given if code in allowed)
    return Grade(step.metric, found, reasoning.strip(), known, len(given) - len(known))


def _score(_trace: Trace, answered: Sequence[Answered]) -> Reading:
    """Turn three grades into three scores."""
    ((_, grades),) = answered
    rationale = "\n".join(f"{grade.metric}: {grade.reasoning}" for grade in grades if grade.reasoning)
    return Reading(tuple(map(_scored, grades)), rationale or None, _details(grades))


def _scored(grade: Grade) -> Score:
    return Score(
        grade.metric,
        _value(grade.rating),
        float(grade.rating),
        NAMES[grade.rating],
        grade.rating >= _PASSES_AT,
        grade.reasoning or None,
    )


def _value(rating: int) -> float:
    return (rating - _LOWEST) / (_HIGHEST - _LOWEST)


def _details(grades: Sequence[Grade]) -> Mapping[str, object]:
    details: dict[str, object] = {}
    reasons = {grade.metric: list(grade.reasons) for grade in grades if grade.reasons}
    if reasons:
        details["reasons"] = reasons
    unknown = sum(grade.unknown_reasons for grade in grades)
    if unknown:
        details["unknown_reasons"] = unknown
    return details


def _long_guess(trace: Trace, _prompt: Prompt) -> Mapping[str, object]:
    found: dict[str, object] = {}
    for metric, grade, reasoning in guesses(trace):
        perfect = grade == _HIGHEST
        found[metric] = grade
        found[f"{metric}Reasoning"] = "" if perfect else reasoning
        found[f"{metric}Reasons"] = [] if perfect else [f"{metric}_reason_other"]
    return found


def _short_guess(trace: Trace, _prompt: Prompt) -> Mapping[str, object]:
    return {metric: grade for metric, grade, _ in guesses(trace)}


JUDGE: Final = make(Settings())
