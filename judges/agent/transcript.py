"""The transcript of a trace: its steps in order of time, as all judges of tools and trajectories are shown them.

Steps come from the spans where these hold calls of tools, else from the calls of the trace. A line that is not indented
begins a step, so no text of a trace can imitate one.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Final, Literal, NamedTuple

from msgspec import structs

from judges.agent.spans import Step, Steps, as_json, short
from judges.core.judge import Shortening
from judges.core.prompt import Block
from judges.parsing.answer import decode_json
from tracejudge import Span, ToolCall, Trace

Kind = Literal["model", "tool", "retrieval", "other"]
_KINDS: Final[Mapping[str | None, Kind]] = {
    "llm": "model",
    "tool": "tool",
    "retriever": "retrieval",
    "reranker": "retrieval",
}
# Steps made of steps: their inputs and outputs are those of the steps within them.
_COMPOSED: Final = frozenset({"agent", "chain", "trace"})
_TOOL_NAMES: Final = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name")
_KEY: Final = re.compile(r"\b([SC][1-9]\d{0,5})\b", re.IGNORECASE)
_SHORT_CHARS: Final = 1_000  # Of a result that is cut; a quarter of them is its end.


class TranscriptStep(NamedTuple):
    """One step of a trace."""

    key: str  # `S1`, `S2`, …
    kind: Kind
    name: str
    call: str | None = None  # `C1`, `C2`, … of a call of a tool.
    inputs: object = None  # Arguments of a call, or what a retrieval looked for.
    result: object = None
    error: str | None = None
    seconds: float | None = None
    span_id: str | None = None

    def text(self, *, with_contents: bool) -> str:
        """Format the step; without contents only their sizes are given, and the span that holds them."""
        took = "" if self.seconds is None else f" ({self.seconds:.3g} s)"
        span = "" if with_contents or self.span_id is None else f", span {self.span_id}"
        parts = {
            "text" if self.kind == "model" and isinstance(self.result, str) else "result": self.result,
            "error": self.error,
        }
        if self.kind != "model":
            parts = {"arguments" if self.call else "inputs": self.inputs, **parts}
        lines = [" ".join(filter(None, (self.key, self.call, self.kind, *self.name.split()))) + took + span]
        for name, value in parts.items():
            if value is not None:
                text = written(value).replace("\n", "\n    ")
                lines.append(f"  {name}: {text if with_contents else f'[{len(text):,} characters]'}")
        return "\n".join(lines)


class Transcript(NamedTuple):
    """The steps of a trace, and the calls of tools among them."""

    steps: tuple[TranscriptStep, ...]
    calls: tuple[TranscriptStep, ...]

    def block(self, *, with_contents: bool = True) -> Block:
        """Return the part of the material."""
        text = "\n".join(step.text(with_contents=with_contents) for step in self.steps)
        return Block("transcript", text or "There is no step.")

    def find(self, key: str) -> TranscriptStep | None:
        """Return the step that a key names, as a model writes it: `S2`, `C1`, `call c1`; None unless it is one."""
        keys = {match.upper() for match in _KEY.findall(key)}
        named = [step for step in self.steps if step.key in keys or step.call in keys]
        return named[0] if len(named) == 1 else None


def transcript(trace: Trace) -> Transcript:
    """Return the transcript of a trace."""
    steps, calls = [_of_span(step) for step in _leaves(trace)], [(_form(call), call) for call in trace.tool_calls or ()]
    spans = {place: step for place, step in enumerate(steps) if calls and step.kind == "tool"}
    # Of parallel calls of one tool each has the span with its arguments. The trace's calls were read from all that
    # spans say: some write other names, or an answer as a call.
    for compared in (2, 1):
        for place, step in [*spans.items()]:
            form = _form(step)[:compared]
            same = next((number for number, call in enumerate(calls) if call[0][:compared] == form), None)
            if same is not None:
                steps[place] = _of_call(calls.pop(same)[1], spans.pop(place))
    for place, step in spans.items():
        steps[place] = step._replace(kind="other")
    if not any(step.kind == "tool" for step in steps) and calls:
        steps = []
    steps += [_of_call(call, TranscriptStep("", "tool", "")) for _, call in calls]
    numbers = count(1)
    numbered = tuple(
        step._replace(key=f"S{number}", call=f"C{next(numbers)}" if step.kind == "tool" else None)
        for number, step in enumerate(steps, 1)
    )
    return Transcript(numbered, tuple(step for step in numbered if step.call is not None))


def with_calls(trace: Trace) -> Trace:
    """Fill in the tool calls of a trace whose spans alone hold them."""
    if trace.tool_calls:
        return trace
    calls = [ToolCall(step.name, step.inputs, step.result, step.error) for step in transcript(trace).calls]
    return structs.replace(trace, tool_calls=calls) if calls else trace


def written(value: object) -> str:
    """Write a value as it is shown: a text as it stands, everything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return as_json(value)
    except (ValueError, TypeError, RecursionError):
        return "[cannot be shown as JSON]"


