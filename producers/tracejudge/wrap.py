"""Clients of OpenAI and Anthropic whose calls are published: `wrap_openai` and `wrap_anthropic`.

All calls of such a client pass through its method `request`, also those of its helpers and of `with_raw_response`. So
that method is replaced, on the object, and its class stays. A response that is still to be read is observed by its
bytes, so that it makes no difference in which of the many ways the caller reads it.

Neither library is imported. Nothing raises into the caller; a client that cannot be wrapped is returned as it is.
"""

import functools
import inspect
import weakref
from binascii import a2b_base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import FunctionType, MethodType
from typing import Any, Final, TypeVar

import msgspec

from tracejudge.api import publish
from tracejudge.dialects.provider_calls import StreamedAnswer, call_fields, is_unfinished, json_data, request_data
from tracejudge.log import attributes_of, bases_of, class_name, logger, member_of, report_or_raise
from tracejudge.tracing.step import Step, is_no_failure

_Client = TypeVar("_Client")
_NAMES: Final = {"/chat/completions": "chat.completions", "/responses": "responses", "/v1/messages": "messages"}
_PLATFORMS: Final = {
    "Azure": "azure.ai.openai",
    "Bedrock": "aws.bedrock",
    "Vertex": "gcp.vertex_ai",
    "Anthropic": "anthropic",  # after the platforms, whose clients have it in their names
}
_MARK: Final = "_tracejudge_wrapped"
_FOLDED_BYTES: Final = 4 * 1024
_MAX_BYTES: Final = 8 * 1024 * 1024
_PRELUDE_BYTES: Final = 12
# Of a call within a trace; the messages before are in the trace.
_SPAN_FIELDS: Final = ("input", "output", "model", "usage", "response_id")


def wrap_openai(client: _Client) -> _Client:
    """Publish the calls of a client of OpenAI: chat completions and responses, streamed or not.

    The client itself is changed and returned, `OpenAI`, `AsyncOpenAI`, or those of Azure. It behaves as before, and
    so do the copies made by `with_options` afterwards, which publish too. Within `tracejudge.trace` and `observe` a
    call becomes a span, and fills the fields of the trace that are not set; elsewhere it is a separate trace.

    A stream is published when it ends, is closed, breaks off or is dropped, with the text so far. Batches and
    WebSocket connections are not published.
    """
    _wrap(client, "openai", "wrap_openai")
    return client


def wrap_anthropic(client: _Client) -> _Client:
    """Publish the calls of a client of Anthropic: messages, streamed or not; the rest is as in `wrap_openai`."""
    _wrap(client, "anthropic", "wrap_anthropic")
    return client


def _wrap(client: Any, provider: str, function: str) -> None:
    try:
        # The attributes as they are stored: a stand-in of a test answers everything, or may have any code.
        own = attributes_of(client)
        if _MARK in own:
            return
        request = _bound(client, "request")
        names = "".join(map(class_name, bases_of(type(client))))
        provider = next((platform for word, platform in _PLATFORMS.items() if word in names), provider)
        own["request"] = _publishing(request, provider, is_async=inspect.iscoroutinefunction(request))
        for name in ("copy", "with_options"):
            if member_of(type(client), name) is not None:
                own[name] = _wrapping(_bound(client, name), provider, function)
        own[_MARK] = True
    except Exception:  # noqa: BLE001 - the service must start
        message = "%s: an object of type %s is no client of this library; its calls are not published"
        logger.warning(message, function, class_name(type(client)))


def _bound(client: Any, name: str) -> Callable[..., Any]:
    """Return a method of a client, or what replaces it on the object; TypeError if it is no function."""
    if (own := attributes_of(client).get(name)) is not None:
        return own  # type: ignore[no-any-return]
    function = member_of(type(client), name)
    if type(function) is not FunctionType:
        raise TypeError(name)
    return MethodType(function, client)


def _wrapping(copy: Callable[..., Any], provider: str, function: str) -> Callable[..., Any]:
    @functools.wraps(copy)
    def copied(*args: Any, **kwargs: Any) -> Any:
        client = copy(*args, **kwargs)
        _wrap(client, provider, function)
        return client

    return copied


