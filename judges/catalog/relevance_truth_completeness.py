"""How relevant, how true and how complete is the answer? Three grades from one request, with reasons or without.

The reason codes are those made known by Microsoft.Extensions.AI.Evaluation.Quality, so that shares can be compared;
meanings and examples are written for this prompt. The original explains ``completeness_reason_lazy_unopinionated`` but
omits it from the allowed values, so that its shares of that code may differ.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from judges.core.decision import Calibration, Question
from judges.core.judge import AnsweredPrompt, DecisionForm, Judge, Metric, Reading
from judges.core.prompt import MATERIAL_RULES, OBJECT_RULES, Block, Prompt, conversation, with_earlier_messages
from judges.core.verdict import Score
from judges.forms import typed_questions
from judges.parsing.answer import InvalidAnswerError, OutOfRangeError, object_schema, rating, reasons_field, text_list
from judges.parsing.objects import read_object
from judges.parsing.sentences import content_words, coverage, numbers, split
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

_RELEVANCE_RUBRIC: Final = """\
Step 1. Relevance
Read history, query and answer. How much of the answer is directly related to the request? Whether it is true plays \
no part: a false statement on the matter is related, a true one beside the matter is not. What is missing plays no \
part either.
- 1: nothing in the answer is related to the request.
- 2: little of it is related, or it is related only slightly.
- 3: some of it is related, or it is related somewhat.
- 4: most of it is related, or it is mostly related.
- 5: all of it is related, and entirely so."""
_TRUTH_RUBRIC: Final = """\
Step 2. Truth
Put the first grade aside. Go back to history, query and answer and read them again. How true are those statements \
of the answer that can be checked? Whether they are related to the request plays no part, and neither does what is \
missing. Where nothing in the answer can be checked, nothing in it is false: the \
grade is 5.
- 1: all of what it states is false.
- 2: little of it is true, or it is true only slightly.
- 3: some of it is true, or it is true somewhat.
- 4: most of it is true, or it is mostly true.
- 5: all of it is true, and entirely so."""
_COMPLETENESS_RUBRIC: Final = """\
Step 3. Completeness
Put both grades aside. Go back to history, query and answer and read them once more. Which points does an answer need \
in order to address the request, and how many of them does this answer contain? Whether what it says on a point is \
true plays no part.
- 1: it contains none of these points.
- 2: it contains a few of them.
- 3: it contains some of them.
- 4: it contains most of them.
- 5: it contains all of them. Where the request is
  - to explain something: nothing about it is left unexplained;
  - to improve something: every improvement that is possible is found;
  - to fix something: the answer claims to bring the user to a state in which it is fixed, whether or not that works;
  - to do something: all that was asked for is done."""
_RELEVANCE_REASONS: Final = """\
- relevance_reason_distant_topic: Think of the subjects of programming as a tree, from wide ones down to narrow ones. \
The answer sits at another place in this tree than the request, however near the two places are. Example: The user \
asks about fixtures in pytest; the answer treats setUp in unittest.
- relevance_reason_scope_too_small: The extent or the level of abstraction of the answer is below what was meant. \
Example: The user asks how to make a web shop ready for many more visitors; the answer names one index for one table.
- relevance_reason_scope_too_large: The extent or the level of abstraction of the answer is above what was meant. \
Example: The user asks what one flag of tar does; the answer is a tour of archive formats.
- relevance_reason_wrong_intent_served: The answer misses what the user says or evidently shows they want; where \
neither is to be seen, it misses what such a request usually wants. Example: The user asks to have a shell script \
converted to Python; the answer explains the script line by line.
- relevance_reason_other: Something else lowers the grade. Example: A third of the answer praises the user for \
asking."""
_TRUTH_REASONS: Final = """\
- truth_reason_incorrect_information: Something the answer states is false. Example: It says that the items of a \
tuple can be replaced in place.
- truth_reason_outdated_information: Something the answer states held once and holds no longer. Example: It says that \
Python's dict does not keep the order in which keys were added.
- truth_reason_misleading_incorrectforintent: Something the answer states is true in itself but off what this user is \
after, so that acting on it goes wrong. Example: The user has no administrator rights and wants to install a tool; \
the answer gives the command that only an administrator can run.
- truth_reason_other: Something else lowers the grade. Example: It contradicts itself, and neither half can be shown \
to be the false one."""
_COMPLETENESS_REASONS: Final = """\
- completeness_reason_no_solution: The answer neither reaches a solution nor offers one. A bare definition or an \
error message is none. Example: The user wants to get rid of a deadlock; the answer says what a deadlock is.
- completeness_reason_lacks_information_about_solution: There is a solution, but too little about why it is sound or \
how it meets the user's aim. Example: The user wants a faster query; the answer gives another query and not a word on \
what makes it faster.
- completeness_reason_genericsolution_missingcode: The user wanted code. The answer solves the matter in words and \
holds no code. Example: The user asks for a function that merges two sorted lists; the answer describes the way to do \
it.
- completeness_reason_generic_code: The user wanted code that uses functions, names or other parts of their own code. \
The code in the answer touches none of them. Example: The user shows `load_orders()` and asks for a cache around it; \
the answer puts one around a `slow_square()` of its own.
- completeness_reason_failed_to_change_code: The user wanted code. The answer returns the code that the user has \
already. Example: The user asks to have a loop made asynchronous; the answer gives the same loop with comments added.
- completeness_reason_incomplete_list: The request needs several parts in words, such as a concept, capabilities, \
reasons or problems. Some of them are absent or half done. Example: The user asks what speaks for and against a \
monorepo; the answer gives only what speaks for it.
- completeness_reason_incomplete_code: The request needs several parts of code, such as imports, the creation of \
objects and their use. Some of them are absent. Example: The code calls `session.get(url)`; it neither imports the \
library nor creates `session`.
- completeness_reason_lazy_unopinionated: The answer does not know or is not sure, and offers no way on: it asks \
nothing back and names no subtopics to look at. Example: The user asks which of two databases suits their case; the \
answer says that it depends, and ends.
- completeness_reason_missing_warnings: The answer leaves a pitfall or a danger unmentioned. Example: It gives `git \
reset --hard` and does not say that changes that were not committed will be lost.
- completeness_reason_other: Something else lowers the grade. Example: It breaks off in the middle of a sentence."""

_LOWEST: Final = 1
_HIGHEST: Final = 5
_PASSES_AT: Final = 4
_SHARES: Final = (0.05, 0.2, 0.4, 0.9)  # Shares of common words from which a grade is 2, 3, 4 and 5.
_CODE_GAP: Final = re.compile(r"[,;\s]+")
_HIGHEST_OF_TRUTH: Final = 4  # Not 5, which claims that every statement holds: word overlap cannot show that.
_HEDGES: Final = content_words("apparently maybe perhaps possibly presumably probably supposedly uncertain unsure")

_RELEVANCE: Final = """\
How much of the part `answer` is directly related to the request? The request is what the user wants with the part \
`query`, in the light of the part `history`. What is true and what is missing play no part."""
_TRUTH: Final = """\
How true are the statements of the part `answer` that can be checked? What is related to the request and what is \
missing play no part. Where nothing can be checked, nothing is false, and the grade is 5."""
_COMPLETENESS: Final = """\
How many of the points that are needed to address the request does the part `answer` contain? The request is what the \
user wants with the part `query`, in the light of the part `history`. What is true plays no part."""


class Step(NamedTuple):
    """One of the three steps."""

    metric: str  # The graded metric.
    question: str  # The question for a decision model.
    rubric: str  # The question and the meaning of each grade.
    reasons: str  # Reason codes for a grade below the highest, one per line with meaning and example.
    perfect: str  # The reasoning for the highest grade.

    @property
    def codes(self) -> list[str]:
        """The reason codes."""
        return re.findall(r"^- (\w+):", self.reasons, re.MULTILINE)


STEPS: Final = (
    Step("relevance", _RELEVANCE, _RELEVANCE_RUBRIC, _RELEVANCE_REASONS, "The whole answer is about the request."),
    Step("truth", _TRUTH, _TRUTH_RUBRIC, _TRUTH_REASONS, "Every checkable statement holds."),
    Step(
        "completeness",
        _COMPLETENESS,
        _COMPLETENESS_RUBRIC,
        _COMPLETENESS_REASONS,
        "Nothing the request needs is missing.",
    ),
)


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `[judges.relevance_truth_completeness]`.

    Attributes:
        reasoning: Request a reasoning and reason codes with each grade; otherwise an answer has three numbers.
    """

    reasoning: bool = True


