"""Is what the answer says supported by the retrieved documents, and by nothing else?"""

from typing import Final

from judges.core.prompt import blocks_of, texts_of
from judges.forms import yes_no
from judges.parsing.sentences import split
from judges.parsing.words import content_words, coverage, numbers
from tracejudge import Trace

ROLE: Final = """\
You check claims against documents. You are exact, and you trust the document only."""

CRITERION: Final = """\
What to decide
The material holds a question, the answer an assistant gave to it, and the document: everything that was retrieved \
for that question, in one part or several. Take question and answer together as one claim: the question says what the \
answer is about. Decide whether the document supports this claim.

How to weigh
- Go through the claim statement by statement and look for the place in the document that bears each one out.
- yes: every statement is supported. A statement is supported when the document says it, or when it follows from \
what the document says with nothing added.
- no: at least one statement is not supported, because the document is silent on it, says otherwise, or says less. \
The rationale then names each statement that lacks support.
- Use the document only. What you know yourself, what is plausible and what is commonly known do not count.
- Assume nothing and round nothing: a number, date, name or condition must be the one in the document.
- That the document does not say something is a statement too: it is supported when that is so.
- Whether the answer is useful, complete or well written plays no part."""

_MIN_COVERAGE: Final = 0.5


def heuristic(trace: Trace) -> tuple[bool, str]:
    """Answer by word overlap."""
    source = "\n".join(texts_of(trace.context))
    question = trace.input or ""
    words, known_numbers = content_words(source) | content_words(question), numbers(f"{source} {question}")
    for number, sentence in enumerate(split(trace.output), 1):
        if not numbers(sentence) <= known_numbers:
            return False, f"Sentence {number} contains a number that the document does not."
        share = coverage(content_words(sentence), words)
        if share < _MIN_COVERAGE:
            return False, f"Only {share:.0%} of the words of sentence {number} appear in the document."
    return True, "Every sentence shares most of its words and all of its numbers with the document."


JUDGE: Final = yes_no.make(
    name="groundedness",
    asks="Is the answer supported by the retrieved documents, and by nothing else?",
    needs=("input", "output", "context"),
    fixed=yes_no.fixed_part(ROLE, CRITERION),
    blocks=blocks_of({"question": "input", "answer": "output"}, with_documents=True),
    heuristic=heuristic,
    cuts=("context",),
)
