"""Encoding of items: conversion, defaults and ids, then redaction and truncation, then JSON."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from types import GeneratorType
from typing import Any, Final

from msgspec.json import Encoder
from msgspec.structs import asdict, astuple, replace

from tracejudge.content.convert import Note, Notes, UnreadableError, convert_feedback, convert_trace
from tracejudge.content.encode import ContentPolicy, copied, text_of
from tracejudge.content.field_names import field_of
from tracejudge.delivery.buffer import Entry, Item, Kind, Reason
from tracejudge.delivery.fork import NativeThread, Wakeup
from tracejudge.dialects.documents import documents_of
from tracejudge.dialects.values import SCALARS
from tracejudge.ids import MAX_ID_CHARS, fresh_id, place_of, trace_id_text
from tracejudge.log import RedactionError, class_name, report_internal_error
from tracejudge.model import Document, Feedback, LateFeedback, Message, Span, ToolCall, Trace, Usage
from tracejudge.settings import Settings

MAX_ENTRY_BYTES = 4 * 1024 * 1024  # The contract's `max_trace_bytes`: the worker accepts nothing larger.

_encoder = Encoder()
_SCALARS: Final = SCALARS | {id(str), id(bytes)}
_STRUCTS: Final = frozenset(map(id, (Message, Document, ToolCall, Span, Usage, Feedback)))
_ITERATORS: Final = frozenset(map(id, (GeneratorType, map, filter, zip)))
_MAX_READ: Final = 1_000
_LONGEST_S: Final = 0.5
_SHORTEST_S: Final = 0.05
_SLOW_S: Final = 2.0
_MAX_STUCK: Final = 4


def runs_no_code(fields: dict[str, Any]) -> bool:
    """Return whether the first thousand values within fields are all of built-in types, or of the wire's."""
    waiting: list[Any] = [fields]
    for value in islice(waiting, _MAX_READ):  # which grows meanwhile
        kind = type(value)
        inner = value
        if kind is dict:
            inner = value.values()
        elif id(kind) in _STRUCTS:
            inner = astuple(value)
        elif kind is not list and kind is not tuple:
            return False
        if not _SCALARS.issuperset(map(id, map(type, inner))):
            waiting += [item for item in inner if id(type(item)) not in _SCALARS]
    return len(waiting) <= _MAX_READ


def _with_items(item: Item) -> Item:
    # Nobody else can read an iterator later. As an input or output it may be the stream that the host reads.
    fields = dict(item.fields)
    for name, value in item.fields.items():
        if id(type(value)) in _ITERATORS and (type(name) is not str or field_of(name) not in {"input", "output"}):
            try:
                fields[name] = list(islice(value, _MAX_READ))
            except BaseException as error:  # noqa: BLE001 - the host's code; the field alone is lost, with a note
                report_internal_error(error)
    return replace(item, fields=fields)


