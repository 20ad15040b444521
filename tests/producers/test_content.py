"""The content of a trace that is sent: which fields hold content, in which order it is changed, and what stays."""

import base64
import json
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from support.cases import each_case

from tracejudge.content.convert import Notes, convert_trace
from tracejudge.content.encode import ContentPolicy, copied
from tracejudge.content.redact import redact_secrets
from tracejudge.content.truncate import mark_media
from tracejudge.log import RedactionError
from tracejudge.model import Document, Feedback, LateFeedback, Message, Span, Tool, ToolCall, Trace, Usage
from tracejudge.redis_url import parse_redis_url
from tracejudge.settings import Settings

MAIL = "ann@example.org"
SIGN = "[redacted e-mail]"


def settings(**changes: Any) -> Settings:
    text: dict[str, Any] = {
        "service": "shop",
        "redis_url": parse_redis_url("redis://localhost"),
        "environment": None,
        "release": None,
        "prefix": "tracejudge",
        "disabled": False,
        "max_items": 1,
        "max_bytes": 1,
        "max_stream": 1,
        "exit_timeout_s": 1.0,
    }
    return Settings(**text | changes)


def prepared(record: Trace | LateFeedback, **changes: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(msgspec.json.encode(ContentPolicy(settings(**changes)).prepare(record)))
    return result


def trace(**fields: Any) -> Trace:
    return Trace(**{"trace_id": "1" * 32, "service": "shop", "output": "", **fields})


def full(text: str) -> Trace:
    """Make a trace with a text in every place there is, metadata included."""
    return Trace(
        trace_id=text,
        service=text,
        output=text,
        id=text,
        span_id=text,
        environment=text,
        release=text,
        name=text,
        session_id=text,
        user_id=text,
        response_id=text,
        started_at=1.5,
        ended_at=2.5,
        provider=text,
        model=text,
        input=text,
        messages=[Message(text, text, text)],
        context=[Document(text, text, 0.5), text],
        expected_response=text,
        expected_facts=[text],
        guidelines=[text],
        tool_calls=[ToolCall(text, {text: [text, 1]}, text, text)],
        spans=[Span(text, text, text, text, 1.0, 2.0, text, text, {"a": text}, {text: text})],
        usage=Usage(1, 2),
        error=text,
        feedback=Feedback(0.5, text),
        tags={"label": text},
    )


IDS = ("trace_id", "service", "id", "span_id", "environment", "release", "name", "session_id", "user_id", "response_id")
NUMBERS = {"started_at": 1.5, "ended_at": 2.5, "usage": {"input_tokens": 1, "output_tokens": 2}}
METADATA = dict.fromkeys((*IDS, "provider", "model"), MAIL) | NUMBERS
SPAN = {"span_id": MAIL, "name": MAIL, "parent_id": MAIL, "kind": MAIL, "started_at": 1.0, "ended_at": 2.0}


def test_every_place_of_content_is_redacted_and_no_other() -> None:
    assert prepared(full(MAIL), redact=(redact_secrets,)) == METADATA | {
        "output": SIGN,
        "input": SIGN,
        "messages": [{"role": MAIL, "content": SIGN, "name": SIGN}],
        "context": [{"text": SIGN, "id": MAIL, "score": 0.5}, SIGN],
        "expected_response": SIGN,
        "expected_facts": [SIGN],
        "guidelines": [SIGN],
        "tool_calls": [{"name": MAIL, "arguments": {SIGN: [SIGN, 1]}, "result": SIGN, "error": SIGN}],
        "spans": [SPAN | {"status": SIGN, "inputs": SIGN, "outputs": {"a": SIGN}, "attributes": {SIGN: SIGN}}],
        "error": SIGN,
        "feedback": {"score": 0.5, "comment": SIGN},
        "tags": {"label": SIGN},
    }


def test_without_content_only_metadata_travels() -> None:
    assert prepared(full(MAIL), content=False) == METADATA | {
        "output": "",
        "context": [{"text": "", "id": MAIL, "score": 0.5}, ""],
        "tool_calls": [{"name": MAIL, "error": "error"}],
        "spans": [SPAN | {"status": "error"}],
        "error": "error",
        "feedback": {"score": 0.5},
        "tags": {"label": MAIL},
    }


@each_case(
    ("error", "kept"),
    [
        ("TimeoutError: the customer Ann", "TimeoutError"),
        ("openai.RateLimitError(Ann)", "openai.RateLimitError"),
        ("ValueError", "ValueError"),
        ("no customer Ann: gone", "error"),
        ("Ann is gone", "error"),
    ],
)
def test_without_content_an_error_keeps_its_class(error: str, kept: str) -> None:
    assert prepared(trace(error=error), content=False)["error"] == kept


def test_without_content_status_and_kind_of_a_span_stay() -> None:
    spans = [Span("1", "step", kind="LLM", status="ok", inputs="in"), Span("2", "step", status="error: Ann")]
    assert prepared(trace(spans=spans), content=False)["spans"] == [
        {"span_id": "1", "name": "step", "kind": "LLM", "status": "ok"},
        {"span_id": "2", "name": "step", "status": "error"},
    ]


def test_tags_are_redacted_without_content_too() -> None:
    assert prepared(trace(tags={"who": MAIL}), content=False, redact=(redact_secrets,))["tags"] == {"who": SIGN}


@pytest.mark.parametrize("content", [True, False])
def test_late_feedback_is_treated_as_a_trace_is(content: bool) -> None:  # noqa: FBT001 - a parameter
    feedback = prepared(LateFeedback("1", -1, f"ask {MAIL}"), redact=(redact_secrets,), content=content)
    assert feedback == {"trace_id": "1", "score": -1} | ({"comment": f"ask {SIGN}"} if content else {})


FOREIGN: dict[str, dict[str, Any]] = {
    "message as a dict with what no model knows": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": MAIL}], "tool_calls": [{"id": MAIL}]}]
    },
    "document as a dict": {"context": [{"text": "a", "metadata": {"author": MAIL}}]},
    "metadata that is none": {"messages": [{"role": {"said": MAIL}, "content": ""}]},
    "tuples and sets": {"tool_calls": [ToolCall("f", (MAIL,), {MAIL})]},
    "field of another type": {"input": [MAIL]},
    "object in place of a list": {"messages": {"role": "user", "content": MAIL}},
    "bytes and times": {"tool_calls": [ToolCall("f", {"at": datetime(2024, 1, 1, tzinfo=UTC), "by": MAIL})]},
    "JSON in a string": {"tool_calls": [ToolCall("f", json.dumps({"to": MAIL}))]},
}


