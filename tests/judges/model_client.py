"""A judge model under test, its errors searched for secrets; a server of bytes."""

import asyncio
import json
import socketserver
import ssl
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import pytest
from judge_traces import in_loop
from support.messages import CachedUsage
from support.processes import PATIENCE_S
from support.replies import Reply, Usage, failing
from support.replies import ToolCall as Wanted

from judges.calling.evaluation import evaluate
from judges.core.judge import Judge
from judges.core.model import ChatModel, ChatRequest, ChatResponse, ModelError, ModelSettings, Tool
from judges.core.prompt import Message, ToolCall
from judges.core.verdict import Assessment
from judges.models.anthropic import AnthropicModel
from judges.models.openai import OpenAIModel
from tracejudge import Trace

PATIENT: dict[str, object] = {"timeout_s": PATIENCE_S}
KEY = "sk-test-5ecret"
PROMPT = "the-prompt-5ecret"
WORDS = "the-endpoint-5ecret"
REQUEST = ChatRequest(
    (Message("system", "Judge."), Message("user", PROMPT)),
    "groundedness",
    {"type": "object", "properties": {"result": {"type": "string"}}, "additionalProperties": False},
    dict,
)
SEARCH = Tool("search", "Find a text.", {"type": "object", "properties": {"text": {"type": "string"}}})
ROOT = Tool("root", "Show the first step.", {"type": "object", "properties": {}})


def with_tools(*messages: Message, may_call: bool = True) -> ChatRequest:
    """Build a request with two tools, with further messages after its own."""
    return msgspec.structs.replace(
        REQUEST, messages=(*REQUEST.messages, *messages), tools=(SEARCH, ROOT), may_call=may_call
    )


def reply_of(row: Sequence[Any] | Mapping[str, Any]) -> Reply:
    """Make a reply of a table: a status, message and fields of an error, or fields of a reply with `body` as JSON."""
    if not isinstance(row, Mapping):
        status, message, *more = row
        return failing(status, message, **dict(*more))
    fields = dict(row)
    if "body" in fields:
        fields["raw"] = json.dumps(fields.pop("body"))
    if fields.get("usage"):
        fields["usage"] = (Usage if len(fields["usage"]) == 2 else CachedUsage)(*fields["usage"])
    return Reply(**fields | {"tool_calls": tuple(Wanted(*call) for call in fields.get("tool_calls", ()))})


def shown(response: ChatResponse) -> dict[str, Any]:
    """Return what a response holds, as JSON without defaults."""
    default = json.loads(msgspec.json.encode(ChatResponse("")))
    actual = json.loads(msgspec.json.encode(response))
    return {name: value for name, value in actual.items() if value != default[name]}


def asks(*calls: ToolCall, text: str = "") -> Message:
    return Message("assistant", text, calls)


def result(call_id: str, text: str) -> Message:
    return Message("tool", text, tool_call_id=call_id)


class Client(NamedTuple):
    """A model whose connections are closed after each use."""

    model: ChatModel

    def ask(self, request: ChatRequest = REQUEST) -> ChatResponse:
        return self.ask_often(1, request)[0]

    def ask_often(self, count: int, request: ChatRequest = REQUEST) -> list[ChatResponse]:
        """Ask the same at the same time."""
        return self.ask_all([request] * count)

    def ask_all(self, requests: Sequence[ChatRequest]) -> list[ChatResponse]:
        """Ask at the same time."""

        async def all_at_once() -> list[ChatResponse]:
            try:
                return await asyncio.gather(*map(self.model.complete, requests))
            finally:
                await self.model.aclose()

        return in_loop(all_at_once())

    def fails(self, request: ChatRequest = REQUEST) -> ModelError:
        """Ask, and give the error; none of the secrets may be in its text."""
        with pytest.raises(ModelError) as caught:
            self.ask(request)
        shown = f"{caught.value!s} {caught.value!r}"
        assert not [secret for secret in (KEY, PROMPT, WORDS, "5ecret") if secret in shown]
        return caught.value

    def judge(self, judge: Judge, trace: Trace) -> Assessment:
        """Evaluate a trace, as the worker does."""

        async def judged() -> Assessment:
            try:
                return await evaluate(judge, trace, self.model)
            finally:
                await self.model.aclose()

        return in_loop(judged())


def openai(base_url: str, **settings: object) -> Client:
    fields = {**PATIENT, "base_url": base_url, "model": "gpt-test", **settings}
    return Client(OpenAIModel(msgspec.convert(fields, ModelSettings), KEY))


def anthropic(base_url: str, **settings: object) -> Client:
    fields = {**PATIENT, "provider": "anthropic", "base_url": base_url, "model": "claude-test", **settings}
    return Client(AnthropicModel(msgspec.convert(fields, ModelSettings), KEY))


class Certificate(NamedTuple):
    """A certificate for 127.0.0.1 that nobody has signed but itself."""

    path: Path
    tls: ssl.SSLContext


class RawServer:
    """Serves `base_url` on a free port. With `closes=False` a connection stays open after its reply."""

    def __init__(self, reply: bytes, *, closes: bool = True, tls: ssl.SSLContext | None = None) -> None:
        outer = self
        self.connections = 0

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                outer.connections += 1
                with suppress(OSError):  # a client that has read enough is no error
                    while self._read_request():
                        self.wfile.write(reply)
                        if closes:
                            return

            def _read_request(self) -> bool:
                length, is_there = 0, False
                while line := self.rfile.readline().strip().lower():
                    is_there = True
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                self.rfile.read(length)
                return is_there

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._scheme = "http"
        if tls is not None:
            self._scheme = "https"
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def base_url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End with all that is being served: what a thread says later would be taken for a later test's."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
