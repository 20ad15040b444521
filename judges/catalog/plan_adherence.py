"""Did the steps follow the plan that the assistant stated? A trace without a stated plan is unscored."""

from collections.abc import Mapping, Sequence
from typing import Final

from judges.agent.transcript import Transcript
from judges.core.judge import Answer, AnsweredPrompt, AnyOf, Metric, Reading
from judges.core.model import UnscoredError
from judges.core.verdict import Score
from judges.forms import agent_steps
from judges.forms.agent_steps import Entries, Field, check_evidence, known_steps, with_evidence
from tracejudge import Trace

CRITERION: Final = """\
You compare what an assistant said it would do with what it did.

What to decide
Somewhere in the transcript, or in the conversation before, the assistant may state a plan: what it is going to do, in \
two steps or more. Take the last whole plan, and decide for each of its steps what became of it.

How to weigh
- A plan is stated in words, before it is carried out. Calls without words, a summary afterwards and an offer to the \
user are no plan. Without a plan, `plan` is [].
- followed: a later step of the transcript does it. Its place in the order matters only where the plan says so, or \
where one step needs the result of another.
- changed: something else was done in its place or it was dropped, and the transcript gives a reason: a result, an \
error, a word of the user, or the assistant's own explanation.
- skipped: it was not done, and nothing in the transcript says why.
- unplanned: steps that carry out something that no step of the plan covers. Model steps that only think are not \
named."""

FIELDS: Final[agent_steps.Fields] = {
    "plan": Entries(
        "one entry for each step of the stated plan, in its order; [] when no plan is stated",
        {
            "step": Field("what the plan says"),
            "evidence": Field("the steps of the transcript that show it", is_key=True, is_list=True),
            "reason": Field("what these steps did, or why not"),
            "state": Field("follows from the reason", ("followed", "changed", "skipped")),
        },
    ),
    "unplanned": Field("the steps that no part of the plan covers", is_key=True, is_list=True),
}


def check(_trace: Trace, steps: Transcript, answer: Answer) -> None:
    """Raise ``UnscoredError`` without a plan, and ``InvalidAnswerError`` if no evidence exists."""
    if not answer["plan"]:
        raise UnscoredError("missing_input", "the transcript states no plan")
    check_evidence(answer["plan"], steps)


def score(_trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
    """Compute the share of steps of the plan that were followed, or changed for a reason."""
    ((prompt, answer),) = answered
    # Only a step can show that the plan was followed.
    plan, unknown_keys = with_evidence(answer["plan"], prompt.about, "followed", "skipped")
    skipped = sum(entry["state"] == "skipped" for entry in plan)
    share = 1 - skipped / max(len(plan), 1)
    unplanned, unknown = known_steps(answer["unplanned"], prompt.about)
    details = {"plan": plan, "unplanned": unplanned, "unknown_keys": unknown_keys + unknown}
    rationale = "\n".join(f"{entry['step']}: {entry['state']}. {entry['reason']}" for entry in plan)
    return Reading((Score("plan_adherence", share, share, passed=not skipped),), rationale, details)


def heuristic(_trace: Trace, steps: Transcript) -> Mapping[str, object]:
    """Answer that any step follows the request: words that two texts share do not tell a plan."""
    evidence = [step.key for step in steps.steps[:1]]
    entry = {"step": "The request", "evidence": evidence, "reason": "No plan was looked for.", "state": "followed"}
    return {"plan": [entry], "unplanned": []}


JUDGE: Final = agent_steps.make(
    name="plan_adherence",
    asks="Did the steps follow the plan that was stated?",
    metrics=(Metric("plan_adherence", "0..1", "no step of the plan is skipped", pass_at=1.0),),
    needs=(AnyOf(("tool_calls", "spans")),),
    criterion=CRITERION,
    fields=FIELDS,
    shows_answer=False,
    score=score,
    heuristic=heuristic,
    check=check,
)
