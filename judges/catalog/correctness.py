"""Does the answer support the reference answer, or every one of the expected facts?"""

from typing import Final

from judges.forms import yes_no
from judges.judge import has_text
from judges.models.lexical import content_words, coverage, numbers
from judges.prompt import Block
from tracejudge import Trace

ROLE: Final = """\
You check whether an answer bears out what was expected of it."""

_HOW: Final = """\
How to weigh
- Go through the claim statement by statement and look for the place in question and answer that bears each one out.
- yes: every statement of the claim is supported. A statement is supported when the text says it, or when it \
follows from what the text says with nothing added.
- no: at least one statement is not supported, because the text is silent on it, says otherwise, or says less. The \
rationale then names each statement that lacks support.
- Only support counts. Whether the claim is true in the world or complete plays no part, and what the answer holds \
beyond the claim does no harm.
- Use the text only. Bring in no knowledge of your own, assume nothing and round nothing: a number, date, name or \
condition must be the one in the text."""

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

_MIN_COVERAGE: Final = 0.6


def claim(trace: Trace) -> str:
    """Lay out what was expected: a reference answer as it stands, facts one a line."""
    if has_text(trace.expected_facts):
        return "\n".join(f"- {fact}" for fact in trace.expected_facts or () if fact.strip())
    return trace.expected_response or ""


def reference(trace: Trace) -> str:
    """Tell which reference a trace brings: ``facts`` or ``response``."""
    return "facts" if has_text(trace.expected_facts) else "response"


def _blocks(trace: Trace) -> tuple[Block, ...]:
    return (
        Block("question", trace.input or ""),
        Block("answer", trace.output),
        Block("claim", claim(trace)),
    )


def _heuristic(trace: Trace) -> tuple[bool, str]:
    answer = f"{trace.input or ''} {trace.output}"
    words, known_numbers = content_words(answer), numbers(answer)
    ending = " The response is {}." if reference(trace) == "facts" else ""
    for number, statement in enumerate(claim(trace).splitlines(), 1):
        share = coverage(content_words(statement), words)
        if share < _MIN_COVERAGE or not numbers(statement) <= known_numbers:
            return (
                False,
                f"Statement {number}: {share:.0%} of its words stand in the answer." + ending.format("not correct"),
            )
    return True, "Every statement shares most of its words with the answer." + ending.format("correct")


JUDGE: Final = yes_no.make(
    name="correctness",
    asks="Does the answer support the reference answer, or every one of the expected facts?",
    needs=("input", "output", ("expected_response", "expected_facts")),
    fixed={
        "response": yes_no.fixed_part(ROLE, RESPONSE),
        "facts": yes_no.fixed_part(ROLE, FACTS),
    },
    choose=reference,
    blocks=_blocks,
    heuristic=_heuristic,
)
