"""Do the arguments of each call follow from what was known? Those that break the schema are wrong without a model."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final

from judges.agent.transcript import Transcript, arguments_of, transcript, written
from judges.core.judge import Answer, AnsweredPrompt, Metric, Reading
from judges.core.prompt import Block, conversation
from judges.core.verdict import Score
from judges.forms import agent_steps
from judges.forms.agent_steps import Entries, Field, by_step, check_steps, told
from judges.parsing.answer import IncompleteAnswerError
from judges.parsing.sentences import content_words, coverage
from tracejudge import Trace

CRITERION: Final = """\
You judge with which arguments an assistant called its tools.

What to decide
The part `calls to judge` lists calls of the transcript. Decide for each of them whether its arguments follow from \
what was known before it: the request, the conversation, and the results of earlier calls. The other calls are no part \
of the question.

How to weigh
- right: every value comes from there, or is a plain consequence of it, such as a date worked out from `tomorrow`, or \
a default that changes nothing.
- wrong: a value was made up, differs from its source (a digit, an id, a unit, a currency, a name of somebody else), \
or a condition that the request sets and the tool could take was left out. Name that argument.
- Another spelling or format of the same value is right.
- Whether the tool was the right one, and what it returned, does not matter here."""

FIELDS: Final[agent_steps.Fields] = {
    "calls": Entries(
        "one entry for each call to judge, in their order",
        {
            "call": Field("the key of the call", is_key=True),
            "reason": Field("where each value comes from"),
            "verdict": Field("follows from the reason", ("right", "wrong")),
            "argument": Field("the name of the first argument that is wrong; empty when none is"),
        },
    ),
}
STATEMENT: Final = """\
The arguments of each call in the part `calls to judge` follow from the request, the conversation and the results of \
earlier calls: nothing in them is made up, altered or left out. Whether the tool was the right one does not matter."""
_MAX_CHARS: Final = 100_000  # Of a schema and of arguments.
_MAX_CHECKS: Final = 20_000  # Keywords of a schema that are applied to one call, a few hundred milliseconds.
_MAX_ERRORS: Final = 3
_MIN_COVERAGE: Final = 0.5
# Keywords that need regular expressions of the trace, or time that no count of keywords bounds.
_UNCHECKED: Final = (
    *("pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems", "uniqueItems", "$dynamicRef"),
)


class _Budget(threading.local):
    """Applications of keywords that the validation under way in this thread may still make."""

    left = 0


_budget: Final = _Budget()


@cache
def _validator() -> Any:
    """Make the class of validators, once: that takes longer than most validations."""
    # Loaded by the first schema: most configurations have no such judge.
    from jsonschema import Draft202012Validator, validators  # noqa: PLC0415

    def counted(keyword: str, apply: Callable[..., Iterable[Any] | None]) -> Callable[..., Iterator[Any]]:
        def check(validator: Any, value: object, instance: object, around: Mapping[str, object]) -> Iterator[Any]:
            _budget.left -= 1
            if _budget.left < 0:
                raise RecursionError
            # Of OpenAPI and draft 4: a value that may be null, and a limit that another keyword names.
            if (instance is None and around.get("nullable") is True) or (
                isinstance(value, bool) and keyword.startswith("exclusive")
            ):
                return
            # Which properties are additional depends on patterns, too.
            if keyword != "additionalProperties" or "patternProperties" not in around:
                yield from apply(validator, value, instance, around) or ()

        return check

    keywords = {name: counted(name, apply) for name, apply in Draft202012Validator.VALIDATORS.items()}
    return validators.extend(Draft202012Validator, {**keywords, **dict.fromkeys(_UNCHECKED)})


def schema_breaches(schema: object, arguments: object) -> list[str]:
    """Return what of a JSON Schema arguments break, by place and keyword; none if the schema cannot be used."""
    if not isinstance(schema, Mapping) or len(written(schema)) > _MAX_CHARS or len(written(arguments)) > _MAX_CHARS:
        return []
    from referencing import Registry  # noqa: PLC0415 - as above

    validator, _budget.left = _validator(), _MAX_CHECKS
    try:
        # An empty registry: no reference is fetched from anywhere.
        errors = validator(schema, registry=Registry()).iter_errors(arguments)
        return [f"{error.json_path} breaks `{error.validator}`" for error in islice(errors, _MAX_ERRORS)]
    except Exception:  # noqa: BLE001 - a trace may contain any schema; without one the model judges the arguments
        return []


def breaches(trace: Trace, steps: Transcript) -> Mapping[str, list[str]]:
    """Return by the key of its step what each call breaks of the schema of its tool."""
    schemas = {tool.name: tool.parameters for tool in trace.tools or ()}
    found = {call.key: schema_breaches(schemas.get(call.name), arguments_of(call)) for call in steps.calls}
    return {key: errors for key, errors in found.items() if errors}


def to_judge(trace: Trace, steps: Transcript) -> tuple[Block, ...] | None:
    """Return the part with the calls that the model judges; None if the schemas decide about all."""
    broken = breaches(trace, steps)
    calls = [f"{call.call} {' '.join(call.name.split())}" for call in steps.calls if call.key not in broken]
    return (Block("calls to judge", "\n".join(calls)),) if calls else None


def check(trace: Trace, steps: Transcript, answer: Answer) -> None:
    """Raise ``InvalidAnswerError`` unless every call that was to be judged has one verdict."""
    named, broken = by_step(answer["calls"], "call", "verdict", steps), breaches(trace, steps)
    check_steps(named, "calls")
    left_out = [f"{call.call}" for call in steps.calls if call.key not in {*named.entries, *broken}]
    if left_out:
        raise IncompleteAnswerError(f"`calls` has no entry for {', '.join(left_out)}")


def score(trace: Trace, answered: Sequence[AnsweredPrompt]) -> Reading:
    """Compute the share of calls whose arguments are right; a breach of the schema needs no model."""
    steps: Transcript = answered[0].prompt.about if answered else transcript(trace)
    broken = breaches(trace, steps)
    named = by_step(answered[0].answer["calls"] if answered else (), "call", "verdict", steps)
    judged = {key: entry for key, entry in named.entries.items() if key not in broken}
    wrong = {key: entry["argument"] for key, entry in judged.items() if entry["verdict"] == "wrong"}
    share = 1 - (len(broken) + len(wrong)) / len(steps.calls)
    reasons = {key: {"verdict": "wrong", "reason": ", ".join(errors)} for key, errors in broken.items()}
    details = {
        "schema_errors": len(broken),
        "breaches": {call.call: broken[call.key] for call in steps.calls if call.key in broken},
        "wrong_arguments": {call.call: wrong[call.key] for call in steps.calls if call.key in wrong},
        "unknown_keys": named.unknown,
    }
    score = Score("tool_arguments", share, share, passed=share == 1)
    return Reading((score,), told({**judged, **reasons}, steps, "verdict"), details)


def heuristic(trace: Trace, steps: Transcript) -> Mapping[str, object]:
    """Answer by words: a value is right if half of its words were said before."""
    known = content_words("\n".join((trace.input or "", conversation(trace))))
    broken, calls = breaches(trace, steps), []
    for call in steps.calls:
        arguments = arguments_of(call)
        values = arguments.items() if isinstance(arguments, dict) else [("", arguments)]
        unknown = (name for name, value in values if coverage(content_words(written(value)), known) < _MIN_COVERAGE)
        name = next(unknown, "")
        reason = "Its words were not said before." if name else "The words of the values were said before."
        entry = {"call": call.call, "reason": reason, "verdict": "wrong" if name else "right", "argument": name}
        calls += [] if call.key in broken else [entry]
        known |= content_words(written(call.result))
    return {"calls": calls}


JUDGE: Final = agent_steps.make(
    name="tool_arguments",
    asks="Do the arguments of each call of a tool follow from what was known?",
    metrics=(Metric("tool_arguments", "0..1", "all are right", pass_at=1.0),),
    needs=("input", "tool_calls"),
    criterion=CRITERION,
    fields=FIELDS,
    shows_answer=False,
    score=score,
    heuristic=heuristic,
    check=check,
    further=to_judge,
    statement=STATEMENT,
)
