"""Fields of a trace as services give them, of any type and under usual other names, converted to the wire format.

One converter for `publish`, `observe`, `trace` and `feedback`. Nothing is refused for its type: a value that cannot be
read is left out, and a note says so with the field and the type, never with a text.
"""

import difflib  # noqa: F401 - loaded here, while forks wait, for warnings in the sender thread
import hashlib  # noqa: F401 - the same, for `bounded`
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timezone
from itertools import islice
from typing import Any, Final, NamedTuple

from tracejudge.content.dialogue import (
    add_chats,
    answer_in,
    before_query,
    chats_in,
    is_wire_message,
    read_chats,
    unwrapped,
)
from tracejudge.content.encode import TypeMark, copied, error_text, is_a, is_lazy, key_text, record_of, text_form
from tracejudge.content.field_names import (
    INPUT_TOKENS,
    MAX_TAGS,
    OUTPUT_TOKENS,
    SYSTEM_PROMPTS,
    bound_names,
    field_of,
    rank,
    snake_case,
)
from tracejudge.content.truncate import TRACE_CHARACTERS
from tracejudge.dialects.documents import DocumentReader, listed
from tracejudge.dialects.messages import Chat
from tracejudge.dialects.provider_calls import CACHED_TOKENS
from tracejudge.dialects.values import CutMark, number_of, structure_of, tool_definitions
from tracejudge.ids import MAX_ID_CHARS, MAX_NAME_CHARS, bounded, fresh_id, plain_text, trace_id_text
from tracejudge.log import class_name, report_or_raise
from tracejudge.model import (
    TIMES,
    Document,
    Feedback,
    LateFeedback,
    Message,
    Span,
    Tool,
    ToolCall,
    Usage,
    is_wire_span,
    seconds_of,
    snake_case_keys,
)

_PAIR: Final = 2
_EMPTY: Final[tuple[Any, ...]] = ("", b"", [], (), {})
# Thoughts that a server left at the beginning of the answer's text.
_THOUGHTS: Final = re.compile(r"\A\s*<(think|thinking)>.*?</\1>\s*(?=\S)", re.DOTALL)
_COUNTS: Final = frozenset({"input_tokens", "output_tokens"})


class Note(NamedTuple):
    """One thing that could not be taken as it was given."""

    reason: str
    field: str
    kind: str = ""  # The name of the value's type.
    hint: str = ""  # The field that a second name means.
    times: int = 1


class Notes:
    """The notes on one entry."""

    def __init__(self) -> None:
        self.entries: list[Note] = []

    def add(self, reason: str, field: str, kind: type | None = None, hint: str = "", times: int = 1) -> None:
        """Add a note."""
        self.entries.append(Note(reason, field, "" if kind is None else class_name(kind), hint, times))

    def add_further(self, count: int) -> None:
        """Add a note on tags that are left out, if there are any, because there are too many."""
        if count > 0:
            self.add("too_many", "tags", dict, times=count)

    def add_cause(self, reason: str, field: str, cause: str) -> None:
        """Add a note on a whole entry that is dropped, with a cause that quotes nothing of it."""
        self.entries.append(Note(reason, field, cause))


class UnreadableError(ValueError):
    """A value has no form that its field can hold."""


def convert_trace(fields: Mapping[str, Any], notes: Notes, *, sends_content: bool = True) -> dict[str, Any]:
    """Return the fields of a trace that can be sent; empty if there is no content at all.

    ``fields`` may have any usual names, and values of any type. ``notes`` receive what could not be taken as it was;
    with ``sends_content`` values of unknown names are sent as tags. The trace id is the caller's task.
    """
    named = _Named(unwrapped(fields), notes)
    messages = named.fields.pop("messages", None)
    read = _read_fields(named.fields, notes)
    if named.counts and "usage" not in read and (usage := _guarded(_usage, "usage", named.counts, notes)):
        read["usage"] = usage
    _add_conversations(read, messages, notes)
    if text := _guarded(_text, "system", named.system, notes):
        read["messages"] = [Message("system", text), *read.get("messages", ())]
    if sends_content and named.tags:
        notes.add_further(len(named.tags) - MAX_TAGS)
        first = ((bounded(name, MAX_NAME_CHARS), value) for name, value in islice(named.tags.items(), MAX_TAGS))
        texts = {name: text for name, value in first if (text := _guarded(_text, name, value, notes))}
        if texts:
            read["tags"] = {**texts, **read.get("tags", {})}
    if "output" not in read and not read.keys() & CONTENT_FIELDS:
        notes.add("empty", "trace")
        return {}
    for name in ("tool_calls", "expected_tools"):
        if type(calls := named.fields.get(name)) is list and not calls:
            read.setdefault(name, [])  # No tool was called, or expected.
    if "output" not in read:
        if "error" not in read:
            notes.add("missing", "output")
        read["output"] = ""
    # Judges see what the user saw; an answer of thoughts alone stays.
    read["output"] = _THOUGHTS.sub("", read["output"], count=1)
    return read


