"""A judge model that follows a script of answers, latencies and failures, for tests and rehearsals.

A script file has one step a line, a JSON object with the fields of ``Step``. A call of a tool needs only a name:

    {"tool_calls": [{"name": "get_root_span"}, {"name": "get_span", "arguments": {"span_id": "00f067aa0ba902b7"}}]}
    {"text": "yes", "delay_s": 0.5}

``arguments`` may also be a text, which stands for what a model wrote, valid or not.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, structs

from judges.core.model import ChatRequest, ChatResponse, FinishReason, ModelError, ModelSettings
from judges.core.prompt import ToolCall
from judges.models.provider import ModelSettingsError
from judges.models.replies import read_call

Answering = Callable[[ChatRequest], "str | Step"]

Failure = Literal[
    "timeout", "rate_limited", "judge_unavailable", "judge_rejected", "bad_request", "input_too_long", "content_filter"
]

_ERRORS: Final[Mapping[str, type[ModelError]]] = {kind.reason: kind for kind in ModelError.__subclasses__()}


class _Plain(Struct, frozen=True, forbid_unknown_fields=True):
    text: str | None = None
    delay_s: float = 0.0
    failure: Failure | None = None
    finish_reason: FinishReason = "stop"
    refusal: bool = False


class Step(_Plain, frozen=True):
    """The reaction to one request: after ``delay_s`` a failure, a text or calls of tools."""

    tool_calls: tuple[ToolCall, ...] = ()


class _WrittenCall(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] | str = {}
    id: str | None = None


class _WrittenStep(_Plain, frozen=True):
    tool_calls: tuple[_WrittenCall, ...] = ()


class ScriptedModel:
    """Follows its steps in order, again and again. The last 1000 requests are kept."""

    def __init__(self, steps: Iterable[Step | str | Answering], settings: ModelSettings | None = None) -> None:
        """Store the steps: a text is answered at once, and a function makes a step or text from the request."""
        self.settings = settings or ModelSettings(provider="scripted", model="scripted")
        self._requests: deque[ChatRequest] = deque(maxlen=1000)  # A rehearsal may run for days.
        listed = list(steps)
        if not listed:
            raise ValueError("a script needs at least one step")
        self._steps = itertools.cycle(listed)

    @property
    def requests(self) -> list[ChatRequest]:
        """The last 1000 requests, oldest first, failed ones included."""
        return list(self._requests)

    async def complete(self, request: ChatRequest) -> ChatResponse:
        """Follow the next step, which may raise ``ModelError``."""
        self._requests.append(request)
        written = next(self._steps)
        made = written if isinstance(written, Step | str) else written(request)
        step = Step(made) if isinstance(made, str) else made
        if step.delay_s:
            await asyncio.sleep(step.delay_s)
        if step.failure is not None:
            error = _ERRORS[step.failure](f"scripted: {step.failure}")
            error.status = HTTPStatus.UNAUTHORIZED if step.failure == "judge_rejected" else None
            raise error
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
        """Release nothing."""


def load_script(path: str) -> list[Step]:
    """Read the steps of a script, a JSON object a line, or raise ``ValueError``. Calls without an id get numbers."""
    # Not splitlines, which also divides at characters that may be inside a JSON text, such as U+2028.
    lines = [line for line in Path(path).read_text(encoding="utf-8").split("\n") if line.strip()]
    if not lines:
        raise ValueError(f"{path} holds no step")
    numbers = itertools.count()
    steps = []
    for line in lines:
        written = msgspec.json.decode(line, type=_WrittenStep)
        calls = [read_call(call.id, call.name, call.arguments, next(numbers)) for call in written.tool_calls]
        steps.append(Step(**{**structs.asdict(written), "tool_calls": tuple(calls)}))
    return steps


def check(settings: ModelSettings) -> None:
    """Require a script, or raise ``ModelSettingsError``."""
    if not settings.script:
        raise ModelSettingsError("script: a scripted model needs a file with its steps")


def make(settings: ModelSettings, _environment: Mapping[str, str], _proxy: str | None) -> ScriptedModel:
    """Make the model of checked settings, or raise ``ModelSettingsError``."""
    try:
        return ScriptedModel(load_script(settings.script or ""), settings)
    except (OSError, ValueError) as error:
        raise ModelSettingsError(f"script: {error}") from error
