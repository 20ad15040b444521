"""`observe` on generators and asynchronous generators: pieces are collected, and all passes through both ways."""

import asyncio
import contextvars
import gc
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from observe_reading import published, the_trace
from sdk_started import StartedSdk

import tracejudge

STREAM = {"trace_id": "t0", "span_id": "s0", "service": "shop", "name": "stream"}


@tracejudge.observe(name="stream")
def stream(pieces: Any) -> Iterator[Any]:
    for piece in pieces:
        if isinstance(piece, BaseException):
            raise piece
        yield piece


@tracejudge.observe(name="stream")
async def async_stream(pieces: Any) -> AsyncIterator[Any]:
    for piece in pieces:
        await asyncio.sleep(0)
        if isinstance(piece, BaseException):
            raise piece
        yield piece


def consume(pieces: Any) -> list[Any]:
    return list(stream(pieces))


def consume_async(pieces: Any) -> list[Any]:
    async def collect() -> list[Any]:
        return [piece async for piece in async_stream(pieces)]

    return asyncio.run(collect())


both_ways = pytest.mark.parametrize(
    "consumed", [pytest.param(consume, id="generator"), pytest.param(consume_async, id="async generator")]
)


@pytest.mark.parametrize(
    ("pieces", "output"),
    [
        pytest.param(["On ", "its", " way."], "On its way.", id="texts are joined"),
        pytest.param([], "", id="nothing"),
        pytest.param(["On", None, "!"], "On!", id="none is no piece"),
        pytest.param([{"n": 1}, 2], '[{"n":1},2]', id="other pieces are listed"),
        pytest.param(["a", "b", {"n": 1}, "c", "d"], '["ab",{"n":1},"cd"]', id="mixed pieces"),
    ],
)
@both_ways
def test_pieces_are_passed_on_and_collected(
    sdk: StartedSdk, consumed: Callable[[Any], list[Any]], pieces: list[Any], output: str
) -> None:
    assert consumed(pieces) == pieces
    trace = the_trace(sdk)
    del trace["input"]
    assert trace == {**STREAM, "output": output}


@both_ways
def test_an_exception_is_recorded_after_what_came(sdk: StartedSdk, consumed: Callable[[Any], list[Any]]) -> None:
    error = ValueError("cut")
    with pytest.raises(ValueError, match="cut") as caught:
        consumed(("On ", "its", error))
    assert caught.value is error
    trace = the_trace(sdk)
    del trace["input"]
    assert trace == {**STREAM, "output": "On its", "error": "ValueError: cut"}


def test_a_closed_generator_is_no_failure(sdk: StartedSdk) -> None:
    closed: list[str] = []

    @tracejudge.observe(name="stream")
    def answer() -> Generator[str, None, None]:
        try:
            yield from "abc"
        finally:
            closed.append("inner")

    generator = answer()
    assert (next(generator), next(generator)) == ("a", "b")
    generator.close()
    assert closed == ["inner"]
    assert the_trace(sdk) == {**STREAM, "output": "ab"}


def test_what_a_generator_does_when_closed_is_part_of_its_trace(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="stream")
    def answer() -> Generator[str, None, None]:
        try:
            yield "a"
        finally:
            with tracejudge.trace(name="cleanup"):
                raise KeyError("held")

    generator = answer()
    next(generator)
    with pytest.raises(KeyError, match="held"):
        generator.close()
    trace = the_trace(sdk)
    assert [span["name"] for span in trace.pop("spans")] == ["cleanup"]
    assert trace == {**STREAM, "output": "a", "error": "KeyError: 'held'"}


def test_a_dropped_generator_is_no_failure(sdk: StartedSdk) -> None:
    generator = stream("abc")
    next(generator)
    del generator
    gc.collect()
    assert the_trace(sdk) == {**STREAM, "input": "abc", "output": "a"}


def test_a_generator_nobody_began_is_no_trace(sdk: StartedSdk) -> None:
    stream("abc")
    assert published(sdk) == []


@pytest.mark.parametrize("close", [True, False], ids=["closed", "dropped"])
def test_an_async_generator_left_early_is_no_failure(sdk: StartedSdk, close: bool) -> None:  # noqa: FBT001
    closed: list[str] = []

    @tracejudge.observe(name="stream")
    async def answer() -> AsyncGenerator[str, None]:
        try:
            yield "a"
            yield "b"
        finally:
            await asyncio.sleep(0)
            closed.append("inner")

    async def main() -> None:
        generator = answer()
        await anext(generator)
        if close:
            await generator.aclose()
        del generator
        gc.collect()
        for _ in range(5):
            await asyncio.sleep(0)
        assert closed == ["inner"]

    asyncio.run(main())
    assert the_trace(sdk) == {**STREAM, "output": "a"}


def test_async_generators_open_at_the_end_of_their_loop_are_closed_once(sdk: StartedSdk) -> None:
    """The loop closes the wrapper and the wrapped one at the same time, in any order."""
    held: list[Any] = []
    trouble: list[Any] = []

    @tracejudge.observe(name="stream")
    async def answer() -> AsyncGenerator[str, None]:
        try:
            yield "a"
        finally:
            await asyncio.sleep(0)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))
        for _ in range(20):
            held.append(answer())
            await anext(held[-1])

    asyncio.run(main())
    assert trouble == []
    assert [(trace["output"], trace.get("error")) for trace in published(sdk)] == [("a", None)] * 20


