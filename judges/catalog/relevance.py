"""How well does the answer serve the question out of the retrieved documents?"""

from typing import Final

from judges.core.prompt import blocks_of, history_rules, texts_of
from judges.forms import graded
from judges.parsing.sentences import content_words, coverage, numbers
from tracejudge import Trace

ROLE: Final = """\
You judge how well an answer serves a question out of given documents."""

CRITERION: Final = """\
What to decide
The material contains a question, the answer an assistant gave to it, and the document: everything that was retrieved \
for that question, in one part or several. Decide how well the answer answers the question, and how well it agrees \
with the document. Both together make the grade.

How to weigh
- First the question: what does it ask for, and how much of that does the answer give?
- Then the document: does what the answer says agree with it, and does it come from there? A statement that \
contradicts the document weighs more than one on which the document is silent.
- The weaker side decides. An answer that ignores the question gains nothing by agreeing with the document, and an \
answer that ignores the document gains nothing by being to the point.
- What the document holds beside the question need not be used.
- Where the document does not hold what was asked for, an answer that says so serves the question out of the \
document, as far as it goes.
- Use the document only. What you know yourself does not count. Style and length do not matter."""

GRADES: Final = """\
- 1: The answer ignores the question or ignores the document.
- 2: It touches both: it takes up the subject of the question and something from the document, but it does not really \
answer, or much of it disagrees with the document.
- 3: It gives the greater part of what was asked, and the greater part of what it says agrees with the document; a \
part that was asked for is missing, or a part of what it says disagrees with the document or comes from elsewhere.
- 4: It gives what was asked, in agreement with the document; a detail is missing, or a minor statement does not come \
from the document.
- 5: It answers the question in full, and everything it says comes from the document."""

EXAMPLES: Final = """\
Example: a library card
Question: How do I get a library card, and what does it cost?
Answer: Libraries are a wonderful place to read. Ours has three floors and lends games as well.
Document: The library has three floors and lends books and games. The desk issues cards for 12 francs a year.
Your reply:
{"justification": "The answer is about the library and takes the floors and the games from the document, but it says \
neither how to get a card nor what it costs. It touches both and does not answer.", "score": 2}

Example: growing tomatoes
Question: When can I plant my tomatoes outside, and how far apart?
Answer: From the middle of May, when the nights stay mild, at 60 cm. They will love the sun!
Document: Tomatoes go outside from mid-May, once nights are mild, 60 cm apart. Marigolds are good neighbours.
Your reply:
{"justification": "Time and distance are both answered and agree with the document. That tomatoes love the sun is a \
minor statement that does not come from there. The neighbours were not asked for.", "score": 4}"""

_STEPS_QUESTION: Final = (0.01, 0.1, 0.2, 0.4)
_STEPS_DOCUMENT: Final = (0.1, 0.3, 0.5, 0.7)


def heuristic(trace: Trace) -> tuple[int, str]:
    """Grade by word overlap."""
    question, source = trace.input or "", "\n".join(texts_of(trace.context))
    asked, answer, facts = content_words(question), content_words(trace.output), content_words(source)
    # A request such as "summarise" needs to stand neither in the document nor in the answer.
    addressed, borne_out = coverage(asked & facts, answer), coverage(answer, facts | asked)
    score = min(graded.grade(addressed, _STEPS_QUESTION), graded.grade(borne_out, _STEPS_DOCUMENT))
    summary = (
        f"{addressed:.0%} of the words that question and document share appear in the answer, and {borne_out:.0%} "
        "of the words of the answer in the document or the question"
    )
    if not numbers(trace.output) <= numbers(f"{source} {question}"):
        return min(score, 3), f"{summary}; a number appears in neither."
    return score, f"{summary}; so do all numbers."


JUDGE: Final = graded.make(
    name="relevance",
    asks="How well does the answer serve the question out of the retrieved documents?",
    needs=("input", "output", "context"),
    fixed=graded.fixed_part(ROLE, CRITERION, GRADES, EXAMPLES, history_rules()),
    criterion=CRITERION,
    grades=GRADES,
    blocks=blocks_of({"question": "input", "answer": "output"}, with_history=True, with_documents=True),
    heuristic=heuristic,
    cuts=("messages", "context"),
    settings=graded.GroundingSettings(),
)
