"""Tables of users: what is read by them, and what is said of one that cannot be used."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict as as_fields

from tracejudge.dialects import RawEvent, RawSpan, builtin, own_tables
from tracejudge.dialects.names import Call
from tracejudge.dialects.own_tables import TableError, dialects_with, table_of
from tracejudge.dialects.unread import unread
from tracejudge.otel import TraceJudgeExporter
from tracejudge.otel.joining import join
from tracejudge.otel.span_buffer import SpanGroup

ACME: dict[str, Any] = {
    "name": "acme",
    "prefixes": ["acme."],
    "kinds": {"acme.step": {"completion": "llm", "lookup": "retriever", "flow": "chain", "call": "tool"}},
    "input": {"acme.question": "text", "acme.request": "value"},
    "output": {"acme.answer": "text", "acme.reply by acme.reply_type": "value"},
    "documents": ["acme.found.#"],
    "tool": {"name": "/name ~ ^call (.+)$", "arguments": ["acme.args"], "result": "acme.reply by acme.reply_type"},
    "model": ["acme.engine"],
    "session_id": ["acme.meta/chat"],
    "input_tokens": ["acme.usage/in"],
    "output_tokens": ["acme.usage/out"],
}


def step(name: str, kind: str, at: float, **attributes: Any) -> RawSpan:
    values = {f"acme.{key.replace('__', '.')}": value for key, value in attributes.items()}
    return RawSpan(
        trace_id="t",
        span_id=name,
        name=name,
        parent_id=None if name == "flow" else "flow",
        started_at=at,
        ended_at=at + 1,
        attributes={"acme.step": kind, **values},
    )


SPANS = (
    step("lookup", "lookup", 1, found__0__text="Open until six.", found__1__text="Closed on Sundays."),
    step("call hours", "call", 2, args='{"day": 1}', reply='{"from": 9}', reply_type="application/json"),
    step("llm", "COMPLETION", 3, question="Prompt", answer="Yes.", engine="m1", usage='{"in": "7", "out": 3}'),
    step("flow", "flow", 0, request='{"question": "Is it open?"}', reply="Yes, until six.", meta='{"chat": 17}'),
)
EXPECTED = {
    "input": "Is it open?",
    "output": "Yes, until six.",
    "model": "m1",
    "session_id": "17",
    "context": ["Open until six.", "Closed on Sundays."],
    "tool_calls": [("hours", {"day": 1}, {"from": 9})],
    "usage": (7, 3),
}


def test_spans_are_read_by_a_table_of_a_user(tmp_path: Path) -> None:
    assert join(SpanGroup(SPANS[-1], SPANS)) is None
    file = tmp_path / "acme.json"
    for content in (ACME, [ACME]):
        file.write_text(json.dumps(content))
        for source in (ACME, file, str(file)):
            fields = join(SpanGroup(SPANS[-1], SPANS), dialects_with([source]))
            assert fields is not None
            shown = {key: fields.get(key) for key in EXPECTED}
            shown["context"] = [document.text for document in fields["context"]]
            shown["tool_calls"] = [(call.name, call.arguments, call.result) for call in fields["tool_calls"]]
            shown["usage"] = (fields["usage"].input_tokens, fields["usage"].output_tokens)
            assert shown == EXPECTED, source
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
    call = RawSpan(**{**as_fields(step("llm", "completion", 1, level="ERROR", why='"out of money"')), "events": events})
    reading = dialects.read(call)
    assert (reading.input.query, reading.output.text, reading.error) == (
        "Is it open?",
        'Yes.{"from": 9}',
        "out of money",
    )
    done = RawSpan(**{**as_fields(step("hours", "call", 2, tool="hours", level="INFO")), "events": events})
    assert dialects.read(done).tool == Call("hours", None, None, "9 to 18")
    assert dialects.read(done).error is None


def test_a_mistake_is_named_with_its_place_and_the_choices(tmp_path: Path) -> None:
    for change, words in (
        ({"nmae": 1}, "nmae: no part of a table has this name; there are name, prefixes, kinds"),
        ({"name": None}, "name: expected `str`, got `null`"),
        ({"name": "A b"}, "name: must be letters"),
        ({"name": "gen_ai"}, "name: there are two tables of the name 'gen_ai'"),
        ({"prefixes": ["a"]}, "prefixes: name the beginnings of attributes"),
        ({"prefixes": 1}, "prefixes: expected `array`, got `int`"),
        ({"kinds": {}}, "kinds: without kinds and calls no span is a call of a model"),
        ({"kinds": {"acme.step": {}}}, "kinds: an attribute has no values"),
        ({"prefixes": ["acme_"]}, "prefixes: no attribute of the table begins with 'acme_'"),
        ({"input": {"@messages": "messages"}}, "events: is missing"),
        ({"model": ["acme.m/-1/name"]}, "'acme.m/-1/name': items are counted from 0"),
        ({"kinds": {"acme.step": {"a": "model"}}}, "kinds: 'model' is no kind of span; there are llm, agent, chain"),
        ({"kinds": {"acme.step": "llm"}}, "kinds: expected `object`, got `str`"),
        (
            {"input": {"acme.q": "txt"}},
            "input: 'acme.q' is 'txt', which is no way to write it; there are messages, text",
        ),
        ({"output": {"acme.a": 1}}, "output: expected `str`, got `int`"),
        ({"output": {}}, "output: is missing"),
        ({"tool": {"nam": "a"}}, "tool: has a name, an id, arguments and a result"),
        ({"model": ["acme.m ~ ("]}, "'acme.m ~ (': the pattern is wrong"),
        ({"model": ["acme.m ~ x"]}, "'acme.m ~ x': the pattern has no group"),
        ({"model": ["/title"]}, "'/title': names no attribute"),
        ({"events": {"acme.e": "bot"}}, "events: 'acme.e' is 'bot', which is no way to write it; there are answer"),
    ):
        with pytest.raises(TableError) as raised:
            dialects_with([{**ACME, **change}])
        assert words in str(raised.value), change
    for content, words in (
        ("{", "is no JSON"),
        ("[" * 99_999, "is no JSON"),
        ("[[]]", "a table is an object"),
        ("{}", "name: is missing"),
    ):
        file = tmp_path / "a.json"
        file.write_text(content)
        with pytest.raises(TableError, match=words):
            dialects_with([file])
    (tmp_path / "a.toml").write_text('name = "a"')
    with pytest.raises(TableError, match=r"lint FILE\.toml --to FILE\.json"):
        dialects_with([tmp_path / "a.toml"])
    with pytest.raises(TableError, match="No such file"):
        dialects_with([tmp_path / "none.json"])


def test_tables_of_this_package_pass_the_checks_of_those_of_users() -> None:
    folder = Path(own_tables.__file__).parent / "tables"
    names = set()
    for file in sorted(folder.glob("*.json")):
        fields = json.loads(file.read_bytes())
        names.add(fields["name"])
        if fields["name"] not in {"common", "litellm"}:  # which read no answer
            table_of(fields)
    assert names == {table.name for table in builtin().tables}


def test_an_exporter_takes_tables_as_arguments_and_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="output: is missing"):
        TraceJudgeExporter(dialects=[{**ACME, "output": {}}])
    file = tmp_path / "acme.json"
    file.write_text(json.dumps(ACME))
    second = tmp_path / "second.json"
    second.write_text(json.dumps({**ACME, "name": "second"}))
    monkeypatch.setenv("TRACEJUDGE_DIALECTS", f"{file}{os.pathsep}{second}")
    one = {**ACME, "prefixes": "acme.", "model": "acme.engine"}
    for dialects in (None, [ACME], str(file), file, one):
        exporter = TraceJudgeExporter(dialects=dialects)
        assert exporter._dialects.tables[0].name == "acme"
        exporter.shutdown()
    file.write_text("{")
    with caplog.at_level(logging.WARNING, "tracejudge"):
        exporter = TraceJudgeExporter()
    exporter.shutdown()
    assert exporter._dialects is builtin()
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == ["TRACEJUDGE_DIALECTS is not used"]


def test_names_that_no_table_reads_are_told_also_below_known_prefixes() -> None:
    dialects = dialects_with([{**ACME, "capture": "ACME_CONTENT"}])
    for attributes, names, table in (
        (("llm.prompt", "llm.response"), ("llm.prompt", "llm.response"), ""),
        (("ai.answer",), ("ai.answer",), ""),
        (("genkit:input", "genkit:output"), ("genkit:input", "genkit:output"), ""),
        (("gen_ai.system", "bot.prompt", "http.route"), ("bot.prompt",), ""),
        (("input.value", "output.value"), ("input.value", "output.value"), ""),
        (("acme.kind", "acme.question"), ("acme.kind",), ""),
        (("gen_ai.operation.name", "gen_ai.agent.name"), (), ""),
        (("http.route", "traceloop.association.properties.chat_id"), (), ""),
        ((("acme.step", "completion"), "acme.llm.request", "acme.engine"), ("acme.llm.request",), "acme"),
        ((("acme.step", "completion"), "acme.answer", "acme.llm.request"), (), ""),
        ((("acme.step", "lookup"), "acme.llm.request"), (), ""),
        ((("gen_ai.operation.name", "chat"), "gen_ai.output.type", "logfire.msg"), (), ""),
        ((("gen_ai.operation.name", "chat"), "bot.prompt"), ("bot.prompt",), ""),
    ):
        pairs = dict((each, "x") if isinstance(each, str) else each for each in attributes)
        span = RawSpan(trace_id="t", span_id="s", attributes=pairs, scope="bot:sdk")
        (kind,) = unread([span], dialects)
        assert (kind.scope, kind.names, kind.table) == ("bot:sdk", names, table), attributes
