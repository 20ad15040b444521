"""Wrapped clients: the caller sees what it sees from a bare client, and each call is published."""

from __future__ import annotations

import base64
import gc
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import wrap_calls as calls
from observe_reading import published, the_trace
from sdk_started import StartedSdk
from support.lazy import Lazy
from support.model_api import ANSWER, PIECES, ModelApi

import tracejudge
from tracejudge import wrap
from tracejudge.dialects.provider_calls import call_fields

# The two take 3 s of CPU to import, in each process that collects this file.
anthropic, openai = Lazy("anthropic"), Lazy("openai")
KEY = "no key"
CASES = [
    pytest.param("openai.OpenAI", calls.CHAT_CASES, id="chat completions"),
    pytest.param("openai.OpenAI", calls.RESPONSES_CASES, id="responses"),
    pytest.param("anthropic.Anthropic", calls.MESSAGES_CASES, id="messages"),
    pytest.param("openai.AzureOpenAI", calls.PLATFORM_CASES, id="azure"),
    pytest.param("anthropic.AnthropicVertex", calls.VERTEX_CASES, id="vertex"),
    pytest.param("openai.AsyncOpenAI", calls.ASYNC_OPENAI_CASES, id="openai with asyncio"),
    pytest.param("anthropic.AsyncAnthropic", calls.ASYNC_ANTHROPIC_CASES, id="anthropic with asyncio"),
]


@pytest.fixture(scope="module")
def api() -> Iterator[ModelApi]:
    with ModelApi() as server:
        yield server


@pytest.fixture
def openai_client(api: ModelApi) -> Iterator[openai.OpenAI]:
    with made("openai.OpenAI", api) as client:
        assert tracejudge.wrap_openai(client) is client
        yield client


def made(name: str, api: ModelApi) -> Any:
    module, _, kind_name = name.partition(".")
    kind = getattr({"anthropic": anthropic, "openai": openai}[module], kind_name)
    if kind is openai.AzureOpenAI:
        return kind(azure_endpoint=api.root_url, api_key=KEY, api_version="2026-01-01", max_retries=0)
    if kind is anthropic.AnthropicVertex:
        return kind(base_url=api.root_url, access_token=KEY, region="eu", project_id="tea", max_retries=0)
    is_openai = module == "openai"
    return kind(base_url=f"{api.root_url}/v1" if is_openai else api.root_url, api_key=KEY, max_retries=0)


def wrapped(client: Any) -> Any:
    is_openai = type(client).__module__.startswith("openai")
    return (tracejudge.wrap_openai if is_openai else tracejudge.wrap_anthropic)(client)


def comparable(trace: dict[str, Any]) -> dict[str, Any]:
    """Leave out ids and service; of an error that quotes a library only its class."""
    fields = {name: value for name, value in trace.items() if name not in {"trace_id", "span_id", "service"}}
    if (error := fields.get("error", "")).startswith(("BadRequest", "RateLimit", "RemoteProtocol", "Validation")):
        fields["error"] = f"{error.partition(':')[0]}"
    return fields


@pytest.mark.parametrize(("kind", "cases"), CASES)
def test_a_call_gives_what_the_bare_client_gives_and_is_published(
    kind: str, cases: dict[str, calls.Case], api: ModelApi, start: Callable[..., StartedSdk]
) -> None:
    sdk = start(service="shop")
    before = 0
    for name, case in cases.items():
        call = calls.arun(case.call) if ".Async" in kind else case.call
        results = []
        for client in (made(kind, api), wrapped(made(kind, api))):
            api.requests.clear()
            results.append((call(client), [*api.requests]))
            if call is case.call:
                client.close()
        bare, ours = results
        assert ours == bare, name
        traces = published(sdk)[before:]
        before += len(traces)
        expected = None if case.fields is None else comparable(case.fields)
        assert (comparable(traces[-1]) if traces else None) == expected, name
        assert len(traces) == (2 if name == "second turn" else case.fields is not None), name


SPAN = {"kind": "llm", "parent_id": "s0", "status": "ok", "inputs": calls.QUESTION}
SPAN_ATTRIBUTES = {"provider": "openai", "usage": {"input_tokens": 12, "output_tokens": 4}, "response_id": "chatcmpl-1"}
SPAN_CALLS = [calls.CALL]


def chat_span(number: int, model: str, outputs: Any) -> dict[str, Any]:
    attributes = {**SPAN_ATTRIBUTES, "model": f"{model}-2026"}
    return {**SPAN, "span_id": f"s{number}", "name": "chat.completions", "outputs": outputs, "attributes": attributes}


def test_calls_within_a_block_are_spans_and_fill_its_fields(
    openai_client: openai.OpenAI, start: Callable[..., StartedSdk]
) -> None:
    sdk = start(service="shop")
    with tracejudge.trace(name="answer", session_id="s-1", context=["Tea is hot."]):
        calls.chat_second_turn(openai_client)
    assert the_trace(sdk) == {
        **calls.C,
        "trace_id": "t0",
        "span_id": "s0",
        "service": "shop",
        "name": "answer",
        "session_id": "s-1",
        "context": ["Tea is hot."],
        "tool_calls": [{**calls.CALL, "result": calls.FOUND}],
        **calls.OFFERED,
        "usage": {"input_tokens": 24, "output_tokens": 8},
        "spans": [chat_span(1, "calls", SPAN_CALLS), chat_span(2, "answers", ANSWER)],
    }


