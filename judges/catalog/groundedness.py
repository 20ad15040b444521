"""Is what the answer says supported by the retrieved documents, and by nothing else?"""

import dataclasses
import re
from typing import Final

from msgspec import Struct

from judges.core.judge import Judge
from judges.core.prompt import blocks_of, history_rules, texts_of
from judges.forms import yes_no
from judges.parsing.refusal import is_refusal
from judges.parsing.sentences import content_words, coverage, numbers, split
from tracejudge import Trace

ROLE: Final = """\
You check claims against documents. You are exact, and you trust the document only."""

CRITERION: Final = """\
What to decide
The material contains a question, the answer that an assistant gave to it, and the document: everything that was \
retrieved for that question, in one part or several. Read question and answer together as one claim: the question \
says what the answer is about. Decide whether the document supports this claim.

How to weigh
- Check the claim statement by statement. Look for the place in the document that supports each one.
- yes: every statement is supported. A statement is supported when the document says it, or when it follows from \
what the document says with nothing added.
- no: at least one statement is not supported: the document does not mention it, says otherwise, or says less. \
The rationale then names each statement that lacks support.
- Use the document only. What you know yourself, what is likely and what everybody knows do not count.
- Assume nothing and round nothing: a number, date, name or condition must be the one in the document.
- Greetings, thanks, offers of help, questions back to the user, refusals and "I don't know" state no fact and need \
no support. An answer of nothing else is yes.
- That the document does not say something is a statement: it is supported when that is true.
- A fact that the user gave, in the question or in an earlier message, needs no support when the answer only repeats \
it, unless the document says otherwise.
- Whether the answer is useful, complete or well written does not matter."""

STATEMENT: Final = """\
Everything that the part `answer` states is supported by the document, which holds all that was retrieved for the part \
`question`: the document says it, or it follows from the document with nothing added. A number, date, name or \
condition that the document lacks or gives otherwise makes this false, and so does knowledge from elsewhere, however \
likely. Facts that the user gave need no support, unless the document says otherwise. Greetings, questions back and \
refusals state nothing."""

_MIN_COVERAGE: Final = 0.5
_KNOWS_NOTHING: Final = re.compile(r"(?:\w+, )?i (?:do not|don['\u2019]t) know\W*$", re.IGNORECASE)


def heuristic(trace: Trace) -> tuple[bool, str]:
    """Answer by word overlap."""
    source = "\n".join(texts_of(trace.context))
    question = trace.input or ""
    words, known_numbers = content_words(source) | content_words(question), numbers(f"{source} {question}")
    for number, sentence in enumerate(split(trace.output), 1):
        if is_refusal(sentence) or _KNOWS_NOTHING.match(sentence):
            continue
        if not numbers(sentence) <= known_numbers:
            return False, f"Sentence {number} contains a number that the document does not."
        share = coverage(content_words(sentence), words)
        if share < _MIN_COVERAGE:
            return False, f"Only {share:.0%} of the words of sentence {number} appear in the document."
    return True, "Every sentence shares most of its words and all of its numbers with the document."


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `[judges.groundedness]`.

    Attributes:
        score_cut: Whether a trace is judged when documents are left out to fit the model's context.
    """

    score_cut: bool = False


def make(settings: Settings) -> Judge:
    """Build the judge with its settings."""
    judge = yes_no.make(
        name="groundedness",
        asks="Is the answer supported by the retrieved documents, and by nothing else?",
        needs=("input", "output", "context"),
        fixed=yes_no.fixed_part(ROLE, CRITERION, history_rules()),
        blocks=blocks_of({"question": "input", "answer": "output"}, with_history=True, with_documents=True),
        heuristic=heuristic,
        cuts=("messages", "context"),
        statement=STATEMENT,
        pair=lambda trace: ("\n\n".join(texts_of(trace.context)), trace.output),
    )
    return dataclasses.replace(judge, settings=settings, make=make)


JUDGE: Final = make(Settings())
