"""Truncate long texts: each to the cap of a field, then all of a trace to the cap of the trace.

A truncated text keeps its beginning and, in the last quarter of its room, its end, where questions, conclusions and
the causes of errors are found. A mark between them says how much is missing. Sizes are in bytes of UTF-8; a character
is never split.

In a trace that is still too large the largest texts are truncated to one common length, the greatest with which it
fits. Only if even short texts are too many, lists are shortened: conversations keep their first and latest messages,
everything else its first items. Free JSON (results, inputs, attributes) of very many values is replaced by a mark
before.

Not guaranteed: the cap of the trace if its metadata, which is never truncated, is itself too large.
"""

import re
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from typing import Any, Final

from msgspec.json import Encoder

from tracejudge.dialects.values import media_mark, truncation_mark

TextChange = Callable[[str], str]
PairChange = Callable[[str, str], str]
CONTENT_FIELDS: Final = (
    *("input", "output", "messages", "context", "expected_response", "expected_facts", "guidelines", "tool_calls"),
    *("tools", "expected_tools", "spans", "error", "feedback", "tags", "comment"),
)
"""Fields of traces and late feedback that may hold content; all others are metadata."""
METADATA: Final = {
    "messages": frozenset({"role"}),
    "context": frozenset({"id", "score"}),
    **dict.fromkeys(("tool_calls", "tools", "expected_tools"), frozenset({"name"})),
    "spans": frozenset({"span_id", "parent_id", "name", "kind", "started_at", "ended_at"}),
    "feedback": frozenset({"score"}),
}
"""Metadata keys of the objects in a field; their other keys are content."""
_MAX_DEPTH: Final = 64


def map_texts(record: dict[str, Any], change: TextChange, change_pair: PairChange | None = None) -> None:
    """Replace every text that may be content by the result of ``change``, in place.

    Keys of free JSON (arguments, results, inputs, outputs, attributes) are texts as well. ``change_pair`` changes a
    text under a key, if the key matters.
    """
    walk = _TextWalk(change, change_pair or (lambda _, text: change(text)))
    for field in CONTENT_FIELDS:
        if field in record:
            record[field] = walk.field(field, record[field])


