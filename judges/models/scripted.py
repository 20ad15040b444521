"""A judge model that follows a script: answers, latencies and failures from a list, for tests and rehearsals.

A script file holds one step a line, a JSON object with the fields of ``Step``. Calls of tools need only a name in it:

    {"tool_calls": [{"name": "get_root_span"}, {"name": "get_span", "arguments": {"span_id": "00f067aa0ba902b7"}}]}
    {"text": "yes", "delay_s": 0.5}

``arguments`` may also be a text, which is then what the model wrote, as broken as it may be.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, structs

from judges.models.function_calls import read_call
from judges.models.model import (
    BadModelRequestError,
    ChatRequest,
    ChatResponse,
    ContentFilteredError,
    FinishReason,
    InputTooLongError,
    ModelError,
    ModelRejectedError,
    ModelSettings,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
)
from judges.prompt import ToolCall

__all__ = ["ScriptedModel", "Step", "load_script"]

Answering = Callable[[ChatRequest], "str | Step"]

Failure = Literal[
    "timeout",
    "rate_limited",
    "judge_unavailable",
    "judge_rejected",
    "bad_request",
    "input_too_long",
    "content_filter",
]

_ERRORS: Final[Mapping[Failure, type[ModelError]]] = {
    "timeout": ModelTimeoutError,
    "rate_limited": RateLimitedError,
    "judge_unavailable": ModelUnavailableError,
    "judge_rejected": ModelRejectedError,
    "bad_request": BadModelRequestError,
    "input_too_long": InputTooLongError,
    "content_filter": ContentFilteredError,
}
_MAX_REQUESTS: Final = 1000
"""How many requests are remembered; a rehearsal may run for days."""


class _Plain(Struct, frozen=True, forbid_unknown_fields=True):
    text: str | None = None
    delay_s: float = 0.0
    failure: Failure | None = None
    finish_reason: FinishReason = "stop"
    refusal: bool = False


class Step(_Plain, frozen=True):
    """What happens at one request: after ``delay_s`` it fails, or is answered with ``text`` or calls of tools."""

    tool_calls: tuple[ToolCall, ...] = ()


class _WrittenCall(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] | str = {}
    id: str | None = None


class _WrittenStep(_Plain, frozen=True):
    """A step as a line of a file writes it."""

    tool_calls: tuple[_WrittenCall, ...] = ()


class ScriptedModel:
    """Follows its steps in order and then begins anew. The last 1000 requests are kept."""

    def __init__(self, steps: Iterable[Step | str | Answering], settings: ModelSettings | None = None) -> None:
        """Take the steps: a text stands for a step that answers with it at once, a function of the request for both."""
        self.settings = settings or ModelSettings(provider="scripted", model="scripted")
        self._requests: deque[ChatRequest] = deque(maxlen=_MAX_REQUESTS)
        listed = list(steps)
        if not listed:
            raise ValueError("a script needs at least one step")
        self._steps = itertools.cycle(listed)

    @property
    def requests(self) -> list[ChatRequest]:
        """The last 1000 requests, oldest first, those that failed included."""
        return list(self._requests)

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Follow the next step.

        Raises:
            ModelError: Where the script says so.
        """
        self._requests.append(request)
        step = _step(next(self._steps), request)
        if step.delay_s:
            await asyncio.sleep(step.delay_s)
        if step.failure is not None:
            raise _ERRORS[step.failure](f"scripted: {step.failure}")
        text = step.text or ""
        return ChatResponse(
            text,
            step.finish_reason,
            step.refusal,
            len(text),
            len(text),
            model=self.settings.model,
            tool_calls=step.tool_calls,
        )

    async def aclose(self) -> None:
        """Nothing to give back."""


def _step(written: Step | str | Answering, request: ChatRequest) -> Step:
    found = written if isinstance(written, Step | str) else written(request)
    return Step(found) if isinstance(found, str) else found


def load_script(path: str) -> list[Step]:
    """Read the steps of a script file, a JSON object a line. Calls without an id are numbered through the file.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is no step, or there is none.
    """
    # Not splitlines, which also divides at signs that may stand inside a JSON text, such as U+2028.
    lines = [line for line in Path(path).read_text(encoding="utf-8").split("\n") if line.strip()]
    if not lines:
        raise ValueError(f"{path} holds no step")
    numbers = itertools.count()
    return [_read(msgspec.json.decode(line, type=_WrittenStep), numbers) for line in lines]


def _read(written: _WrittenStep, numbers: Iterator[int]) -> Step:
    calls = [read_call(call.id, call.name, call.arguments, next(numbers)) for call in written.tool_calls]
    return Step(**{**structs.asdict(written), "tool_calls": tuple(calls)})
