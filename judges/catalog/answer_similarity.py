"""How close is the answer to the reference answer in meaning? The question is not shown."""

from typing import Final

from judges.core.prompt import blocks_of
from judges.forms import graded
from judges.parsing.sentences import content_words, coverage, numbers
from tracejudge import Trace

ROLE: Final = """\
You compare two texts by what they mean."""

CRITERION: Final = """\
What to decide
The material contains the answer an assistant gave, and the reference, which is the answer that was expected. The \
question behind them is not shown, and you do not need it. Decide how close the answer comes to the reference in \
meaning.

How to weigh
- Find the aspects of the reference: what it states, recommends, asks or refuses, with numbers, names and conditions. \
Look for each of them in the answer.
- An aspect is shared when the answer means the same by it. Wording, order, length, tone and layout do not matter.
- An aspect is not shared when the answer does not mention it, or says otherwise: another number, another name, the \
opposite. To say otherwise weighs more than to be silent.
- Aspects do not weigh alike: what the reference is chiefly about weighs most.
- What the answer adds counts against it only where it changes or outweighs what the reference says.
- Compare only. Whether either text is true, and which is the better one, does not matter."""

GRADES: Final = """\
- 1: Answer and reference have little or nothing in common in meaning. They speak of different things, or say the \
opposite in what matters.
- 2: They share some aspects, but most of what the reference says is absent from the answer or said otherwise.
- 3: They share a moderate part: about half of the meaning is the same, and something that matters is absent or said \
otherwise.
- 4: They share most aspects, among them what the reference is chiefly about; what is absent or different is minor.
- 5: They mean the same in everything that matters."""

EXAMPLES: Final = """\
Example: watering a plant
Answer: Let the soil dry out between waterings, and in winter hold back even more.
Reference: Water only when the soil is dry. Give still less in winter. Rainwater is better than tap water.
Your reply:
{"justification": "Dry soil before watering and less water in winter, the chief advice, are both in the answer in \
other words. That rainwater is better is absent, which is minor.", "score": 4}

Example: a train connection
Answer: Take the 9:40 train; you have to change in Dornfeld.
Reference: The 9:40 train goes there without a change, and bicycles travel free of charge.
Your reply:
{"justification": "Both name the 9:40 train. The answer says that one has to change where the reference says the \
opposite, and it is silent on bicycles, so most of the reference is not shared.", "score": 2}"""


def heuristic(trace: Trace) -> tuple[int, str]:
    """Grade by word overlap."""
    reference = trace.expected_response or ""
    expected, written = content_words(reference), content_words(trace.output)
    there, back = coverage(expected, written), coverage(written, expected)
    score = graded.grade(2 * there * back / (there + back) if there + back else 0.0, (0.15, 0.3, 0.45, 0.75))
    text = f"{there:.0%} of the words of the reference appear in the answer, and {back:.0%} the other way round"
    if not numbers(reference) <= numbers(trace.output):
        return min(score, 3), f"{text}; a number of the reference is absent."
    return score, f"{text}; no number of the reference is absent."


JUDGE: Final = graded.make(
    name="answer_similarity",
    asks="How close is the answer to the reference answer in meaning?",
    needs=("output", "expected_response"),
    fixed=graded.fixed_part(ROLE, CRITERION, GRADES, EXAMPLES),
    criterion=CRITERION,
    grades=GRADES,
    blocks=blocks_of({"answer": "output", "reference": "expected_response"}),
    heuristic=heuristic,
)