class _TextWalk:
    def __init__(self, change: TextChange, change_pair: PairChange) -> None:
        self._change = change
        self._change_pair = change_pair

    def field(self, name: str, value: Any) -> Any:
        # Keys of the objects in a field are names, not texts.
        kept = METADATA.get(name)
        if name == "tags" and isinstance(value, dict):
            return self._object(value, frozenset())
        if kept is None:
            return self.json(value, 0)
        if isinstance(value, list):
            return [self._object(item, kept) if isinstance(item, dict) else self.json(item, 0) for item in value]
        return self._object(value, kept) if isinstance(value, dict) else self.json(value, 0)

    def json(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._change(value)
        if not isinstance(value, list | dict):
            return value
        if depth == _MAX_DEPTH:
            return "[... nested too deep, cut]"  # a deeper text must not pass unchanged
        if isinstance(value, list):
            return [self.json(item, depth + 1) for item in value]
        changed: dict[str, Any] = {}
        for key, inner in value.items():
            name = self._change(key)
            if name in changed:  # two keys have the same replacement: neither value may be lost
                name = f"{name} {len(changed) + 1}"
            changed[name] = self._entry(key, inner, depth + 1)
        return changed

    def _object(self, fields: dict[str, Any], kept: frozenset[str]) -> dict[str, Any]:
        # A metadata key that holds a container is not the metadata it seems.
        return {
            key: value if key in kept and not isinstance(value, list | dict) else self._entry(key, value, 0)
            for key, value in fields.items()
        }

    def _entry(self, key: str, value: Any, depth: int) -> Any:
        return self._change_pair(key, value) if isinstance(value, str) else self.json(value, depth)


_MAX_VALUES: Final = 10_000
# Items that carry the mark if a list holds objects; elsewhere the mark itself is the item.
_MARK_ITEMS: Final[dict[str, Callable[[str], object]]] = {
    "messages": lambda mark: {"role": "system", "content": mark},
    **dict.fromkeys(("tool_calls", "tools", "expected_tools"), lambda mark: {"name": mark}),
    "spans": lambda mark: {"span_id": "", "name": mark},
}
_encode: Final = Encoder().encode


def truncate_record(record: dict[str, Any], *, max_field_bytes: int, max_trace_bytes: int) -> bytes:
    """Truncate a record, in place, and return its JSON."""
    sizes: list[int] = []

    def measure(text: str) -> str:
        sizes.append(len(text.encode()))
        return text

    map_texts(record, measure)
    rest = len(_encode(record)) - sum(sizes)  # everything around the texts, and what escapes add to them
    room = common_length([min(size, max_field_bytes) for size in sizes], max_trace_bytes - rest)
    # A shorter rest of a text would be of no use.
    room = min(max(room, 200), max_field_bytes)
    map_texts(record, lambda text: truncate_text(text, room))
    payload = _encode(record)
    for kept in (1_000, 250, 60, 15, 4, 1):
        if len(payload) <= max_trace_bytes:
            break
        payload = _encode({field: _shorten_field(field, value, kept) for field, value in record.items()})
    return payload


def truncate_text(text: str, max_bytes: int) -> str:
    """Truncate a text to a number of bytes, including the mark if it fits."""
    if len(text) * 4 <= max_bytes:  # no character takes more than four
        return text
    encoded = text.encode()
    if len(encoded) <= max_bytes:
        return text
    room = max(max_bytes - len(truncation_mark(len(text), "characters")), 0)
    tail_bytes = room // 4
    head = encoded[: room - tail_bytes].decode(errors="ignore")
    tail = encoded[len(encoded) - tail_bytes :].decode(errors="ignore")
    mark = truncation_mark(len(text) - len(head) - len(tail), "characters")
    return f"{head}{mark}{tail}"


def common_length(sizes: Sequence[int], room: int) -> int:
    """Return the length to which the largest must be truncated for all to fit; the largest size if they do."""
    ordered = sorted(sizes)
    before = accumulate(ordered, initial=0)
    for index, (size, smaller) in enumerate(zip(ordered, before, strict=False)):
        share = (room - smaller) // (len(ordered) - index)
        if size > share:
            return max(share, 0)
    return ordered[-1] if ordered else 0


def replace_large_structures(record: dict[str, Any]) -> None:
    """Replace free JSON of very many values by a mark: walking it would cost more than it is worth."""
    for field, metadata in METADATA.items():
        value = record.get(field)
        for item in value if isinstance(value, list) else ():
            if isinstance(item, dict):
                for key, inner in item.items():
                    if key not in metadata and isinstance(inner, list | dict) and _is_large(inner):
                        item[key] = truncation_mark(len(_encode(inner)), "bytes of JSON")


def _is_large(value: Any) -> bool:
    waiting: list[Any] = [value]
    values = 0
    while waiting and values <= _MAX_VALUES:
        item = waiting.pop()
        if isinstance(item, list | dict):
            values += len(item)
            inside = item.values() if isinstance(item, dict) else item
            waiting.extend(inner for inner in inside if isinstance(inner, list | dict))
    return values > _MAX_VALUES


# The three functions below copy instead of changing in place: a later, shorter list must count from the whole one.
def _shorten_field(field: str, value: Any, kept: int) -> Any:
    if field == "tags":
        return _shorten_json(value, kept)
    if field not in CONTENT_FIELDS or not isinstance(value, list):
        return value
    metadata = METADATA.get(field, frozenset())
    return [
        {key: inner if key in metadata else _shorten_json(inner, kept) for key, inner in item.items()}
        if isinstance(item, dict)
        else item
        for item in _shorten_list(field, value, kept)
    ]


def _shorten_list(field: str, items: list[Any], kept: int) -> list[Any]:
    left_out = len(items) - kept
    if left_out <= 0:
        return items
    # A conversation keeps its first message, the system's, and the latest.
    head = 1 if field == "messages" else kept
    mark = truncation_mark(left_out, "items")
    stands = _MARK_ITEMS[field](mark) if field in _MARK_ITEMS else mark
    return [*items[:head], stands, *items[len(items) - kept + head :]]


def _shorten_json(value: Any, kept: int) -> Any:
    if isinstance(value, list):
        return [_shorten_json(item, kept) for item in _shorten_list("", value, kept)]
    if not isinstance(value, dict):
        return value
    shorter = {key: _shorten_json(value[key], kept) for key in islice(value, kept)}
    left_out = len(value) - len(shorter)
    return {**shorter, truncation_mark(left_out, "items"): ""} if left_out else shorter


VALUE_CHARACTERS = 96 * 1024  # Most characters kept of one value: an input, an output, all pieces of a stream.
SPANS_CHARACTERS = 1024 * 1024  # Most characters kept of all spans of one trace together.
TRACE_CHARACTERS = 4 * 1024 * 1024
"""Most characters read of one value before its trace is truncated; as many bytes as an entry of the stream may hold."""


class Budget:
    """Characters that may still be kept of one value, and of all values that share the budget `whole`."""

    # No lock, which would cost each value too much: threads that share a budget may overdraw it a little.
    __slots__ = ("_whole", "left")

    def __init__(self, characters: int = VALUE_CHARACTERS, whole: "Budget | None" = None) -> None:
        self.left = characters
        self._whole = whole

    @property
    def full(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0 or (self._whole is not None and self._whole.full)

    def take(self, count: int) -> int:
        """Use up to `count` characters and return how many were left."""
        taken = max(0, min(count, self.left))
        if self._whole is not None:
            taken = self._whole.take(taken)
        self.left -= taken
        return taken


_MIN_RUN_CHARS: Final = 1_000
_STRIDE: Final = 31  # prime: repeated lines seldom have a word at each of these places
_BASE64: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-"
_RUN_BYTES: Final = bytes(ord("a") if chr(byte) in f"{_BASE64}%\\\r\n" else ord(" ") for byte in range(256))
_SAMPLED_RUN: Final = b"a" * (_MIN_RUN_CHARS // _STRIDE - 1)
# What stands between lines interrupts that run. Four capitals in a row are rare in other samples.
_CAPITALS: Final = bytes(ord("A") if chr(byte) in _BASE64[:26] else ord(" ") for byte in range(256))
# Lines of base64 are long, where those of a list of words are short. They may be indented, quoted, or joined by blanks;
# a short rest behind a gap may be a word unless it is padded. Some languages write a slash as `\/`, URLs as `%2F`.
_CHAR: Final = r"[A-Za-z0-9+/_\\-]"
_LINE: Final = rf"{_CHAR}*(?:%2[BbFf]{_CHAR}*)*"
_START: Final = r"(?=(?:[A-Za-z0-9+/_-]|\\/|%2[BbFf]){60})"
_GAP: Final = r"""[\s>|"'#*]{1,80}"""
_RUN: Final = re.compile(
    rf"(?:(?i:data):([\w.+/\\-]*)(?:;[\w.+=-]+)*;(?i:base64),|(?<![A-Za-z0-9+/_\\%-])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{{2}}))"
    rf"{_START}({_LINE}(?:{_GAP}{_START}{_LINE})*(?:{_GAP}(?:{_CHAR}{{20,}}|{_CHAR}+(?==|%3[Dd])))?)(?:=|%3[Dd]){{0,2}}"
)
_BREAKS: Final = re.compile(rf"{_GAP}|\\[rn]|\\")
MEDIA_FORMS: Final = re.compile(
    rb"(?P<image>\x89PNG|\xff\xd8\xff|GIF8|RIFF....WEBP|....ftyp(?:avif|heic|mif1)|II\*\0|MM\0\*|BM.{4}\0\0|<svg)"
    rb"|(?P<audio>ID3|OggS|fLaC|RIFF....WAVE|....ftypM4A|\xff[\xf1-\xfb])"
    rb"|(?P<video>....ftyp|\x1aE\xdf\xa3|RIFF....AVI )|(?P<file>%PDF|PK\x03\x04)",
    re.DOTALL,
)
"""The first bytes of binary content by its kind."""
_MEDIA: Final = re.compile(r"(?i)image|audio|video")
_LEAST_DISTINCT: Final = 40  # of 64 characters; other long words, as of genes or digits, are made of few


def may_hold_media(encoded: bytes) -> bool:
    """Return whether a text in UTF-8 may hold a long run of base64, from a sample of its bytes."""
    sample = encoded[::_STRIDE]
    has_capitals = len(encoded) > 4 * _MIN_RUN_CHARS and b"AAAA" in sample.translate(_CAPITALS)
    return (has_capitals or _SAMPLED_RUN in sample.translate(_RUN_BYTES)) and _has_long_line(encoded)


def _has_long_line(encoded: bytes) -> bool:
    """Return whether a text has what may be a line of base64: no long name, rule of dashes or list of escapes."""
    runs, end = encoded.translate(_RUN_BYTES) + b" ", 0
    while (start := runs.find(b"a" * 60, end)) >= 0:
        end = runs.find(b" ", start)
        if (line := encoded[start:end]) != line.lower() and len(set(line[:1_024])) > _LEAST_DISTINCT // 2:
            return True
    return False


def without_media(record: dict[str, Any]) -> dict[str, Any]:
    """Replace the runs of base64 in all texts of a record by marks, in place."""
    map_texts(record, mark_media, lambda key, text: mark_media(text, key))
    return record


def mark_media(text: str, key: str = "") -> str:
    """Replace every long run of base64 by a mark of its kind, which the key may name, and size: `[image 165 kB]`."""
    may_hold_run = len(text) >= _MIN_RUN_CHARS and _has_long_line(text.encode(errors="replace"))
    return _RUN.sub(lambda run: _run_mark(run, key), text) if may_hold_run else text


def content_mark(head: bytes, size_bytes: int, mime: str = "", before: str = "") -> str:
    """Return the mark of binary content by its MIME type, its first bytes, or the words before it."""
    form = MEDIA_FORMS.match(head)
    kinds = _MEDIA.findall(mime), [str(form.lastgroup)] if form else [], _MEDIA.findall(before)[::-1], ["file"]
    return media_mark(next(names[0] for names in kinds if names).lower(), size_bytes)


def _run_mark(run: re.Match[str], key: str) -> str:
    body = re.sub("%2[Bb]", "+", re.sub("%2[Ff]", "/", _BREAKS.sub("", run[2])))
    if len(body) < _MIN_RUN_CHARS:
        return run[0]
    head, start = a2b_base64(body[:16].replace("-", "+").replace("_", "/")), body[:1_024]
    is_typical = len(set(start)) >= _LEAST_DISTINCT and sum(map(str.isdigit, start)) * 20 >= len(start)
    if run[1] is None and not is_typical and MEDIA_FORMS.match(head) is None:
        return run[0]
    # The words before it may name the kind.
    before = f"{key} {run.string[max(0, run.start() - 48) : run.start()]}"
    return content_mark(head, len(body) * 3 // 4, run[1] or "", before)
