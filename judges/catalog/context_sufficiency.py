"""Do the retrieved documents hold enough to give the answer that was expected?"""

from typing import Final

from judges.core.prompt import blocks_of, history_rules, texts_of
from judges.forms import yes_no
from tracejudge import Trace

ROLE: Final = """\
You check whether retrieved documents hold enough to give the answer that a question asks for."""

_HOW: Final = yes_no.weighing(
    source="document", place="the document", beyond="what the document holds beyond the claim does no harm."
)

RESPONSE: Final = f"""\
What to decide
The material contains a question, the answer that was expected to it, and the document: everything that was retrieved \
for that question, in one part or several. Take question and expected answer together as one claim: the question says \
what the expected answer is about. Decide whether the document holds enough to support this claim. What an assistant \
made of the document does not matter and is not shown.

{_HOW}"""

FACTS: Final = f"""\
What to decide
The material contains a question, the answer that was expected to it, given as a list of facts, one a line, and the \
document: everything that was retrieved for that question, in one part or several. Take question and facts together \
as one claim: the question says what the facts are about. Decide whether the document holds enough to support this \
claim, that is every one of the facts. What an assistant made of the document does not matter and is not shown.

{_HOW}"""

_STATEMENT: Final = """\
The document, which holds all that was retrieved for the part `question`, contains enough to support the part \
`expected answer` in full, which is {claim}. A part of it that the document does not mention, contradicts or only says \
less of makes this false, and so does a number, date, name or condition that differs. Knowledge from elsewhere does \
not count."""
STATEMENTS: Final = {
    "response": _STATEMENT.format(claim="the answer that was expected"),
    "facts": _STATEMENT.format(claim="a list of expected facts, one a line"),
}


def heuristic(trace: Trace) -> tuple[bool, str]:
    """Answer by word overlap."""
    source = "\n".join((*texts_of(trace.context), trace.input or ""))
    complaint = yes_no.unsupported(trace, source, "the document")
    reason = complaint or "Every statement shares most of its words and all of its numbers with the document."
    return complaint is None, reason


# No document is cut: without some of them nobody can say whether all of them are enough, and a no would blame the
# retrieval for a limit of the judge model.
JUDGE: Final = yes_no.make(
    name="context_sufficiency",
    asks="Do the retrieved documents hold enough to support the reference answer, or every one of the expected facts?",
    needs=("input", "context", yes_no.NEEDED),
    fixed=yes_no.fixed_parts(ROLE, response=RESPONSE, facts=FACTS, history=history_rules("the document")),
    blocks=blocks_of({"question": "input", "expected answer": yes_no.claim}, with_history=True, with_documents=True),
    heuristic=heuristic,
    cuts=("messages",),
    statement=STATEMENTS,
    pair=lambda trace: ("\n\n".join(texts_of(trace.context)), yes_no.claim(trace)),
)