def convert_field(name: str, value: Any) -> Any:
    """Return the value of one field as `convert_trace` returns it; None if it cannot be read."""
    return _guarded(_READERS[name], name, value, Notes())


def convert_feedback(fields: Mapping[str, Any], notes: Notes) -> LateFeedback | None:
    """Return late feedback; None without a trace id or a score."""
    trace_id = trace_id_text(fields.get("trace_id"))
    unread = Notes()
    score = _guarded(_feedback, "score", fields.get("score"), unread)
    if trace_id is None or score is None:
        name, rule = ("score", "a number from -1 to 1") if trace_id else ("trace_id", "a non-empty string")
        is_outside = trace_id is not None and number_of(fields.get("score")) is not None
        kind = "another number" if is_outside else class_name(type(fields.get(name)))
        notes.add_cause("invalid", f"feedback.{name}", f"{name} must be {rule}, not {kind}")
        return None
    comment = _guarded(_text, "feedback.comment", fields.get("comment"), notes)
    return LateFeedback(trace_id, score.score, score.comment if comment is None else comment)


def _read_fields(fields: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, value in fields.items():
        # Most values are texts of usual length, which need no reader.
        if type(value) is str and 0 < len(value) <= _ALWAYS_KEPT_CHARS.get(name, 0):
            read[name] = value
        elif (kept := _guarded(_READERS[name], name, value, notes)) is not None:
            read[name] = kept
    return read


def in_utc(value: Any) -> Any:
    """Return a time that another program wrote: without a zone it is UTC, as the zone of that program is unknown."""
    if type(value) is str:
        return f"{value.strip()}Z" if _TIME_WITHOUT_ZONE.fullmatch(value.strip()) else value
    return value.replace(tzinfo=timezone.utc) if is_a(value, datetime) and value.tzinfo is None else value


class _Named:
    """Values sorted by the field that their name means; None is left out."""

    def __init__(self, fields: Mapping[str, Any], notes: Notes) -> None:
        self._notes = notes
        self.fields: dict[str, Any] = {}
        self.tags: dict[str, Any] = {}
        self.counts: dict[str, Any] = {}  # Counts of tokens that were given beside the fields.
        self.system: Any = None
        unread = []
        fields, further = bound_names(fields)
        notes.add_further(further)
        for name, value in fields.items():
            if value is not None:
                if name in _READERS or name == "messages":
                    self.fields[name] = value
                elif type(value) is CutMark:
                    notes.add_further(value.names)
                else:
                    unread.append((name if type(name) is str else key_text(name), value))
        # After the fields by their own names, then in the order of the table: some languages sort the names they write.
        for name, value in sorted(unread, key=lambda item: rank(item[0])) if len(unread) > 1 else unread:
            self._add(name, value)

    def _add(self, name: str, value: Any) -> None:
        field, key = field_of(name), snake_case(name)
        if field == "trace_id":
            return
        if key in SYSTEM_PROMPTS:
            self.system = value
        elif key in INPUT_TOKENS or key in OUTPUT_TOKENS:
            self.counts[name] = value
        elif field is None:
            tag = name.removeprefix("tags.")
            if tag == name:
                self._notes.add("unknown_name", name, type(value))
            self.tags[tag] = value
        elif field not in self.fields:
            self.fields[field] = value
        elif field == "tags":
            self.tags |= (_tags(value, self._notes) if is_a(value, dict) else record_of(value)) or {name: value}
        elif not (is_a(value, str) and is_a(self.fields[field], str) and value == self.fields[field]):
            self._notes.add("second_name", name, type(value), field)
            self.tags[name] = value


def is_missing(value: Any) -> bool:
    """Return whether a value stands for none: tables have NaN, NA and NaT where there is no value."""
    if value is None or type(value) is str:
        return value is None
    return (is_a(value, float) and math.isnan(value)) or class_name(type(value)) in {"NAType", "NaTType"}


def _guarded(read: Callable[[Any, Notes], Any], name: str, value: Any, notes: Notes) -> Any:
    """Read a value; None, with a note, if it cannot be read or its code fails."""
    if value is None:
        return None
    try:
        return read(value, notes)
    except UnreadableError as error:
        notes.add("too_long" if error.args else "unreadable", name, type(value))
    except BaseException as error:  # noqa: BLE001 - values of the host may fail in any way
        report_or_raise(error)
        notes.add("unreadable", name, type(value))
    return None


def _copy(value: Any, name: str, notes: Notes) -> Any:
    """Copy a value as JSON values; None, with a note, if it has no content."""
    written = copied(value)
    if type(written) is not TypeMark:
        return written
    notes.add("unreadable", name, type(value))
    return None


# --- texts, names and times ------------------------------------------------------------------------------------------


def _text(value: Any, _: Notes) -> str:
    if type(value) is str:
        return value if len(value) <= TRACE_CHARACTERS else str(copied(value))
    text = str(value) if is_a(value, complex) else None if is_missing(value) else text_form(value)
    if text is None:
        raise UnreadableError
    return text


def _name_reader(name: str, max_chars: int) -> Callable[[Any, Notes], str | None]:
    def read(value: Any, notes: Notes) -> str | None:
        text = plain_text(value) if is_a(value, str) else _text(_identity(value, name), notes)
        if len(text) > max_chars:
            notes.add("too_long", name, type(value))
            text = bounded(text, max_chars)
        return text or None

    return read


def _identity(value: Any, field: str) -> Any:
    """Return the id or name of an object: its other parts may be texts, and ids are neither redacted nor left out."""
    written = copied(value)
    if isinstance(written, list) and not any(isinstance(part, list | dict) for part in written):
        return value
    if not isinstance(written, list | dict) and type(written) is not TypeMark:
        return value
    record = record_of(value) or {}
    name = next(
        (record[key] for key in (field, "id", "_id", "uuid", "name") if type(record.get(key)) in (str, int)), None
    )
    if name is None:
        raise UnreadableError
    return name


def _span_id(value: Any, notes: Notes) -> str | None:
    # OpenTelemetry has span ids as numbers.
    is_number = is_a(value, int) and type(value) is not bool
    return f"{value:016x}" if is_number else _read_id(value, notes)


_read_id: Final = _name_reader("span_id", MAX_ID_CHARS)


def _error(value: Any, _: Notes) -> str | None:
    if is_a(value, BaseException):
        return error_text(value)
    if type(value) is bool:
        return "error" if value else None
    # A call that failed is not judged by its empty answer, whatever the error is.
    if (text := text_form(value)) is not None:
        return text or None
    return class_name(value if is_a(value, type) else type(value))


_ISO: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?\s?([Zz]|[+-]\d\d(?::?\d\d)?)?)?"
)

