"""`observe` on generators: pieces are collected, all passes both ways; whatever is observed is written and bounded."""

import asyncio
import contextvars
import gc
import inspect
import logging
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import lookalikes as like
import msgspec
import pytest
from sdk_rig import StartedSdk, published, the_trace

import tracejudge
from tracejudge.content.encode import TypeMark, error_text, plain
from tracejudge.content.truncate import SPANS_CHARACTERS, VALUE_CHARACTERS, Budget
from tracejudge.tracing.step import MAX_SPANS, Recording, Step
from tracejudge.tracing.stream import StreamPieces

STREAM = {"trace_id": "t0", "span_id": "s0", "service": "shop", "name": "stream"}
observed = tracejudge.observe(name="stream")


@observed
def stream(pieces: Any) -> Iterator[Any]:
    for piece in pieces:
        if isinstance(piece, BaseException):
            raise piece
        yield piece


@observed
async def async_stream(pieces: Any) -> AsyncIterator[Any]:
    for piece in inspect.unwrap(stream)(pieces):
        await asyncio.sleep(0)
        yield piece


@tracejudge.observe(name="work")
def work(who: str) -> str:
    return who


async def collect(pieces: Any) -> list[Any]:
    return [piece async for piece in async_stream(pieces)]


def test_pieces_are_passed_on_and_collected_and_an_exception_is_recorded_after_them(sdk: StartedSdk) -> None:
    error = ValueError("cut")
    for consumed in (lambda pieces: list(stream(pieces)), lambda pieces: asyncio.run(collect(pieces))):
        for pieces, output in like.table("observed")["pieces"]:
            assert consumed(pieces) == pieces
            assert {**the_trace(sdk), "input": ""} == {**STREAM, "input": "", "output": output}, consumed
        with pytest.raises(ValueError, match="cut") as caught:
            consumed(("On ", "its", error))
        assert caught.value is error
        failed = {**STREAM, "input": "", "output": "On its", "error": "ValueError: cut"}
        assert {**the_trace(sdk), "input": ""} == failed, consumed


def test_a_generator_that_is_closed_or_dropped_has_not_failed_and_its_cleanup_is_part_of_its_trace(
    sdk: StartedSdk,
) -> None:
    @observed
    def answer() -> Generator[str, None, None]:
        try:
            yield from "abc"
        finally:
            with tracejudge.trace(name="cleanup"):
                raise KeyError("held")

    generator = answer()
    assert (next(generator), next(generator)) == ("a", "b")
    with pytest.raises(KeyError, match="held"):
        generator.close()
    trace = the_trace(sdk)
    assert [span["name"] for span in trace.pop("spans")] == ["cleanup"]
    assert trace == {**STREAM, "output": "ab", "error": "KeyError: 'held'"}
    for leave in (Generator.close, lambda _: None):
        left = stream("abc")
        next(left)
        leave(left)
        del left
        gc.collect()
        assert the_trace(sdk) == {**STREAM, "input": "abc", "output": "a"}
    stream("abc")
    assert published(sdk) == [], "one that nobody began"


def test_async_generators_that_are_left_are_closed_once_and_have_not_failed(sdk: StartedSdk) -> None:
    """At its end the loop closes the wrapper and the wrapped one at the same time, in any order."""
    closed: list[str] = []
    trouble: list[Any] = []
    held: list[Any] = []

    @observed
    async def answer() -> AsyncGenerator[str, None]:
        try:
            yield "a"
            yield "b"
        finally:
            await asyncio.sleep(0)
            closed.append("inner")

    async def leave(*, close: bool) -> None:
        generator = answer()
        await anext(generator)
        if close:
            await generator.aclose()
        del generator
        gc.collect()
        for _ in range(5):
            await asyncio.sleep(0)
        assert closed.pop() == "inner"

    async def leave_open() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))
        for _ in range(20):
            held.append(answer())
            await anext(held[-1])

    for left in (leave(close=True), leave(close=False), leave_open()):
        asyncio.run(left)
    assert trouble == []
    assert [(trace["output"], trace.get("error")) for trace in published(sdk)] == [("a", None)] * 22


def test_send_throw_and_return_pass_through(sdk: StartedSdk) -> None:
    @observed
    def echo() -> Generator[str, str, str]:
        message = yield "begin"
        try:
            yield message
        except KeyError as error:
            yield repr(error)
        return "end"

    generator = echo()
    said = [next(generator), generator.send("hi"), generator.throw(KeyError("k"))]
    assert said == ["begin", "hi", "KeyError('k')"]
    with pytest.raises(StopIteration) as stopped:
        next(generator)
    assert stopped.value.value == "end"

    @observed
    async def async_echo() -> AsyncGenerator[str, str]:
        message = yield "begin"
        try:
            yield message
        except KeyError as error:
            yield repr(error)

    async def main() -> None:
        generator = async_echo()
        assert said == [await anext(generator), await generator.asend("hi"), await generator.athrow(KeyError("k"))]
        with pytest.raises(StopAsyncIteration):
            await anext(generator)

    asyncio.run(main())
    assert [trace["output"] for trace in published(sdk)] == ["beginhiKeyError('k')"] * 2
    uncaught: Any = stream("abc")
    next(uncaught)
    error = KeyError("k")
    with pytest.raises(KeyError) as caught:
        uncaught.throw(error)
    assert caught.value is error
    assert the_trace(sdk) == {**STREAM, "input": "abc", "output": "a", "error": "KeyError: 'k'"}


