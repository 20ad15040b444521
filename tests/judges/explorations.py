"""A toolbox, a judge and models for the tests of the loop, and the rules that both chat APIs have for messages."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from msgspec import structs
from support.processes import PATIENCE_S
from support.virtual_time import run_virtually

from judges.calling.evaluation import evaluate
from judges.core.judge import Exploration, Judge, Limits
from judges.core.model import ChatModel, ChatRequest, ChatResponse, ModelSettings, Tool
from judges.core.prompt import Message, Prompt, ToolCall
from judges.core.verdict import Assessment
from judges.models.scripted import ScriptedModel, Step
from judges.registry import catalogue
from tracejudge import Trace

TRACE = Trace(trace_id="1", service="s", input="How long?", output="Two years.", context=["Two years."])
SETTINGS = ModelSettings(provider="scripted", model="scripted")
UNKNOWN = '{"error":"There is no such tool."}'
TOOL_THREAD = "tracejudge-tool"
NO_PARAMETERS = {"type": "object", "properties": {}}

Behaviour = Callable[[str], str]


class Shelf:
    """Tools that are functions of their arguments; anything else is unknown."""

    def __init__(self, **behaviours: Behaviour) -> None:
        self.behaviours = behaviours
        self.tools = tuple(Tool(name, f"Gives {name}.", NO_PARAMETERS) for name in behaviours)

    def call(self, name: str, arguments: str) -> str:
        behaviour = self.behaviours.get(name)
        return UNKNOWN if behaviour is None else behaviour(arguments)


def exploring(limits: Limits = Limits(), **behaviours: Behaviour) -> Judge:  # noqa: B008 - frozen
    """Build a yes/no judge that reads with these tools; `read` returns its arguments unless another is passed."""
    shelf = Shelf(**{"read": lambda arguments: f"read {arguments}", **behaviours})
    return replace(
        catalogue()["groundedness"],
        prompts=lambda _: (Prompt("Read the trace by tools, then say yes or no.", ()),),
        exploration=Exploration(lambda _: shelf, limits),
    )


def call(name: str = "read", arguments: str = "{}", call_id: str = "c") -> ToolCall:
    return ToolCall(call_id, name, arguments)


def calling(*calls: ToolCall, text: str = "") -> Step:
    return Step(text, tool_calls=calls or (call(),))


class Looking(ScriptedModel):
    """Reads something before it follows its steps, where there are tools: else no answer counts."""

    async def complete(self, request: ChatRequest) -> ChatResponse:
        if request.offers_tools and not contents(request):
            return ChatResponse("", tool_calls=(call("get_trace_info", call_id="look"),))
        return await super().complete(request)


def looks(judge: Judge) -> int:
    """Return how many calls of a model are the exploration."""
    return int(judge.exploration is not None)


class Counting(ScriptedModel):
    """Counts tokens as an endpoint does: so many bytes each, those of tools and earlier rounds included."""

    def __init__(
        self,
        steps: Sequence[Step | str | Callable[[ChatRequest], Step]],
        settings: ModelSettings = SETTINGS,
        bytes_per_token: float = 4.0,
    ) -> None:
        super().__init__(steps, settings)
        self.bytes_per_token = bytes_per_token

    async def complete(self, request: ChatRequest) -> ChatResponse:
        response = await super().complete(request)
        answer = Message("assistant", response.text, response.tool_calls)
        return structs.replace(
            response, input_tokens=self._tokens(*request.messages), output_tokens=self._tokens(answer)
        )

    def _tokens(self, *messages: Message) -> int:
        return int(sum(map(written_bytes, messages)) / self.bytes_per_token) + 1


def written_bytes(message: Message) -> int:
    calls = sum(len(call.arguments.encode()) for call in message.tool_calls)
    return len(message.content.encode("utf-8", "replace")) + calls


def judged(judge: Judge, model: ChatModel, trace: Trace = TRACE) -> Assessment:
    return asyncio.run(evaluate(judge, trace, model))


def run_with_tools(main: Coroutine[Any, Any, Assessment]) -> Assessment:
    """Run in virtual time that stands while a tool works, however long, and goes on while one hangs."""
    return run_virtually(main, lambda: any(thread.name == TOOL_THREAD for thread in threading.enumerate()))


@contextmanager
def hanging() -> Iterator[Behaviour]:
    """Provide a tool that does not return before the block ends."""
    over = threading.Event()

    def hang(_: str) -> str:
        thread = threading.current_thread()
        assert thread.name == TOOL_THREAD
        thread.name = "hangs"
        return str(over.wait(PATIENCE_S))

    try:
        yield hang
    finally:
        over.set()


def course(assessment: Assessment) -> Mapping[str, object]:
    """Return the exploration in the verdict's details."""
    details = assessment.details["exploration"]
    assert isinstance(details, dict)
    return details


def contents(request: ChatRequest, role: str = "tool") -> list[str]:
    return [message.content for message in request.messages if message.role == role]


def check_structure(request: ChatRequest) -> None:
    """Each answer with calls is followed by all its results, in order, and nothing else is a result."""
    messages = list(request.messages)
    assert [message.role for message in messages[:2]] == ["system", "user"]
    assert messages[-1].role in {"user", "tool"}
    ids = [call.id for message in messages for call in message.tool_calls]
    assert len(set(ids)) == len(ids)
    assert all(ids)
    place = 2
    while place < len(messages):
        message = messages[place]
        assert message.role in {"user", "assistant"}, "a result without its call"
        results = messages[place + 1 : place + 1 + len(message.tool_calls)]
        assert [result.tool_call_id for result in results] == [call.id for call in message.tool_calls]
        assert all(result.role == "tool" and result.content for result in results)
        place += 1 + len(results)