def arguments_of(call: TranscriptStep | ToolCall) -> object:
    """Return the arguments of a call; a text of JSON is decoded, and none are an empty object."""
    value = call.arguments if isinstance(call, ToolCall) else call.inputs
    if value is None or (isinstance(value, str) and value.strip() in {"", "null"}):
        return {}
    decoded = decode_json(value) if isinstance(value, str) else value
    return value if decoded is None else decoded


def _form(call: TranscriptStep | ToolCall) -> tuple[str, str]:
    return short(call.name), written(arguments_of(call))


def _leaves(trace: Trace) -> Iterator[Step]:
    """Yield the steps that are neither made of steps nor recorded within another one of their kind."""
    if not trace.spans:
        return
    steps = list(Steps(trace))
    by_id = {step.id: step for step in steps}
    for step in steps:
        parent = by_id.get(step.parent_id or "")
        # Two instrumentations write a span of the same call.
        repeats = parent is not None and parent.kind == step.kind in _KINDS and _name(parent) == _name(step)
        if step.kind not in _COMPOSED and not repeats:
            yield step


def _of_span(step: Step) -> TranscriptStep:
    kind: Kind = _KINDS.get(step.kind, "other")
    failed = step.status == "error"
    return TranscriptStep(
        *("", kind, _name(step), None, step.inputs),
        None if failed else step.outputs,
        written(step.outputs if step.outputs is not None else "failed") if failed else None,
        step.duration_s,
        step.id,
    )


def _of_call(call: ToolCall, step: TranscriptStep) -> TranscriptStep:
    inputs = step.inputs if call.arguments is None else call.arguments
    result = step.result if call.result is None else call.result
    return step._replace(name=short(call.name), inputs=inputs, result=result, error=call.error or step.error)


def _name(step: Step) -> str:
    attributes = step.span.attributes or {}
    named = next((name for key in _TOOL_NAMES if isinstance(name := attributes.get(key), str) and name.strip()), None)
    return short(named or step.span.name.removeprefix("execute_tool "))


def _results(trace: Trace) -> list[tuple[int, str, int]]:
    """List what can be cut: its size, the field of the trace, and its place; the largest first."""
    sizes = [
        (len(written(value)), field, place)
        for field, items in _recorded(trace).items()
        for place, item in enumerate(items)
        if (value := _result(item)) is not None
    ]
    return sorted((size for size in sizes if size[0] > _SHORT_CHARS), key=lambda size: (-size[0], *size[1:]))


def _recorded(trace: Trace) -> dict[str, list[ToolCall | Span]]:
    return {"tool_calls": [*(trace.tool_calls or ())], "spans": [*(trace.spans or ())]}


def _result(item: ToolCall | Span) -> object:
    return item.result if isinstance(item, ToolCall) else item.outputs


def _with_short_results(trace: Trace, amount: int) -> Trace:
    """Cut so many results in their middle, with a mark, from the largest down."""
    fields = _recorded(trace)
    for size, field, place in _results(trace)[:amount]:
        item = fields[field][place]
        text, end = written(_result(item)), _SHORT_CHARS // 4
        short_text = (
            f"{text[: _SHORT_CHARS - end]} [\u2026 {size - _SHORT_CHARS:,} characters cut \u2026] {text[-end:]}"
        )
        name = "result" if isinstance(item, ToolCall) else "outputs"
        fields[field][place] = structs.replace(item, **{name: short_text})
    return structs.replace(trace, **{name: items or None for name, items in fields.items()})


SHORTENING: Final = Shortening(lambda trace: len(_results(trace)), _with_short_results)
"""Cuts the results of tools, and the outputs of other spans."""


def tools_block(trace: Trace) -> tuple[Block, ...]:
    """Return the part with the tools that could be called, one a line with its description and parameters."""
    lines = []
    for tool in trace.tools or ():
        about = "" if tool.description is None else f": {' '.join(tool.description.split())}"
        schema = "" if tool.parameters is None else f"\n  parameters: {as_json(tool.parameters)}"
        lines.append(f"{' '.join(short(tool.name).split())}{about}{schema}")
    return (Block("tools", "\n".join(lines)),) if lines else ()
