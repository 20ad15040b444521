"""Is done what the user asked for? Judged goal by goal, from the whole trace."""

from collections.abc import Mapping, Sequence
from typing import Final

from judges.agent.transcript import Transcript
from judges.catalog.tool_result_use import ADMITTING
from judges.core.judge import Answer, AnsweredPrompt, AnyOf, Metric, Reading
from judges.core.verdict import Score
from judges.forms import agent_steps
from judges.forms.agent_steps import Entries, Field, check_evidence, with_evidence
from judges.parsing.answer import InvalidAnswerError
from tracejudge import Trace

CRITERION: Final = """\
You judge whether an assistant has done what it was asked to do.

What to decide
The part `request` holds what a user asked for, the transcript what the assistant did, and the part `answer` what the \
user was told at the end. Divide the request into its goals, at most ten, and decide for each what became of it.

How to weigh
- A goal is something that the user wants to have or to know, in the user's words. Steps towards it are no goals, and \
what the assistant offers beyond the request is none.
- done: the steps or the answer reach the goal. Of something to be carried out a step must show that it happened: the \
answer saying so is not enough. Of something to be told the answer must tell it.
- partly: a part that matters is reached, and another one is not.
- not_done: the goal is not reached, was given up without need, or the answer says nothing of it.
- impossible: the steps show that it could not be done, and the answer tells the user so. Both are needed.
- evidence: the keys of the steps on which your decision rests; [] where it rests on the answer alone.
- Style, length and the number of steps do not matter."""

_STATES: Final = ("done", "partly", "not_done", "impossible")
FIELDS: Final[agent_steps.Fields] = {
    "goals": Entries(
        "one entry for each goal, at most ten",
        {
            "goal": Field("what the user asked for"),
            "evidence": Field("the steps that show what became of it", is_key=True, is_list=True),
            "reason": Field("what these steps and the answer say about it"),
            "state": Field("follows from the reason", _STATES),
        },
    ),
}
STATEMENT: Final = """\
Everything that the part `request` asks for is done, as the steps of the part `transcript` show, and told in the part \
`answer` where it was to be told; or the steps show that it could not be done, and the answer says so."""
MAX_GOALS: Final = 10
_WORTH: Final[Mapping[str, float]] = {"done": 1.0, "impossible": 1.0, "partly": 0.5, "not_done": 0.0}


def check(_trace: Trace, steps: Transcript, answer: Answer) -> None:
    """Raise ``InvalidAnswerError`` without a goal, with too many, or if no evidence exists."""
    if not 1 <= len(answer["goals"]) <= MAX_GOALS:
        raise InvalidAnswerError(f"`goals` has {len(answer['goals'])} entries; name 1 to {MAX_GOALS}")
    check_evidence(answer["goals"], steps)


def score(_trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
    """Compute the share of goals that are done or rightly given up; what is done in part counts half."""
    ((prompt, answer),) = answered
    # Only a step can show that something cannot be done.
    goals, unknown_keys = with_evidence(answer["goals"], prompt.about, "impossible", "not_done")
    states = [str(goal["state"]) for goal in goals]
    share = sum(_WORTH[state] for state in states) / max(len(states), 1)
    passed = all(_WORTH[state] == 1 for state in states)
    texts = (f"{goal['goal']}: {goal['state']}. {goal['reason']}".replace("_", " ") for goal in goals)
    details = {"goals": goals, "unknown_keys": unknown_keys}
    return Reading((Score("task_completion", share, share, passed=passed),), "\n".join(texts), details)


def heuristic(trace: Trace, steps: Transcript) -> Mapping[str, object]:
    """Answer by the last call: the one goal is done unless it failed, and impossible if the answer admits that."""
    last = steps.calls[-1] if steps.calls else None
    failed = last is not None and last.error is not None
    state = "done" if not failed else "impossible" if ADMITTING.search(trace.output) else "not_done"
    reason = f"The last call {'failed' if failed else 'did not fail'}."
    return {
        "goals": [{"goal": "The request", "evidence": [last.key] if last else [], "reason": reason, "state": state}]
    }


JUDGE: Final = agent_steps.make(
    name="task_completion",
    asks="Is done what the user asked for, as the steps of the whole trace show?",
    metrics=(Metric("task_completion", "0..1", "all goals are done or impossible", pass_at=1.0),),
    needs=("input", "output", AnyOf(("tool_calls", "spans"))),
    criterion=CRITERION,
    fields=FIELDS,
    score=score,
    heuristic=heuristic,
    check=check,
    statement=STATEMENT,
)
