"""Were there needless steps? Repeats are counted in code; a model is asked about long traces and those with repeats."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct

from judges.agent.transcript import Transcript, TranscriptStep, arguments_of, transcript, written
from judges.core.judge import Answer, AnsweredPrompt, AnyOf, Judge, Metric, Reading
from judges.core.prompt import Block
from judges.core.verdict import Score
from judges.forms import agent_steps
from judges.forms.agent_steps import Entries, Field, by_step, check_steps, told
from tracejudge import Trace

CRITERION: Final = """\
You look for steps that an assistant could have spared itself.

What to decide
The part `request` holds what a user asked, the transcript the steps that led to the part `answer`. Name the steps \
that were needless. The part `known repeats` lists those that are counted already; you need not name them again.

How to weigh
- needless: with what was known before it, the step could not bring the request forward. It asks again for what is \
known, fetches what nothing later uses and the request did not call for, undoes an earlier step without cause, or \
restates a plan that has not changed.
- Not needless: a search that finds nothing but might have, a check before something that cannot be undone, a second \
try after an error, and a step whose use shows later.
- Where one step could have done the work of several, all but one of these are needless.
- A slow step is not needless, and neither is the answer itself."""

FIELDS: Final[agent_steps.Fields] = {
    "needless": Entries(
        "one entry for each needless step; [] when there is none",
        {
            "step": Field("the key of the step", is_key=True),
            "reason": Field("why it could not bring the request forward"),
        },
    ),
}
FEW_STEPS: Final = 5  # A model is asked about longer traces.
_MAX_TRIES: Final = 2
# The first words of the names of tools that only read.
_READING: Final = re.compile(
    "(check|count|describe|fetch|find|get|inspect|list|load|look ?up|query|read|retrieve|search|show|view) "
)
_BETWEEN_WORDS: Final = re.compile(r"[\W_]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `[judges.step_efficiency]`.

    Attributes:
        pass_at: The lowest share of steps that are not needless which passes, 0..1.
    """

    pass_at: Annotated[float, Meta(ge=0, le=1)] = 0.8


def repeats(steps: Transcript) -> Mapping[str, str]:
    """Return the calls that repeat another one needlessly, with the reason, by the key of their step."""
    # A repeat has equal name, arguments and result, and no call changed state in between: none that succeeded and whose
    # name does not begin with a word for reading. After failures the third try and later ones are needless.
    last: dict[str, TranscriptStep] = {}
    tries: dict[str, int] = {}
    needless = dict[str, str]()
    for call in steps.calls:
        same = f"{call.name} {written(_in_order(arguments_of(call)))}"
        before = last.get(same)
        tries[same] = tries.get(same, 0) + 1 if before is not None and before.error is not None else 1
        # A result that is not recorded differs from none.
        results = {written(_in_order(each.result)) for each in (call, before or call) if each.result is not None}
        if before is not None and before.error is None and call.error is None and len(results) <= 1:
            needless[call.key] = f"the same call as {before.call}, and nothing had changed"
        elif tries[same] > _MAX_TRIES:
            needless[call.key] = f"try {tries[same]} of a call that had failed each time"
        if call.error is None and not _READING.match(_BETWEEN_WORDS.sub(" ", f"{call.name} ").casefold()):
            last = {}
        last[same] = call
    return needless


def _in_order(value: object) -> object:
    """Order the keys of objects, so that equal arguments are written alike."""
    if isinstance(value, Mapping):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(item) for item in value] if isinstance(value, list) else value


def known_repeats(_trace: Trace, steps: Transcript) -> tuple[Block, ...] | None:
    """Return the part with the repeats; None if there are none and the trace is short."""
    counted = repeats(steps)
    if len(steps.steps) <= FEW_STEPS and not counted:
        return None
    lines = [f"{step.key}: {counted[step.key]}" for step in steps.steps if step.key in counted]
    return (Block("known repeats", "\n".join(lines) or "none"),)


def check(_trace: Trace, steps: Transcript, answer: Answer) -> None:
    """Raise ``InvalidAnswerError`` if no step that is named exists."""
    check_steps(by_step(answer["needless"], "step", "", steps), "needless")


def lacks(trace: Trace) -> str | None:
    """Return what is missing if there are fewer than two steps."""
    return None if len(transcript(trace).steps) > 1 else "the trace has fewer than two steps"


def heuristic(_trace: Trace, _steps: Transcript) -> Mapping[str, object]:
    """Name nothing: the repeats are counted anyway."""
    return {"needless": []}


def make(settings: Settings) -> Judge:
    """Build the judge with its settings."""

    def score(trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
        steps: Transcript = answered[0].prompt.about if answered else transcript(trace)
        named = by_step(answered[0].answer["needless"] if answered else (), "step", "", steps)
        counted = repeats(steps)
        entries = {**named.entries, **{key: {"reason": reason} for key, reason in counted.items()}}
        share = 1 - len(entries) / len(steps.steps)
        details = {"steps": len(steps.steps), "needless": [*entries], "repeats": len(counted)}
        details |= {"unknown_keys": named.unknown, "asked": bool(answered)}
        rationale = told(entries, steps) or "No step was needless."
        return Reading((Score("step_efficiency", share, share, passed=share >= settings.pass_at),), rationale, details)

    return agent_steps.make(
        name="step_efficiency",
        asks="Which share of the steps was not needless? (repeats are counted in code)",
        metrics=(Metric("step_efficiency", "0..1", f">= {settings.pass_at:g}", pass_at=settings.pass_at),),
        needs=(AnyOf(("tool_calls", "spans")),),
        criterion=CRITERION,
        fields=FIELDS,
        score=score,
        heuristic=heuristic,
        check=check,
        further=known_repeats,
        lacks=lacks,
        settings=settings,
        remake=make,
    )


JUDGE: Final = make(Settings())
