"""Does the answer support the reference answer, or every one of the expected facts?"""

from typing import Final

from judges.forms import by_reference, yes_no
from judges.prompt import Block
from tracejudge import Trace

ROLE: Final = """\
You check whether an answer bears out what was expected of it."""

_HOW: Final = by_reference.weighing(
    source="text",
    place="question and answer",
    beyond="what the answer holds beyond the claim does no harm.",
)

RESPONSE: Final = f"""\
What to decide
The material holds a question, the answer an assistant gave to it, and the claim, which is the answer that was \
expected. Read question and answer together as one text. Decide whether this text supports the claim.

{_HOW}"""

FACTS: Final = f"""\
What to decide
The material holds a question, the answer an assistant gave to it, and the claim, which is a list of facts, one a \
line. Read question and answer together as one text. Decide whether this text supports the claim, that is every one \
of the facts.

{_HOW}
- Let the rationale contain the sentence `The response is correct` when every fact is supported, and `The response \
is not correct` otherwise."""


def _blocks(trace: Trace) -> tuple[Block, ...]:
    return (
        Block("question", trace.input or ""),
        Block("answer", trace.output),
        Block("claim", by_reference.claim(trace)),
    )


def _heuristic(trace: Trace) -> tuple[bool, str]:
    complaint = by_reference.unsupported(trace, f"{trace.input or ''} {trace.output}", "the answer")
    reason = complaint or "Every statement shares most of its words and all of its numbers with the answer."
    if by_reference.reference(trace) == "facts":
        reason += " The response is not correct." if complaint else " The response is correct."
    return complaint is None, reason


JUDGE: Final = yes_no.make(
    name="correctness",
    asks="Does the answer support the reference answer, or every one of the expected facts?",
    needs=("input", "output", by_reference.NEEDED),
    fixed=by_reference.fixed_parts(ROLE, response=RESPONSE, facts=FACTS),
    choose=by_reference.reference,
    blocks=_blocks,
    heuristic=_heuristic,
)