_TIME_WITHOUT_ZONE: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d[^Zz+-]*")


def _time(value: Any, _: Notes) -> float | int | None:
    if type(value) not in (int, float):
        if is_a(value, datetime):
            value = value.timestamp()  # a time without a zone is local
        elif type(value).__name__ == "datetime64":  # of numpy, in UTC
            value = _iso_time(f"{value}Z")
        elif is_a(value, date):
            value = datetime.combine(value, time()).timestamp()
        elif not is_a(value, str) or number_of(value) is not None:
            value = number_of(value)
        elif not (value := value.strip()):
            return None
        else:
            value = _iso_time(value)
    if value is None or (seconds := seconds_of(value)) is None:
        raise UnreadableError
    return seconds


def _iso_time(text: str) -> float | None:
    """Read a time in ISO 8601, in more forms than `fromisoformat` of Python 3.10 knows."""
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    zone = "+00:00" if zone in ("Z", "z") else zone or ""
    if zone and ":" not in zone:
        zone = f"{zone[:3]}:{zone[3:] or '00'}"
    fraction = "" if fraction is None else f".{fraction:0<6.6}"
    clock = clock or "00:00"
    seconds = ":00" if clock.count(":") == 1 else ""
    # A leap second, which Python does not know, is the next second.
    is_leap = clock.endswith(":60")
    clock = f"{clock[:-2]}59" if is_leap else clock
    try:
        return datetime.fromisoformat(f"{day}T{clock}{seconds}{fraction}{zone}").timestamp() + is_leap
    except ValueError:  # a month or an hour that does not exist
        return None


