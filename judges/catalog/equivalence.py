"""Does the answer mean the same as the reference answer, and has it the form that was expected?"""

from typing import Final

from judges.core.prompt import blocks_of
from judges.forms import yes_no
from judges.parsing.sentences import content_words, coverage, numbers, shape
from tracejudge import Trace

ROLE: Final = """\
You compare the answer of an assistant with the answer that was expected of it."""

CRITERION: Final = """\
What to decide
The material contains the expected answer and the answer that an assistant gave. Decide whether the two are \
equivalent: they mean the same, and the answer has the form that was expected.

How to weigh
- Meaning: both say the same things. Other words, another order and another style are fine. An addition is fine when \
the expected answer stays true as it is: a greeting, an explanation, an example, a detail.
- The meaning differs when a part of the expected answer is missing or contradicted, when a number, date, name, \
condition or negation is another one, or when an addition limits or changes what the expected answer says.
- Form: the expected answer shows the form. Where it is a JSON structure, the answer is one with the same keys and \
kinds of values; where it is a list, the answer is a list; where it is a sentence, a single word, a table or code, so \
is the answer. Blanks, indentation, line breaks and the order of keys do not matter, and a sentence added to a \
sentence does not change the form.
- yes: the meaning is the same and the form is the expected one.
- no: the meaning differs, or the form, or both.
- The rationale always speaks of both, first of the meaning and then of the form, even when one of them has already \
settled the result.
- Only the expected answer is the measure. Whether it is true or good does not matter."""

STATEMENT: Final = """\
The part `answer` is equivalent to the part `expected answer`: it means the same, and it has the same form. Other \
words, another order and additions that leave the expected answer true do not matter. A missing or contradicted part, \
another number, date, name, condition or negation, and an addition that limits what was expected make this false. So \
does another form, such as a sentence in place of a JSON structure, a list, a table, code or a single word."""

_MIN_COVERAGE: Final = 0.5


def heuristic(trace: Trace) -> tuple[bool, str]:
    """Answer by word overlap."""
    expected, answer = trace.expected_response or "", trace.output
    expected_words, answer_words = content_words(expected), content_words(answer)
    if expected_words or answer_words:
        there, back = coverage(expected_words, answer_words), coverage(answer_words, expected_words)
        same_numbers = numbers(expected) == numbers(answer)
        same_meaning = same_numbers and min(there, back) >= _MIN_COVERAGE
        summary = f"{there:.0%} of the expected words appear in the answer, {back:.0%} the other way round"
        of_meaning = f"{summary}, and the numbers {'are the same' if same_numbers else 'differ'}"
    else:
        same_meaning = expected.split() == answer.split()
        of_meaning = "neither contains a word, so that the signs were compared"
    forms = shape(expected), shape(answer)
    of_form = f"both are {forms[0]}" if forms[0] == forms[1] else f"{forms[0]} was expected, the answer is {forms[1]}"
    return same_meaning and forms[0] == forms[1], f"Meaning: {of_meaning}. Form: {of_form}."


JUDGE: Final = yes_no.make(
    name="equivalence",
    asks="Does the answer mean the same as the reference answer, and has it the expected form?",
    needs=("output", "expected_response"),
    fixed=yes_no.fixed_part(ROLE, CRITERION),
    blocks=blocks_of({"expected answer": "expected_response", "answer": "output"}),
    heuristic=heuristic,
    statement=STATEMENT,
)