def test_a_choice_takes_the_text_from_each_piece(sdk: StartedSdk) -> None:
    pieces = [{"delta": "On "}, {"delta": "its way."}, {"delta": None}]
    choosing = tracejudge.observe(name="stream", input=lambda _: "q", output=lambda chunk: chunk["delta"])
    assert list(choosing(inspect.unwrap(stream))(pieces)) == pieces
    assert the_trace(sdk) == {**STREAM, "input": "q", "output": "On its way."}


def test_a_stream_is_current_for_itself_and_not_for_its_consumer(sdk: StartedSdk) -> None:
    @observed
    def answer() -> Iterator[str]:
        with tracejudge.trace(name="part"):
            yield work("first")
            yield work("second")

    for _ in answer():
        work("consumer")
    *consumers, streams = published(sdk)
    assert [trace["input"] for trace in consumers] == ["consumer", "consumer"]
    part, *works = streams["spans"]
    assert part["parent_id"] == streams["span_id"]
    expected = [(part["span_id"], "first"), (part["span_id"], "second")]
    assert [(span["parent_id"], span["inputs"]) for span in works] == expected


def test_interleaved_streams_keep_apart(sdk: StartedSdk) -> None:
    @observed
    def answer(who: str) -> Iterator[str]:
        for _ in range(2):
            yield work(who)

    assert [*zip(answer("one"), answer("other"), strict=True)] == [("one", "other")] * 2
    spans = {trace["input"]: [span["outputs"] for span in trace["spans"]] for trace in published(sdk)}
    assert spans == {"one": ["one", "one"], "other": ["other", "other"]}


def test_a_stream_may_go_on_in_another_context_and_is_a_span_within_a_trace(sdk: StartedSdk) -> None:
    """Web servers take each piece in a thread or task of its own."""
    generator = stream("abc")
    assert [contextvars.copy_context().run(next, generator) for _ in "abc"] == ["a", "b", "c"]
    assert contextvars.Context().run(next, generator, "over") == "over"
    assert the_trace(sdk) == {**STREAM, "input": "abc", "output": "abc"}
    with tracejudge.trace(name="answer") as t:
        t.output = "".join(stream("abc"))
    span = {"span_id": "s1", "parent_id": "s0", "name": "stream", "status": "ok", "inputs": "abc", "outputs": "abc"}
    assert the_trace(sdk) == {**STREAM, "name": "answer", "output": "abc", "spans": [span]}


# --- values: no foreign code, nothing raised into the host, bounded memory -------------------------------------------


class Lazy:
    """Wakes up when it is looked at."""

    @property
    def __class__(self) -> type:
        raise AssertionError("woken up")

    def __repr__(self) -> str:
        raise AssertionError("asked for its repr")


RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)
NESTED: Any = "<list>"
for _ in range(16):
    NESTED = [NESTED]