# --- numbers ---------------------------------------------------------------------------------------------------------


def _usage(value: Any, notes: Notes) -> Usage | None:
    if type(value) is dict and value.keys() == _COUNTS and all(type(n) is int and n >= 0 for n in value.values()):
        return Usage(**value)
    if type(value) in (tuple, list) and len(value) == _PAIR:
        value = dict(zip(("input_tokens", "output_tokens"), value, strict=True))
    record = record_of(structure_of(value))
    if record is None:
        raise UnreadableError
    record = {snake_case(name): count for name, count in record.items()}
    counts: list[int | None] = []
    unread = []
    for field, names in (("input_tokens", INPUT_TOKENS), ("output_tokens", OUTPUT_TOKENS)):
        count = next((record[name] for name in names if record.get(name) is not None), None)
        number = number_of(count)
        counts.append(None if number is None or number < 0 else int(number))
        if count is not None and counts[-1] is None:
            unread.append((f"usage.{field}", type(count)))
    if counts == [None, None]:
        if unread:
            raise UnreadableError
        return None
    for field, kind in unread:
        notes.add("unreadable", field, kind)
    cached = sum(int(number) for key in CACHED_TOKENS if (number := number_of(record.get(key)) or 0) > 0)
    return Usage((counts[0] or 0) + cached, counts[1] or 0)


def _feedback(value: Any, notes: Notes) -> Feedback:
    comment = None
    if type(value) is bool:
        value = 1 if value else -1
    elif (number_of(value)) is None and (record := record_of(structure_of(value))) is not None:
        record = {snake_case(name): item for name, item in record.items()}
        value = next((record[name] for name in ("score", "value", "rating") if record.get(name) is not None), None)
        words = next((record[name] for name in ("comment", "text", "reason") if record.get(name) is not None), None)
        comment = None if words is None else _text(words, notes)
        if type(value) is bool:
            value = 1 if value else -1
    score = number_of(value)
    if score is None or not -1 <= score <= 1:
        raise UnreadableError
    return Feedback(value if type(value) in (int, float) else score, comment)


# --- lists -----------------------------------------------------------------------------------------------------------


def _context(value: Any, notes: Notes) -> list[Document | str] | None:
    if type(value) is list and all(type(item) is str and item for item in value):
        return value  # an empty list tells that nothing was found
    if type(value) is list:
        value = [
            {"id": item["doc_uri"], **item} if type(item) is dict and "doc_uri" in item else item for item in value
        ]
    reader = DocumentReader(reads_rows=True)
    reader.read(value)
    for kind in reader.without_text:
        notes.add("no_text", "context", kind)
    return reader.documents or None


def _list_reader(field: str) -> Callable[[Any, Notes], list[str] | None]:
    def read(value: Any, notes: Notes) -> list[str] | None:
        if type(value) is list and all(type(item) is str for item in value):
            return value or None
        items = _items(value)
        texts = []
        for item in [value] if items is None else items:
            text = item.get("text") if is_a(item, dict) else None
            if item is not None and (text := text if is_a(text, str) else text_form(item)) is not None:
                texts.append(text)
            elif item is not None:
                notes.add("unreadable", field, type(item))
        return texts or None

    return read


def _items(value: Any) -> Iterable[Any] | None:
    if callable(getattr(type(value), "tolist", None)):
        value = value.tolist()
    return listed(value)


def _tool_calls(value: Any, notes: Notes) -> list[ToolCall] | None:
    items = _items(structure_of(value))
    calls = [call for item in ([value] if items is None else items) if (call := _tool_call(item, notes)) is not None]
    if not calls and not (items is not None and value in _EMPTY):
        raise UnreadableError
    return calls or None


_CALL_NAMES: Final = ("name", "tool_name", "tool", "function", "function_name")
_ARGUMENTS: Final = (
    *("arguments", "args", "input", "parameters", "params", "tool_input", "tool_kwargs", "kwargs", "raw_input"),
)
_RESULTS: Final = ("result", "output", "response", "observation", "tool_output", "raw_output", "content")


