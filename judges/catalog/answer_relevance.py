"""How fully does the answer address the question, without gaps and without padding?"""

from typing import Final

from judges.core.prompt import blocks_of, history_rules
from judges.forms import graded
from judges.parsing.sentences import content_words, coverage, split
from tracejudge import Trace

ROLE: Final = """\
You judge how well an answer keeps to the question it was given for."""

CRITERION: Final = """\
What to decide
The material contains a question and the answer an assistant gave to it. Decide how fully the answer addresses the \
question, and how much of it does.

How to weigh
- Find what the question asks for: every part of it, with its conditions.
- A gap is a part that was asked for and is not addressed.
- Padding is what serves no part of the question: matter nobody asked for, repetition, long leads. What the asker \
needs in order to understand or use the answer, such as a reason, a warning or a step, is no padding; nor are a few \
words of courtesy.
- Both lower the grade, the more the larger they are.
- An answer that only declines, promises, or repeats the question addresses nothing.
- Only relevance counts. Whether what the answer says is true does not matter: a wrong answer to the question asked \
addresses it, a true statement about something else does not."""

GRADES: Final = """\
- 1: The answer does not address the question: it speaks of something else, or says nothing to the point.
- 2: It only touches the question: it addresses a small part, or most of it is padding.
- 3: It addresses a good part of the question, but an important part is a gap, or there is much padding.
- 4: It addresses the question in all that is important; there is a small gap or a little padding.
- 5: It addresses all parts of the question, and everything in it serves them."""

EXAMPLES: Final = """\
Example: repairing a bicycle
Question: How do I mend a puncture, and how much pressure does the tyre need afterwards?
Answer: Take the tube out, find the hole under water, roughen the spot, glue a patch on, and refit it.
Your reply:
{"justification": "The first part, how to mend the puncture, is addressed step by step. The second, the pressure, is \
a gap. There is no padding.", "score": 3}

Example: a capital city
Question: What is the capital of Australia?
Answer: Sydney.
Your reply:
{"justification": "The question asks for one city as the capital, and the answer names one and nothing else. It is \
not the right one, which plays no part here.", "score": 5}

Example: learning an instrument
Question: Which strings should a beginner put on a classical guitar?
Answer: The guitar goes back to the lute. It is loved all over the world. Strings come in several materials.
Your reply:
{"justification": "Only the last sentence touches strings, and it recommends none. The lute and the praise are \
padding.", "score": 2}"""

_MANY_SENTENCES: Final = 4


def heuristic(trace: Trace) -> tuple[int, str]:
    """Grade by word overlap."""
    question = content_words(trace.input or "")
    share = coverage(question, content_words(trace.output))
    sentences = split(trace.output)
    aside = sum(not question & content_words(sentence) for sentence in sentences)
    score = graded.grade(share, (0.01, 0.1, 0.2, 0.5))
    if len(sentences) >= _MANY_SENTENCES and aside > 0.75 * len(sentences):
        score = max(graded.LOWEST, score - 1)
    summary = f"{share:.0%} of the words of the question appear in the answer"
    return score, f"{summary}; {aside} of its {len(sentences)} sentences hold none of them."


JUDGE: Final = graded.make(
    name="answer_relevance",
    asks="How fully does the answer address the question, without gaps and without padding?",
    needs=("input", "output"),
    fixed=graded.fixed_part(ROLE, CRITERION, GRADES, EXAMPLES, history_rules()),
    criterion=CRITERION,
    grades=GRADES,
    blocks=blocks_of({"question": "input", "answer": "output"}, with_history=True),
    heuristic=heuristic,
    cuts=("messages",),
)