def test_values_are_written_without_their_own_code_and_arrive_at_the_reader(sdk: StartedSdk) -> None:
    values: list[tuple[Any, Any]] = [
        (like.Colour.RED, "red"),
        (type("Text", (str,), {"__str__": Lazy.__repr__})("text"), "text"),
        (Mock(), {"method_calls": []}),
        (like.Keyed("ann"), {"name": "ann"}),  # without what its repr hides
        (msgspec.defstruct("Struct", ["parts"])((1, 2)), {"parts": [1, 2]}),
        ({1: "a", None: "b", (2,): "c"}, {"1": "a", "null": "b", "<tuple>": "c"}),
        ({"a", 1} - {1}, ["a"]),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (Decimal("1.50"), "1.50"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (b"bytes", "bytes"),
        ("half \ud83d", "half ?"),
        (RECURSIVE, NESTED),
    ]
    for value, written in values:
        assert plain(value, Budget()) == written
        with tracejudge.trace():
            tracejudge.observe(name="f")(lambda values: values)(value)
        (span,) = the_trace(sdk)["spans"]
        assert span["outputs"] == written
        assert span["inputs"] in (written, {"values": written}, {"values": NESTED[0]})


def test_an_object_is_written_by_its_public_attributes() -> None:
    account = like.Plain(name="n", _hidden="SECRET", api_key="SECRET")
    account.owner = account
    written = str(plain({"account": account}, Budget()))
    assert written.startswith("{'account': {'name': 'n', 'owner': {'name': 'n', 'owner': {'name'")
    assert written.count("owner") < 5
    assert "SECRET" not in written
    assert "<" not in written
    logger = logging.getLogger("tests")
    # As clients of libraries are: some settings, and parts that are no data.
    client = like.Plain(address="https://user:password@host", lock=threading.Lock(), log=logger)
    for value in (Lazy(), 10**5000, object(), [object()], client, [client], logger):
        assert type(plain(value, Budget())) is TypeMark


@pytest.mark.swallows
def test_values_that_fail_are_left_out() -> None:
    def fails(*_: object) -> Any:
        raise ValueError("no")

    nameless = type("Nameless", (type,), {"__name__": property(fails)})
    for value, written in (
        (type("Failing", (), {"model_dump": fails})(), "<Failing>"),
        (nameless("NoName", (), {})(), "<NoName>"),
    ):
        assert plain([1, {"a": value, "b": 2}], Budget()) == [1, {"b": 2}], written
        for alone in (value, [value], {"a": value}):
            assert type(plain(alone, Budget())) is TypeMark, written
        assert plain(value, Budget()) == written


@pytest.mark.swallows
def test_an_exception_without_a_text_is_its_type() -> None:
    assert error_text(type("Wordless", (Exception,), {"__str__": lambda _: 1 / 0})()) == "Wordless"


def steps_of(t: tracejudge.OpenTrace) -> list[Step]:
    assert t._step.recording is not None  # what is held is seen nowhere else
    return t._step.recording._steps


def test_what_there_is_no_room_for_is_marked(sdk: StartedSdk) -> None:
    ten, rest = "a" * 10, "[... 7 characters cut]"
    cases: list[tuple[Any, Any]] = [
        ("a" * 100, "a" * 60 + "[... 40 characters cut]"),
        ([ten] * 9, [ten, ten, ten, ten, "a" * 4 + "[... 6 characters cut]", "[... 4 values cut]"]),
        ([1] * 100, [1, 1, 1, "[... 97 values cut]"]),
        ({"a": "b" * 50, "c": 1}, {"a": "b" * 43 + rest, "...": "[... 1 values cut]"}),
    ]
    for value, written in cases:
        assert plain(value, Budget(60)) == written
    pieces = StreamPieces(Budget(10))
    for _ in range(1_000):
        pieces.add("abc")
    assert pieces.value() == "abcabcabca[... 2,990 characters cut]"
    pieces = StreamPieces(Budget(40))
    for number in range(1_000):
        pieces.add(number)
        pieces.add("a")
    assert pieces.value() == [0, "a", 1, "a", 2, "[... 998 characters cut]", "[... 997 values cut]"]
    tracejudge.observe(name="f")(lambda first, two: None)(["x" * 100] * 1_000_000, 1)  # noqa: ARG005
    assert len(the_trace(sdk)["input"]) < VALUE_CHARACTERS * 1.1
    with tracejudge.trace() as t:
        texts = ("x" * 1024 for _ in range(VALUE_CHARACTERS // 1024 + 2))
        assert sum(len(piece) for piece in stream(texts)) == VALUE_CHARACTERS + 2048
        assert steps_of(t)[0].fields["output"] == "x" * VALUE_CHARACTERS + "[... 2,048 characters cut]"


def test_spans_are_bounded_in_number_and_in_size_together(sdk: StartedSdk) -> None:
    idle = tracejudge.observe(name="work")(lambda: None)
    with tracejudge.trace(name="answer"):
        for _ in range(MAX_SPANS + 1_234):
            idle()
        with tracejudge.trace(name="unseen") as unseen:
            unseen.output = "x"
    *spans, last = the_trace(sdk)["spans"]
    span = {"parent_id": "s0", "name": "work", "status": "ok"}
    assert spans == [{**span, "span_id": f"s{number}"} for number in range(1, MAX_SPANS + 1)]
    assert last == {"span_id": f"s{MAX_SPANS + 1}", "parent_id": "s0", "name": "[... 1,235 spans cut]"}
    with tracejudge.trace(name="answer") as t:
        for _ in range(100):
            work("x" * 100_000)
        texts = [step.fields[name] for step in steps_of(t) for name in ("input", "output")]
    assert len(texts) == 200
    assert SPANS_CHARACTERS <= sum(map(len, texts)) < SPANS_CHARACTERS * 1.01


@pytest.mark.usefixtures("sdk")
def test_what_ended_leaves_nothing_to_the_garbage_collector() -> None:
    def left() -> int:
        # By identity: hostile classes of other tests may be left, whose comparison raises.
        return sum(type(each) is Step or type(each) is Recording for each in gc.get_objects())

    gc.collect()
    before = left()
    gc.disable()
    try:
        with tracejudge.trace(name="answer"):
            assert list(stream("abc")) == [*"abc"]
            work("a")
        tracejudge.observe(str)(1)
        assert left() == before
    finally:
        gc.enable()
