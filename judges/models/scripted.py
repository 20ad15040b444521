"""A judge model that follows a script: answers, latencies and failures from a list, for tests and rehearsals."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

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


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """What happens at one request: after ``delay_s`` it fails, or is answered with ``text`` or calls of tools."""

    text: str | None = None
    delay_s: float = 0.0
    failure: Failure | None = None
    finish_reason: FinishReason = "stop"
    refusal: bool = False
    tool_calls: tuple[ToolCall, ...] = ()


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
    """Read the steps of a script file, a JSON object a line.

    Raises:
        OSError: The file cannot be read.
        ValueError: A line is no step, or there is none.
    """
    # Not splitlines, which also divides at signs that may stand inside a JSON text, such as U+2028.
    lines = [line for line in Path(path).read_text(encoding="utf-8").split("\n") if line.strip()]
    if not lines:
        raise ValueError(f"{path} holds no step")
    return [msgspec.json.decode(line, type=Step) for line in lines]