@each_case("fields", FOREIGN.values(), ids=FOREIGN)
@each_case("changes", [{"redact": (redact_secrets,)}, {"content": False}], ids=["redacted", "withheld"])
def test_nothing_slips_through_in_an_unexpected_form(fields: dict[str, Any], changes: dict[str, Any]) -> None:
    assert MAIL in json.dumps(prepared(trace(**fields)))
    assert MAIL not in json.dumps(prepared(trace(**fields), **changes))


def test_a_text_under_the_name_of_a_secret_is_redacted_by_the_built_in_set() -> None:
    arguments = {"password": "tomato", "x-api-key": "a1", "clientSecret": "b", "max_tokens": "5", "in": {"pwd": "c"}}
    record = trace(tool_calls=[ToolCall("login", arguments)])
    assert prepared(record, redact=(redact_secrets,))["tool_calls"][0]["arguments"] == {
        "password": "[redacted secret]",
        "x-api-key": "[redacted secret]",
        "clientSecret": "[redacted secret]",
        "max_tokens": "5",
        "in": {"pwd": "[redacted secret]"},
    }
    assert prepared(record, redact=(str.upper,))["tool_calls"][0]["arguments"]["PASSWORD"] == "TOMATO"  # noqa: S105 - none


def test_two_keys_that_become_one_sign_keep_both_values() -> None:
    record = trace(tool_calls=[ToolCall("f", {"a@example.org": 1, "b@example.org": 2})])
    arguments = prepared(record, redact=(redact_secrets,))["tool_calls"][0]["arguments"]
    assert arguments == {SIGN: 1, f"{SIGN} 2": 2}


def test_what_is_nested_too_deep_does_not_pass_unseen() -> None:
    deep: Any = MAIL
    for _ in range(70):
        deep = [deep]
    assert MAIL not in json.dumps(prepared(trace(tool_calls=[ToolCall("f", deep)]), redact=(redact_secrets,)))


def test_functions_of_the_host_are_applied_in_order() -> None:
    redact = (redact_secrets, lambda text: text.replace("tomato", "[fruit]"), str.upper)
    assert prepared(trace(output=f"tomato {MAIL}"), redact=redact)["output"] == "[FRUIT] [REDACTED E-MAIL]"


def _raises(text: str) -> str:
    raise ValueError(text)


