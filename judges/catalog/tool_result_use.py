"""Does the answer say what the results of the tools say, errors included?"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from judges.agent.transcript import Transcript, written
from judges.core.judge import Answer, AnsweredPrompt, Metric, Reading
from judges.core.verdict import Score
from judges.forms import agent_steps
from judges.forms.agent_steps import Entries, Field, by_step, check_steps, told
from judges.parsing.answer import DoubtfulAnswerError
from judges.parsing.sentences import numbers
from tracejudge import Trace

CRITERION: Final = """\
You check what an assistant told a user against what its tools returned.

What to decide
The part `answer` is what the user was told at the end; the transcript holds the calls of tools before it, each with \
its result or its error. Decide whether the answer renders the results as they are.

How to weigh
- contradicts: the answer says otherwise than a result: another number, name, date or state, or the result of one call \
told as that of another.
- claims_success: the answer speaks of something as done or found although the call failed, returned nothing, or never \
finished.
- ignored: a result that the request needs is not used, or an error that concerns the user is kept silent.
- invented: the answer gives as found by a tool what no result holds. Name the call that should have brought it.
- Leaving out what nobody asked for, rounding that is marked as such, and other words for the same are no problems. \
What the answer draws from the request or from common knowledge, without calling it a result, is none either.
- yes: there is no problem. no: there is at least one."""

FIELDS: Final[agent_steps.Fields] = {
    "problems": Entries(
        "one entry for each problem; [] when there is none",
        {
            "call": Field("the key of the call", is_key=True),
            "reason": Field("what the result says, and what the answer says"),
            "problem": Field("follows from the reason", ("contradicts", "claims_success", "ignored", "invented")),
        },
    ),
    "result": Field("no when there is a problem, else yes", ("yes", "no")),
}
STATEMENT: Final = """\
The part `answer` renders the results and errors of the calls in the part `transcript` as they are: it contradicts \
none, speaks of no failed call as done, keeps silent on nothing that the request needs, and invents no result."""
ADMITTING: Final = re.compile(
    r"\b(?:no|not|nothing|cannot|unable|sorry|unfortunately|fail\w*|errors?)\b|n['\u2019]t\b", re.IGNORECASE
)


def check(_trace: Trace, steps: Transcript, answer: Answer) -> None:
    """Raise ``DoubtfulAnswerError`` for a yes with problems: said twice, it is a no."""
    named = by_step(answer["problems"], "call", "", steps)
    check_steps(named, "problems")
    if answer["result"] == "yes" and named.entries:
        raise DoubtfulAnswerError("`result` is yes, and `problems` is not empty", {**answer, "result": "no"})


def score(_trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
    """Score yes or no."""
    ((prompt, answer),) = answered
    named = by_step(answer["problems"], "call", "", prompt.about)
    passed = answer["result"] == "yes"
    problems = [entry["problem"] for entry in named.entries.values()]
    told_problems = told(named.entries, prompt.about, "problem")
    rationale = told_problems or ("The answer renders the results." if passed else "No problem was named.")
    reading = Score("tool_result_use", float(passed), float(passed), answer["result"], passed)
    return Reading((reading,), rationale, {"problems": problems, "unknown_keys": named.unknown})


def heuristic(trace: Trace, steps: Transcript) -> Mapping[str, object]:
    """Answer by words: after an error the answer admits it, and its numbers stand in results or in the request."""
    known = numbers(trace.input or "")
    failed = next((call for call in steps.calls if call.error is not None), None)
    for call in steps.calls:
        known |= numbers(written(call.result)) | numbers(written(call.inputs))
    if failed is not None and not ADMITTING.search(trace.output) and steps.calls[-1].error is not None:
        entry = {"call": failed.call, "reason": "It failed, and no word says so.", "problem": "claims_success"}
        return {"problems": [entry], "result": "no"}
    if numbers(trace.output) - known:
        reason = "A number of the answer is in no result."
        return {"problems": [{"call": steps.calls[-1].call, "reason": reason, "problem": "invented"}], "result": "no"}
    return {"problems": [], "result": "yes"}


def lacks(trace: Trace) -> str | None:
    """Return what is missing if no call has a result or an error."""
    has_result = any(call.result is not None or call.error is not None for call in trace.tool_calls or ())
    return None if has_result else "no call of a tool has a result or an error"


JUDGE: Final = agent_steps.make(
    name="tool_result_use",
    asks="Does the answer say what the results of the tools say, errors included?",
    metrics=(Metric("tool_result_use", "0 or 1", "yes"),),
    needs=("output", "tool_calls"),
    criterion=CRITERION,
    fields=FIELDS,
    score=score,
    heuristic=heuristic,
    check=check,
    statement=STATEMENT,
    lacks=lacks,
)
