"""Do the calls of tools match the expected ones? Compared in code: no model is asked."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from judges.agent.transcript import arguments_of, with_calls
from judges.core.judge import Judge, Metric, Reading
from judges.core.verdict import Score
from tracejudge import ToolCall, Trace

_MAX_CALLS: Final = 1_000
_MAX_DEPTH: Final = 60
_ANY: Final = object()
Names = Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)]


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `[judges.trajectory_match]`.

    Attributes:
        mode: `strict`, the expected calls in their order; `unordered`, the same calls in any order; `subset`, no call
            beyond the expected; `superset`, all expected calls and perhaps others.
        in_order: With `superset`: whether the expected calls must come in their order.
        arguments: `exact`, all arguments are compared; `ignore`, none; a list of names, only these.
    """

    mode: Literal["strict", "unordered", "subset", "superset"] = "strict"
    in_order: bool = False
    arguments: Literal["exact", "ignore"] | Names = "exact"


def canonical(value: object, depth: int = 0) -> object:
    """Return a form in which equal JSON values are equal: numbers by value, objects without order, texts trimmed."""
    if depth > _MAX_DEPTH:
        return "nested too deep"
    if isinstance(value, str):
        return "text", value.strip()
    if isinstance(value, bool) or value is None:
        return "word", value
    if isinstance(value, int | float):
        return "number", value
    if isinstance(value, Mapping):
        return "object", frozenset((str(key).strip(), canonical(item, depth + 1)) for key, item in value.items())
    return "list", tuple(canonical(item, depth + 1) for item in value) if isinstance(value, list) else str(value)


def compared(call: ToolCall, arguments: str | tuple[str, ...]) -> object:
    """Return what of the arguments of a call is compared; a text of JSON is decoded, and none are an empty object."""
    if arguments == "ignore":
        return None
    value = arguments_of(call)
    if isinstance(arguments, tuple) and isinstance(value, dict):
        value = {name: value[name] for name in arguments if name in value}
    return canonical(value)


def _is_same(made: tuple[str, object], expected: tuple[str, object]) -> bool:
    return made == expected or (expected[1] is _ANY and made[0] == expected[0])


def _expected(trace: Trace) -> list[ToolCall]:
    return (trace.expected_tools or [])[:_MAX_CALLS]


def make(settings: Settings) -> Judge:
    """Build the judge with its settings."""

    def form(call: ToolCall) -> tuple[str, object]:
        return call.name.strip(), compared(call, settings.arguments)

    async def run(trace: Trace) -> Reading:
        made = [form(call) for call in (trace.tool_calls or [])[:_MAX_CALLS]]
        # An expected call without arguments says nothing about them.
        expected = [
            form(call) if call.arguments is not None else (call.name.strip(), _ANY) for call in _expected(trace)
        ]
        # Calls with arguments choose first: one without them takes any of its name.
        rest, missing = [*made], list[tuple[str, object]]()
        for call in sorted(expected, key=lambda each: each[1] is _ANY):
            same = next((place for place, each in enumerate(rest) if _is_same(each, call)), None)
            if same is None:
                missing.append(call)
            else:
                del rest[same]
        matched = len(expected) - len(missing)
        pairs = zip(made, expected, strict=False)
        in_order = len(made) == len(expected) and all(_is_same(call, each) for call, each in pairs)
        remaining = iter(made)
        follows = all(any(_is_same(call, each) for call in remaining) for each in expected)
        passed = {
            "strict": in_order,
            "unordered": not missing and not rest,
            "subset": not rest,
            "superset": not missing and (follows or not settings.in_order),
        }[settings.mode]
        precision, recall = (matched / len(calls) if calls else 1.0 for calls in (made, expected))
        f1 = 2 * matched / (len(made) + len(expected)) if made or expected else 1.0
        scores = (
            Score("trajectory_match", float(passed), float(passed), "yes" if passed else "no", passed),
            *(Score(name, share, share) for name, share in (("precision", precision), ("recall", recall), ("f1", f1))),
        )
        names = {"missing": [name for name, _ in missing], "unexpected": [name for name, _ in rest]}
        said = "; ".join(f"{kind}: {', '.join(calls)}" for kind, calls in names.items() if calls)
        order = "" if missing or rest or passed else "; in another order"
        text = f"{matched} of {len(expected)} expected calls were made, in {len(made)} calls"
        return Reading(scores, f"{text}{f'; {said}' if said else order}.", {"mode": settings.mode, **names})

    return Judge(
        name="trajectory_match",
        asks="Do the calls of tools match the expected ones?",
        metrics=(
            Metric("trajectory_match", "0 or 1", "yes"),
            *(Metric(name, "0..1", None, descriptive=True) for name in ("precision", "recall", "f1")),
        ),
        needs=("tool_calls", "expected_tools"),
        may_be_empty=("tool_calls", "expected_tools"),
        fixed_parts=(),
        schema={},
        prompts=lambda _trace: (),
        read=lambda text: text,
        score=lambda _trace, _answered: Reading(()),
        heuristic=lambda _trace, _prompt: {},
        scoring="trajectory/1",
        settings=settings,
        make=make,
        prepare=with_calls,
        run=run,
    )


JUDGE: Final = make(Settings())
