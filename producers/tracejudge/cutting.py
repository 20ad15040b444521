"""Cut what is too long: each text to the cap of a field, then all of a trace to the cap of the trace.

A text that is cut keeps its beginning and, in the last quarter of its room, its end: questions, conclusions and the
causes of errors stand there. A mark between them says how much is missing. Sizes are in bytes of UTF-8, and a
character is never split.

A trace that is still too large has its largest texts cut to one common length, the greatest with which it fits:
what is small stays whole, and no field is favoured. Only where even short texts are too many, lists are thinned:
conversations keep their first and latest messages, retrieved documents and all else their first. Free JSON (results,
inputs, attributes) of very many values is replaced as a whole before.

Not guaranteed: the cap of the trace where metadata, which is never cut, is itself too large.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from typing import Any, Final

from msgspec.json import Encoder

from tracejudge.texts import CONTENT_FIELDS, METADATA, change_texts

__all__ = ["cut", "cut_text", "replace_structures"]

_MAX_VALUES: Final = 10_000
_MIN_TEXT_BYTES: Final = 200
"""Below this texts are not cut for the trace's sake: what remained would say nothing."""
_KEPT_ITEMS: Final = (1_000, 250, 60, 15, 4, 1)
_TAIL_SHARE: Final = 4

_MARK_ITEMS: Final[dict[str, Callable[[str], object]]] = {
    "messages": lambda mark: {"role": "system", "content": mark},
    "tool_calls": lambda mark: {"name": mark},
    "spans": lambda mark: {"span_id": "", "name": mark},
}
"""What stands for items that were left out, where an item is an object; else the mark itself does."""

_encode: Final = Encoder().encode


def cut(record: dict[str, Any], *, max_field_bytes: int, max_trace_bytes: int) -> bytes:
    """Cut a record, which this changes, and give its JSON."""
    sizes = _sizes(record)
    rest = len(_encode(record)) - sum(sizes)  # what stands around the texts, and what escapes add to them
    room = common_length([min(size, max_field_bytes) for size in sizes], max_trace_bytes - rest)
    room = min(max(room, _MIN_TEXT_BYTES), max_field_bytes)
    change_texts(record, lambda text: cut_text(text, room))
    payload = _encode(record)
    for kept in _KEPT_ITEMS:
        if len(payload) <= max_trace_bytes:
            break
        payload = _encode(_thin(record, kept))
    return payload


def cut_text(text: str, max_bytes: int) -> str:
    """Cut a text to a number of bytes, its mark included where there is room for one."""
    if len(text) * 4 <= max_bytes:  # no character takes more than four
        return text
    encoded = text.encode()
    if len(encoded) <= max_bytes:
        return text
    room = max(max_bytes - len(_mark(len(text), "characters")), 0)
    tail_bytes = room // _TAIL_SHARE
    head = encoded[: room - tail_bytes].decode(errors="ignore")
    tail = encoded[len(encoded) - tail_bytes :].decode(errors="ignore")
    return f"{head}{_mark(len(text) - len(head) - len(tail), 'characters')}{tail}"


def common_length(sizes: Sequence[int], room: int) -> int:
    """Find the length to which the largest must be cut for all to fit; that of the largest where they do."""
    ordered = sorted(sizes)
    before = accumulate(ordered, initial=0)
    for index, (size, smaller) in enumerate(zip(ordered, before, strict=False)):
        share = (room - smaller) // (len(ordered) - index)
        if size > share:
            return max(share, 0)
    return ordered[-1] if ordered else 0


def replace_structures(record: dict[str, Any]) -> None:
    """Replace free JSON of very many values by a mark: walking it would cost more than it tells."""
    for field, metadata in METADATA.items():
        value = record.get(field)
        for item in value if isinstance(value, list) else ():
            if isinstance(item, dict):
                item.update({key: _replaced(inner) for key, inner in item.items() if key not in metadata})


def _replaced(value: Any) -> Any:
    if isinstance(value, list | dict) and _is_large(value):
        return _mark(len(_encode(value)), "bytes of JSON")
    return value


def _is_large(value: Any) -> bool:
    """Count values until there are too many."""
    waiting: list[Any] = [value]
    values = 0
    while waiting and values <= _MAX_VALUES:
        item = waiting.pop()
        if isinstance(item, list | dict):
            values += len(item)
            inside = item.values() if isinstance(item, dict) else item
            waiting.extend(inner for inner in inside if isinstance(inner, list | dict))
    return values > _MAX_VALUES


def _sizes(record: dict[str, Any]) -> list[int]:
    sizes: list[int] = []

    def measure(text: str) -> str:
        sizes.append(len(text.encode()))
        return text

    change_texts(record, measure)
    return sizes


def _mark(amount: int, unit: str) -> str:
    return f"[... {amount:,} {unit} cut]"


def _thin(record: dict[str, Any], kept: int) -> dict[str, Any]:
    """Leave only so many items of every list, and of every object in free JSON; copied, as a mark must be true."""
    return {field: _thin_field(field, value, kept) for field, value in record.items()}


def _thin_field(field: str, value: Any, kept: int) -> Any:
    if field == "tags":
        return _thin_json(value, kept)
    if field not in CONTENT_FIELDS or not isinstance(value, list):
        return value
    return [_thin_object(field, item, kept) for item in _thin_list(field, value, kept)]


def _thin_list(field: str, items: list[Any], kept: int) -> list[Any]:
    left_out = len(items) - kept
    if left_out <= 0:
        return items
    # Of a conversation the system message, which is the first, and what was said last.
    head = 1 if field == "messages" else kept
    mark = _mark(left_out, "items")
    stands = _MARK_ITEMS[field](mark) if field in _MARK_ITEMS else mark
    return [*items[:head], stands, *items[len(items) - kept + head :]]


def _thin_object(field: str, item: Any, kept: int) -> Any:
    if not isinstance(item, dict):
        return item
    metadata = METADATA.get(field, frozenset())
    return {key: value if key in metadata else _thin_json(value, kept) for key, value in item.items()}


def _thin_json(value: Any, kept: int) -> Any:
    if isinstance(value, list):
        return [_thin_json(item, kept) for item in _thin_list("", value, kept)]
    if not isinstance(value, dict):
        return value
    thin = {key: _thin_json(value[key], kept) for key in islice(value, kept)}
    return thin if len(thin) == len(value) else {**thin, _mark(len(value) - len(thin), "items"): ""}
