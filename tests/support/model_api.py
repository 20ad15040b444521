"""A loopback server with the APIs of OpenAI and Anthropic; the model's name says how a call goes.

`answers`, `calls` (a tool), `refuses`, `fails` (400), `busy` (429), `breaks` (off, in a stream), `errs` (by an event of
the stream), `waits` (after the first piece of a stream, or before the answer), `zips` (compressed).
"""

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from support.loopback import LoopbackServer

PIECES = ("Tea ", "is ", "heiß.")
ANSWER = "".join(PIECES)
ARGUMENTS = ('{"query":', ' "tea"}')
STATUS = {"fails": 400, "busy": 429}
ERROR = {"type": "overloaded_error", "message": "Too many cups"}
ERRORS = {
    "/v1/chat/completions": {"error": ERROR},
    "/v1/responses": {"type": "error", "code": "overloaded", "message": "Too many cups", "sequence_number": 9},
    "/v1/messages": {"type": "error", "error": ERROR},
}
Events = list[tuple[str | None, dict[str, Any]]]


class ModelApi(LoopbackServer):
    """Answers every question about tea."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[dict[str, Any]] = []

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self._handler(chat, chat_events, done=True)),
            web.post("/v1/responses", self._handler(response, response_events)),
            web.post("/v1/messages", self._handler(message, message_events)),
            web.post("/v1/messages/count_tokens", self._handler(lambda _: {"input_tokens": 7}, message_events)),
            # As Azure and Google address them.
            web.post("/openai/deployments/{name}/chat/completions", self._handler(chat, chat_events, done=True)),
            web.post("/projects/{project}/locations/{place}/publishers/anthropic/models/{call}", self._vertex),
            web.get("/v1/models/{name}", self._model),
        ]

    async def _model(self, request: web.Request) -> web.Response:
        return web.json_response({"id": request.match_info["name"], "object": "model", "created": 1, "owned_by": "us"})

    async def _vertex(self, request: web.Request) -> web.StreamResponse:
        body = {**await request.json(), "model": request.match_info["call"].partition(":")[0]}
        self.requests.append(body)
        return web.json_response(message(body))

    def _handler(self, whole: Any, events: Any, *, done: bool = False) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            self.requests.append(body)
            model = body["model"]
            if model in STATUS:
                error = {"type": "invalid_request_error", "message": f"The model {model}"}
                return web.json_response({"type": "error", "error": error}, status=STATUS[model])
            if body.get("stream"):
                return await _stream(request, model, events(body), done=done)
            if model == "waits":
                await asyncio.sleep(60)
            answer = web.json_response(whole(body))
            if model == "zips":
                answer.enable_compression(web.ContentCoding.gzip)
            return answer

        return handle


async def _stream(request: web.Request, model: str, events: Events, *, done: bool) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    if model == "zips":
        answer.enable_compression(web.ContentCoding.gzip)
    await answer.prepare(request)
    if model in {"waits", "breaks", "errs"}:
        # Up to the first piece of the text.
        events = events[: 1 + next(place for place, (_, event) in enumerate(events) if PIECES[0] in json.dumps(event))]
    for name, event in events:
        await answer.write(_event(name, event))
    if model == "waits":
        await asyncio.sleep(60)
    if model == "breaks":
        request.transport.abort()
    elif model == "errs":
        await answer.write(_event("error", ERRORS[request.path]))
    elif done:
        await answer.write(b"data: [DONE]\n\n")
    return answer


def _event(name: str | None, event: dict[str, Any]) -> bytes:
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(event)}\n\n".encode()


def chat(body: dict[str, Any]) -> dict[str, Any]:
    text: dict[str, Any] = {"role": "assistant", "content": _text(body), "refusal": None}
    if body["model"] == "calls":
        function = {"name": "search", "arguments": "".join(ARGUMENTS)}
        text |= {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    if body["model"] == "refuses":
        text |= {"content": None, "refusal": "No tea."}
    choice = {"index": 0, "message": text, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 12, "completion_tokens": 4, "total_tokens": 16}
    return {**_head("chatcmpl-1", "chat.completion", body), "choices": [choice], "usage": usage}


def chat_events(body: dict[str, Any]) -> Events:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        *({"content": piece} for piece in _pieces(body)),
    ]
    if body["model"] == "calls":
        head = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "search", "arguments": ""}}
        rest = [{"index": 0, "function": {"arguments": piece}} for piece in ARGUMENTS]
        deltas = [{"role": "assistant", "tool_calls": [head]}, *({"tool_calls": [tool]} for tool in rest)]
    head = _head("chatcmpl-1", "chat.completion.chunk", body)
    chunks = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": None} for delta in deltas
    ]
    usage = {"prompt_tokens": 12, "completion_tokens": 4, "total_tokens": 16}
    end = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None}
    return _unnamed([*chunks, end, {**head, "choices": [], "usage": usage}])


def response(body: dict[str, Any]) -> dict[str, Any]:
    part = {"type": "output_text", "text": _text(body), "annotations": []}
    items: list[dict[str, Any]] = [{"type": "reasoning", "id": "rs_1", "summary": []}]
    if body["model"] == "calls":
        call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "search", "status": "completed"}
        items.append({**call, "arguments": "".join(ARGUMENTS)})
    else:
        items.append({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]})
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 12, "output_tokens": 4, "total_tokens": 16, **details}
    state = {"status": "queued" if body.get("background") else "completed", "error": None, "incomplete_details": None}
    rest = {"instructions": None, "metadata": {}, "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
    head = {"id": "resp_1", "object": "response", "created_at": 1, "model": _model(body)}
    return {**head, **state, **rest, "output": [] if body.get("background") else items, "usage": usage}


def response_events(body: dict[str, Any]) -> Events:
    whole = response(body)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    place = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
    item = {**whole["output"][1]}
    if body["model"] == "calls":
        place = {"item_id": "fc_1", "output_index": 1}
        name, pieces = "response.function_call_arguments.delta", ARGUMENTS
        opened = [{"type": "response.output_item.added", "output_index": 1, "item": {**item, "arguments": ""}}]
    else:
        name, pieces = "response.output_text.delta", _pieces(body)
        empty = {"type": "output_text", "text": "", "annotations": []}
        opened = [
            {"type": "response.output_item.added", "output_index": 1, "item": {**item, "content": []}},
            {"type": "response.content_part.added", **place, "part": empty},
        ]
    thought = {"type": "response.output_item.added", "output_index": 0, "item": whole["output"][0]}
    deltas = [{"type": name, **place, "delta": piece, "logprobs": []} for piece in pieces]
    ended = [{"type": "response.completed", "response": whole}]
    events = [{"type": "response.created", "response": begun}, thought, *opened, *deltas, *ended]
    return _named({**event, "sequence_number": number} for number, event in enumerate(events))


def message(body: dict[str, Any]) -> dict[str, Any]:
    # An answer with citations: one text in two parts.
    text = _text(body)
    content: list[dict[str, Any]] = [{"type": "text", "text": part, "citations": None} for part in (text[:4], text[4:])]
    if body["model"] == "calls":
        call = {"type": "tool_use", "id": "call_1", "name": "search", "input": json.loads("".join(ARGUMENTS))}
        content = [{"type": "text", "text": "I look.", "citations": None}, call]
    usage = {"input_tokens": 10, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 0, "output_tokens": 4}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": _model(body)}
    return {**head, "content": content, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage}


def message_events(body: dict[str, Any]) -> Events:
    whole, calls = message(body), body["model"] == "calls"
    texts = ["I look."] if calls else PIECES
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    blocks: list[Block] = [
        ({"type": "thinking", "thinking": "", "signature": ""}, [{"type": "thinking_delta", "thinking": "Hm."}]),
        ({"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in texts]),
    ]
    if calls:
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ARGUMENTS]
        blocks.append(({**whole["content"][1], "input": {}}, deltas))
    return _named(stream_of_messages(begun, blocks, "end_turn", 4))


Block = tuple[dict[str, Any], list[dict[str, Any]]]
"""The beginning of a part of an answer, and what is added to it."""


def stream_of_messages(
    begun: dict[str, Any], blocks: Iterable[Block], reason: str, tokens: int
) -> list[dict[str, Any]]:
    """Write the events of Anthropic's API for an answer of some blocks."""
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    end = {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": tokens}}
    return [*events, {"type": "message_delta", **end}, {"type": "message_stop"}]


def _text(body: dict[str, Any]) -> str:
    wants_json = "response_format" in body or "text" in body or "output_config" in body
    return json.dumps({"answer": ANSWER}) if wants_json else ANSWER


def _pieces(body: dict[str, Any]) -> tuple[str, ...]:
    text = _text(body)
    return PIECES if text == ANSWER else (text[:6], text[6:])


def _model(body: dict[str, Any]) -> str:
    return f"{body['model']}-2026"


def _head(name: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, "object": kind, "created": 1, "model": _model(body)}


def _named(events: Iterable[dict[str, Any]]) -> Events:
    return [(event["type"], event) for event in events]


def _unnamed(events: Iterable[dict[str, Any]]) -> Events:
    return [(None, event) for event in events]