def _publishing(request: Callable[..., Any], provider: str, *, is_async: bool) -> Callable[..., Any]:
    """Return a client's method `request` that publishes calls of models."""

    @functools.wraps(request)
    def publishing(*args: Any, **kwargs: Any) -> Any:
        call = ModelCall.begin(provider, args, kwargs)
        if call is None:
            return request(*args, **kwargs)
        try:
            result = request(*args, **kwargs)
        except BaseException as error:
            call.end(error)
            raise
        return call.observe(result, streamed=bool(kwargs.get("stream")))

    @functools.wraps(request)
    async def publishing_async(*args: Any, **kwargs: Any) -> Any:
        call = ModelCall.begin(provider, args, kwargs)
        if call is None:
            return await request(*args, **kwargs)
        try:
            result = await request(*args, **kwargs)
        except BaseException as error:
            call.end(error)
            raise
        return call.observe(result, streamed=bool(kwargs.get("stream")))

    return publishing_async if is_async else publishing


class ModelCall:
    """One call of a model: its step, its request, and what arrived of its response. No method raises."""

    def __init__(self, step: Step, request: dict[str, Any]) -> None:
        self._step = step
        self._request = request
        self._response: dict[str, Any] = {}
        self._body: ResponseBody | None = None
        self._open = [True]  # emptied by the first end: `pop` is one step, whichever threads end the call

    @classmethod
    def begin(cls, provider: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "ModelCall | None":
        """Begin the step of a request; None if it calls no model, or before `init`."""
        try:
            options = kwargs["options"] if "options" in kwargs else args[1]
            path = str(options.url).partition("?")[0].rstrip("/")
            name = next((name for end, name in _NAMES.items() if path.endswith(end)), None)
            if name is None or str(options.method).lower() != "post":
                return None
            step = Step({"name": name, "provider": provider}, "llm")
            step.begin()
            if step.recording is None:
                return None
            body, more = options.json_data, getattr(options, "extra_json", None)
            return cls(step, request_data(body, more))
        except BaseException as error:  # noqa: BLE001 - another version of the library, or values of the host
            report_or_raise(error)
            return None

    def observe(self, result: Any, *, streamed: bool) -> Any:
        """Publish a result, or observe the response that is still to be read; return the result as it is."""
        try:
            response: Any = getattr(result, "http_response", None)
            if response is None:
                response = getattr(result, "response", None) if streamed else result
            if not hasattr(response, "iter_bytes"):
                self._response = _mapping(json_data(result))
                self.end()
            elif response.is_closed:
                self._response = _mapping(msgspec.json.decode(response.content))
                self.end()
            else:
                self._body = ResponseBody(response, self)
        except BaseException as error:  # noqa: BLE001 - the same
            report_or_raise(error)
            self.end()
        return result

    def end(self, error: BaseException | None = None) -> None:
        """End the step with what arrived; only the first end counts."""
        try:
            self._open.pop()
        except IndexError:
            return
        try:
            self._end(error)
        except BaseException as fault:  # noqa: BLE001 - the response may have any form
            report_or_raise(fault)
            if self._step.parent is None:
                publish(trace_id=self._step.trace_id)  # without content it is counted as dropped

    def _end(self, error: BaseException | None) -> None:
        step, response = self._step, self._response
        if self._body is not None:
            response = self._body.response()
        elif error is not None:
            # `parse` fails after the answer, which its exception holds.
            response = _mapping(json_data(getattr(error, "completion", None)))
        is_empty = is_unfinished(response) or not response
        has_failed = error is not None and not is_no_failure(error)
        if is_empty and not has_failed and step.parent is None:
            return  # nothing to judge: a call that was given up, or an answer that comes later
        fields = call_fields(self._request, response)
        if has_failed:
            fields.pop("error", None)  # the exception says it in the words that the caller sees
        calls = fields.pop("tool_calls", {})
        if step.parent is None:
            step.fields.update(fields, tool_calls=list(calls.values()) or None)
        else:
            step.fields.update({name: fields[name] for name in _SPAN_FIELDS if name in fields})
            if "output" not in fields and calls:
                step.fields["output"] = [{"name": call.name, "arguments": call.arguments} for call in calls.values()]
            if not has_failed and step.recording is not None:
                step.recording.model_calls.add({**fields, "provider": step.fields["provider"]}, calls)
        step.end(error)


class ResponseBody:
    """The body of a response, decoded in pieces on its way to the caller; each read is a `with` block of it."""

    def __init__(self, response: Any, call: ModelCall) -> None:
        kind = response.headers.get("content-type", "")
        # Amazon's platform has its own frames. Without events the body is one JSON value.
        self._is_framed = "eventstream" in kind
        self._split = _framed_events if self._is_framed else _sent_events if "event-stream" in kind else None
        self._answer = StreamedAnswer()
        self._bytes = bytearray()
        self._call = call
        self._is_reading = False
        # Bound methods make a cycle with the response. By weak references they would fail when the garbage collector
        # closes a stream, and streams of OpenAI are in a cycle anyway.
        read, aread, close, aclose = response.iter_bytes, response.aiter_bytes, response.close, response.aclose

        def closed() -> None:
            # Reading the last bytes closes the response before they arrive here.
            if not self._is_reading:
                call.end()

        def close_and_end() -> None:
            close()
            closed()

        async def aclose_and_end() -> None:
            await aclose()
            closed()

        response.iter_bytes = lambda *args, **kwargs: _Pieces(read(*args, **kwargs), self)
        response.aiter_bytes = lambda *args, **kwargs: _Pieces(aread(*args, **kwargs), self)
        response.close = close_and_end
        response.aclose = aclose_and_end
        weakref.finalize(response, call.end)

    def add(self, piece: bytes) -> None:
        """Add bytes that the caller receives."""
        try:
            if len(self._bytes) < _MAX_BYTES:
                self._bytes += piece
            # Without an end of line there is no new event: a long one is not searched again and again.
            if self._split is not None and len(self._bytes) >= _FOLDED_BYTES and (self._is_framed or b"\n" in piece):
                self._fold()
        except BaseException as error:  # noqa: BLE001 - the caller's stream must go on
            report_or_raise(error)

    def __enter__(self) -> None:
        self._is_reading = True

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End the call if reading ended or failed."""
        self._is_reading = False
        if error is not None:
            self._call.end(None if isinstance(error, (StopIteration, StopAsyncIteration)) else error)

    def response(self) -> dict[str, Any]:
        """Return the response as far as it arrived."""
        if self._split is not None:
            self._fold()
            return self._answer.response()
        return _mapping(msgspec.json.decode(self._bytes) if self._bytes else None)

    def _fold(self) -> None:
        for data in self._split(self._bytes) if self._split is not None else ():
            try:
                event = msgspec.json.decode(data)
                if isinstance(event, dict) and isinstance(event.get("bytes"), str):
                    event = msgspec.json.decode(a2b_base64(event["bytes"]))  # of Amazon
                if isinstance(event, dict):
                    self._answer.add(event)
            except BaseException as error:  # noqa: BLE001 - an event may have any form
                report_or_raise(error)


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _sent_events(received: bytearray) -> Iterator[bytes | bytearray]:
    """Yield the JSON of whole server-sent events, and remove them."""
    *lines, rest = received.split(b"\n")
    received[:] = rest
    for line in lines:
        if line.startswith(b"data:") and (data := line[5:].strip()).startswith(b"{"):
            yield data


def _framed_events(received: bytearray) -> Iterator[bytes]:
    """Yield the JSON of the whole frames of an event stream of Amazon, and remove them."""
    while len(received) >= _PRELUDE_BYTES:
        length, headers = int.from_bytes(received[:4], "big"), int.from_bytes(received[4:8], "big")
        if not _PRELUDE_BYTES < length <= len(received):
            return
        data = bytes(received[_PRELUDE_BYTES + headers : length - 4])  # without the checksum
        del received[:length]
        yield data


class _Pieces:
    """An iterator over the bytes of a response; no generator, all of which asyncio closes at its end at once."""

    def __init__(self, inner: Any, body: ResponseBody) -> None:
        self._inner = inner
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._body:
            piece: bytes = next(self._inner)
        self._body.add(piece)
        return piece

    def close(self) -> None:
        self._inner.close()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        with self._body:
            piece: bytes = await anext(self._inner)
        self._body.add(piece)
        return piece

    def aclose(self) -> Awaitable[None]:
        closing: Awaitable[None] = self._inner.aclose()
        return closing