@each_case(
    ("function", "message"),
    [
        pytest.param(_raises, "redact raised ValueError", id="raises"),
        pytest.param(lambda _: None, "redact returned no text", id="gives nothing"),
        pytest.param(str.encode, "redact returned no text", id="gives bytes"),
    ],
)
def test_a_function_that_fails_stops_its_trace_without_quoting_it(function: Callable[[str], Any], message: str) -> None:
    with pytest.raises(RedactionError, match=f"^{message}$") as caught:
        prepared(trace(output="secret words"), redact=(function,))
    assert "secret words" not in "".join(traceback.format_exception(caught.value, limit=0))


def test_redaction_comes_before_cutting() -> None:
    """A mark in the middle of a secret would leave two halves that nobody finds."""
    text = f"{'a ' * 359}{MAIL} {'b ' * 1000}"
    halves = prepared(trace(output=text), max_field_bytes=1_000)["output"]
    assert "ann@" in halves
    assert MAIL not in halves
    assert "ann@" not in prepared(trace(output=text), max_field_bytes=1_000, redact=(redact_secrets,))["output"]


def test_what_is_cut_is_not_the_hosts_own_object() -> None:
    documents = [Document("d" * 1_000)]
    record = trace(context=documents, messages=[{"role": "user", "content": MAIL}])
    prepared(record, max_field_bytes=200, redact=(redact_secrets,))
    assert record.context == [Document("d" * 1_000)]
    assert record.messages == [{"role": "user", "content": MAIL}]


def test_a_long_trace_comes_under_its_cap() -> None:
    record = trace(output="o" * 100_000, context=[Document("c" * 100_000) for _ in range(5)])
    payload = msgspec.json.encode(ContentPolicy(settings()).prepare(record))
    assert 250_000 < len(payload) <= 256 * 1024
    assert msgspec.json.decode(payload, type=Trace).output.count("characters cut]") == 1


def test_a_short_trace_travels_as_it_is() -> None:
    record = full("text")
    assert msgspec.json.encode(ContentPolicy(settings()).prepare(record)) == msgspec.json.encode(record)


def joined(text: str, gap: str) -> str:
    return gap.join(text[start : start + 76] for start in range(0, len(text), 76))


def base64_text(start: bytes, size: int = 165_000) -> str:
    return base64.b64encode(start + Random(7).randbytes(size - len(start))).decode()


PNG = base64_text(b"\x89PNG\r\n\x1a\n")
WAV = base64_text(b"RIFF\0\0\0\0WAVEfmt ", 50_000)
RAW = base64_text(b"", 3_000)
MEDIA = {
    f"See {PNG}!": "See [image 165 kB]!",
    f"![a cat](data:image/png;base64,{PNG}) and ![b](data:image/webp;base64,{RAW})": (
        "![a cat]([image 165 kB]) and ![b]([image 3 kB])"
    ),
    f'<img src="data:image/svg+xml;charset=utf-8;base64,{RAW}">': '<img src="[image 3 kB]">',
    f"data:application/pdf;base64,{RAW}": "[file 3 kB]",
    json.dumps({"input_audio": {"data": WAV, "format": "wav"}}): (
        '{"input_audio": {"data": "[audio 50 kB]", "format": "wav"}}'
    ),
    json.dumps({"image_bytes": RAW}): '{"image_bytes": "[image 3 kB]"}',
    json.dumps({"input_audio": {"data": RAW}}): '{"input_audio": {"data": "[audio 3 kB]"}}',
    json.dumps(f"image\n{PNG}"): r'"image\n[image 165 kB]"',
    json.dumps(f"data:image/png;base64,{PNG}").replace("/", r"\/"): '"[image 165 kB]"',
    f"Attached:\n{base64.encodebytes(base64.b64decode(PNG)).decode()}Thanks.": "Attached:\n[image 165 kB]\nThanks.",
    "\r\n".join(RAW[start : start + 76] for start in range(0, len(RAW), 76)): "[file 3 kB]",
    base64.urlsafe_b64encode(base64.b64decode(RAW)).decode(): "[file 3 kB]",
    f"Look:\n    {joined(PNG, f'{chr(10)}    ')}\n    Thanks": "Look:\n    [image 165 kB]\n    Thanks",
    f"Look:\n\t{joined(RAW * 9, f'{chr(13)}{chr(10)}{chr(9)}')}\r\nThanks": "Look:\n\t[file 27 kB]\r\nThanks",
    f"> > image\n> > {joined(RAW * 9, f'{chr(10)}> > ')}\n\nYes": "> > image\n> > [image 27 kB]\n\nYes",
    f'PICTURE = ("{joined(PNG, f"{chr(34)}{chr(10)}    {chr(34)}")}")': 'PICTURE = ("[image 165 kB]")',
    f"See {joined(WAV, ' ')} and {joined(PNG, ' ')}, please": "See [audio 50 kB] and [image 165 kB], please",
    f"https://a.test/?img={quote(PNG, '')}&b=1": "https://a.test/?img=[image 165 kB]&b=1",
    f"/?a={quote(f'data:image/webp;base64,{RAW * 9}', '')}": "/?a=data%3Aimage%2Fwebp%3Bbase64%2C[image 27 kB]",
}
NO_MEDIA = (
    *("x" * 100_000, "theQuickBrownFox" * 500, "some_Name2_X" * 500, Random(1).randbytes(3_000).hex(), "中文" * 3_000),
    *("\n".join(["Alpha1", "Beta2"] * 900), "/".join(["usr", "Local2", "Share"] * 300), RAW[:900], "-" * 5_000),
    *("\n".join(Random(n).randbytes(32).hex() for n in range(90)), "".join(Random(1).choices("ACGT", k=9_000))),
    *("".join(Random(1).choices("ACDEFGHIKLMNPQRSTVWY", k=9_000)), "Hello World, again. " * 500, str(10**4_000)),
    *(quote("Where is Order 4711, and who Has it? " * 99, ""), quote("Wo ist Größe 42, Äpfel? " * 99, "")),
    "\n".join(f"    {Random(n).randbytes(24).hex()} {Random(n).randbytes(9)!r}" for n in range(90)),
)


