"""What is read from spans: by the tables of this package, by tables of users, and that no span makes it raise."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lookalikes import table as cases
from support.cases import each_case

from tracejudge import Trace
from tracejudge.content.convert import Notes, convert_trace
from tracejudge.dialects import RawEvent, RawSpan, Reading, builtin, names, own_tables, read
from tracejudge.dialects.documents import DocumentReader
from tracejudge.dialects.names import Call, SpanInput, by_name
from tracejudge.dialects.own_tables import TableError, dialects_with, table_of
from tracejudge.dialects.table import Path as KeyPath
from tracejudge.dialects.table import Table
from tracejudge.dialects.unread import unread
from tracejudge.otel import TraceJudgeExporter
from tracejudge.otel.joining import join
from tracejudge.otel.span_buffer import SpanGroup

ACME = cases("own_tables")["acme"]


def span(attributes: dict[str, Any], **fields: Any) -> RawSpan:
    return RawSpan(trace_id="t" * 32, span_id="s" * 16, attributes=attributes, **fields)


def test_a_span_is_read_as_its_dialect_means_it() -> None:
    for name, fields, expected in cases("dialects"):
        events = tuple(RawEvent(*event) for event in fields.pop("events", ()))
        assert read(span(**fields, events=events)) == msgspec.convert(expected, Reading), name


def test_media_leave_marks_in_every_notation() -> None:
    for mark, part in cases("media_parts"):
        for key in ("parts", "content"):
            text = {"type": "text", "text" if key == "content" else "content": "Look:"}
            messages = json.dumps([{"role": "user", key: [text, part]}])
            reading = read(span({"gen_ai.operation.name": "chat", "gen_ai.input.messages": messages}))
            assert reading.input == SpanInput(f"Look:\n{mark}"), (key, part)


def test_only_the_arguments_of_a_wrapper_are_unwrapped_and_ids_of_a_span_are_no_document() -> None:
    seven = {"number": 7}
    wrapped: list[Any] = [{"args": [], "kwargs": seven}, {"kwargs": seven}, {"args": [seven], "kwargs": {}}]
    for arguments in (*wrapped, {"args": [], "kwargs": seven, "timeout": 3}):
        assert by_name(arguments) == seven, arguments
    whole: list[Any] = [{"args": [7], "kwargs": {}}, {"query": "parcel", "kwargs": seven}, [7]]
    for arguments in whole:
        assert by_name(arguments) == arguments
    reader = DocumentReader(reads_rows=True)  # spans of Phoenix in JSON have ids under `context`
    reader.read({"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7", "trace_state": "[]"})
    assert reader.documents == []


# --- tables of users -------------------------------------------------------------------------------------------------


def step(name: str, kind: str, at: float, attributes: dict[str, Any]) -> RawSpan:
    values = {"acme.step": kind} | {f"acme.{key}": value for key, value in attributes.items()}
    parent_id = None if name == "flow" else "flow"
    times = {"started_at": at, "ended_at": at + 1}
    return RawSpan(trace_id="t", span_id=name, name=name, parent_id=parent_id, attributes=values, **times)


SPANS = tuple(step(*row) for row in cases("own_tables")["spans"])


def test_spans_are_read_by_a_table_of_a_user(tmp_path: Path) -> None:
    assert join(SpanGroup(SPANS[-1], SPANS)) is None
    file = tmp_path / "acme.json"
    for content in (ACME, [ACME]):
        file.write_text(json.dumps(content))
        for source in (ACME, file, str(file)):
            fields = join(SpanGroup(SPANS[-1], SPANS), dialects_with([source]))
            assert fields is not None
            expected = cases("own_tables")["expected"]
            assert {key: msgspec.to_builtins(fields.get(key)) for key in expected} == expected, source
            # Content is not repeated among the attributes of a span.
            assert {key for span in fields["spans"] for key in span.attributes} == {
                *("acme.step", "acme.engine", "acme.usage", "acme.reply_type", "acme.meta")
            }


def test_a_table_may_say_how_a_span_fails_and_what_its_events_hold() -> None:
    table = {
        **ACME,
        "failed": {"acme.level": "ERROR"},
        "error": ["acme.why"],
        "events": {"acme.asked": "user", "acme.said": "answer"},
        "input": {"@messages": "messages"},
        "output": {"@answers": "choices"},
        "tool": {"name": "acme.tool", "result": ["acme.result/0/text", "@acme.told/parts/0/text"]},
    }
    dialects = dialects_with([table])
    events = (
        RawEvent("acme.asked", {"content": '[{"text": "Is it open?"}]'}),
        RawEvent("acme.said", {"message": '{"role": "assistant", "content": "Yes.", "finish_reason": ""}'}),
        RawEvent("acme.said", {"message": '{"from": 9}'}),
        RawEvent("acme.told", {"parts": '[{"text": "9 to 18"}]'}),
    )
    llm = step("llm", "completion", 1, {"level": "ERROR", "why": '"out of money"'})
    reading = dialects.read(msgspec.structs.replace(llm, events=events))
    content = (reading.input.query, reading.output.text, reading.error)
    assert content == ("Is it open?", 'Yes.{"from": 9}', "out of money")
    done = msgspec.structs.replace(step("hours", "call", 2, {"tool": "hours", "level": "INFO"}), events=events)
    assert dialects.read(done).tool == Call("hours", None, None, "9 to 18")
    assert dialects.read(done).error is None


def test_a_mistake_is_named_with_its_place_and_the_choices(tmp_path: Path) -> None:
    for change, words in cases("own_tables")["mistakes"]:
        with pytest.raises(TableError) as raised:
            dialects_with([{**ACME, **change}])
        assert words in str(raised.value), change
    for name, content, words in (
        ("a.json", "{", "is no JSON"),
        ("a.json", "[" * 99_999, "is no JSON"),
        ("a.json", "[[]]", "a table is an object"),
        ("a.json", "{}", "name: is missing"),
        ("a.toml", 'name = "a"', r"lint FILE\.toml --to FILE\.json"),
        ("none.json", None, "No such file"),
    ):
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(TableError, match=words):
            dialects_with([tmp_path / name])


def test_tables_of_this_package_pass_the_checks_of_those_of_users() -> None:
    folder = Path(own_tables.__file__).parent / "tables"
    tables = [json.loads(file.read_bytes()) for file in sorted(folder.glob("*.json"))]
    for fields in tables:
        if fields["name"] not in {"common", "litellm"}:  # which read no answer
            table_of(fields)
    assert {fields["name"] for fields in tables} == {table.name for table in builtin().tables}


def test_an_exporter_takes_tables_as_arguments_and_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="output: is missing"):
        TraceJudgeExporter(dialects=[{**ACME, "output": {}}])
    file, second = tmp_path / "acme.json", tmp_path / "second.json"
    file.write_text(json.dumps(ACME))
    second.write_text(json.dumps({**ACME, "name": "second"}))
    monkeypatch.setenv("TRACEJUDGE_DIALECTS", f"{file}{os.pathsep}{second}")
    for dialects in (None, [ACME], str(file), file, {**ACME, "prefixes": "acme.", "model": "acme.engine"}):
        exporter = TraceJudgeExporter(dialects=dialects)
        exporter.shutdown()
        assert exporter._dialects.tables[0].name == "acme"
    file.write_text("{")
    with caplog.at_level(logging.WARNING, "tracejudge"):
        exporter = TraceJudgeExporter()
    exporter.shutdown()
    assert exporter._dialects is builtin()
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == ["TRACEJUDGE_DIALECTS is not used"]


def test_names_that_no_table_reads_are_told_also_below_known_prefixes() -> None:
    dialects = dialects_with([{**ACME, "capture": "ACME_CONTENT"}])
    for attributes, unread_names, table in cases("own_tables")["unread"]:
        (kind,) = unread([span(attributes, scope="bot:sdk")], dialects)
        assert (kind.scope, list(kind.names), kind.table) == ("bot:sdk", unread_names, table), attributes


# --- any attributes whatever -----------------------------------------------------------------------------------------

WORDS = ("role", "content", "parts", "text", "type", "tool_call", "messages", "documents", "kwargs", "args", "id")
TYPES = ("text", "user", "assistant", "tool", "tool_call", "tool_result", "chat", "LLM", "CHAIN", "TOOL", "ai")
# Lone surrogates included: Python's texts may hold them, and UTF-8 may not.
TEXTS = st.sampled_from(TYPES) | st.text(st.characters(exclude_categories=()), max_size=12)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=4)
structures = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | TEXTS, inner, max_size=4),
    max_leaves=12,
)
written = structures.map(lambda value: json.dumps(value, default=str))
values = structures | written | written.map(lambda text: text[:-2])


def _keys(table: Table) -> list[str]:
    parts = (getattr(table, name) for name in Table.__struct_fields__)
    texts = [text for part in parts if isinstance(part, tuple) for text in part]
    return [*table.kinds, *table.events, *table.input, *table.output, *texts]


KEYS = tuple({KeyPath(text).name for table in builtin().tables for text in _keys(table)} - {""})
PATHS = (
    *("message.role", "message.content", "message.contents.0.message_content.text", "document.content", "role"),
    *("message.tool_calls.0.tool_call.function.name", "content", "tool_calls.0.name", "0.1", ""),
)
SPREAD = (names.PROMPT, names.COMPLETION, "llm.input_messages", "llm.output_messages", "retrieval.documents")
spread_keys = st.builds(
    lambda prefix, number, path: f"{prefix}.{number}.{path}",
    st.sampled_from(SPREAD),
    st.integers(min_value=-1, max_value=10**10) | st.integers(0, 3),
    st.sampled_from(PATHS),
)
attributes = st.dictionaries(st.sampled_from(KEYS) | spread_keys | TEXTS, values, max_size=10)
events = st.lists(st.builds(RawEvent, st.sampled_from(KEYS) | TEXTS, attributes), max_size=2).map(tuple)
kinds = st.fixed_dictionaries(
    {},
    optional={
        names.OPERATION: st.sampled_from(["chat", "retrieval", "execute_tool", "invoke_agent"]),
        "openinference.span.kind": st.sampled_from(["LLM", "CHAIN", "TOOL", "RETRIEVER", "RERANKER"]),
        "traceloop.span.kind": st.sampled_from(["workflow", "tool"]),
    },
)


def spans(number: int) -> st.SearchStrategy[RawSpan]:
    return st.builds(
        RawSpan,
        trace_id=st.just("t" * 32),
        span_id=st.just(str(number)),
        name=TEXTS,
        parent_id=st.sampled_from(["0", "1", "2", "3", None]),
        started_at=st.none() | st.floats(0, 1e10),
        ended_at=st.none() | st.floats(0, 1e10),
        status=st.sampled_from([None, "ok", "error"]),
        description=st.none() | TEXTS,
        attributes=st.builds(lambda some, kind: {**some, **kind}, attributes, kinds),
        events=events,
    )


@pytest.mark.slow("random spans")
@settings(deadline=None, max_examples=20)
@given(st.tuples(*map(spans, range(4))), st.booleans())
def test_any_spans_give_nothing_or_a_trace_the_worker_can_read(some: tuple[RawSpan, ...], has_root: bool) -> None:  # noqa: FBT001
    fields = join(SpanGroup(some[0] if has_root else None, some))
    if fields is not None:
        sent = convert_trace(fields, Notes())
        msgspec.json.decode(msgspec.json.encode(Trace(trace_id="1", service="shop", **sent)), type=Trace)


# Among them halves of emojis: limits on attributes cut them in two.
STRANGE = cases("strange_spans")


@each_case("fields", STRANGE.values(), ids=STRANGE)
def test_what_json_cannot_hold_never_costs_the_trace(fields: dict[str, Any]) -> None:
    strange = span(**{**fields, "attributes": {names.OPERATION: "chat", **fields.get("attributes", {})}})
    joined = join(SpanGroup(strange, (strange,)))
    assert joined is not None
    payload = msgspec.json.encode(Trace(service="shop", **joined))
    msgspec.json.decode(payload, type=Trace)
    json.loads(payload, parse_constant=pytest.fail)
