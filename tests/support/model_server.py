"""Models that answer by a script, and a recorder of OTLP requests, for clients in environments of their own.

One server speaks OpenAI's chat completions and responses, Anthropic's messages and Google's `generateContent`, whole
and streamed. What it answers depends on the request alone, so that a recording can be made again.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web

from support.loopback import LoopbackServer
from support.model_api import stream_of_messages

MODEL: Final = "small-2026-11-01"
"""The model that answers; clients ask for `small`."""
TYPED: Final = {"city": "Bern", "days": 2}
FAILURE: Final = "the prompt is not allowed"
PASSAGES: Final = [
    {"pid": "faq-1", "text": "Parcels leave on Mondays.", "score": 0.9},
    {"pid": "faq-2", "text": "A parcel takes two days.", "score": 0.5},
]
_INPUT_TOKENS: Final = 100
_OUTPUT_TOKENS: Final = 20
_ANSWERS: Final = {
    "Where is parcel 7?": "Parcel 7 has reached Bern.",
    "When do parcels leave?": "On Mondays.",
    "Find out when parcels leave.": "They leave on Mondays.",
}
_TOOLS: Final = {"track": {"number": 7}, "kb_search": {"query": "When do parcels leave?"}}


class Turn(NamedTuple):
    """A request to a model, whatever the API."""

    queries: list[str]
    has_results: bool  # a tool has answered since the last query
    tools: dict[str, Any]  # parameters by name
    wants_json: bool
    instructions: str


class Answer(NamedTuple):
    text: str | None = None
    tool: str | None = None
    arguments: Mapping[str, Any] = {}


def answer(turn: Turn) -> Answer | None:
    """Choose the answer of the model; None is an error."""
    query = turn.queries[-1] if turn.queries else ""
    if "Please fail." in query:
        return None
    # Semantic Kernel writes the name of a plugin before that of a tool.
    known = {name: name.rpartition("-")[2] for name in turn.tools}
    if not turn.has_results:
        for name, short in known.items():
            if short in _TOOLS:
                return Answer(tool=name, arguments=_TOOLS[short])
    typed = next((name for name, short in known.items() if short not in {*_TOOLS, "final_answer"}), None)
    if typed is not None:
        return Answer(tool=typed, arguments=TYPED)
    if turn.wants_json:
        return Answer(json.dumps(TYPED))
    text = next((text for asked, text in _ANSWERS.items() if asked in query), None)
    if text is None:
        times = sum("Where is my parcel?" in each for each in turn.queries)
        text = "It is still in Bern." if times > 1 else "It is in Bern."
    if "final_answer" in turn.tools:  # of smolagents
        return Answer(tool="final_answer", arguments={"answer": TYPED if "Which city" in query else text})
    return Answer(_marked(turn.instructions, query, text) if "[[ ## " in turn.instructions else text)


def _marked(instructions: str, query: str, text: str) -> str:
    """Write the fields that DSPy asks for at the end of a prompt, each behind its marker."""
    offered = (name for name in _TOOLS if f") {name}, whose" in instructions)
    tool = next((name for name in offered if "[[ ## observation_0 ## ]]" not in query), "finish")
    texts = {
        "answer": text,
        "next_thought": "A tool finds it.",
        "next_tool_name": tool,
        "next_tool_args": json.dumps(_TOOLS.get(tool, {})),
        **{name: str(value) for name, value in TYPED.items()},
    }
    asked = re.findall(r"\[\[ ## (\w+) ## \]\]", query.rpartition("Respond with")[2])
    return "\n\n".join(f"[[ ## {name} ## ]]\n{texts.get(name, '')}" for name in asked)


class ModelServer(LoopbackServer):
    """Serves models below `root_url`, and records what is exported to `/v1/traces` and `/v1/logs`."""

    def __init__(self, *, port: int = 0) -> None:
        super().__init__(port=port)
        self.scenario = ""
        self.traces: dict[str, bytes] = defaultdict(bytes)
        """OTLP by scenario. Export requests behind one another are one export request."""
        self.logs: dict[str, bytes] = defaultdict(bytes)
        self._count = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self._chat),
            web.post("/v1/responses", self._responses),
            web.post("/v1/messages", self._anthropic),
            web.post("/{version:v1[a-z0-9]*}/models/{call}", self._google),
            web.post("/v1/embeddings", self._embeddings),
            web.get("/colbert", self._colbert),
            web.post("/v1/traces", self._record),
            web.post("/v1/logs", self._record),
            web.post("/scenario/{name}", self._begin),
        ]

    async def _begin(self, request: web.Request) -> web.Response:
        self.scenario = request.match_info["name"]
        return web.Response()

    async def _record(self, request: web.Request) -> web.Response:
        kept = self.traces if request.path.endswith("traces") else self.logs
        kept[self.scenario] += await request.read()
        return web.Response(content_type="application/x-protobuf")

    def _id(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        # Smolagents writes the result of a tool as a message of the user, to which it adds the next question.
        messages = [
            each | {"role": "tool"}
            if re.match("Observation:(?!.*New task:)", _text(each.get("content")), re.DOTALL)
            else each
            for each in body["messages"]
        ]
        functions = [tool["function"] for tool in body.get("tools") or ()]
        reply = answer(
            Turn(
                [_text(each["content"]) for each in messages if each["role"] == "user"],
                messages[-1]["role"] in {"tool", "function"},
                {each["name"]: each.get("parameters") for each in functions},
                (body.get("response_format") or {}).get("type", "text") != "text",
                " ".join(_text(each["content"]) for each in messages if each["role"] in {"system", "developer"}),
            )
        )
        if reply is None:
            return _failed({"error": {"message": FAILURE, "type": "invalid_request_error", "code": "policy"}})
        base = {"id": self._id("chatcmpl-"), "created": 1_790_000_000, "model": MODEL}
        call = None
        if reply.tool is not None:
            function = {"name": reply.tool, "arguments": json.dumps(reply.arguments)}
            call = [{"id": self._id("call_"), "type": "function", "function": function}]
        message = {"role": "assistant", "content": reply.text} | ({"tool_calls": call} if call else {})
        reason = "tool_calls" if call else "stop"
        usage = {"prompt_tokens": _INPUT_TOKENS, "completion_tokens": _OUTPUT_TOKENS, "total_tokens": 120}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return web.json_response({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
        if call:
            deltas = [message | {"tool_calls": [{"index": 0, **call[0]}]}]
        else:
            deltas = [{"role": "assistant", "content": ""}, *({"content": part} for part in _pieces(reply.text))]
        chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({"choices": [], "usage": usage})
        lines = [f"data: {json.dumps({**base, 'object': 'chat.completion.chunk', **chunk})}\n\n" for chunk in chunks]
        return await _stream(request, [*lines, "data: [DONE]\n\n"])

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        inputs = body["input"]
        items = [{"role": "user", "content": inputs}] if isinstance(inputs, str) else inputs
        reply = answer(
            Turn(
                [_text(each["content"]) for each in items if each.get("role") == "user"],
                items[-1].get("type") == "function_call_output",
                {tool["name"]: tool.get("parameters") for tool in body.get("tools") or () if "name" in tool},
                (body.get("text") or {}).get("format", {}).get("type", "text") != "text",
                body.get("instructions") or "",
            )
        )
        if reply is None:
            return _failed({"error": {"message": FAILURE, "type": "invalid_request_error", "code": "policy"}})
        item: dict[str, Any]
        if reply.tool is not None:
            call = {"name": reply.tool, "arguments": json.dumps(reply.arguments), "call_id": self._id("call_")}
            item = {"type": "function_call", "id": self._id("fc_"), "status": "completed", **call}
        else:
            content = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
            item = {"type": "message", "id": self._id("msg_"), "role": "assistant", "status": "completed"}
            item["content"] = content
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        response = {
            "id": self._id("resp_"),
            "object": "response",
            "created_at": 1_790_000_000,
            "status": "completed",
            "model": MODEL,
            "output": [item],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "instructions": body.get("instructions"),
            "tools": [],
            "usage": {"input_tokens": _INPUT_TOKENS, "output_tokens": _OUTPUT_TOKENS, "total_tokens": 120, **details},
        }
        if not body.get("stream"):
            return web.json_response(response)
        place = {"output_index": 0, "item_id": item["id"]}
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": {**response, "output": [], "usage": None}},
            {"type": "response.output_item.added", **place, "item": {**item, "content": []}},
        ]
        if reply.text is not None:
            part = {"type": "output_text", "text": "", "annotations": []}
            events.append({"type": "response.content_part.added", **place, "content_index": 0, "part": part})
            events += [
                {"type": "response.output_text.delta", **place, "content_index": 0, "delta": piece, "logprobs": []}
                for piece in _pieces(reply.text)
            ]
        events.append({"type": "response.output_item.done", **place, "item": item})
        events.append({"type": "response.completed", "response": response})
        numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
        return await _stream(request, [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in numbered])

    async def _anthropic(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        messages = body["messages"]
        last = messages[-1]["content"]
        reply = answer(
            Turn(
                [_text(each["content"]) for each in messages if each["role"] == "user" and _text(each["content"])],
                isinstance(last, list) and any(part.get("type") == "tool_result" for part in last),
                {tool["name"]: tool.get("input_schema") for tool in body.get("tools") or ()},
                "output_format" in body or "output_config" in body,
                _text(body.get("system") or ""),
            )
        )
        if reply is None:
            return _failed({"type": "error", "error": {"type": "invalid_request_error", "message": FAILURE}})
        if reply.tool is None:
            block: dict[str, Any] = {"type": "text", "text": reply.text}
        else:
            block = {"type": "tool_use", "id": self._id("toolu_"), "name": reply.tool, "input": dict(reply.arguments)}
        usage = {"input_tokens": _INPUT_TOKENS, "output_tokens": _OUTPUT_TOKENS}
        reason = "end_turn" if reply.tool is None else "tool_use"
        message = {"id": self._id("msg_"), "type": "message", "role": "assistant", "model": MODEL, "usage": usage}
        message |= {"content": [block], "stop_reason": reason, "stop_sequence": None}
        if not body.get("stream"):
            return web.json_response(message)
        if reply.tool is None:
            empty, deltas = (
                {**block, "text": ""},
                [{"type": "text_delta", "text": piece} for piece in _pieces(reply.text)],
            )
        else:
            written = json.dumps(reply.arguments)
            empty, deltas = {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": written}]
        begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
        events = stream_of_messages(begun, [(empty, deltas)], reason, _OUTPUT_TOKENS)
        return await _stream(request, [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events])

    async def _google(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        contents = body["contents"]
        parts = [part for content in contents[-1:] for part in content["parts"]]
        declared = [
            function_declaration
            for tool in body.get("tools") or ()
            for function_declaration in tool.get("functionDeclarations") or ()
        ]
        instructions = (body.get("systemInstruction") or {}).get("parts") or ()
        reply = answer(
            Turn(
                [
                    _text(content["parts"])
                    for content in contents
                    if content.get("role") == "user" and _text(content["parts"])
                ],
                any("functionResponse" in part for part in parts),
                {tool["name"]: tool.get("parameters") for tool in declared},
                "responseMimeType" in (body.get("generationConfig") or {}),
                _text(list(instructions)),
            )
        )
        if reply is None:
            return _failed({"error": {"code": 400, "message": FAILURE, "status": "INVALID_ARGUMENT"}})
        pieces: list[dict[str, Any]] = [{"text": piece} for piece in _pieces(reply.text or "")]
        if reply.tool is not None:
            pieces = [{"functionCall": {"name": reply.tool, "args": dict(reply.arguments)}}]
        usage = {"promptTokenCount": _INPUT_TOKENS, "candidatesTokenCount": _OUTPUT_TOKENS, "totalTokenCount": 120}
        base = {"modelVersion": MODEL, "responseId": self._id("resp-"), "usageMetadata": usage}
        if not request.match_info["call"].endswith(":streamGenerateContent"):
            whole = pieces if reply.text is None else [{"text": reply.text}]
            return web.json_response({**base, "candidates": [_candidate(whole, "STOP")]})
        chunks = [_candidate([piece], None) for piece in pieces[:-1]] + [_candidate(pieces[-1:], "STOP")]
        lines = [f"data: {json.dumps({**base, 'candidates': [chunk]})}\r\n\r\n" for chunk in chunks]
        return await _stream(request, lines)

    async def _embeddings(self, request: web.Request) -> web.Response:
        body = await request.json()
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        data = [
            {"object": "embedding", "index": place, "embedding": [1.0, float(len(str(text)))]}
            for place, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": 5, "total_tokens": 5}
        return web.json_response({"object": "list", "model": "small-embedding", "data": data, "usage": usage})

    async def _colbert(self, _request: web.Request) -> web.Response:
        """Answer a search as a server of ColBERT does."""
        return web.json_response({"topk": PASSAGES})


def _candidate(parts: list[dict[str, Any]], reason: str | None) -> dict[str, Any]:
    return {"index": 0, "content": {"role": "model", "parts": parts}} | ({"finishReason": reason} if reason else {})


def _text(content: Any) -> str:
    parts = content if isinstance(content, list) else [content]
    return " ".join(str(part.get("text") or "") if isinstance(part, dict) else str(part or "") for part in parts)


def _pieces(text: str | None) -> list[str]:
    words = (text or "").split(" ")
    return [word + " " for word in words[:-1]] + words[-1:]


def _failed(body: dict[str, Any]) -> web.Response:
    return web.json_response(body, status=400)


async def _stream(request: web.Request, lines: list[str]) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_type = "text/event-stream"
    await response.prepare(request)
    for line in lines:
        await response.write(line.encode())
    return response
