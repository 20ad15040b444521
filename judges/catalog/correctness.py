"""Does the answer support the reference answer, or every one of the expected facts?"""

from typing import Final

from judges.core.prompt import blocks_of, history_rules
from judges.forms import yes_no
from tracejudge import Trace

ROLE: Final = """\
You check whether an answer bears out what was expected of it."""

_HOW: Final = yes_no.weighing(
    source="text", place="question and answer", beyond="what the answer holds beyond the claim does no harm."
)

RESPONSE: Final = f"""\
What to decide
The material contains a question, the answer an assistant gave to it, and the claim, which is the answer that was \
expected. Read question and answer together as one text. Decide whether this text supports the claim.

{_HOW}"""

FACTS: Final = f"""\
What to decide
The material contains a question, the answer an assistant gave to it, and the claim, which is a list of facts, one a \
line. Read question and answer together as one text. Decide whether this text supports the claim, that is every one \
of the facts.

{_HOW}
- Let the rationale contain the sentence `The response is correct` when every fact is supported, and `The response \
is not correct` otherwise."""

_STATEMENT: Final = """\
The parts `question` and `answer`, read as one text, support the part `claim` in full, which is {claim}. A part of the \
claim that this text leaves out, contradicts or only says less of, and a number, date, name or condition that differs, \
makes this false. Only support counts: not whether the claim is true, and not what the answer says beyond it."""
STATEMENTS: Final = {
    "response": _STATEMENT.format(claim="the answer that was expected"),
    "facts": _STATEMENT.format(claim="a list of expected facts, one a line"),
}


def heuristic(trace: Trace) -> tuple[bool, str]:
    """Answer by word overlap."""
    complaint = yes_no.unsupported(trace, f"{trace.input or ''} {trace.output}", "the answer")
    reason = complaint or "Every statement shares most of its words and all of its numbers with the answer."
    if yes_no.reference(trace) == "facts":
        reason += " The response is not correct." if complaint else " The response is correct."
    return complaint is None, reason


JUDGE: Final = yes_no.make(
    name="correctness",
    asks="Does the answer support the reference answer, or every one of the expected facts?",
    needs=("input", "output", yes_no.NEEDED),
    fixed=yes_no.fixed_parts(ROLE, response=RESPONSE, facts=FACTS, history=history_rules()),
    blocks=blocks_of({"question": "input", "answer": "output", "claim": yes_no.claim}, with_history=True),
    heuristic=heuristic,
    cuts=("messages",),
    statement=STATEMENTS,
    pair=lambda trace: (f"{trace.input or ''}\n\n{trace.output}", yes_no.claim(trace)),
)