def _tool_call(item: Any, notes: Notes) -> ToolCall | None:
    observed = None
    if is_a(item, tuple) and item and is_a(item[0], str):  # name, arguments, result
        arguments, observed = [*item[1:3], None, None][:2]
        arguments = structure_of(_copy(arguments, "tool_calls.arguments", notes))
        return ToolCall(_text(item[0], notes), arguments, _copy(observed, "tool_calls.result", notes))
    if is_a(item, tuple) and len(item) == _PAIR:  # an action of LangChain's agents and what was observed
        item, observed = item
    if is_a(item, str):
        return ToolCall(_text(item, notes))
    error = item.get("error") if is_a(item, dict) else getattr(item, "error", None)
    record = record_of(item)
    if record is None:
        return None
    record = {**snake_case_keys(record)}
    nested = (record.get(key) for key in ("tool_call", "function_call"))
    outer: dict[str, Any] = next((call for call in nested if isinstance(call, dict)), record)
    inner: Any = outer.get("function")
    call: dict[str, Any] = inner if isinstance(inner, dict) else outer
    name = next((text for key in _CALL_NAMES if isinstance(text := call.get(key), str) and text), None)
    if name is None:
        return None
    arguments = next((call[key] for key in _ARGUMENTS if call.get(key) is not None), None)
    result = next((record[key] for key in _RESULTS if record.get(key) is not None), None)
    return ToolCall(
        name,
        arguments=structure_of(arguments),
        result=_copy(observed, "tool_calls.result", notes) if result is None else result,
        error=None if error is None else _error(error, notes),
    )


def _tools(value: Any, notes: Notes) -> list[Tool] | None:
    tools = tool_definitions(_copy(value, "tools", notes))
    if not tools and not (_items(value) is not None and value in _EMPTY):
        raise UnreadableError
    return tools or None


_SPAN_NAMES: Final = {
    "id": "span_id",
    "parent": "parent_id",
    "parent_span_id": "parent_id",
    "type": "kind",
    "span_kind": "kind",
    "input": "inputs",
    "output": "outputs",
    "start_time": "started_at",
    "end_time": "ended_at",
    "metadata": "attributes",
    "status_code": "status",
}


def _spans(value: Any, notes: Notes) -> list[Span] | None:
    items = _items(value)
    spans = [span for item in ([value] if items is None else items) if (span := _span(item, notes)) is not None]
    if not spans and not (items is not None and value in _EMPTY):
        raise UnreadableError
    return spans or None


def _span(item: Any, notes: Notes) -> Span | None:
    if type(item) is Span and is_wire_span(item, MAX_ID_CHARS):
        return item
    record = dict(item) if is_a(item, dict) else None
    if is_a(item, Span):
        record = {name: getattr(item, name) for name in Span.__struct_fields__}
    elif record is None and (record := record_of(item)) is None:
        notes.add("unreadable", "spans", type(item))
        return None
    fields: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    for key, inner in record.items():
        name = snake_case(key_text(key))
        name = _SPAN_NAMES.get(name, name)
        holder = fields if name in Span.__struct_fields__ and name not in fields else unknown
        if inner is not None:
            holder[name] = inner
    for name in TIMES:
        fields[name] = _guarded(_time, f"spans.{name}", fields.get(name), notes)
    for name in ("name", "kind", "status"):
        fields[name] = _guarded(_text, f"spans.{name}", fields.get(name), notes)
    for name in ("span_id", "parent_id"):
        fields[name] = _guarded(_span_id, f"spans.{name}", fields.get(name), notes)
    for name in ("inputs", "outputs"):
        fields[name] = _copy(fields.get(name), f"spans.{name}", notes)
    attributes = _copy({**unknown, **(record_of(fields.get("attributes")) or {})}, "spans.attributes", notes)
    fields |= {"attributes": attributes or None, "span_id": fields["span_id"] or fresh_id()}
    return Span(**{**fields, "name": fields["name"] or "span"})


def _tags(value: Any, notes: Notes) -> dict[str, str] | None:
    value = structure_of(value) if type(value) is str else value
    record = value if is_a(value, dict) else record_of(value)
    if record is None:
        items = [value] if is_a(value, str) else _items(value)
        if items is None:
            raise UnreadableError
        record = dict(_tag(item) for item in items)
    tags = {}
    notes.add_further(len(record) - MAX_TAGS)
    for key, item in islice(record.items(), MAX_TAGS):
        if type(item) is CutMark:
            notes.add_further(item.names)
        elif (text := None if is_missing(item) else text_form(item)) is not None:
            tags[bounded(key_text(key), MAX_NAME_CHARS)] = text
        elif not is_missing(item):
            notes.add("unreadable", "tags", type(item))
    return tags or None


