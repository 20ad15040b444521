"""Does the answer speak, fully or in part, to what was asked?"""

from typing import Final

from judges.core.prompt import blocks_of, history_rules
from judges.forms import yes_no
from judges.parsing.sentences import content_words, coverage
from tracejudge import Trace

ROLE: Final = """\
You judge whether an answer speaks to the question it was given for."""

CRITERION: Final = """\
What to decide
The material contains a question and the answer that an assistant gave to it. Decide whether the answer, or at least \
some part of it, deals with what was asked.

How to weigh
- yes: the answer, or a part of it, is about what was asked: it answers the question, helps to answer it, or gives \
information on its subject that the user can use.
- no: nothing in the answer is about what was asked. The rationale then says what the answer is about instead.
- A part that is not relevant does not turn a relevant answer into an irrelevant one.
- A refusal or "I don't know" alone gives no information: no. It is yes when the answer also gives something on the \
subject, such as a reason, a part of what was asked, or where to find it.
- A question back to the user is yes when its answer is needed to answer the question.
- Greetings, thanks and offers of help do not count, neither for yes nor for no. An answer of nothing else is no.
- To repeat what the user said gives no information.
- Only relevance counts. A wrong, outdated or incomplete answer on the subject is still relevant; a correct \
statement about something else is not."""

STATEMENT: Final = """\
The part `answer`, or at least some of it, deals with what the part `question` asks. It need not be right, recent or \
complete. A bare refusal, a greeting or a repetition of what the user said does not deal with it; a question back that \
has to be answered first does."""

_MIN_COVERAGE: Final = 0.2


def heuristic(trace: Trace) -> tuple[bool, str]:
    """Answer by word overlap."""
    question = content_words(trace.input or "")
    share = coverage(question, content_words(trace.output))
    rationale = f"{share:.0%} of the words of the question appear in the answer."
    return share >= _MIN_COVERAGE, rationale


JUDGE: Final = yes_no.make(
    name="relevance_to_query",
    asks="Does the answer hold information that is fully or partly relevant to the question?",
    needs=("input", "output"),
    fixed=yes_no.fixed_part(ROLE, CRITERION, history_rules()),
    blocks=blocks_of({"question": "input", "answer": "output"}, with_history=True),
    heuristic=heuristic,
    cuts=("messages",),
    statement=STATEMENT,
)
