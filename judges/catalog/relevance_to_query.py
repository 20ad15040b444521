"""Does the answer speak, fully or in part, to what was asked?"""

from typing import Final

from judges.core.prompt import blocks_of
from judges.forms import yes_no
from judges.parsing.words import content_words, coverage
from tracejudge import Trace

ROLE: Final = """\
You judge whether an answer speaks to the question it was given for."""

CRITERION: Final = """\
What to decide
The material holds a question and the answer an assistant gave to it. Decide whether the answer holds information \
that is relevant to the question, fully or in part.

How to weigh
- yes: the answer, or some part of it, takes up what was asked: it answers, helps to answer, or bears on the \
subject of the question in a way the asker can use.
- no: nothing in the answer concerns what was asked. The rationale then says what the answer talks about instead.
- A part that is beside the question does not turn a relevant answer into an irrelevant one.
- Only relevance counts. A wrong, outdated or incomplete answer on the subject is still relevant; a correct \
statement about something else is not."""

_MIN_COVERAGE: Final = 0.2


def heuristic(trace: Trace) -> tuple[bool, str]:
    """Answer by word overlap."""
    question = content_words(trace.input or "")
    share = coverage(question, content_words(trace.output))
    said = f"{share:.0%} of the words of the question appear in the answer."
    return share >= _MIN_COVERAGE, said


JUDGE: Final = yes_no.make(
    name="relevance_to_query",
    asks="Does the answer hold information that is fully or partly relevant to the question?",
    needs=("input", "output"),
    fixed=yes_no.fixed_part(ROLE, CRITERION),
    blocks=blocks_of({"question": "input", "answer": "output"}),
    heuristic=heuristic,
)