class Grade(NamedTuple):
    """One grade of an answer, with its known codes and the number of unknown ones."""

    metric: str
    rating: int
    reasoning: str | None = None
    reasons: tuple[str, ...] = ()
    unknown_reasons: int = 0


def make(settings: Settings) -> Judge:
    """Build the judge in the long or the short form."""
    steps, properties = [], dict[str, object]()
    for step in STEPS:
        steps.append(step.rubric)
        properties[step.metric] = {"type": "integer", "enum": list(NAMES)}
        if settings.reasoning:
            steps[-1] += f"\nCodes for what keeps {step.metric} below {_HIGHEST}:\n{step.reasons}"
            properties[f"{step.metric}Reasoning"] = {"type": "string"}
            properties[f"{step.metric}Reasons"] = {"type": "array", "items": {"type": "string", "enum": step.codes}}
    fixed = "\n\n".join((ROLE, TASK, *steps, MATERIAL_RULES, LONG_FORM if settings.reasoning else SHORT_FORM))

    def read(text: str) -> tuple[Grade, ...]:
        metrics = tuple(step.metric for step in STEPS)
        optional = tuple(key for key in properties if key not in metrics)
        answer = read_object(text, tuple(properties), deciding=metrics, optional=optional)
        # All ratings before any reasoning: one off the scale is final, whatever stands beside it.
        graded = list(zip(STEPS, _ratings(answer), strict=True))
        if not settings.reasoning:
            return tuple(Grade(step.metric, grade) for step, grade in graded)
        return tuple(_grade(step, grade, *_written(answer, step, grade)) for step, grade in graded)

    def heuristic(trace: Trace, _prompt: Prompt) -> Mapping[str, object]:
        fields: dict[str, object] = {}
        for metric, grade, reasoning, _, _ in guesses(trace):
            fields[metric] = grade
            if settings.reasoning:
                perfect = grade == _HIGHEST
                fields[f"{metric}Reasoning"] = "" if perfect else reasoning
                fields[f"{metric}Reasons"] = [] if perfect else [f"{metric}_reason_other"]
        return fields

    return Judge(
        name="relevance_truth_completeness",
        asks="How much of the answer is about the request, how true is it, and how much of what is needed is there?",
        metrics=tuple(Metric(step.metric, "1..5", "4 or more", pass_at=_value(_PASSES_AT)) for step in STEPS),
        needs=("input", "output"),
        fixed_parts=(fixed,),
        schema=object_schema(properties),
        prompts=lambda trace: (Prompt(fixed, _blocks(trace)),),
        read=read,
        score=_score,
        heuristic=heuristic,
        scoring="relevance_truth_completeness/2",
        settings=settings,
        make=make,
        prepare=with_earlier_messages,
        cuts=("messages",),
        decision_form=_decision_form(),
    )


