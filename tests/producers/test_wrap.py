"""Wrapped clients: the caller sees what it sees from a bare client, and each call is published."""

from __future__ import annotations

import asyncio
import base64
import gc
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from operator import attrgetter
from typing import Any
from unittest.mock import Mock

import msgspec
import pydantic
import pytest
from lookalikes import table
from sdk_rig import StartedSdk, published, the_trace
from support.lazy import Lazy
from support.model_api import ANSWER, PIECES, ModelApi

import tracejudge
from tracejudge import wrap
from tracejudge.dialects.provider_calls import StreamedAnswer, call_fields, json_data, request_data

# The two take 3 s of CPU to import, in each process that collects this file.
anthropic, openai = Lazy("anthropic"), Lazy("openai")
KEY = "no key"
TABLE = table("wrap_calls")
QUESTION, SYSTEM, FOUND, CALL = TABLE["question"], TABLE["system"], TABLE["found"], TABLE["call"]
CHAT, CHAT_TOOLS, OFFERED = TABLE["chat"], TABLE["chat tools"], TABLE["offered"]
ARGUMENTS, FIELDS = TABLE["arguments"], TABLE["fields"]  # by interface: of its calls, and of their traces
ASKED, SCHEMA = CHAT[1:], OFFERED["tools"][0]["parameters"]
DELTAS = {"content.delta": "delta", "response.output_text.delta": "delta", "text": "text"}
FINAL = ("get_final_completion", "get_final_response", "get_final_message")


class Reply(pydantic.BaseModel):
    """A typed answer."""

    answer: str


class Other(pydantic.BaseModel):
    number: int


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


def seen(value: Any) -> Any:
    """Return a result with its type, comparable with that of another call."""
    if isinstance(value, pydantic.BaseModel):
        return type(value).__name__, value.model_dump(warnings=False), getattr(value, "_request_id", None)
    return [seen(item) for item in value] if isinstance(value, list) else value


async def maybe(value: Any) -> Any:
    """Await what asynchronous clients return where others return the value."""
    return await value if inspect.isawaitable(value) else value


async def each(stream: Any) -> AsyncIterator[Any]:
    if hasattr(stream, "__aiter__"):
        async for item in stream:
            yield item
    else:
        for item in stream:
            yield item


async def listed(stream: Any) -> list[Any]:
    return [seen(item) async for item in each(stream)]


