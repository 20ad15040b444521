"""Was each call of a tool the right one at its moment, and was one missing?"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from judges.agent.transcript import Transcript
from judges.core.judge import Answer, AnsweredPrompt, AnyOf, Metric, Reading
from judges.core.verdict import Score
from judges.forms import agent_steps
from judges.forms.agent_steps import Entries, Field, by_step, check_steps, told
from judges.parsing.answer import IncompleteAnswerError, InvalidAnswerError
from tracejudge import Trace

CRITERION: Final = """\
You judge which tools an assistant chose to call.

What to decide
The part `request` holds what a user asked, the transcript what the assistant did for it. Decide for each call of a \
tool whether calling that tool then made sense, and whether a call is missing.

How to weigh
- Put yourself at the moment of the call: count what was known by then, from the request, the conversation and earlier \
results, and nothing that a later step shows. A call that found nothing may have been right.
- right: this tool could bring the request forward at that moment.
- wrong: another tool, or none, was called for; or the tool cannot do what it was called for.
- needless: it did no harm, but what it could return was known already or not wanted.
- missing: the request needed something that no call did, although a tool that was available does it. Name that tool. \
Where the answer needs no tool, none is missing.
- Arguments, the order of calls that do not depend on each other, and the wording of the answer do not matter here."""

FIELDS: Final[agent_steps.Fields] = {
    "calls": Entries(
        "one entry for each call, C1 first; [] when there is none",
        {
            "call": Field("the key of the call", is_key=True),
            "reason": Field("what was known then, and why the call fits or not"),
            "verdict": Field("follows from the reason", ("right", "wrong", "needless")),
        },
    ),
    "missing": Entries(
        "one entry for each call that is missing; [] when none is",
        {"reason": Field("what of the request was left undone"), "tool": Field("the name of the tool to call")},
    ),
}
STATEMENT: Final = """\
Each call of a tool in the part `transcript` was a sensible one for the part `request`, with what was known at that \
moment, and no call is missing that the request needed and an available tool could do. Arguments do not matter."""


def missing_tools(trace: Trace, steps: Transcript, answer: Answer) -> tuple[list[Mapping[str, Any]], int]:
    """Return the missing calls of tools that are known, each tool once, and the number of the others."""
    names = {tool.name.strip() for tool in trace.tools or ()} or {call.name for call in steps.calls}
    known = {entry["tool"].strip(" `'\""): entry for entry in answer["missing"]}
    return [entry for name, entry in known.items() if name in names], sum(name not in names for name in known)


def check(trace: Trace, steps: Transcript, answer: Answer) -> None:
    """Raise ``InvalidAnswerError`` unless every call has one verdict and what is missing are tools."""
    named = by_step(answer["calls"], "call", "verdict", steps)
    check_steps(named, "calls")
    left_out = [call.call for call in steps.calls if call.key not in named.entries]
    if left_out:
        raise IncompleteAnswerError(f"`calls` has no entry for {', '.join(map(str, left_out))}")
    known, unknown = missing_tools(trace, steps, answer)
    if unknown and not known:
        raise InvalidAnswerError("`missing` names tools, and none of them could be called")


def score(trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
    """Compute the share of right calls among all calls and those that are missing."""
    ((prompt, answer),) = answered
    steps: Transcript = prompt.about
    named = by_step(answer["calls"], "call", "verdict", steps)
    absent, unknown_tools = missing_tools(trace, steps, answer)
    verdicts = [entry["verdict"] for entry in named.entries.values()]
    total = len(verdicts) + len(absent)
    share = verdicts.count("right") / total if total else 1.0
    passed = "wrong" not in verdicts and not absent
    details = {
        **{name: verdicts.count(name) for name in ("right", "wrong", "needless")},
        "missing": [entry["tool"] for entry in absent],
        "unknown_keys": named.unknown + unknown_tools,
    }
    lacking = " ".join(f"{entry['tool']} is missing: {entry['reason']}" for entry in absent)
    rationale = f"{told(named.entries, steps, 'verdict')} {lacking}".strip() or "No call was made, and none is missing."
    return Reading((Score("tool_selection", share, share, passed=passed),), rationale, details)


def heuristic(trace: Trace, steps: Transcript) -> Mapping[str, object]:
    """Answer by names: a tool that is not on offer is wrong, a call made before is needless."""
    offered = {tool.name.strip() for tool in trace.tools or ()}
    calls, made = [], list[tuple[str, object]]()
    for call in steps.calls:
        verdict = "wrong" if offered and call.name not in offered else "right"
        if verdict == "right" and (call.name, call.inputs) in made:
            verdict = "needless"
        made.append((call.name, call.inputs))
        calls.append({"call": call.call, "reason": "Its name was looked up, no more.", "verdict": verdict})
    return {"calls": calls, "missing": []}


JUDGE: Final = agent_steps.make(
    name="tool_selection",
    asks="Was each call of a tool the right one at its moment, and was none missing?",
    metrics=(Metric("tool_selection", "0..1", "no call is wrong, and none is missing"),),
    needs=("input", AnyOf(("tool_calls", "tools"))),
    criterion=CRITERION,
    fields=FIELDS,
    shows_answer=False,
    score=score,
    heuristic=heuristic,
    check=check,
    statement=STATEMENT,
)
