"""The documented calls of both libraries, each with the trace that a wrapped client publishes of it.

A call returns what its caller sees, in a comparable form.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pydantic
from support.model_api import ANSWER, PIECES

QUESTION = "Is tea hot?"
SYSTEM = "Be brief."
CHAT = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
ASKED = [{"role": "user", "content": QUESTION}]
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
CHAT_TOOLS = [{"type": "function", "function": {"name": "search", "parameters": SCHEMA}}]
RESPONSE_TOOLS = [{"type": "function", "name": "search", "parameters": SCHEMA, "strict": False}]
MESSAGE_TOOLS = [{"name": "search", "input_schema": SCHEMA}]
FOUND = "Tea is brewed at 95 °C."


class Reply(pydantic.BaseModel):
    """A typed answer."""

    answer: str


class Case(NamedTuple):
    """A call, and the fields of its trace that no other has; None if nothing is published."""

    call: Callable[[Any], Any]
    fields: dict[str, Any] | None


def seen(value: Any) -> Any:
    """Return a result with its type, comparable with that of another call."""
    if isinstance(value, pydantic.BaseModel):
        return type(value).__name__, value.model_dump(warnings=False), getattr(value, "_request_id", None)
    return [seen(item) for item in value] if isinstance(value, list) else value


def texts(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the exception of a call as its type and words."""

    def tried(client: Any) -> Any:
        try:
            result = call(client)
        except Exception as error:  # noqa: BLE001 - compared with that of the other client
            cause = error.__cause__
            return type(error), str(error), getattr(error, "body", None), type(cause)
        return result

    return tried