class Entered:
    """A context manager of either kind."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager

    async def __aenter__(self) -> Any:
        enter = getattr(self.manager, "__aenter__", None)
        return await enter() if enter else self.manager.__enter__()

    async def __aexit__(self, *error: object) -> None:
        leave = getattr(self.manager, "__aexit__", None)
        await leave(*error) if leave else self.manager.__exit__(*error)


async def read(way: str, result: Any) -> Any:
    """Read the result of a call in one of the ways of callers, and return what is seen of it."""
    async with nullcontext(result) if way in {"whole", "list", "raw", "raw list"} else Entered(result) as response:
        got: Any
        if way == "whole":
            got = seen(response)
        elif way == "list":
            got = await listed(response)
        elif way == "raw list":
            got = await listed(await maybe(response.parse()))
        elif way == "raw":
            text = await maybe(response.text() if callable(response.text) else response.text)
            parsed = await maybe(response.parse())
            got = response.status_code, text, seen(parsed), parsed is await maybe(response.parse())
        elif way == "lines":
            got = await listed(response.iter_lines())
        elif way == "parsed":
            got = seen(await maybe(response.parse())), await maybe(response.json())
        elif way == "texts":
            got = await listed(response.text_stream)
        elif way == "left":  # at the first chunk that has a text
            got = await anext(seen(item) async for item in each(response) if item.choices[0].delta.content)
        elif way == "first":  # event that has a text
            deltas = (item async for item in each(response) if getattr(item, DELTAS.get(item.type, ""), None))
            got = seen(await anext(deltas))
        else:
            final = next(name for name in FINAL if hasattr(response, name))
            got = await listed(response), seen(await maybe(getattr(response, final)()))
        return type(response), got


async def perform(client: Any, method: str, arguments: dict[str, Any], way: str, options: dict[str, Any]) -> Any:
    """Make a call of a client, and return what its caller sees."""
    async with Entered(client):
        if way == "second turn":
            return SECOND_TURNS[method](client)
        if options:
            client = client.with_options(**options).copy()
        interface = next(name for name in ARGUMENTS if name in method.split("."))
        values = {**ARGUMENTS[interface], **arguments}
        types = {"Reply": Reply, "Other": Other}
        given = {key: types.get(str(value), value) for key, value in values.items() if value is not None}
        if way != "cancelled":
            return await read(way, await maybe(attrgetter(method)(client)(**given)))
        try:
            async with asyncio.timeout(0.3):
                return await read("list", await maybe(attrgetter(method)(client)(**given)))
        except TimeoutError:
            return "cancelled"


def chat(client: Any, model: str = "answers", **more: Any) -> Any:
    return client.chat.completions.create(model=model, messages=CHAT, **more)


def chat_second_turn(client: Any) -> Any:
    first = chat(client.with_options(timeout=30), "calls", tools=CHAT_TOOLS)
    said = first.choices[0].message
    result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": FOUND}
    messages = [*CHAT, said, result]
    second = client.chat.completions.create(model="answers", messages=messages, tools=CHAT_TOOLS)
    messages.clear()
    return seen([first, second])


def respond_second_turn(client: Any) -> Any:
    tools = [{"type": "function", "name": "search", "parameters": SCHEMA, "strict": False}]
    first = client.responses.create(model="calls", instructions=SYSTEM, input=ASKED, tools=tools)
    result = {"type": "function_call_output", "call_id": "call_1", "output": FOUND}
    parts = [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    second = client.responses.create(model="answers", instructions=SYSTEM, input=[*parts, *first.output, result])
    return seen([first, second])


def tell_second_turn(client: Any) -> Any:
    more = {"max_tokens": 100, "tools": [{"name": "search", "input_schema": SCHEMA}]}
    first = client.messages.create(model="calls", system=SYSTEM, messages=ASKED, **more)
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": FOUND}]}
    turns = (*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]})
    system = [{"type": "text", "text": SYSTEM}]
    return seen([first, client.messages.create(model="answers", system=system, messages=turns, **more)])


SECOND_TURNS: dict[str, Callable[[Any], Any]] = {
    "chat.completions.create": chat_second_turn,
    "responses.create": respond_second_turn,
    "messages.create": tell_second_turn,
}


def comparable(trace: dict[str, Any]) -> dict[str, Any]:
    """Leave out ids and service; of an error that quotes a library only its class."""
    fields = {name: value for name, value in trace.items() if name not in {"trace_id", "span_id", "service"}}
    if (error := fields.get("error", "")).startswith(("BadRequest", "RateLimit", "RemoteProtocol", "Validation")):
        fields["error"] = f"{error.partition(':')[0]}"
    return fields


@pytest.mark.parametrize("library", ["openai", "anthropic"])
def test_a_call_gives_what_the_bare_client_gives_and_is_published(library: str, api: ModelApi, sdk: StartedSdk) -> None:
    """A row of the table: client, name, method, arguments, how the result is read, fields of its trace, options."""
    cases = [row for row in TABLE["calls"] if row[0].startswith(library)]
    for kind, name, method, arguments, way, fields, *options in cases:
        results = []
        for client in (made(kind, api), wrapped(made(kind, api))):
            api.requests.clear()
            try:
                result = asyncio.run(perform(client, method, arguments, way, *options or [{}]))
            except Exception as error:
                if "error" not in (fields or ()):
                    raise
                result = type(error), str(error), getattr(error, "body", None), type(error.__cause__)
            results.append((result, [*api.requests]))
        bare, ours = results
        assert ours == bare, (kind, name)
        traces = [comparable(trace) for trace in published(sdk)]
        assert len(traces) == (2 if way == "second turn" else fields is not None), (kind, name)
        if fields is not None:
            interface = next(each for each in FIELDS if each in method.split("."))
            expected = {**FIELDS[interface], **fields}
            assert traces[-1] == {key: value for key, value in expected.items() if value is not None}, (kind, name)


def chat_span(number: int, model: str, outputs: Any) -> dict[str, Any]:
    attributes = {"provider": "openai", "usage": FIELDS["chat"]["usage"], "response_id": "chatcmpl-1"}
    span = {"kind": "llm", "parent_id": "s0", "status": "ok", "inputs": QUESTION, "name": "chat.completions"}
    return {**span, "span_id": f"s{number}", "outputs": outputs, "attributes": {**attributes, "model": f"{model}-2026"}}


def test_calls_within_a_block_are_spans_and_fill_its_fields(openai_client: openai.OpenAI, sdk: StartedSdk) -> None:
    with tracejudge.trace(name="answer", session_id="s-1", context=["Tea is hot."]):
        chat_second_turn(openai_client)
    assert the_trace(sdk) == {
        **FIELDS["chat"],
        "trace_id": "t0",
        "span_id": "s0",
        "service": "shop",
        "name": "answer",
        "session_id": "s-1",
        "context": ["Tea is hot."],
        "tool_calls": [{**CALL, "result": FOUND}],
        **OFFERED,
        "usage": {"input_tokens": 24, "output_tokens": 8},
        "spans": [chat_span(1, "calls", [CALL]), chat_span(2, "answers", ANSWER)],
    }


def test_the_input_and_output_of_an_observed_function_are_its_own(
    openai_client: openai.OpenAI, sdk: StartedSdk
) -> None:
    @tracejudge.observe
    def answer(question: str) -> str:
        for chunk in chat(openai_client, stream=True):
            del chunk
        return question.upper()

    assert answer("is it?") == "IS IT?"
    trace = the_trace(sdk)
    assert (trace["input"], trace["output"], trace["model"]) == ("is it?", "IS IT?", "answers-2026")
    assert trace["messages"] == FIELDS["chat"]["messages"]
    assert trace["spans"] == [chat_span(1, "answers", ANSWER)]
    with tracejudge.trace(name="answer", input="tea?") as block:
        with pytest.raises(openai.BadRequestError):
            chat(openai_client, "fails")
        block.output = "Sorry."
    trace = the_trace(sdk)
    (span,) = trace["spans"]
    assert (trace["output"], "error" in trace, span["status"]) == ("Sorry.", False, "error")
    assert span["attributes"]["error"].startswith("BadRequestError: ")


def test_a_stream_that_is_dropped_is_published_with_its_text_so_far(
    openai_client: openai.OpenAI, sdk: StartedSdk
) -> None:
    for outputs in (["Tea "], []):  # one that was read in part, and one that was never read
        stream = chat(openai_client, "waits", stream=True)
        if outputs:
            assert next(chunk for chunk in stream if chunk.choices[0].delta.content)
        stream.response.stream.close()  # otherwise the connection warns
        del stream
        gc.collect()
        assert [trace["output"] for trace in published(sdk)] == outputs


def test_a_client_is_wrapped_once_keeps_its_type_and_serves_threads(
    openai_client: openai.OpenAI, api: ModelApi, sdk: StartedSdk
) -> None:
    again = tracejudge.wrap_openai(tracejudge.wrap_openai(openai_client))
    assert again is openai_client
    assert type(again) is type(again.with_options(timeout=3)) is openai.OpenAI
    chat(again)
    the_trace(sdk)
    with tracejudge.wrap_openai(made("anthropic.Anthropic", api)) as client:
        client.messages.create(model="answers", max_tokens=9, messages=ASKED)
    assert the_trace(sdk)["provider"] == "anthropic"
    with ThreadPoolExecutor(12) as pool:
        for _ in range(12):
            pool.submit(lambda: list(chat(openai_client, stream=True)))
    assert [trace["output"] for trace in published(sdk)] == [ANSWER] * 12


def test_another_object_is_returned_as_it_is_and_before_init_calls_pass(
    openai_client: openai.OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    for stand_in in (object(), Mock(), Mock(spec=openai.OpenAI)):
        assert tracejudge.wrap_openai(stand_in) is stand_in
    assert "wrap_openai: an object of type object is no client of this library" in caplog.text
    assert chat(openai_client).choices[0].message.content == ANSWER


@pytest.mark.swallows
def test_a_fault_of_ours_does_not_reach_the_caller(
    openai_client: openai.OpenAI, sdk: StartedSdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("request_data", "json_data", "ResponseBody", "call_fields"):
        with monkeypatch.context() as patch:
            patch.setattr(wrap, name, Mock(side_effect=SystemExit("ours")))
            assert chat(openai_client).choices[0].message.content == ANSWER, name
            assert len(list(chat(openai_client, stream=True))) == 6, name
            assert tracejudge.flush(60)
    assert sdk.client.totals().dropped == {"invalid": 2}, "of call_fields"


@pytest.mark.swallows
def test_events_that_cannot_be_read_are_left_out(
    openai_client: openai.OpenAI, sdk: StartedSdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, added = wrap.StreamedAnswer.add, []

    def add(self: wrap.StreamedAnswer, event: dict[str, Any]) -> None:
        added.append(event)
        real(self, event if len(added) > 1 else {"choices": [None]})

    monkeypatch.setattr(wrap.StreamedAnswer, "add", add)
    list(chat(openai_client, stream=True))
    assert the_trace(sdk)["output"] == ANSWER


def aws_frame(event: dict[str, Any]) -> bytes:
    payload = json.dumps({"bytes": base64.b64encode(json.dumps(event).encode()).decode()}).encode()
    headers = b"\x0b:event-type\x07\x00\x05chunk"
    length = 12 + len(headers) + len(payload) + 4
    return length.to_bytes(4, "big") + len(headers).to_bytes(4, "big") + b"crc1" + headers + payload + b"crc2"


def test_events_are_read_wherever_their_bytes_are_divided() -> None:
    events = [{"id": "c-1", "choices": [{"index": 0, "delta": {"content": piece}}]} for piece in PIECES]
    lines = b"".join(b"event: x\r\ndata: " + json.dumps(event).encode() + b"\r\n\r\n" for event in events)
    frames = b"".join(map(aws_frame, events))
    for kind, body in (("text/event-stream", lines), ("application/vnd.amazon.eventstream", frames)):
        for size in (1, 7, len(body)):
            response = Mock(headers={"content-type": kind})
            reader = wrap.ResponseBody(response, Mock())
            for place in range(0, len(body), size):
                reader.add(body[place : place + size])
                reader._fold()
            assert call_fields({}, reader.response())["output"] == ANSWER, (kind, size)


def answer_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    answer = StreamedAnswer()
    for event in events:
        answer.add(event)
    return msgspec.to_builtins(call_fields({}, answer.response()))


def test_bodies_and_events_that_the_server_does_not_send_become_fields() -> None:
    for name, request, response, expected in table("provider_calls")["calls"]:
        assert msgspec.to_builtins(call_fields(request_data(request), response)) == expected, name
    for name, events, expected in table("provider_calls")["events"]:
        assert answer_of(events) == expected, name
    long = answer_of([{"choices": [{"index": 0, "delta": {"content": "x" * 100_000}}]}] * 30)
    assert len(long["output"]) == 1_000_000, "a stream is bounded"


def test_a_request_is_a_copy_of_plain_values() -> None:
    content = [{"type": "text", "text": "Hot?"}]
    copied = request_data(
        {"messages": [{"role": "user", "content": content}], "tools": ["tea"], "user": None, "seed": 1}
    )
    content[0]["text"] = "changed"
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hot?"}]}]
    assert copied == {"messages": messages, "tools": ["tea"]}
    endless: list[Any] = []
    endless.append(endless)
    assert json_data(endless) is not None
    assert (json_data(object()), request_data(object())) == (None, {})