def test_the_input_and_output_of_an_observed_function_are_its_own(
    openai_client: openai.OpenAI, start: Callable[..., StartedSdk]
) -> None:
    sdk = start(service="shop")

    @tracejudge.observe
    def answer(question: str) -> str:
        for chunk in calls.chat(openai_client, stream=True):
            del chunk
        return question.upper()

    assert answer("is it?") == "IS IT?"
    trace = the_trace(sdk)
    assert (trace["input"], trace["output"], trace["model"]) == ("is it?", "IS IT?", "answers-2026")
    assert trace["messages"] == calls.C["messages"]
    assert trace["spans"] == [chat_span(1, "answers", ANSWER)]


def test_a_failed_call_within_a_block_is_a_failed_span(
    openai_client: openai.OpenAI, start: Callable[..., StartedSdk]
) -> None:
    sdk = start(service="shop")
    with tracejudge.trace(name="answer", input="tea?") as block:
        with pytest.raises(openai.BadRequestError):
            calls.chat(openai_client, "fails")
        block.output = "Sorry."
    trace = the_trace(sdk)
    (span,) = trace["spans"]
    assert (trace["output"], "error" in trace, span["status"]) == ("Sorry.", False, "error")
    assert span["attributes"]["error"].startswith("BadRequestError: ")


def test_a_stream_that_is_dropped_is_published_with_its_text_so_far(
    openai_client: openai.OpenAI, start: Callable[..., StartedSdk]
) -> None:
    sdk = start(service="shop")
    for _ in range(2):  # one that was read in part, and one that was never read
        stream = calls.chat(openai_client, "waits", stream=True)
        if not published(sdk):
            assert next(chunk for chunk in stream if chunk.choices[0].delta.content)
        stream.response.stream.close()  # otherwise the connection warns
        del stream
        gc.collect()
    assert the_trace(sdk)["output"] == "Tea "


def test_a_wrapped_client_keeps_its_type_and_is_wrapped_once(
    openai_client: openai.OpenAI, start: Callable[..., StartedSdk]
) -> None:
    sdk = start(service="shop")
    again = tracejudge.wrap_openai(tracejudge.wrap_openai(openai_client))
    assert again is openai_client
    assert type(again) is openai.OpenAI
    assert type(again.with_options(timeout=3)) is openai.OpenAI
    calls.chat(again)
    the_trace(sdk)


def test_the_provider_is_that_of_the_client(api: ModelApi, start: Callable[..., StartedSdk]) -> None:
    sdk = start(service="shop")
    with tracejudge.wrap_openai(made("anthropic.Anthropic", api)) as client:
        client.messages.create(model="answers", max_tokens=9, messages=calls.ASKED)
    assert the_trace(sdk)["provider"] == "anthropic"


def test_another_object_is_returned_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    for stand_in in (object(), Mock(), Mock(spec=openai.OpenAI)):
        assert tracejudge.wrap_openai(stand_in) is stand_in
    assert "wrap_openai: an object of type object is no client of this library" in caplog.text


def test_before_init_calls_pass(openai_client: openai.OpenAI) -> None:
    assert calls.chat(openai_client).choices[0].message.content == ANSWER


@pytest.mark.swallows
@pytest.mark.parametrize("name", ["request_data", "json_data", "call_fields", "ResponseBody"])
def test_a_fault_of_ours_does_not_reach_the_caller(
    name: str, openai_client: openai.OpenAI, start: Callable[..., StartedSdk], monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = start(service="shop")

    def fail(*_: Any) -> None:
        raise SystemExit("ours")

    monkeypatch.setattr(wrap, name, fail)
    assert calls.chat(openai_client).choices[0].message.content == ANSWER
    assert len(list(calls.chat(openai_client, stream=True))) == 6
    if name == "call_fields":
        assert tracejudge.flush(60)
        assert sum(sdk.client.totals().dropped.values()) == 2


@pytest.mark.swallows
def test_events_that_cannot_be_read_are_left_out(
    openai_client: openai.OpenAI, start: Callable[..., StartedSdk], monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = start(service="shop")
    real, seen = wrap.StreamedAnswer.add, []

    def add(self: wrap.StreamedAnswer, event: dict[str, Any]) -> None:
        seen.append(event)
        real(self, event if len(seen) > 1 else {"choices": [None]})

    monkeypatch.setattr(wrap.StreamedAnswer, "add", add)
    list(calls.chat(openai_client, stream=True))
    assert the_trace(sdk)["output"] == ANSWER


def test_calls_in_threads_are_published_each_once(
    openai_client: openai.OpenAI, start: Callable[..., StartedSdk]
) -> None:
    sdk = start(service="shop")
    threads = [
        threading.Thread(target=lambda: list(calls.chat(openai_client, stream=True)), daemon=True) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [trace["output"] for trace in published(sdk)] == [ANSWER] * 12


def test_events_are_read_wherever_their_bytes_are_divided() -> None:
    events = [{"id": "c-1", "choices": [{"index": 0, "delta": {"content": piece}}]} for piece in PIECES]
    lines = b"".join(b"event: x\r\ndata: " + json.dumps(event).encode() + b"\r\n\r\n" for event in events)
    frames = b"".join(aws_frame(event) for event in events)
    for kind, body in (("text/event-stream", lines), ("application/vnd.amazon.eventstream", frames)):
        for size in (1, 7, len(body)):
            response = Mock(headers={"content-type": kind})
            read = wrap.ResponseBody(response, Mock())
            for place in range(0, len(body), size):
                read.add(body[place : place + size])
                read._fold()
            assert call_fields({}, read.response())["output"] == ANSWER, (kind, size)


def aws_frame(event: dict[str, Any]) -> bytes:
    payload = json.dumps({"bytes": base64.b64encode(json.dumps(event).encode()).decode()}).encode()
    headers = b"\x0b:event-type\x07\x00\x05chunk"
    length = 12 + len(headers) + len(payload) + 4
    return length.to_bytes(4, "big") + len(headers).to_bytes(4, "big") + b"crc1" + headers + payload + b"crc2"