def _tag(item: Any) -> tuple[Any, Any]:
    """Read an item of a list of tags: a pair, `name:value`, or a name."""
    if is_a(item, tuple) and len(item) == _PAIR:
        return item[0], item[1]
    text = text_form(item) or ""
    name, colon, value = text.partition(":")
    return (name, value) if colon and name else (text, "true")


# --- conversations ---------------------------------------------------------------------------------------------------


def _input(value: Any, notes: Notes) -> str | list[Chat]:
    if type(value) is str:
        return _text(value, notes)
    return chats_in(copied(value)) or _parts_text(value) or _text(value, notes)


def _output(value: Any, notes: Notes) -> str | dict[str, Any]:
    """Read an answer: any value as text; of what a model library returned the fields that it fills."""
    if type(value) is str:
        return _text(value, notes)
    if is_lazy(type(value)):
        raise UnreadableError
    answer = answer_in(copied(value))
    return _parts_text(value) or _text(value, notes) if answer is None else answer


def _parts_text(value: Any) -> str | None:
    """Return the text of a list that holds nothing but texts; None for anything else."""
    is_parts = (is_a(value, list) or is_a(value, tuple)) and all(is_a(part, str) for part in value)
    return "\n".join(copied(value)) if is_parts and value else None


def _messages(value: Any, notes: Notes) -> list[Chat]:
    chats, unread = read_chats(value)
    for kind in unread:
        notes.add("unreadable", "messages", kind)
    return chats


def _add_conversations(read: dict[str, Any], messages: Any, notes: Notes) -> None:
    """Add the messages; query and answer come from the end of a conversation if they are not given."""
    if isinstance(answer := read.get("output"), dict):
        del read["output"]
        for name, value in {"output": "", **answer}.items():
            if value is not None:
                read.setdefault(name, value)
    if isinstance(chats := read.get("input"), list):
        del read["input"]
        add_chats(read, chats, keeps_history=messages is None)
        # Without a message of a user, all of them are the prompt.
        read.setdefault("input", "\n".join(chat.text for chat in chats if chat.text))
    if type(messages) is list and read.get("input") and read.get("output") and all(map(is_wire_message, messages)):
        if messages := before_query(messages, read["input"], read["output"]):
            read["messages"] = messages
    elif messages is not None and (conversation := _guarded(_messages, "messages", messages, notes)):
        query = read.get("input")
        add_chats(read, conversation, keeps_history=True)
        history = read.pop("messages", [])
        if query is not None:
            history = before_query(history, query, read.get("output", ""))
        if history:
            read["messages"] = history


CONTENT_FIELDS: Final = frozenset(
    {"input", "output", "messages", "context", "expected_response", "expected_facts", "guidelines", "tool_calls"}
    | {"tools", "expected_tools", "spans", "error", "feedback", "tags"}
)
_NAME_FIELDS: Final = (
    *("service", "environment", "release", "name", "session_id", "user_id", "response_id", "provider", "model"),
)
_ALWAYS_KEPT_CHARS: Final = {
    **dict.fromkeys(("input", "output", "expected_response", "error"), TRACE_CHARACTERS),
    **dict.fromkeys(_NAME_FIELDS, MAX_NAME_CHARS),
    **dict.fromkeys(("id", "span_id"), MAX_ID_CHARS),
}
_READERS: Final[dict[str, Callable[[Any, Notes], Any]]] = {
    "input": _input,
    "output": _output,
    "expected_response": _text,
    "error": _error,
    "context": _context,
    **{name: _list_reader(name) for name in ("expected_facts", "guidelines")},
    **dict.fromkeys(("tool_calls", "expected_tools"), _tool_calls),
    "tools": _tools,
    "spans": _spans,
    "usage": _usage,
    "feedback": _feedback,
    "tags": _tags,
    "span_id": _span_id,
    **dict.fromkeys(TIMES, _time),
    "id": _name_reader("id", MAX_ID_CHARS),
    **{name: _name_reader(name, MAX_NAME_CHARS) for name in _NAME_FIELDS},
}