def test_send_throw_and_return_pass_through(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="stream")
    def echo() -> Generator[str, str, str]:
        message = yield "begin"
        try:
            yield message
        except KeyError as error:
            yield repr(error)
        return "end"

    generator = echo()
    assert next(generator) == "begin"
    assert generator.send("hi") == "hi"
    assert generator.throw(KeyError("k")) == "KeyError('k')"
    with pytest.raises(StopIteration) as stopped:
        next(generator)
    assert stopped.value.value == "end"
    assert the_trace(sdk) == {**STREAM, "output": "beginhiKeyError('k')"}


def test_asend_and_athrow_pass_through(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="stream")
    async def echo() -> AsyncGenerator[str, str]:
        message = yield "begin"
        try:
            yield message
        except KeyError as error:
            yield repr(error)

    async def main() -> None:
        generator = echo()
        assert await anext(generator) == "begin"
        assert await generator.asend("hi") == "hi"
        assert await generator.athrow(KeyError("k")) == "KeyError('k')"
        with pytest.raises(StopAsyncIteration):
            await anext(generator)

    asyncio.run(main())
    assert the_trace(sdk) == {**STREAM, "output": "beginhiKeyError('k')"}


def test_an_exception_thrown_in_and_not_caught_is_recorded(sdk: StartedSdk) -> None:
    generator: Any = stream("abc")
    next(generator)
    error = KeyError("k")
    with pytest.raises(KeyError) as caught:
        generator.throw(error)
    assert caught.value is error
    assert the_trace(sdk) == {**STREAM, "input": "abc", "output": "a", "error": "KeyError: 'k'"}


def test_a_choice_takes_the_text_from_each_piece(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="stream", output=lambda chunk: chunk["delta"])
    def answer() -> Iterator[dict[str, Any]]:
        yield from ({"delta": "On "}, {"delta": "its way."}, {"delta": None})

    assert len(list(answer())) == 3
    assert the_trace(sdk) == {**STREAM, "output": "On its way."}


def test_a_stream_is_current_for_itself_and_not_for_its_consumer(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="work")
    def work(who: str) -> str:
        return who

    @tracejudge.observe(name="stream")
    def answer() -> Iterator[str]:
        with tracejudge.trace(name="part"):
            yield work("first")
            yield work("second")

    for _ in answer():
        work("consumer")
    consumers, streams = published(sdk)[:-1], published(sdk)[-1]
    assert [trace["input"] for trace in consumers] == ["consumer", "consumer"]
    part, *works = streams["spans"]
    assert part["parent_id"] == streams["span_id"]
    assert [(span["parent_id"], span["inputs"]) for span in works] == [
        (part["span_id"], "first"),
        (part["span_id"], "second"),
    ]


def test_interleaved_streams_keep_apart(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="work")
    async def work(who: str) -> str:
        return who

    @tracejudge.observe(name="stream")
    async def answer(who: str) -> AsyncIterator[str]:
        for _ in range(2):
            yield await work(who)

    async def main() -> None:
        first, other = answer("one"), answer("other")
        async with aclosing(first), aclosing(other):  # type: ignore[type-var]
            for generator in (first, other, first, other):
                await anext(generator)

    asyncio.run(main())
    traces = {trace["input"]: trace for trace in published(sdk)}
    assert sorted(traces) == ["one", "other"]
    for who, trace in traces.items():
        assert trace["output"] == who * 2
        assert [span["outputs"] for span in trace["spans"]] == [who, who]


def test_a_stream_may_go_on_in_another_context(sdk: StartedSdk) -> None:
    """As web servers do, which take each piece in a thread or task of its own."""
    generator = stream("abc")
    assert [contextvars.copy_context().run(next, generator) for _ in "abc"] == ["a", "b", "c"]
    assert contextvars.Context().run(next, generator, "over") == "over"
    assert the_trace(sdk) == {**STREAM, "input": "abc", "output": "abc"}


def test_a_stream_within_a_trace_is_a_span_of_it(sdk: StartedSdk) -> None:
    with tracejudge.trace(name="answer") as t:
        t.output = "".join(stream("abc"))
    assert the_trace(sdk) == {
        **STREAM,
        "name": "answer",
        "output": "abc",
        "spans": [
            {"span_id": "s1", "parent_id": "s0", "name": "stream", "status": "ok", "inputs": "abc", "outputs": "abc"}
        ],
    }


def test_without_init_everything_passes_through() -> None:
    assert consume("abc") == consume_async("abc") == ["a", "b", "c"]
    generator: Any = stream("abc")
    next(generator)
    with pytest.raises(KeyError):
        generator.throw(KeyError())


def test_generators_stay_generators() -> None:
    assert inspect.isgeneratorfunction(stream)
    assert inspect.isgenerator(stream(""))
    assert inspect.isasyncgenfunction(async_stream)
    assert inspect.isasyncgen(async_stream(""))