def _blocks(trace: Trace) -> tuple[Block, ...]:
    # Messages always start with a bracket, so that no history can imitate the sentence for an empty one.
    history = conversation(trace) or NO_HISTORY
    return (Block("history", history), Block("query", trace.input or ""), Block("answer", trace.output))


def _decision_form() -> DecisionForm:
    """Ask for three scores in one request; codes of reasons are not asked for."""
    fixed = typed_questions.fixed_part()
    questions = tuple(Question("score", step.question, typed_questions.levels(step.rubric)) for step in STEPS)

    def score(_trace: Trace, answered: Sequence[AnsweredPrompt], calibrations: Mapping[str, Calibration]) -> Reading:
        steps = zip(STEPS, questions, answered[0].answer, strict=True)
        answers = {step.metric: (question.options, answer) for step, question, answer in steps}
        return typed_questions.grading(answers, _PASSES_AT, calibrations)

    meanings = (f"{value}: {meaning}" for question in questions for value, meaning in question.options)
    return DecisionForm(
        prompts=lambda trace: (Prompt(fixed, _blocks(trace), questions=questions),),
        fixed_parts=(fixed, *(step.question for step in STEPS), *meanings),
        score=score,
        scoring="relevance_truth_completeness, decisions/1",
        options=max(len(question.options) for question in questions),
    )


def _ratings(answer: Mapping[str, object]) -> list[int]:
    ratings: list[int] = []
    off_the_scale: OutOfRangeError | None = None
    for step in STEPS:
        try:
            ratings.append(rating(answer, step.metric, _LOWEST, _HIGHEST))
        except OutOfRangeError as error:
            # Raised only after all ratings are parsed: a wrong type in a later one takes precedence.
            off_the_scale = off_the_scale or error
    if off_the_scale is not None:
        raise off_the_scale
    return ratings


