"""Entries of services in any language: other names, other types and odd JSON are read; what is left out is named."""

import base64
import json
from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
from structlog.testing import capture_logs
from support.cases import each_case
from support.stage_parts import IngestHarness, Keyspace

from tracejudge import Document, Feedback, LateFeedback, Message, ToolCall, Usage
from tracejudge.content.field_names import OTHER_NAMES
from worker.base.input.feature import InputKeys
from worker.base.input.unusable import MAX_INVALID, UnusableInput, read_invalid, read_left_out
from worker.core.config.settings import Rule
from worker.core.selection.stream_entry import FeedbackEntry, InvalidEntry, TraceEntry, read_entry, trace_id_of

NEEDED = {"trace_id": "t1", "service": "shop", "output": "It is."}
BARE = {"trace_id": "t1", "service": "shop"}
ALL = Rule(name="all", judges=("safety",))
BASE64 = base64.b64encode(Random(7).randbytes(3_000)).decode()


def encoded(record: object) -> bytes:
    return record if isinstance(record, bytes) else json.dumps(record).encode()


def read(record: object, kind: bytes = b"t") -> Any:
    return read_entry((b"1700000000000-0", {b"v": b"1", kind: encoded(record)}), 4 * 1024 * 1024)


# name: what a service writes, the fields that it must become (None: absent), and what is left out.
READ: dict[str, tuple[object, dict[str, Any], tuple[tuple[str, str], ...]]] = {
    "camelCase": (
        {"traceId": "t1", "serviceName": "shop", "output": "So.", "sessionId": "s", "startedAt": 1_700_000_000},
        {"trace_id": "t1", "service": "shop", "session_id": "s", "started_at": 1_700_000_000.0},
        (),
    ),
    "kebab-case": ({"trace-id": "t1", "service": "shop", "user-id": 7, "output": ""}, {"user_id": "7"}, ()),
    "content and documents": (
        {**BARE, "content": "So.", "documents": ["a", {"page_content": "b", "metadata": {"source": "x"}}]},
        {"output": "So.", "context": ["a", Document("b", source="x")]},
        (),
    ),
    "names with dots and capital letters": (
        {"Trace.Id": "t1", "service.name": "shop", "Output": "So.", "user.id": {"id": 5, "email": "x"}},
        {"trace_id": "t1", "service": "shop", "output": "So.", "user_id": "5"},
        (),
    ),
    "capital letters within": (
        {
            **NEEDED,
            "input": "Why?",
            "Messages": [{"Role": "user", "Content": "Hi"}],
            "Context": [{"pageContent": "b", "Metadata": {"Source": "x"}}],
            "ToolCalls": [{"Name": "f", "Arguments": {"a": 1}}],
        },
        {
            "messages": [Message("user", "Hi")],
            "context": [Document("b", source="x")],
            "tool_calls": [ToolCall("f", {"a": 1})],
        },
        (),
    ),
    "names in the order of the alphabet": (
        {**BARE, "answer": "So.", "prompt": "Be. Why?", "question": "Why?"},
        {"input": "Why?", "tags": {"prompt": "Be. Why?"}},
        (),
    ),
    "a message of other names": (
        {**NEEDED, "messages": [{"content": "Hi.", "role": "system"}, {"utterance": "x"}]},
        {"messages": [Message("system", "Hi.")]},
        (("messages", "object"),),
    ),
    "null as a document": ({**NEEDED, "context": ["a", None]}, {"context": [Document("a")]}, (("context", "null"),)),
    "a byte order mark": (b"\xef\xbb\xbf" + encoded(NEEDED), {"output": "It is."}, ()),
    "question and answer": ({**BARE, "question": "Why?", "answer": "So."}, {"input": "Why?", "output": "So."}, ()),
    "the own name first": ({**NEEDED, "answer": "No."}, {"output": "It is.", "tags": {"answer": "No."}}, ()),
    "null": (
        {**NEEDED, "input": None, "documents": None, "usage": None, "tags": {"a": None}, "novel": None},
        {"input": None, "context": None, "tags": None},
        (),
    ),
    "ISO 8601 with a zone": ({**NEEDED, "ended_at": "2023-11-14T22:13:20.5+00:00"}, {"ended_at": 1_700_000_000.5}, ()),
    "ISO 8601 without one is UTC": ({**NEEDED, "endTime": "2023-11-14 22:13:20"}, {"ended_at": 1_700_000_000.0}, ()),
    "numbers as texts": (
        {**NEEDED, "started_at": "1700000000", "usage": {"prompt_tokens": "5", "completion_tokens": 2.0}},
        {"started_at": 1_700_000_000.0, "usage": Usage(5, 2)},
        (),
    ),
    "texts as numbers": ({"trace_id": 7, "service": 8, "output": 9}, {"trace_id": "7", "output": "9"}, ()),
    "an object as a text": ({**BARE, "output": {"a": [1]}}, {"output": '{"a":[1]}'}, ()),
    "parts and roles": (
        {
            **NEEDED,
            "input": "Why?",
            "messages": [{"role": "system", "content": [{"type": "text", "text": "Be."}]}, "Hi"],
        },
        {"messages": [Message("system", "Be."), Message("user", "Hi")]},
        (),
    ),
    "a message without a role": ({**NEEDED, "messages": [{"content": "Hi."}]}, {"input": "Hi."}, ()),
    "a system prompt": ({**NEEDED, "systemPrompt": "Be."}, {"messages": [Message("system", "Be.")]}, ()),
    "calls of OpenAI": (
        {**NEEDED, "toolCalls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
        {"tool_calls": [ToolCall("f", {"a": 1})]},
        (),
    ),
    "feedback as a number": ({**NEEDED, "feedback": 1}, {"feedback": Feedback(1)}, ()),
    "tags as a list": ({**NEEDED, "labels": ["a", "b:c"]}, {"tags": {"a": "true", "b": "c"}}, ()),
    "metadata beside tags": ({**NEEDED, "metadata": {"a": 1}, "tags": {"b": "c"}}, {"tags": {"a": "1", "b": "c"}}, ()),
    "a service with a name": ({**NEEDED, "service": {"name": "shop", "note": "x"}}, {"service": "shop"}, ()),
    "an over-long service": ({**NEEDED, "service": "s" * 300}, {"output": "It is."}, ()),
    "no output": ({**BARE, "input": "Why?"}, {"output": "", "input": "Why?"}, (("output", "absent"),)),
    "no output of a failed call": ({**BARE, "input": "Why?", "error": "late"}, {"output": "", "error": "late"}, ()),
    "a time that is none": ({**NEEDED, "ended_at": "soon"}, {"ended_at": None}, (("ended_at", "string"),)),
    "milliseconds as a text": ({**NEEDED, "ended_at": "1700000000000"}, {"ended_at": 1_700_000_000.0}, ()),
    "microseconds and nanoseconds": (
        {**NEEDED, "startTime": 1_700_000_000_250_000, "endTimestamp": 1, "ended_at": 1_700_000_000_500_000_000},
        {"started_at": 1_700_000_000.25, "ended_at": 1_700_000_000.5},
        (),
    ),
    "a leap second": ({**NEEDED, "ended_at": "2016-12-31T23:59:60Z"}, {"ended_at": 1_483_228_800.0}, ()),
    "a leap second of a zone": (
        {**NEEDED, "started_at": "2017-01-01T05:29:60.5+05:30", "ended_at": "2026-13-01T00:00:00Z"},
        {"started_at": 1_483_228_800.5, "ended_at": None},
        (("ended_at", "string"),),
    ),
    "seconds of another century": ({**NEEDED, "ended_at": 5e9}, {"ended_at": None}, (("ended_at", "number"),)),
    "a huge number": ({**NEEDED, "ended_at": 10**400}, {"output": "It is."}, (("ended_at", "number"),)),
    "no number and one without a bound": (
        encoded(NEEDED)[:-1] + b', "tags": {"a": NaN, "n": 1e999, "m": [-1e999, -Infinity, 1' + b"0" * 5000 + b"]}}",
        {"tags": {"n": "Infinity", "m": '["-Infinity","-Infinity","1' + "0" * 5000 + '"]'}},
        (),
    ),
    "base64 in a text": (
        {**NEEDED, "input": f"![a](data:image/png;base64,{BASE64})", "toolCalls": [{"name": "f", "args": [BASE64]}]},
        {"input": "![a]([image 3 kB])", "tool_calls": [ToolCall("f", ["[file 3 kB]"])]},
        (),
    ),
    "a line within a text": (encoded(NEEDED).replace(b"It is", b"It\n\tis"), {"output": "It\n\tis."}, ()),
    "a document without a text": (
        {**NEEDED, "context": ["a", {"id": "1"}]},
        {"context": [Document("a")]},
        (("context", "object"),),
    ),
    "calls that are none": (
        {**NEEDED, "tool_calls": 5, "spans": "x"},
        {},
        (("tool_calls", "number"), ("spans", "string")),
    ),
    "feedback out of range": ({**NEEDED, "feedback": {"score": 5}}, {"feedback": None}, (("feedback", "object"),)),
    "half of the usage": (
        {**NEEDED, "usage": {"input_tokens": 1, "output_tokens": "many"}},
        {"usage": Usage(1, 0)},
        (("usage", "string"),),
    ),
    "NaN": ({**NEEDED, "started_at": float("nan")}, {"started_at": None}, ()),
    "infinite, in an unknown field": ({**NEEDED, "x": float("inf")}, {"output": "It is."}, ()),
    "half of a surrogate pair": ({**NEEDED, "output": "So \ud83d"}, {"output": "So ?"}, ()),
    "half of one in a name": ({**NEEDED, "tags": {"\udfff": "a"}}, {"tags": {"?": "a"}}, ()),
    "not UTF-8": (encoded(NEEDED).replace(b"It", b"\xff"), {"output": "� is."}, ()),
    "not UTF-8 in an unknown name": (encoded(NEEDED | {"?": 1}).replace(b"?", b"\xff"), {"output": "It is."}, ()),
}


@each_case("name", READ)
def test_fields_under_the_names_of_other_services_are_read(name: str) -> None:
    body, fields, left_out = READ[name]
    entry = read(body)
    assert isinstance(entry, TraceEntry), entry
    expected = {field: documents(value) for field, value in fields.items()}
    assert {field: documents(getattr(entry.trace, field)) for field in fields} == expected
    assert entry.left_out == left_out
    assert trace_id_of(entry.payload) == entry.trace.trace_id
    again = read(msgspec.json.encode(entry.trace))
    assert (again.trace, again.left_out, again.unknown) == (entry.trace, (), ()), "a batch holds what was read"


def documents(value: Any) -> Any:
    """Documents without anything but a text are texts."""
    return [Document(each) if isinstance(each, str) else each for each in value] if isinstance(value, list) else value


def test_every_other_name_in_both_spellings_is_read() -> None:
    for field, names in OTHER_NAMES.items():
        for name in names:
            first, *others = name.split("_")
            for spelling in (name, first + "".join(map(str.capitalize, others))):
                value: object = {"a": 1} if field in {"tags", "usage"} else "1"
                record: dict[str, object] = {key: text for key, text in NEEDED.items() if key != field}
                record[spelling] = value
                entry = read(record)
                assert isinstance(entry, TraceEntry), f"{spelling}: {entry}"
                assert entry.unknown == (), spelling


NO_TRACE: Mapping[str, tuple[object, str, tuple[str, ...]]] = {
    "no trace id": ({"service": "shop", "content": "x"}, "no trace id", ("service", "content")),
    "no service": ({"traceId": "t1", "content": "x"}, "no service", ("traceId", "content")),
    "an object as service": ({**NEEDED, "service": {"title": "x"}}, "no service", ("trace_id", "service", "output")),
    "no content": ({"traceId": "t1", "service": "shop", "model": "m"}, "no content", ("traceId", "service", "model")),
    "texts as names": ({"Why is it so?": 1, "b" * 50: 2, "ok": 3}, "no trace id", ("(another)", "ok")),
    "a list": ([NEEDED], "no object", ("v", "t")),
}


@each_case("name", NO_TRACE)
def test_only_without_an_id_a_service_or_content_it_is_no_trace(name: str) -> None:
    body, detail, keys = NO_TRACE[name]
    entry = read(body)
    assert isinstance(entry, InvalidEntry)
    assert (entry.reason, entry.detail, entry.keys) == ("wrong_type", detail, keys)


def test_late_feedback_is_read_in_other_names_and_types() -> None:
    for record, feedback in (
        ({"traceId": "t1", "score": "-1"}, LateFeedback("t1", -1.0)),
        ({"trace_id": 7, "value": True, "reason": "Good."}, LateFeedback("7", 1, "Good.")),
        ({"trace_id": "x" * 128, "rating": 0.5}, LateFeedback("x" * 128, 0.5)),
    ):
        assert read(record, b"f") == FeedbackEntry("1700000000000-0", feedback), record
    scoreless: tuple[object, ...] = (
        {"traceId": "t1"},
        {"score": 1},
        {"trace_id": "t1", "score": 5},
        {"traceId": 1, "score": [1]},
    )
    for wrong in scoreless:
        assert read(wrong, b"f").reason == "wrong_type", wrong


# --- what is told of them ---


def test_a_field_that_is_left_out_is_counted_logged_once_and_listed(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace, rules=(ALL,))
    for number in range(3):
        keyspace.add({**NEEDED, "traceId": f"t{number}", "trace_id": None, "tool_calls": 5, "ended_at": "secret"})
    with capture_logs() as logs:
        chosen.process()
        chosen.write_unusable()
    log_lines = [line for line in logs if line["event"] == "field left out of traces"]
    assert [(line["field"], line["type"], line["trace_id"]) for line in log_lines] == [
        ("tool_calls", "number", "t0"),
        ("ended_at", "string", "t0"),
    ]
    assert "secret" not in repr(logs)
    listed = {(field.field, field.type, field.service, field.trace_id) for field in read_left_out(keyspace.store)}
    assert listed == {("tool_calls", "number", "shop", "t2"), ("ended_at", "string", "shop", "t2")}
    assert 0 < keyspace.client.ttl(InputKeys(keyspace.keys.prefix).left_out) <= 7 * 86_400


def test_the_last_hundred_invalid_entries_are_listed_without_their_texts(keyspace: Keyspace) -> None:
    chosen = IngestHarness(keyspace)
    for number in range(MAX_INVALID + 20):
        keyspace.add({"trace_id": f"t{number}", "content": "secret", "a secret": 1})
    keyspace.add(b"{secret")
    chosen.process()
    chosen.process()
    chosen.write_unusable()
    broken, last, *others = read_invalid(keyspace.store)
    assert (broken.reason, broken.keys, broken.trace_id) == ("not_json", ("v", "t"), None)
    shown = (last.reason, last.detail, last.keys, last.trace_id)
    assert shown == ("wrong_type", "no service", ("trace_id", "content", "(another)"), "t119")
    assert len(others) == MAX_INVALID - 2
    assert "secret" not in repr(keyspace.client.xrange(InputKeys(keyspace.keys.prefix).invalid))
    assert 0 < keyspace.client.ttl(InputKeys(keyspace.keys.prefix).invalid) <= 7 * 86_400


def test_unusable_input_is_written_at_most_once_a_second(keyspace: Keyspace) -> None:
    now = [0.0]
    unusable = UnusableInput(keyspace.store, lambda: now[0])
    entry = read({"content": "x"})
    for at_s, listed in ((0.0, 1), (0.5, 1), (0.9, 1), (1.0, 4), (9.0, 5)):
        now[0] = at_s
        unusable.add([entry], [])
        unusable.write()
        assert keyspace.client.xlen(InputKeys(keyspace.keys.prefix).invalid) == listed, at_s
