"""A real HTTP server for OpenAI's chat completions with a configurable behaviour."""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from support.loopback import LoopbackServer
from support.replies import Behaviour, Call, Reply, failing, resolve, yes_no

PATH = "/v1/chat/completions"


class ChatEndpoint(LoopbackServer):
    """Serves `base_url` + "/chat/completions". Set `behaviour` at any time; it is evaluated for each request.

    Other APIs are subclasses, which define `path`, `completion` and `fault`.
    """

    path = PATH

    def __init__(self, behaviour: Behaviour | None = None, *, port: int = 0) -> None:
        super().__init__(port=port)
        self.behaviour: Behaviour = yes_no() if behaviour is None else behaviour
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._calls: list[Call] = []
        self._in_flight = 0
        self._max_in_flight = 0

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

    @property
    def calls(self) -> tuple[Call, ...]:
        """All requests so far, in the order of arrival, those in flight included."""
        with self._lock:
            return tuple(self._calls)

    @property
    def in_flight(self) -> int:
        with self._lock:
            return self._in_flight

    @property
    def max_in_flight(self) -> int:
        with self._lock:
            return self._max_in_flight

    def forget(self) -> None:
        """Clear the records; calls in flight still count."""
        with self._lock:
            self._calls.clear()
            self._max_in_flight = self._in_flight

    def routes(self) -> list[web.RouteDef]:
        return [web.post(self.path, self._serve_chat)]

    def resolve(self, call: Call) -> Reply:
        """Choose the reply to a request."""
        return resolve(self.behaviour, call) if call.body else failing(400, "the body is no JSON object")

    def completion(self, reply: Reply, call: Call) -> dict[str, Any]:
        return _completion(reply, call)

    def fault(self, error: Mapping[str, Any]) -> dict[str, Any]:
        return {"error": error}

    async def _serve_chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        call = self._begin(raw, request)
        try:
            response = await self._respond(request, call)
            call.status = response.status
            return response
        finally:
            self._end(call)

    async def _respond(self, request: web.Request, call: Call) -> web.StreamResponse:
        reply = self.resolve(call)
        if reply.hold is not None:
            await reply.hold.passed()
        await asyncio.sleep(reply.delay_s)
        if reply.hangs:
            await asyncio.Future()
        body = self._body(reply, call).encode()
        if reply.cut_after is not None:
            return await _cut(request, reply, body)
        return web.Response(body=body, status=reply.status, headers=reply.headers, content_type=reply.content_type)

    def _body(self, reply: Reply, call: Call) -> str:
        if reply.raw is not None:
            return reply.raw
        return json.dumps(self.completion(reply, call) if reply.error is None else self.fault(reply.error))

    def _begin(self, raw: bytes, request: web.Request) -> Call:
        headers = {name.lower(): value for name, value in request.headers.items()}
        call = Call(next(self._numbers), _decode(raw), headers)
        with self._lock:
            self._calls.append(call)
            self._in_flight += 1
            self._max_in_flight = max(self._max_in_flight, self._in_flight)
        return call

    def _end(self, call: Call) -> None:
        with self._lock:
            call.ended_at = time.monotonic()
            self._in_flight -= 1


async def _cut(request: web.Request, reply: Reply, body: bytes) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, headers={"Content-Length": str(len(body))})
    response.content_type = reply.content_type
    if reply.cut_after:
        await response.prepare(request)
        await response.write(body[: int(len(body) * reply.cut_after)])
    request.transport.close()
    raise asyncio.CancelledError  # sends nothing more to this client, not even an error


def _decode(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _completion(reply: Reply, call: Call) -> dict[str, Any]:
    choice = {"index": 0, "message": _message(reply, call), "finish_reason": reply.finish_reason}
    completion = {
        "id": f"chatcmpl-{call.index}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": reply.model or call.body.get("model"),
        "choices": [choice] if reply.choices else [],
    }
    return completion if reply.usage is None else completion | {"usage": _usage(reply)}


def _message(reply: Reply, call: Call) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text_for(call), "refusal": reply.refusal}
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": f"call_{call.index}_{number}", "type": "function", "function": tool._asdict()}
            for number, tool in enumerate(reply.tool_calls)
        ]
    return message


def _usage(reply: Reply) -> dict[str, int]:
    return {**reply.usage._asdict(), "total_tokens": sum(reply.usage)}
