"""How correct is the answer, by meaning and facts, measured by the reference answer?"""

from typing import Final

from judges.core.prompt import blocks_of, history_rules
from judges.forms import graded
from judges.parsing.sentences import content_words, coverage, numbers
from tracejudge import Trace

ROLE: Final = """\
You mark answers against a reference answer."""

CRITERION: Final = """\
What to decide
The material contains a question, the answer an assistant gave to it, and the reference, which is the correct answer \
to that question. Decide how correct the answer is, by its meaning and its facts.

How to weigh
- The reference is the measure. What it says is right for this task, even where you would say otherwise.
- Go through the reference point by point, in the light of the question: does the answer say the same, less, or \
something else?
- A number, date, name or condition must agree. The same value written in another way agrees, as 90 minutes and one \
and a half hours.
- Meaning and facts count. Wording, order, length, tone and layout do not matter.
- What the answer adds to the reference neither helps nor harms, unless it contradicts the reference.
- An answer that declines or evades the question has no point right, unless the reference does the same."""

GRADES: Final = """\
- 1: Wrong throughout: no point of the reference is met.
- 2: Partly right, with large gaps: something agrees with the reference, but much of it is wrong or missing.
- 3: A few points agree with the reference; others are left out or slightly wrong.
- 4: Mostly right: nearly all points agree with the reference; there are small slips.
- 5: Right throughout: in meaning and in facts, everything the reference says is met and nothing contradicts it."""

EXAMPLES: Final = """\
Example: a museum visit
Question: When is the museum open, and what does it cost?
Answer: It is open from Tuesday to Sunday. Have a look at the roof terrace, too!
Reference: Tuesday to Sunday from 10 to 18 h. Adults pay 8 francs, children nothing.
Your reply:
{"justification": "The days agree. The hours and both prices, the greater part of the reference, are missing. The \
roof terrace is an addition and does not count.", "score": 2}

Example: proving dough
Question: How long does the dough have to rise?
Answer: Give it an hour and a half somewhere warm, until it is twice as big.
Reference: 90 minutes in a warm place; it should double in size.
Your reply:
{"justification": "An hour and a half is 90 minutes, the warm place is named, and twice as big is doubled. All points \
agree in other words.", "score": 5}"""

_STEPS: Final = (0.1, 0.35, 0.5, 0.8)


def heuristic(trace: Trace) -> tuple[int, str]:
    """Grade by word overlap."""
    question, reference = trace.input or "", trace.expected_response or ""
    # Words of the question are no merit of the answer, unless the reference has no others.
    expected = content_words(reference) - content_words(question) or content_words(reference)
    share = coverage(expected, content_words(trace.output))
    summary = f"{share:.0%} of the words that the reference adds to the question appear in the answer"
    if not numbers(reference) <= numbers(f"{question} {trace.output}"):
        return min(graded.grade(share, _STEPS), 2), f"{summary}; a number of it is absent."
    return graded.grade(share, _STEPS), f"{summary}; no number of it is absent."


JUDGE: Final = graded.make(
    name="answer_correctness",
    asks="How correct is the answer, by meaning and facts, against the reference answer?",
    needs=("input", "output", "expected_response"),
    fixed=graded.fixed_part(ROLE, CRITERION, GRADES, EXAMPLES, history_rules()),
    criterion=CRITERION,
    grades=GRADES,
    blocks=blocks_of({"question": "input", "answer": "output", "reference": "expected_response"}, with_history=True),
    heuristic=heuristic,
    cuts=("messages",),
)
