"""Whatever is handed to observed code: bounded memory, no foreign code, nothing raised into the host."""

import asyncio
import gc
import logging
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from observe_reading import the_trace
from sdk_started import StartedSdk
from support.cases import each_case

import tracejudge
from tracejudge.content.encode import TypeMark, error_text, plain
from tracejudge.content.truncate import SPANS_CHARACTERS, VALUE_CHARACTERS, Budget
from tracejudge.tracing.step import MAX_SPANS, Recording, Step
from tracejudge.tracing.stream import StreamPieces


class Colour(Enum):
    RED = "red"


class Text(str):
    """A string of the host's."""

    __slots__ = ()

    def __str__(self) -> str:
        raise AssertionError("asked for its text")


class Lazy:
    """Wakes up when it is looked at."""

    @property
    def __class__(self) -> type:
        raise AssertionError("woken up")

    def __repr__(self) -> str:
        raise AssertionError("asked for its repr")


@dataclass
class Login:
    user: str
    password: str = field(repr=False)


class Struct(msgspec.Struct):
    parts: tuple[int, ...]


RECURSIVE: list[Any] = []
RECURSIVE.append(RECURSIVE)
NESTED = "<list>"
for _ in range(16):
    NESTED = [NESTED]  # type: ignore[assignment]

VALUES = [
    pytest.param(Colour.RED, "red", id="enum"),
    pytest.param(Text("text"), "text", id="string of a type of its own"),
    pytest.param(Mock(), {"method_calls": []}, id="mock"),
    pytest.param(Login("ann", "secret"), {"user": "ann"}, id="dataclass without what its repr hides"),
    pytest.param(Struct((1, 2)), {"parts": [1, 2]}, id="struct"),
    pytest.param({1: "a", None: "b", (2,): "c"}, {"1": "a", "null": "b", "<tuple>": "c"}, id="keys"),
    pytest.param({"a", 1} - {1}, ["a"], id="set"),
    pytest.param(datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z", id="time"),
    pytest.param(Decimal("1.50"), "1.50", id="decimal"),
    pytest.param(uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007", id="uuid"),
    pytest.param(b"bytes", "bytes", id="bytes"),
    pytest.param("half \ud83d", "half ?", id="half a character"),
    pytest.param(RECURSIVE, NESTED, id="list within itself"),
]


@each_case(("value", "written"), VALUES)
def test_values_are_written_without_their_own_code(value: object, written: object) -> None:
    assert plain(value, Budget()) == written


class SimpleClient:
    """As clients of libraries are: some settings, and parts that are no data."""

    def __init__(self) -> None:
        self.address, self.lock, self.log = "https://user:password@host", threading.Lock(), logging.getLogger("tests")


def test_an_object_is_written_by_its_public_attributes() -> None:
    class Account:
        def __init__(self) -> None:
            self.name, self._hidden, self.api_key, self.owner = "n", "SECRET", "SECRET", self

    written = str(plain({"account": Account()}, Budget()))
    assert written.startswith("{'account': {'name': 'n', 'owner': {'name': 'n', 'owner': {'name'")
    assert written.count("owner") < 5
    assert "SECRET" not in written
    assert "<" not in written
    client = SimpleClient()
    for value in (Lazy(), 10**5000, object(), [object()], client, [client], logging.getLogger("tests")):
        assert type(plain(value, Budget())) is TypeMark


@pytest.mark.parametrize(("value", "written"), VALUES)
def test_any_argument_and_result_arrive_at_the_reader(sdk: StartedSdk, value: object, written: object) -> None:
    with tracejudge.trace():
        tracejudge.observe(name="f")(lambda values: values)(value)
    (span,) = the_trace(sdk)["spans"]
    assert span["outputs"] == written
    assert span["inputs"] in (written, {"values": written}, {"values": NESTED[0]})


class Failing:
    def model_dump(self) -> dict[str, Any]:
        raise ValueError("no dump")


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("no name")


class NoName(metaclass=Nameless):
    pass


@pytest.mark.swallows
def test_values_that_fail_are_left_out() -> None:
    for value, written in ((Failing(), "<Failing>"), (NoName(), "<NoName>")):
        assert plain([1, {"a": value, "b": 2}], Budget()) == [1, {"b": 2}], written
        for alone in (value, [value], {"a": value}):
            assert type(plain(alone, Budget())) is TypeMark, written
        assert plain(value, Budget()) == written


class Wordless(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.swallows
def test_an_exception_without_a_text_of_its_own_stands_as_its_type() -> None:
    assert error_text(Wordless()) == "Wordless"


@each_case(
    ("value", "written"),
    [
        pytest.param("a" * 100, "a" * 60 + "[... 40 characters cut]", id="text"),
        pytest.param(["a" * 10] * 9, ["a" * 10, "a" * 10, "a" * 10, "a" * 10, "a" * 4 + "[... 6 characters cut]",
                                      "[... 4 values cut]"], id="list of texts"),
        pytest.param([1] * 100, [1, 1, 1, "[... 97 values cut]"], id="list of numbers"),
        pytest.param({"a": "b" * 50, "c": 1}, {"a": "b" * 43 + "[... 7 characters cut]", "...": "[... 1 values cut]"},
                     id="dict"),
    ],
)  # fmt: skip
def test_what_there_is_no_room_for_is_marked(value: object, written: object) -> None:
    assert plain(value, Budget(60)) == written


def steps_of(t: tracejudge.OpenTrace) -> list[Step]:
    assert t._step.recording is not None
    return t._step.recording._steps


def test_an_argument_of_any_size_is_bounded(sdk: StartedSdk) -> None:
    tracejudge.observe(name="f")(lambda first, two: None)(["x" * 100] * 1_000_000, 1)  # noqa: ARG005
    assert len(the_trace(sdk)["input"]) < VALUE_CHARACTERS * 1.1


def test_an_endless_stream_is_bounded_and_says_how_much_is_missing() -> None:
    pieces = StreamPieces(Budget(10))
    for _ in range(1_000):
        pieces.add("abc")
    assert pieces.value() == "abcabcabca[... 2,990 characters cut]"


def test_an_endless_stream_of_values_is_bounded() -> None:
    pieces = StreamPieces(Budget(40))
    for number in range(1_000):
        pieces.add(number)
        pieces.add("a")
    assert pieces.value() == [0, "a", 1, "a", 2, "[... 998 characters cut]", "[... 997 values cut]"]


@pytest.mark.usefixtures("sdk")
def test_collected_streams_are_cut_at_the_limit() -> None:
    @tracejudge.observe(name="stream")
    def stream() -> Iterator[str]:
        for _ in range(VALUE_CHARACTERS // 1024 + 2):
            yield "x" * 1024

    with tracejudge.trace() as t:
        assert sum(len(piece) for piece in stream()) == VALUE_CHARACTERS + 2048
        (step,) = steps_of(t)
        assert step.fields["output"] == "x" * VALUE_CHARACTERS + "[... 2,048 characters cut]"


def test_spans_are_bounded_in_number(sdk: StartedSdk) -> None:
    work = tracejudge.observe(name="work")(lambda: None)
    with tracejudge.trace(name="answer"):
        for _ in range(MAX_SPANS + 1_234):
            work()
        with tracejudge.trace(name="unseen") as unseen:
            unseen.output = "x"
    spans = the_trace(sdk)["spans"]
    assert spans[:MAX_SPANS] == [
        {"span_id": f"s{number}", "parent_id": "s0", "name": "work", "status": "ok"}
        for number in range(1, MAX_SPANS + 1)
    ]
    assert spans[MAX_SPANS:] == [{"span_id": f"s{MAX_SPANS + 1}", "parent_id": "s0", "name": "[... 1,235 spans cut]"}]


@pytest.mark.usefixtures("sdk")
def test_spans_are_bounded_in_size_together() -> None:
    work = tracejudge.observe(name="work")(lambda question: question)
    with tracejudge.trace(name="answer") as t:
        for _ in range(100):
            work("x" * 100_000)
        texts = [step.fields[name] for step in steps_of(t) for name in ("input", "output")]
    assert len(texts) == 200
    assert SPANS_CHARACTERS <= sum(map(len, texts)) < SPANS_CHARACTERS * 1.01


@pytest.mark.usefixtures("sdk")
def test_what_ended_leaves_nothing_to_the_garbage_collector() -> None:
    def left() -> int:
        return sum(type(get_object) in {Step, Recording} for get_object in gc.get_objects())

    @tracejudge.observe
    def stream() -> Iterator[str]:
        with tracejudge.trace(name="part"):
            yield "a"

    gc.collect()
    before = left()
    gc.disable()
    try:
        with tracejudge.trace(name="answer"):
            list(stream())
        tracejudge.observe(str)(1)
        assert left() == before
    finally:
        gc.enable()


def test_a_coroutine_closed_before_its_end_has_not_failed(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="f")
    async def wait() -> None:
        await asyncio.sleep(10)

    coroutine = wait()
    loop = asyncio.new_event_loop()
    try:
        loop.call_soon(lambda: None)
        asyncio.events._set_running_loop(loop)
        coroutine.send(None)
        coroutine.close()
    finally:
        asyncio.events._set_running_loop(None)
        loop.close()
    trace = the_trace(sdk)
    assert (trace["output"], trace.get("error")) == ("", None)