def arun(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Run a call of an asynchronous client in a loop of its own."""

    def run(client: Any) -> Any:
        async def closed() -> Any:
            async with client:
                return await call(client)

        return asyncio.run(closed())

    return run


TRACE = {"provider": "openai", "input": QUESTION, "output": ANSWER, "model": "answers-2026"}
USAGE = {"usage": {"input_tokens": 12, "output_tokens": 4}}
CALL = {"name": "search", "arguments": {"query": "tea"}}
SYSTEM_MESSAGE = {"messages": [{"role": "system", "content": SYSTEM}]}
C = {"name": "chat.completions", **TRACE, "response_id": "chatcmpl-1", **USAGE, **SYSTEM_MESSAGE}
R = {"name": "responses", **TRACE, "response_id": "resp_1", **USAGE, **SYSTEM_MESSAGE}
M = {"name": "messages", **TRACE, "provider": "anthropic", "response_id": "msg_1", **USAGE, **SYSTEM_MESSAGE}
CALLED = {"model": "calls-2026", "output": "", "tool_calls": [CALL]}
FIRST = {"output": PIECES[0]}
OFFERED = {"tools": [{"name": "search", "parameters": SCHEMA}]}
TYPED = {"output": json.dumps({"answer": ANSWER})}


def without(fields: dict[str, Any], *names: str, **others: Any) -> dict[str, Any]:
    return {name: value for name, value in {**fields, **others}.items() if name not in names}


# OpenAI, chat completions


def chat(client: Any, model: str = "answers", **more: Any) -> Any:
    return client.chat.completions.create(model=model, messages=CHAT, **more)


def chat_raw(client: Any) -> Any:
    raw = client.chat.completions.with_raw_response.create(model="answers", messages=CHAT)
    return type(raw), raw.status_code, raw.text, seen(raw.parse()), raw.parse() is raw.parse()


def chat_raw_stream(client: Any) -> Any:
    raw = client.chat.completions.with_raw_response.create(model="answers", messages=CHAT, stream=True)
    return type(raw), seen(list(raw.parse()))


def chat_lines(client: Any, model: str = "answers") -> Any:
    with client.chat.completions.with_streaming_response.create(model=model, messages=CHAT) as response:
        return type(response), list(response.iter_lines())


def chat_streamed_lines(client: Any) -> Any:
    create = client.chat.completions.with_streaming_response.create
    with create(model="answers", messages=CHAT, stream=True) as response:
        return [line for line in response.iter_lines() if "chatcmpl" in line]


def chat_streamed_parse(client: Any) -> Any:
    with client.chat.completions.with_streaming_response.create(model="answers", messages=CHAT) as response:
        return seen(response.parse()), response.json()


def chat_second_turn(client: Any) -> Any:
    first = chat(client.with_options(timeout=30), "calls", tools=CHAT_TOOLS)
    said = first.choices[0].message
    result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": FOUND}
    messages = [*CHAT, said, result]
    second = client.chat.completions.create(model="answers", messages=messages, tools=CHAT_TOOLS)
    messages.clear()
    return seen([first, second])


def chat_left(client: Any) -> Any:
    with chat(client, "waits", stream=True) as stream:
        for chunk in stream:
            if chunk.choices[0].delta.content:
                return seen(chunk)
    return None


def chat_helper(client: Any, model: str = "answers", **more: Any) -> Any:
    with client.chat.completions.stream(model=model, messages=CHAT, **more) as stream:
        events = [seen(event) for event in stream]
        return type(stream), events, seen(stream.get_final_completion())


def chat_helper_left(client: Any) -> Any:
    with client.chat.completions.stream(model="waits", messages=CHAT) as stream:
        return next(event.delta for event in stream if event.type == "content.delta" and event.delta)


def chat_users(client: Any) -> Any:
    with_ids = {"metadata": {"session_id": "s-7"}, "safety_identifier": "u-7", "extra_body": {"seed": 7}}
    return seen(chat(client, **with_ids))


def chat_parse(client: Any) -> Any:
    return seen(client.chat.completions.parse(model="answers", messages=CHAT, response_format=Reply))


def chat_parse_wrong(client: Any) -> Any:
    class Other(pydantic.BaseModel):
        number: int

    return seen(client.chat.completions.parse(model="answers", messages=CHAT, response_format=Other))


CHAT_CASES = {
    "create": Case(lambda client: seen(chat(client)), C),
    "options": Case(lambda client: seen(chat(client.with_options(max_retries=1).copy())), C),
    "ids": Case(chat_users, {**C, "session_id": "s-7", "user_id": "u-7"}),
    "refusal": Case(lambda client: seen(chat(client, "refuses")), {**C, "model": "refuses-2026", "output": "No tea."}),
    "call of a tool": Case(lambda client: seen(chat(client, "calls", tools=CHAT_TOOLS)), {**C, **CALLED, **OFFERED}),
    "second turn": Case(chat_second_turn, {**C, "tool_calls": [{**CALL, "result": FOUND}], **OFFERED}),
    "parse": Case(chat_parse, {**C, **TYPED}),
    "parse another type": Case(
        texts(chat_parse_wrong), without(C, "usage", "response_id", model="answers", output="", error="ValidationError")
    ),
    "stream": Case(lambda client: seen(list(chat(client, stream=True))), C),
    "stream of a call": Case(lambda client: seen(list(chat(client, "calls", stream=True))), {**C, **CALLED}),
    "stream left": Case(chat_left, without({**C, **FIRST}, "usage", model="waits-2026")),
    "stream helper": Case(chat_helper, C),
    "stream helper, tools": Case(
        lambda client: chat_helper(client, "calls", tools=CHAT_TOOLS), {**C, **CALLED, **OFFERED}
    ),
    "stream helper, typed": Case(lambda client: chat_helper(client, response_format=Reply), {**C, **TYPED}),
    "stream helper left": Case(chat_helper_left, without({**C, **FIRST}, "usage", model="waits-2026")),
    "raw": Case(chat_raw, C),
    "raw stream": Case(chat_raw_stream, C),
    "streaming response": Case(chat_lines, C),
    "streaming response of a stream": Case(chat_streamed_lines, C),
    "streaming response parsed": Case(chat_streamed_parse, C),
    "bad request": Case(
        texts(lambda client: chat(client, "fails")),
        without(C, "usage", "response_id", model="fails", output="", error="BadRequestError: "),
    ),
    "raw bad request": Case(
        texts(lambda client: client.chat.completions.with_raw_response.create(model="busy", messages=CHAT)),
        without(C, "usage", "response_id", model="busy", output="", error="RateLimitError: "),
    ),
    "broken stream": Case(
        texts(lambda client: list(chat(client, "breaks", stream=True))),
        without({**C, **FIRST}, "usage", model="breaks-2026", error="RemoteProtocolError: "),
    ),
    "error in a stream": Case(
        texts(lambda client: list(chat(client, "errs", stream=True))),
        without({**C, **FIRST}, "usage", model="errs-2026", error="overloaded_error: Too many cups"),
    ),
    "compressed": Case(lambda client: seen(list(chat(client, "zips", stream=True))), {**C, "model": "zips-2026"}),
    "compressed lines": Case(lambda client: chat_lines(client, "zips"), {**C, "model": "zips-2026"}),
    "other calls": Case(lambda client: seen(client.models.retrieve("tea")), None),
}


# OpenAI, responses


def respond(client: Any, model: str = "answers", **more: Any) -> Any:
    return client.responses.create(model=model, instructions=SYSTEM, input=QUESTION, **more)


def respond_second_turn(client: Any) -> Any:
    first = client.responses.create(model="calls", instructions=SYSTEM, input=ASKED, tools=RESPONSE_TOOLS)
    result = {"type": "function_call_output", "call_id": "call_1", "output": FOUND}
    parts = [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    second = client.responses.create(model="answers", instructions=SYSTEM, input=[*parts, *first.output, result])
    return seen([first, second])


def respond_helper(client: Any, **more: Any) -> Any:
    with client.responses.stream(model="answers", instructions=SYSTEM, input=QUESTION, **more) as stream:
        return [seen(event) for event in stream], seen(stream.get_final_response())


def respond_left(client: Any) -> Any:
    with client.responses.stream(model="waits", instructions=SYSTEM, input=QUESTION) as stream:
        return next(event.delta for event in stream if event.type == "response.output_text.delta")


def respond_parse(client: Any) -> Any:
    return seen(client.responses.parse(model="answers", instructions=SYSTEM, input=QUESTION, text_format=Reply))


RESPONSES_CASES = {
    "create": Case(lambda client: seen(respond(client)), R),
    "conversation": Case(lambda client: seen(respond(client, conversation="conv_7")), {**R, "session_id": "conv_7"}),
    "background": Case(lambda client: seen(respond(client, background=True)), None),
    "call of a tool": Case(
        lambda client: seen(respond(client, "calls", tools=RESPONSE_TOOLS)), {**R, **CALLED, **OFFERED}
    ),
    "second turn": Case(respond_second_turn, {**R, "tool_calls": [{**CALL, "result": FOUND}]}),
    "parse": Case(respond_parse, {**R, **TYPED}),
    "stream": Case(lambda client: seen(list(respond(client, stream=True))), R),
    "stream of a call": Case(lambda client: seen(list(respond(client, "calls", stream=True))), {**R, **CALLED}),
    "stream helper": Case(respond_helper, R),
    "stream helper, typed": Case(lambda client: respond_helper(client, text_format=Reply), {**R, **TYPED}),
    "stream helper left": Case(respond_left, without({**R, **FIRST}, "usage", model="waits-2026")),
    "raw": Case(
        lambda client: seen(
            client.responses.with_raw_response.create(model="answers", instructions=SYSTEM, input=QUESTION).parse()
        ),
        R,
    ),
    "bad request": Case(
        texts(lambda client: respond(client, "fails")),
        without(R, "usage", "response_id", model="fails", output="", error="BadRequestError: "),
    ),
    "error in a stream": Case(
        lambda client: seen(list(respond(client, "errs", stream=True))),
        without({**R, **FIRST}, "usage", model="errs-2026", error="overloaded: Too many cups"),
    ),
}


# Anthropic


def tell(client: Any, model: str = "answers", **more: Any) -> Any:
    return client.messages.create(model=model, max_tokens=100, system=SYSTEM, messages=ASKED, **more)


def tell_second_turn(client: Any) -> Any:
    first = tell(client, "calls", tools=MESSAGE_TOOLS)
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": FOUND}]}
    turns = [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    more = {"system": [{"type": "text", "text": SYSTEM}], "messages": (*ASKED, *turns), "tools": MESSAGE_TOOLS}
    return seen([first, client.messages.create(model="answers", max_tokens=100, **more)])


def tell_helper(client: Any, model: str = "answers", **more: Any) -> Any:
    with client.messages.stream(model=model, max_tokens=100, system=SYSTEM, messages=ASKED, **more) as stream:
        return type(stream), [seen(event) for event in stream], seen(stream.get_final_message())


def tell_text(client: Any) -> Any:
    with client.messages.stream(model="answers", max_tokens=100, system=SYSTEM, messages=ASKED) as stream:
        return list(stream.text_stream)


def tell_left(client: Any) -> Any:
    with client.messages.stream(model="waits", max_tokens=100, system=SYSTEM, messages=ASKED) as stream:
        return next(iter(stream.text_stream))


def tell_raw(client: Any) -> Any:
    create = client.messages.with_raw_response.create
    raw = create(model="answers", max_tokens=100, system=SYSTEM, messages=ASKED)
    return type(raw), raw.status_code, seen(raw.parse())


def tell_raw_stream(client: Any) -> Any:
    create = client.messages.with_raw_response.create
    raw = create(model="answers", max_tokens=100, system=SYSTEM, messages=ASKED, stream=True)
    return seen(list(raw.parse()))


def tell_lines(client: Any) -> Any:
    create = client.messages.with_streaming_response.create
    with create(model="answers", max_tokens=100, system=SYSTEM, messages=ASKED, stream=True) as response:
        return list(response.iter_lines())


def tell_beta(client: Any) -> Any:
    more = {"system": SYSTEM, "messages": ASKED, "metadata": {"user_id": "u-7"}}
    return seen(client.beta.messages.create(model="answers", max_tokens=100, betas=["tea-2026"], **more))


MESSAGES_CASES = {
    "create": Case(lambda client: seen(tell(client)), M),
    "options": Case(lambda client: seen(tell(client.with_options(max_retries=1))), M),
    "beta": Case(tell_beta, {**M, "user_id": "u-7"}),
    "call of a tool": Case(
        lambda client: seen(tell(client, "calls", tools=MESSAGE_TOOLS)), {**M, **CALLED, **OFFERED, "output": "I look."}
    ),
    "second turn": Case(tell_second_turn, {**M, "tool_calls": [{**CALL, "result": FOUND}], **OFFERED}),
    "stream": Case(lambda client: seen(list(tell(client, stream=True))), M),
    "stream of a call": Case(lambda client: tell_helper(client, "calls"), {**M, **CALLED, "output": "I look."}),
    "stream helper": Case(tell_helper, M),
    "stream helper, texts": Case(tell_text, M),
    "stream helper left": Case(
        tell_left, {**M, **FIRST, "model": "waits-2026", "usage": {"input_tokens": 12, "output_tokens": 1}}
    ),
    "raw": Case(tell_raw, M),
    "raw stream": Case(tell_raw_stream, M),
    "streaming response": Case(tell_lines, M),
    "bad request": Case(
        texts(lambda client: tell(client, "fails")),
        without(M, "usage", "response_id", model="fails", output="", error="BadRequestError: "),
    ),
    "error in a stream": Case(
        texts(lambda client: list(tell(client, "errs", stream=True))),
        {
            **M,
            **FIRST,
            "model": "errs-2026",
            "usage": {"input_tokens": 12, "output_tokens": 1},
            "error": "overloaded_error: Too many cups",
        },
    ),
    "count": Case(lambda client: seen(client.messages.count_tokens(model="answers", messages=ASKED)), None),
}


PLATFORM_CASES = {
    "azure": Case(lambda client: seen(chat(client)), {**C, "provider": "azure.ai.openai"}),
    "azure stream": Case(
        lambda client: seen(list(chat(client.with_options(timeout=3), stream=True))),
        {**C, "provider": "azure.ai.openai"},
    ),
}
VERTEX_CASES = {"vertex": Case(lambda client: seen(tell(client)), {**M, "provider": "gcp.vertex_ai"})}


# The same with asyncio


async def achat(client: Any) -> Any:
    return seen(await chat(client))


async def achat_stream(client: Any) -> Any:
    return seen([chunk async for chunk in await chat(client, stream=True)])


async def achat_left(client: Any) -> Any:
    async with await chat(client, "waits", stream=True) as stream:
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                return seen(chunk)
    return None


async def achat_helper(client: Any) -> Any:
    async with client.chat.completions.stream(model="answers", messages=CHAT) as stream:
        return [seen(event) async for event in stream], seen(await stream.get_final_completion())


async def achat_raw_stream(client: Any) -> Any:
    raw = await client.chat.completions.with_raw_response.create(model="answers", messages=CHAT, stream=True)
    return seen([chunk async for chunk in raw.parse()])


async def achat_lines(client: Any) -> Any:
    create = client.chat.completions.with_streaming_response.create
    async with create(model="answers", messages=CHAT) as response:
        return await response.json(), seen(await response.parse())


async def achat_cancelled(client: Any, *, stream: bool) -> Any:
    try:
        async with asyncio.timeout(0.3):
            answer = await chat(client, "waits", stream=stream)
            return [chunk async for chunk in answer]
    except TimeoutError:
        return "cancelled"


async def arespond_helper(client: Any) -> Any:
    async with client.responses.stream(model="answers", instructions=SYSTEM, input=QUESTION) as stream:
        return [seen(event) async for event in stream]


ASYNC_OPENAI_CASES = {
    "create": Case(achat, C),
    "stream": Case(achat_stream, C),
    "stream left": Case(achat_left, without({**C, **FIRST}, "usage", model="waits-2026")),
    "stream helper": Case(achat_helper, C),
    "raw stream": Case(achat_raw_stream, C),
    "streaming response": Case(achat_lines, C),
    "cancelled": Case(lambda client: achat_cancelled(client, stream=False), None),
    "stream cancelled": Case(
        lambda client: achat_cancelled(client, stream=True), without({**C, **FIRST}, "usage", model="waits-2026")
    ),
    "responses, stream helper": Case(arespond_helper, R),
}


async def atell(client: Any) -> Any:
    return seen(await tell(client.with_options(timeout=30)))


async def atell_stream(client: Any) -> Any:
    return seen([event async for event in await tell(client, stream=True)])


async def atell_helper(client: Any) -> Any:
    async with client.messages.stream(model="answers", max_tokens=100, system=SYSTEM, messages=ASKED) as stream:
        return [text async for text in stream.text_stream], seen(await stream.get_final_message())


async def atell_raw(client: Any) -> Any:
    create = client.messages.with_raw_response.create
    raw = await create(model="answers", max_tokens=100, system=SYSTEM, messages=ASKED)
    return seen(await raw.parse())


ASYNC_ANTHROPIC_CASES = {
    "create": Case(atell, M),
    "stream": Case(atell_stream, M),
    "stream helper": Case(atell_helper, M),
    "raw": Case(atell_raw, M),
}
