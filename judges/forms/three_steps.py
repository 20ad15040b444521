"""The three steps of relevance, truth and completeness: what each grades, and the reasons there are for a lower grade.

Codes are those that Microsoft.Extensions.AI.Evaluation.Quality made known, so that shares can be compared; their
meanings and examples are written for our prompt. The original explains ``completeness_reason_lazy_unopinionated``
and then forgets it among the values it allows, so that its shares of that code may differ from ours.
"""

from typing import Final, NamedTuple

__all__ = ["STEPS", "ReasonCode", "Step"]


class ReasonCode(NamedTuple):
    """One reason for a grade below the highest."""

    code: str
    meaning: str
    example: str


class Step(NamedTuple):
    """One of the three steps.

    Attributes:
        metric: The metric that it grades.
        rubric: What is asked, and what each grade means.
        reasons: What may keep the grade below the highest.
        perfect: The reasoning at the highest grade.
    """

    metric: str
    rubric: str
    reasons: tuple[ReasonCode, ...]
    perfect: str


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

_RELEVANCE_REASONS: Final = (
    ReasonCode(
        "relevance_reason_distant_topic",
        "Think of the subjects of programming as a tree, from wide ones down to narrow ones. The answer sits at "
        "another place in this tree than the request, however near the two places are.",
        "The user asks about fixtures in pytest; the answer treats setUp in unittest.",
    ),
    ReasonCode(
        "relevance_reason_scope_too_small",
        "The extent or the level of abstraction of the answer is below what was meant.",
        "The user asks how to make a web shop ready for many more visitors; the answer names one index for one table.",
    ),
    ReasonCode(
        "relevance_reason_scope_too_large",
        "The extent or the level of abstraction of the answer is above what was meant.",
        "The user asks what one flag of tar does; the answer is a tour of archive formats.",
    ),
    ReasonCode(
        "relevance_reason_wrong_intent_served",
        "The answer misses what the user says or evidently shows they want; where neither is to be seen, it misses "
        "what such a request usually wants.",
        "The user asks to have a shell script converted to Python; the answer explains the script line by line.",
    ),
    ReasonCode(
        "relevance_reason_other",
        "Something else lowers the grade.",
        "A third of the answer praises the user for asking.",
    ),
)

_TRUTH_REASONS: Final = (
    ReasonCode(
        "truth_reason_incorrect_information",
        "Something the answer states is false.",
        "It says that the items of a tuple can be replaced in place.",
    ),
    ReasonCode(
        "truth_reason_outdated_information",
        "Something the answer states held once and holds no longer.",
        "It says that Python's dict does not keep the order in which keys were added.",
    ),
    ReasonCode(
        "truth_reason_misleading_incorrectforintent",
        "Something the answer states is true in itself but off what this user is after, so that acting on it goes "
        "wrong.",
        "The user has no administrator rights and wants to install a tool; the answer gives the command that only an "
        "administrator can run.",
    ),
    ReasonCode(
        "truth_reason_other",
        "Something else lowers the grade.",
        "It contradicts itself, and neither half can be shown to be the false one.",
    ),
)

_COMPLETENESS_REASONS: Final = (
    ReasonCode(
        "completeness_reason_no_solution",
        "The answer neither reaches a solution nor offers one. A bare definition or an error message is none.",
        "The user wants to get rid of a deadlock; the answer says what a deadlock is.",
    ),
    ReasonCode(
        "completeness_reason_lacks_information_about_solution",
        "There is a solution, but too little about why it is sound or how it meets the user's aim.",
        "The user wants a faster query; the answer gives another query and not a word on what makes it faster.",
    ),
    ReasonCode(
        "completeness_reason_genericsolution_missingcode",
        "The user wanted code. The answer solves the matter in words and holds no code.",
        "The user asks for a function that merges two sorted lists; the answer describes the way to do it.",
    ),
    ReasonCode(
        "completeness_reason_generic_code",
        "The user wanted code that uses functions, names or other parts of their own code. The code in the answer "
        "touches none of them.",
        "The user shows `load_orders()` and asks for a cache around it; the answer puts one around a `slow_square()` "
        "of its own.",
    ),
    ReasonCode(
        "completeness_reason_failed_to_change_code",
        "The user wanted code. The answer returns the code that the user has already.",
        "The user asks to have a loop made asynchronous; the answer gives the same loop with comments added.",
    ),
    ReasonCode(
        "completeness_reason_incomplete_list",
        "The request needs several parts in words, such as a concept, capabilities, reasons or problems. Some of them "
        "are absent or half done.",
        "The user asks what speaks for and against a monorepo; the answer gives only what speaks for it.",
    ),
    ReasonCode(
        "completeness_reason_incomplete_code",
        "The request needs several parts of code, such as imports, the creation of objects and their use. Some of "
        "them are absent.",
        "The code calls `session.get(url)`; it neither imports the library nor creates `session`.",
    ),
    ReasonCode(
        "completeness_reason_lazy_unopinionated",
        "The answer does not know or is not sure, and offers no way on: it asks nothing back and names no subtopics "
        "to look at.",
        "The user asks which of two databases suits their case; the answer says that it depends, and ends.",
    ),
    ReasonCode(
        "completeness_reason_missing_warnings",
        "The answer leaves a pitfall or a danger unmentioned.",
        "It gives `git reset --hard` and does not say that changes that were not committed will be lost.",
    ),
    ReasonCode(
        "completeness_reason_other",
        "Something else lowers the grade.",
        "It breaks off in the middle of a sentence.",
    ),
)


STEPS: Final = (
    Step("relevance", _RELEVANCE_RUBRIC, _RELEVANCE_REASONS, "The whole answer is about the request."),
    Step("truth", _TRUTH_RUBRIC, _TRUTH_REASONS, "Every checkable statement holds."),
    Step("completeness", _COMPLETENESS_RUBRIC, _COMPLETENESS_REASONS, "Nothing the request needs is missing."),
)
"""In the order they are taken."""
