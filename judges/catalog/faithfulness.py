"""How much of what the answer claims can be inferred from the retrieved documents? The question is not shown."""

from typing import Final

from judges.core.prompt import blocks_of, texts_of
from judges.forms import graded
from judges.parsing.sentences import content_words, coverage, numbers, split
from tracejudge import Trace

ROLE: Final = """\
You check whether a text keeps to its sources."""

CRITERION: Final = """\
What to decide
The material contains the answer an assistant gave, and the document: everything that was retrieved for it, in one \
part or several. The question behind it is not shown, and you do not need it. Decide how much of what the answer \
claims can be inferred from the document.

How to weigh
- Divide the answer into its claims, and look for the place in the document that supports each one.
- A claim is supported when the document says it, or when it follows from what the document says with nothing added. \
It is unsupported when the document does not mention it, says otherwise, or says less; a claim with one wrong number, \
date, name or condition is unsupported.
- Use the document only. What you know yourself, what is likely and what everybody knows do not count, neither \
for a claim nor against it.
- Only what the answer claims counts. Parts of the document that the answer leaves unused do not matter: a short \
answer can earn the highest grade.
- Greetings, questions and offers of help claim nothing. That something does not stand in the document is a claim, \
and it is supported when that is so. An answer that claims nothing at all has no unsupported claim: it earns 5.
- Whether the answer is useful, complete or well written does not matter."""

GRADES: Final = """\
- 1: No claim of the answer can be inferred from the document.
- 2: Some claims are supported, but the greater part is not.
- 3: Half of the claims or more are supported, but not nearly all of them.
- 4: Nearly all claims are supported; what is not is a single one among many, or a side remark.
- 5: Every claim of the answer is supported."""

EXAMPLES: Final = """\
Example: a hiking trail
Answer: The trail is closed from November on. Dogs must be kept on a lead, or a fine of 50 is due.
Document: The lake trail is closed from November to March. Dogs are allowed on a lead only. The hut has soup.
Your reply:
{"justification": "The closing from November on and the lead stand in the document. The fine does not: two of three \
claims are supported. That the hut is not mentioned does not count.", "score": 3}

Example: a medicine
Answer: It is taken twice a day.
Document: Take one tablet in the morning and one in the evening, with water. Do not drive. Keep it cool.
Your reply:
{"justification": "The one claim follows from a tablet in the morning and one in the evening. The rest of the \
document is not used, and need not be.", "score": 5}"""

_MIN_COVERAGE: Final = 0.5


def heuristic(trace: Trace) -> tuple[int, str]:
    """Grade by word overlap."""
    source = "\n".join(texts_of(trace.context))
    words, known_numbers = content_words(source), numbers(source)
    sentences = split(trace.output)
    supported = sum(
        numbers(sentence) <= known_numbers and coverage(content_words(sentence), words) >= _MIN_COVERAGE
        for sentence in sentences
    )
    share = supported / len(sentences) if sentences else 1.0
    summary = f"{supported} of {len(sentences)} sentences share most of their words and all of their numbers with it."
    return graded.grade(share, (0.01, 0.5, 0.85, 1.0)), f"Compared with the document: {summary}"


JUDGE: Final = graded.make(
    name="faithfulness",
    asks="How much of what the answer claims can be inferred from the retrieved documents?",
    needs=("output", "context"),
    fixed=graded.fixed_part(ROLE, CRITERION, GRADES, EXAMPLES),
    criterion=CRITERION,
    grades=GRADES,
    blocks=blocks_of({"answer": "output"}, with_documents=True),
    heuristic=heuristic,
    cuts=("context",),
    settings=graded.GroundingSettings(),
)