class ItemEncoder:
    """Completes, redacts, truncates and encodes items under the settings of one client, in the sender thread."""

    def __init__(self, settings: Settings) -> None:
        self._content = ContentPolicy(settings)
        self._sends_content = settings.content
        self._is_cluster = settings.redis_url.is_cluster
        self._context_tools = settings.context_tools
        self._defaults = {"service": settings.service, "environment": settings.environment, "release": settings.release}
        self._stuck: list[NativeThread] = []
        self._slow_s = 0.0
        self.notes: Sequence[Note] = ()
        """The parts of the last item that could not be taken unchanged; without any text of it."""

    def encode(self, item: Item) -> Entry | Reason:
        """Encode an item as JSON, or return the reason for its drop. Never raises."""
        notes = Notes()
        if not item.size_bytes % 2 or runs_no_code(item.fields):
            outcome: Entry | Reason | None = self._encode(item, notes)
        else:
            outcome = self._run_code(lambda: self._encode(_with_items(item), notes))
        if outcome is None:
            notes, outcome = Notes(), Reason.INVALID  # the other notes belong to the thread that was left
            notes.add_cause("invalid", item.kind.name.lower(), "a value whose conversion does not end")
        self.notes = notes.entries
        return outcome

    def _run_code(self, task: Callable[[], Entry | Reason]) -> Entry | Reason | None:
        """Run a conversion in a separate thread; None if it, or too many before it, do not end."""
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        done, outcomes, began_s = Wakeup(), list[Entry | Reason](), time.monotonic()

        def run() -> None:
            outcomes.append(task())
            done.open()

        thread = NativeThread(run, name="tracejudge-values")
        if len(self._stuck) < _MAX_STUCK:
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads, or the interpreter ends
                return task()
            # After some slow values each has little time, as the traces behind it wait.
            if not done.wait(_LONGEST_S if self._slow_s < _SLOW_S else _SHORTEST_S):
                self._stuck.append(thread)
        spent_s = time.monotonic() - began_s
        self._slow_s = self._slow_s * 0.98 + (spent_s if spent_s > _SHORTEST_S / 2 else 0.0)
        return outcomes[0] if outcomes else None

    def _encode(self, item: Item, notes: Notes) -> Entry | Reason:
        subject = "trace" if item.kind is Kind.TRACE else "feedback"
        try:
            record = self._trace(item, notes) if item.kind is Kind.TRACE else convert_feedback(item.fields, notes)
            if record is None:
                report_internal_error(UnreadableError(notes.entries[-1].reason))
                return Reason.INVALID
            payload = _encoder.encode(self._prepared(record))
        except RedactionError as error:
            report_internal_error(error)
            notes.add_cause("redaction", subject, f"{class_name(type(error.__cause__ or error))} in redact")
            return Reason.REDACTION
        except BaseException as error:  # noqa: BLE001 - values of the host may fail in any way
            report_internal_error(error)
            notes.add_cause("invalid", subject, class_name(type(error)))
            return Reason.INVALID
        if len(payload) > MAX_ENTRY_BYTES:
            notes.add_cause("too_large", subject, f"{len(payload):,} bytes")
            return Reason.TOO_LARGE
        if not self._is_cluster:
            return Entry(item.kind, payload)
        # Late feedback names no session: a worker that does not find the trace in its partition asks the others.
        return Entry(item.kind, payload, place_of(record.trace_id, getattr(record, "session_id", None)))

    def _prepared(self, record: Trace | LateFeedback) -> Any:
        try:
            return self._content.prepare(record)
        except (TypeError, ValueError) as error:
            # Frequent shapes are not searched for what JSON cannot hold, such as half of a surrogate pair.
            if type(error) is not UnicodeEncodeError:
                report_internal_error(error)
            return self._content.prepare(type(record)(**copied(asdict(record))))

    def _trace(self, item: Item, notes: Notes) -> Trace | None:
        trace_id = item.fields.get("trace_id")
        if trace_id is not None and trace_id != "":
            if trace_id_text(trace_id) is None:
                notes.add("unreadable", "trace_id", type(trace_id))
            elif issubclass(type(trace_id), str) and len(trace_id) > MAX_ID_CHARS:
                notes.add("too_long", "trace_id", type(trace_id))
        fields = convert_trace(item.fields, notes, sends_content=self._sends_content)
        if not fields:
            return None
        fields["trace_id"] = item.trace_id
        fields["span_id"] = fields.get("span_id") or item.span_id or fresh_id()
        fields["id"] = fields.get("id") or fresh_id()
        for name, value in self._defaults.items():
            fields[name] = fields.get(name) or value
        if fields.get("started_at") is None and fields.get("ended_at") is None:
            fields["ended_at"] = item.published_at_s or None
        if self._context_tools and not fields.get("context"):
            fields["context"] = tool_context(fields, self._context_tools) or None
        return Trace(**fields)


def tool_context(fields: Mapping[str, Any], tools: Collection[str]) -> list[Document]:
    """Return the documents that the named tools returned, from the tool calls of a trace or else from its spans."""
    calls = _results(fields.get("tool_calls"), ToolCall, "result", tools)
    results = calls or _results(fields.get("spans"), Span, "outputs", tools)
    context: list[Document] = []
    for result in results:
        text = text_of(result)
        # A result that is no list of documents is one document.
        context += documents_of(result) or ([] if text.strip() in {"", "null", '""', "[]", "{}"} else [Document(text)])
    return context


def _results(items: Any, kind: type[ToolCall] | type[Span], key: str, tools: Collection[str]) -> list[object]:
    results: list[object] = []
    name: object
    for item in items or ():
        if isinstance(item, kind):
            name, result = item.name, getattr(item, key)
        elif isinstance(item, dict):
            name, result = item.get("name"), item.get(key)
        else:
            continue
        # The GenAI conventions write the operation before the name: `execute_tool search`.
        if isinstance(name, str) and name.removeprefix("execute_tool ") in tools and result is not None:
            results.append(result)
    return results