def _written(answer: Mapping[str, object], step: Step, rated: int) -> tuple[str, tuple[str, ...]]:
    """Return reasoning and codes of a grade; at the highest grade both may be null or absent."""
    reasoning, reasons = f"{step.metric}Reasoning", f"{step.metric}Reasons"
    # Some models write what belongs to one grade into an object, under whole keys or their ends.
    within = grade if isinstance(grade := answer[step.metric], dict) else {}
    fields = {**answer, **within, **{f"{step.metric}{name.title()}": value for name, value in within.items()}}
    codes = fields.get(reasons)
    if isinstance(codes, str) and (rated == _HIGHEST or set(_CODE_GAP.split(codes)) <= set(step.codes)):
        # A list written as one text; at the highest grade the codes are not used.
        fields[reasons] = _CODE_GAP.split(codes)
    if rated == _HIGHEST:
        # The prompt asks for an empty text and an empty list, for which many models write null or nothing.
        fields = {reasoning: "", reasons: [], **{key: value for key, value in fields.items() if value is not None}}
    if missing := next((key for key in (reasoning, reasons) if key not in fields), None):
        raise InvalidAnswerError(f"`{missing}` is missing")
    return reasons_field(fields, reasoning), text_list(fields, reasons)


def _grade(step: Step, grade: int, reasoning: str, labels: Sequence[str]) -> Grade:
    if grade == _HIGHEST:
        return Grade(step.metric, grade, step.perfect)
    codes = dict.fromkeys(label.strip().removesuffix(".").rstrip().casefold() for label in labels)
    allowed = step.codes
    allowed_codes = tuple(code for code in codes if code in allowed)
    return Grade(step.metric, grade, reasoning.strip(), allowed_codes, len(codes) - len(allowed_codes))


def _score(_trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
    grades: Sequence[Grade]
    ((_, grades),) = answered
    scores = tuple(
        Score(
            grade.metric,
            _value(grade.rating),
            float(grade.rating),
            NAMES[grade.rating],
            grade.rating >= _PASSES_AT,
            rationale=grade.reasoning or None,
        )
        for grade in grades
    )
    details: dict[str, object] = {}
    if reasons := {grade.metric: list(grade.reasons) for grade in grades if grade.reasons}:
        details["reasons"] = reasons
    if unknown := sum(grade.unknown_reasons for grade in grades):
        details["unknown_reasons"] = unknown
    rationale = "\n".join(f"{grade.metric}: {grade.reasoning}" for grade in grades if grade.reasoning)
    return Reading(scores, rationale or None, details)


def _value(rating: int) -> float:
    return (rating - _LOWEST) / (_HIGHEST - _LOWEST)


def guesses(trace: Trace) -> tuple[Grade, ...]:
    """Grade by the words that request and answer have in common."""
    query = trace.input or ""
    history = "\n".join(message.content or "" for message in trace.messages or () if message.role != "tool")
    asked = content_words(query)
    request = asked | content_words(history)
    sentences = [content_words(sentence) for sentence in split(trace.output)]
    answer_words = frozenset[str]().union(*sentences)

    related = sum(not request.isdisjoint(words) for words in sentences)
    relevance = (related / max(len(sentences), 1)) if request else None
    related_said = f"{related} of {len(sentences)} sentences of the answer share a word with the query or the history."

    new_numbers = len(numbers(trace.output) - numbers(query) - numbers(history))
    hedges = len(answer_words & _HEDGES)
    truth = Grade(
        "truth",
        _HIGHEST_OF_TRUTH - (new_numbers > 0) - (hedges > 0),
        f"A guess, since words cannot show what is true: {new_numbers} numbers of the answer stand neither in the "
        f"query nor in the history, and {hedges} of its words sound unsure.",
    )

    share = coverage(asked, answer_words) if asked else None
    covered_said = f"{share or 0:.0%} of the words of the query appear in the answer."
    return (_by_share("relevance", relevance, related_said), truth, _by_share("completeness", share, covered_said))


def _by_share(metric: str, share: float | None, reasoning: str) -> Grade:
    if share is None:
        return Grade(metric, 3, "The query has no words that could be compared.")
    return Grade(metric, 1 + bisect_right(_SHARES, share), reasoning)


JUDGE: Final = make(Settings())
