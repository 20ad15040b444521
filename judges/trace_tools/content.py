"""What one span holds, as a JSON text that is given page by page."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, structs

from judges.prompt import neutralise
from judges.trace_tools.arguments import page_token
from judges.trace_tools.spans import Step
from judges.trace_tools.texts import rounded, spoken_time

__all__ = ["Contents", "Page", "as_json", "boundary", "page"]

_INPUT_ATTRIBUTES: Final = (
    "input.value",
    "mlflow.spanInputs",
    "gen_ai.input.messages",
    "gen_ai.prompt",
    "gen_ai.tool.call.arguments",
    "traceloop.entity.input",
)
_OUTPUT_ATTRIBUTES: Final = (
    "output.value",
    "mlflow.spanOutputs",
    "gen_ai.output.messages",
    "gen_ai.completion",
    "gen_ai.tool.call.result",
    "traceloop.entity.output",
)
_LEADING_BITS: Final = 0b1100_0000
_CONTINUES: Final = 0b1000_0000
"""What these two bits are in every byte of a character but its first."""
_AT_ONCE_CHARS: Final = 200_000
_UNSHOWABLE: Final = "[cannot be shown as JSON]"


class Page(NamedTuple):
    """A piece of a content, and where the next one begins; None at the end."""

    text: str
    size_bytes: int
    page_token: str | None


class Contents:
    """The contents of steps, written when they are first asked for and then kept."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def whole(self, step: Step) -> bytes:
        """Write all that a step holds."""
        if step.id not in self._kept:
            self._kept[step.id] = _written(step, None)
        return self._kept[step.id]

    def with_attributes(self, step: Step, names: Sequence[str]) -> bytes:
        """Write a step with no other attributes than these."""
        return _written(step, names)


def page(content: bytes, offset: int, max_bytes: int) -> Page:
    """Take a piece that begins and ends with a whole character.

    Args:
        content: UTF-8.
        offset: In bytes; one in the middle of a character begins with the next.
        max_bytes: How long the piece may be; at least the four bytes of a character.
    """
    start = boundary(content, offset)
    end = boundary(content, min(start + max_bytes, len(content)), step=-1)
    return Page(content[start:end].decode(), len(content), page_token(end, len(content)))


def as_json(value: object) -> str:
    """Write JSON with what cannot be seen made visible.

    Raises:
        ValueError: It holds a number too long to be written, or itself.
        TypeError: It has a key that JSON cannot have.
        RecursionError: It is nested too deeply.
    """
    written = json.dumps(value, ensure_ascii=False, default=_plain)
    # No other thread runs during one call: a text of 4 MB would keep all of them waiting for 50 ms.
    return "".join(
        neutralise(written[start : start + _AT_ONCE_CHARS]) for start in range(0, len(written), _AT_ONCE_CHARS)
    )


def _plain(value: object) -> object:
    """Take apart what a trace is made of; msgspec would give up a whole trace for one value."""
    if isinstance(value, Struct):
        return {name: part for name, part in structs.asdict(value).items() if part is not None}
    return str(value)


def boundary(content: bytes, place: int, step: int = 1) -> int:
    """Find the first place from here on, or the last one up to here, where a character of UTF-8 begins, or the end."""
    while place < len(content) and content[place] & _LEADING_BITS == _CONTINUES:
        place += step
    return place


def _written(step: Step, names: Sequence[str] | None) -> bytes:
    described = _described(step, names)
    try:
        return as_json(described).encode()
    except (ValueError, TypeError, RecursionError):
        return as_json(_showable(described)).encode()


def _described(step: Step, names: Sequence[str] | None) -> dict[str, object]:
    span, attributes = step.span, step.span.attributes or {}
    inputs, asked_by = _content(span.inputs, attributes, _INPUT_ATTRIBUTES)
    outputs, said_by = _content(span.outputs, attributes, _OUTPUT_ATTRIBUTES)
    # What is shown as inputs and outputs is not said twice.
    wanted: Iterable[str] = (name for name in attributes if name not in {asked_by, said_by})
    shown = wanted if names is None else (name for name in names if name in attributes)
    return {
        "id": step.id,
        "name": span.name,
        "kind": step.kind,
        "parent_id": step.parent_id,
        "is_root": step.is_root,
        "status": step.status,
        "started_at": spoken_time(step.started_at),
        "ended_at": spoken_time(step.ended_at),
        "duration_s": rounded(step.duration_s),
        "inputs": inputs,
        "outputs": outputs,
        "attributes": {name: attributes[name] for name in shown},
    }


def _content(own: object, attributes: Mapping[str, object], names: Iterable[str]) -> tuple[object, str | None]:
    """Take what a span says itself, else the first attribute that says it, with its name."""
    if own is not None:
        return own, None
    name = next((name for name in names if attributes.get(name) is not None), None)
    return (None, None) if name is None else (attributes[name], name)


def _showable(value: Mapping[str, object]) -> dict[str, object]:
    """Put a remark in place of each part that cannot be written; the others stay."""
    return {
        str(key): _showable(part) if key == "attributes" and isinstance(part, Mapping) else _part(part)
        for key, part in value.items()
    }


def _part(part: object) -> object:
    try:
        as_json(part)
    except (ValueError, TypeError, RecursionError):
        return _UNSHOWABLE
    return part