def test_a_long_run_of_base64_becomes_a_mark_wherever_it_is() -> None:
    for text, written in MEDIA.items():
        sent = prepared(trace(output=text, context=[text], tool_calls=[ToolCall("f", {"a": [text]})]))
        assert sent["output"] == sent["context"][0] == sent["tool_calls"][0]["arguments"]["a"][0] == written, text[:80]
    for text in NO_MEDIA:
        assert mark_media(text) == text, text[:80]
    assert prepared(trace(tool_calls=[ToolCall("f", {"image_bytes": RAW})]))["tool_calls"][0]["arguments"] == {
        "image_bytes": "[image 3 kB]"
    }
    assert copied({"image": base64.b64decode(PNG), "note": "é".encode(), "data": b"\0" * 2_000}) == {
        "image": "[image 165 kB]",
        "note": "é",
        "data": "[file 2 kB]",
    }


def test_the_search_for_base64_is_linear() -> None:
    texts = ["%2B" * 300_000, f"{'Aa1' * 20} " * 16_000, f"{RAW[:60]}{' ' * 81}" * 7_000, f"{RAW[:60]}%2C" * 9_000]
    for text in (
        "a/" * 500_000,
        "data:" * 200_000,
        "\\n" * 500_000,
        ("A" * 61 + "\n") * 16_000,
        "a" * 10**6,
        RAW * 250,
    ):
        texts += [text, quote(text, ""), joined(text, "\n  > "), f"%2B{text}", text.replace("A", "%2F")]
    for text in texts:
        start_s = time.process_time()
        mark_media(text)
        assert time.process_time() - start_s < 5, text[:20]


def test_tools_that_could_be_called_are_read_in_the_forms_of_all_providers() -> None:
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
    named = {"name": "track", "description": "Finds a parcel."}
    full = [Tool("track", "Finds a parcel.", schema)]
    cases: list[tuple[object, list[Tool] | None]] = [
        ([{**named, "parameters": schema}], full),
        ([{"type": "function", "function": {**named, "parameters": schema}}], full),
        ([{**named, "input_schema": schema}, {"name": "track"}], full),
        ([{**named, "inputSchema": schema}], full),
        ({"function_declarations": [{**named, "parameters": schema}]}, full),
        ([{"toolSpec": {**named, "inputSchema": {"json": schema}}}], full),
        ([{"tool": {"json_schema": json.dumps({"function": {**named, "parameters": schema}})}}], full),
        (json.dumps([json.dumps({**named, "parameters": json.dumps(schema)})]), full),
        (["track", {"name": "pay"}, 7, {"description": "?"}], [Tool("track"), Tool("pay")]),
        ([[[[[[["track"]]]]]]], None),
        ([{"name": f"t{number}"} for number in range(2_000)], [Tool(f"t{number}") for number in range(1_000)]),
        ([], None),
    ]
    for value, tools in cases:
        notes = Notes()
        fields = convert_trace({"output": "o", "tools": value}, notes)
        assert fields.get("tools") == tools, value
        assert [note.reason for note in notes.entries] == (["unreadable"] if tools is None and value else []), value
    expected = convert_trace({"output": "o", "expected_tool_calls": [("track", {"number": 7}), "pay"]}, Notes())
    assert expected["expected_tools"] == [ToolCall("track", {"number": 7}), ToolCall("pay")]
