"""Behaviours of a chat endpoint: one `Reply`, or a function of the request that chooses one.

Behaviours nest: `slow(0.2, sequence(failing(429, retry_after=1), answers("hello")))`.
"""

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple


class Usage(NamedTuple):
    prompt_tokens: int = 100
    completion_tokens: int = 20


SMALL_USAGE = Usage()


class ToolCall(NamedTuple):
    name: str
    arguments: str  # JSON, or the invalid text of a bad model

    def arguments_object(self) -> dict[str, Any]:
        """Return them as Anthropic's API does, which repairs or drops arguments that are not an object."""
        try:
            document = json.loads(self.arguments)
        except ValueError:
            document = None
        return document if isinstance(document, dict) else {}


@dataclass
class Call:
    """One request as it arrived, and its outcome. Header names are in lower case."""

    index: int
    body: dict[str, Any]
    headers: dict[str, str]
    started_at: float = field(default_factory=time.monotonic)
    ended_at: float | None = None
    status: int | None = None  # stays None when no whole answer was given

    def text(self) -> str:
        """The texts of all messages, joined, for a test to search in."""
        return "\n".join(str(message.get("content") or "") for message in self.body.get("messages", ()))


class Hold:
    """Holds calls until a test releases them; later calls are not held."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[asyncio.Future[None]] = []
        self._is_over = False

    async def passed(self) -> None:
        with self._lock:
            if self._is_over:
                return
            kept = asyncio.get_running_loop().create_future()
            self._kept.append(kept)
        await kept

    def release(self) -> None:
        """Release all calls; any thread may call it."""
        with self._lock:
            self._is_over = True
        for kept in self._kept:
            with contextlib.suppress(RuntimeError):  # the endpoint has been closed meanwhile
                kept.get_loop().call_soon_threadsafe(_go_on, kept)


def _go_on(kept: "asyncio.Future[None]") -> None:
    if not kept.done():
        kept.set_result(None)


Answer = str | Callable[[dict[str, Any]], str]


@dataclass(frozen=True)
class Reply:
    """One reply. `raw` replaces the whole body; `error` the choices; otherwise it is a completion."""

    text: Answer | None = ""
    finish_reason: str | None = "stop"
    refusal: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    choices: bool = True
    usage: Usage | None = SMALL_USAGE
    model: str | None = None  # None: the one that was asked for
    status: int = 200
    error: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: str | None = None
    content_type: str = "application/json"
    delay_s: float = 0.0
    hangs: bool = False
    hold: Hold | None = None  # `delay_s` begins when it is released
    cut_after: float | None = None  # share of the body that is sent before the connection is cut; 0: no header

    def text_for(self, call: Call) -> str | None:
        return self.text(call.body) if callable(self.text) else self.text


Behaviour = Reply | Callable[[Call], "Behaviour"]


def resolve(behaviour: Behaviour, call: Call) -> Reply:
    while not isinstance(behaviour, Reply):
        behaviour = behaviour(call)
    return behaviour


def answers(text: Answer, **fields: Any) -> Reply:
    """Answer with a text or a function of the request's body; `fields` are those of `Reply`."""
    return Reply(text=text, **fields)


def answers_json(value: object, **fields: Any) -> Reply:
    return Reply(text=json.dumps(value), **fields)


def yes_no(result: str = "yes", rationale: str = "Let's think step by step. It is so.", **fields: Any) -> Reply:
    return answers_json({"rationale": rationale, "result": result}, **fields)


def refuses(text: str = "I cannot help with that.") -> Reply:
    return Reply(text=None, refusal=text)


def truncated(text: str = '{"rationale": "Let') -> Reply:
    return Reply(text=text, finish_reason="length")


def filtered(text: str = "") -> Reply:
    return Reply(text=text, finish_reason="content_filter")


def calls_tools(*calls: ToolCall, text: str | None = None, **fields: Any) -> Reply:
    """Request tool calls, with or without a text before them."""
    return Reply(text=text, **{"finish_reason": "tool_calls", **fields}, tool_calls=calls)


def not_json(raw: str = "<html>gateway</html>", *, content_type: str = "text/html", status: int = 200) -> Reply:
    return Reply(raw=raw, content_type=content_type, status=status)


def failing(
    status: int,
    message: str = "no",
    *,
    kind: str = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
    retry_after: str | float | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Answer with an error in OpenAI's form; `retry_after` in seconds or as an HTTP date."""
    wait = {} if retry_after is None else {"Retry-After": str(retry_after)}
    error = {"message": message, "type": kind, "param": param, "code": code}
    return Reply(status=status, error=error, headers={**wait, **(headers or {})})


def hangs() -> Reply:
    return Reply(hangs=True)


def cuts(share: float = 0.5, text: str = "This answer is cut in the middle of its way.") -> Reply:
    return Reply(text=text, cut_after=share)


def slow(seconds: float, then: Behaviour | None = None) -> Behaviour:
    def delayed(call: Call) -> Reply:
        reply = resolve(yes_no() if then is None else then, call)
        return replace(reply, delay_s=reply.delay_s + seconds)

    return delayed


def held(hold: Hold, then: Behaviour | None = None) -> Behaviour:
    """Answer when the test releases the call, so that it can inspect the calls in flight before."""
    return lambda call: replace(resolve(yes_no() if then is None else then, call), hold=hold)


def gathering(count: int, then: Behaviour) -> Behaviour:
    """Answer no call before `count` calls are under way together."""
    together = Hold()

    def gather(call: Call) -> Behaviour:
        if call.index == count - 1:
            together.release()
        return held(together, then)

    return gather


def from_call(number: int, later: Behaviour, *, before: Behaviour) -> Behaviour:
    """Change the behaviour from a given call on; a test need not watch for that call."""
    return lambda call: before if call.index < number else later


def sequence(*behaviours: Any) -> Callable[[Any], Any]:
    """Use one behaviour after the other, one per request, then the last one. For chat and OTLP."""
    order = itertools.chain(behaviours, itertools.repeat(behaviours[-1]))
    return lambda _: next(order)
