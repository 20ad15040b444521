"""`observe` on functions and coroutine functions: one trace for the outermost call, spans for those within."""

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lookalikes as like
import pytest
from observe_reading import published, the_trace
from sdk_started import StartedSdk

import tracejudge

BASE = {"trace_id": "t0", "span_id": "s0", "service": "shop"}


def test_a_call_becomes_a_trace(sdk: StartedSdk) -> None:
    @tracejudge.observe
    def answer(question: str) -> str:
        return f"{question} Yes."

    assert answer("Really?") == "Really? Yes."
    name = "test_a_call_becomes_a_trace.<locals>.answer"
    assert the_trace(sdk) == {**BASE, "name": name, "input": "Really?", "output": "Really? Yes."}


def test_a_coroutine_becomes_a_trace(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="answer", model="gpt-6-luna", tags={"team": "a"})
    async def answer(question: str) -> str:
        await asyncio.sleep(0)
        return f"{question} Yes."

    assert asyncio.run(answer("Really?")) == "Really? Yes."
    assert the_trace(sdk) == {
        **BASE,
        "name": "answer",
        "input": "Really?",
        "output": "Really? Yes.",
        "model": "gpt-6-luna",
        "tags": {"team": "a"},
    }


@dataclass
class Order:
    number: int
    parts: list[str]


def any_arguments(*args: Any, **kwargs: Any) -> None:
    """Take what comes."""


def two(first: Any = "unsaid", second: Any = "unsaid") -> None:
    """Take two."""


def upper(text: str) -> str:
    return text.upper()


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "written"),
    [
        pytest.param(any_arguments, (), {}, None, id="nothing"),
        pytest.param(two, ("Where?",), {}, "Where?", id="one string as it stands"),
        pytest.param(two, (), {"second": "Where?"}, "Where?", id="one string by name"),
        pytest.param(two, (7,), {}, '{"first":7}', id="one number, and no defaults"),
        pytest.param(two, ("a", "b"), {}, '{"first":"a","second":"b"}', id="two strings"),
        pytest.param(any_arguments, ("a", 1), {"k": None}, '{"args":["a",1],"k":null}', id="the rest"),
        pytest.param(two, (Order(7, ["x"]),), {}, '{"first":{"number":7,"parts":["x"]}}', id="a dataclass"),
    ],
)
def test_the_input_is_what_was_given(
    sdk: StartedSdk, function: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any], written: str | None
) -> None:
    tracejudge.observe(name="f")(function)(*args, **kwargs)
    trace = {**BASE, "name": "f", "input": written, "output": ""}
    assert the_trace(sdk) == {key: value for key, value in trace.items() if value is not None}


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param("question", id="a parameter's name"),
        pytest.param(lambda tenant, question: question, id="a function of the arguments"),  # noqa: ARG005
    ],
)
def test_the_input_can_be_chosen(sdk: StartedSdk, choice: Any) -> None:
    @tracejudge.observe(name="f", input=choice, output=lambda answer: answer["text"])
    def f(tenant: str, question: str) -> dict[str, Any]:
        return {"text": f"{tenant} {question}", "cost": 3}

    assert f("a", question="b") == {"text": "a b", "cost": 3}
    assert the_trace(sdk) == {**BASE, "name": "f", "input": "b", "output": "a b"}


@pytest.mark.swallows
def test_choices_that_fail_count_as_none(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="f", input=lambda: "no such call", output=lambda answer: answer.missing)
    def f(question: str) -> str:
        return question.upper()

    assert f("b") == "B"
    assert the_trace(sdk) == {**BASE, "name": "f", "input": "b", "output": "B"}


@pytest.mark.parametrize(
    ("result", "written"),
    [
        pytest.param("It is.", "It is.", id="text"),
        pytest.param(None, "", id="nothing"),
        pytest.param(True, "true", id="a truth"),
        pytest.param({"a": [1, 2.5]}, '{"a":[1,2.5]}', id="a structure"),
        pytest.param(["It", "is."], "It\nis.", id="parts"),
        pytest.param(like.Plain(text="It is.", _b=1), '{"text":"It is."}', id="an object"),
        pytest.param(like.Named(), "its text", id="an object with a text"),
    ],
)
def test_the_output_is_the_result(sdk: StartedSdk, result: object, written: str) -> None:
    assert tracejudge.observe(name="f")(lambda: result)() is result
    assert the_trace(sdk) == {**BASE, "name": "f", "output": written}


def test_arguments_are_written_as_they_were_before_the_call(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="f")
    def empty(parts: list[str]) -> None:
        parts.clear()

    empty(["a"])
    assert the_trace(sdk) == {**BASE, "name": "f", "input": '{"parts":["a"]}', "output": ""}


class Stop(BaseException):
    """Ends everything."""


ERRORS = [
    pytest.param(ValueError("no parcel"), "ValueError: no parcel", id="an exception"),
    pytest.param(KeyError(), "KeyError", id="without a text"),
    pytest.param(KeyboardInterrupt(), "KeyboardInterrupt", id="an interrupt"),
    pytest.param(SystemExit(2), "SystemExit: 2", id="an exit with a code"),
    pytest.param(Stop("all"), "Stop: all", id="a host's own"),
]


@pytest.mark.parametrize(("error", "written"), ERRORS)
def test_an_exception_is_recorded_and_goes_on_unchanged(sdk: StartedSdk, error: BaseException, written: str) -> None:
    @tracejudge.observe(name="f")
    def fail(question: str) -> str:  # noqa: ARG001
        raise error

    with pytest.raises(type(error)) as caught:
        fail("Where?")
    assert caught.value is error
    assert (error.__cause__, error.__context__) == (None, None)
    assert the_trace(sdk) == {**BASE, "name": "f", "input": "Where?", "output": "", "error": written}


def test_a_cancelled_task_is_recorded_and_has_not_failed(sdk: StartedSdk) -> None:
    """A client that disconnects is no error: rules that judge all errors would judge each of them."""

    @tracejudge.observe(name="f")
    async def wait() -> None:
        await asyncio.Event().wait()

    async def main() -> bool:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        return isinstance(result, asyncio.CancelledError)

    assert asyncio.run(main())
    assert the_trace(sdk) == {**BASE, "name": "f", "output": ""}


def test_a_script_that_ends_has_not_failed(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="f")
    def leave() -> None:
        sys.exit(0)

    with pytest.raises(SystemExit):
        leave()
    assert the_trace(sdk) == {**BASE, "name": "f", "output": ""}


@pytest.mark.parametrize(
    "result", [iter("ab"), (letter for letter in "ab"), map(str, "ab")], ids=["list", "generator", "map"]
)
def test_a_stream_that_a_plain_function_returns_is_no_answer(sdk: StartedSdk, result: object) -> None:
    """Its type's name would be judged."""

    @tracejudge.observe(name="f")
    def stream() -> object:
        return result

    assert stream() is result
    assert the_trace(sdk) == {**BASE, "name": "f", "output": ""}


@pytest.mark.parametrize("kind", ["retriever", "tool"])
def test_a_step_outside_of_any_trace_publishes_nothing(sdk: StartedSdk, kind: str) -> None:
    @tracejudge.observe(kind=kind)
    def search(query: str) -> list[str]:
        return [query]

    assert search("q") == ["q"]
    assert tracejudge.flush(60)
    assert sdk.traces() == []


def test_observing_anything_but_a_function_raises_at_once() -> None:
    with pytest.raises(TypeError, match="observe takes a function; pass other arguments by name, as observe"):
        tracejudge.observe("answer")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"input: .*f has no parameter 'nope'"):

        @tracejudge.observe(input="nope")
        def f(question: str) -> str:
            return question


def test_observed_calls_within_are_spans_of_the_one_trace(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="search", kind="tool", k=3)
    def search(query: str) -> dict[str, Any]:
        return {"hit": rank(query, 1)}

    @tracejudge.observe(name="rank")
    def rank(query: str, place: int) -> int:
        return len(query) + place

    @tracejudge.observe(name="fail")
    def fail() -> None:
        raise ValueError("broken")

    @tracejudge.observe(name="answer")
    def answer(question: str) -> str:
        with pytest.raises(ValueError, match="broken"):
            fail()
        return str(search(question))

    answer("abc")
    assert the_trace(sdk) == {
        **BASE,
        "name": "answer",
        "input": "abc",
        "output": "{'hit': 4}",
        "spans": [
            {"span_id": "s1", "parent_id": "s0", "name": "fail", "status": "error",
             "attributes": {"error": "ValueError: broken"}},
            {"span_id": "s2", "parent_id": "s0", "name": "search", "kind": "tool", "status": "ok",
             "inputs": "abc", "outputs": {"hit": 4}, "attributes": {"k": 3}},
            {"span_id": "s3", "parent_id": "s2", "name": "rank", "status": "ok",
             "inputs": {"query": "abc", "place": 1}, "outputs": 4},
        ],
    }  # fmt: skip


def test_calls_after_each_other_are_traces_of_their_own(sdk: StartedSdk) -> None:
    f = tracejudge.observe(name="f")(upper)
    f("a")
    f("b")
    assert published(sdk) == [
        {"trace_id": f"t{n}", "span_id": f"s{n}", "service": "shop", "name": "f", "input": i, "output": o}
        for n, i, o in [(0, "a", "A"), (1, "b", "B")]
    ]


class Shop:
    @tracejudge.observe(name="method")
    def method(self, question: str) -> str:
        return question

    @classmethod
    @tracejudge.observe(name="classmethod")
    def of_class(cls, question: str) -> str:
        return f"{cls.__name__} {question}"

    @tracejudge.observe(name="over classmethod")
    @classmethod
    def over_class(cls, question: str) -> str:
        return f"{cls.__name__} {question}"

    @tracejudge.observe(name="over staticmethod")
    @staticmethod
    def static(question: str) -> str:
        return question


@pytest.mark.parametrize(
    ("call", "name", "output"),
    [
        pytest.param(lambda: Shop().method("q"), "method", "q", id="method"),
        pytest.param(lambda: Shop.of_class("q"), "classmethod", "Shop q", id="classmethod"),
        pytest.param(lambda: Shop.over_class("q"), "over classmethod", "Shop q", id="over a classmethod"),
        pytest.param(lambda: Shop.static("q"), "over staticmethod", "q", id="over a staticmethod"),
        pytest.param(lambda: Shop().static("q"), "over staticmethod", "q", id="staticmethod of an object"),
    ],
)
def test_methods_are_observed_without_their_object(
    sdk: StartedSdk, call: Callable[[], str], name: str, output: str
) -> None:
    assert call() == output
    assert the_trace(sdk) == {**BASE, "name": name, "input": "q", "output": output}


def test_what_is_no_function_is_observed_all_the_same(sdk: StartedSdk) -> None:
    half = functools.partial(two, "a")
    tracejudge.observe(half)(second=3)
    assert the_trace(sdk) == {**BASE, "name": "partial", "input": '{"second":3}', "output": ""}


def plain() -> None:
    """Say so."""


async def coroutine() -> None:
    """Say so."""


@pytest.mark.parametrize(
    ("function", "is_kind"), [(plain, inspect.isfunction), (coroutine, inspect.iscoroutinefunction)]
)
def test_a_decorated_function_stays_what_it_was(
    function: Callable[..., Any], is_kind: Callable[[object], bool]
) -> None:
    decorated = tracejudge.observe(function)
    assert is_kind(decorated)
    assert inspect.unwrap(decorated) is function
    assert (decorated.__name__, decorated.__doc__) == (function.__name__, "Say so.")
    assert inspect.signature(decorated) == inspect.signature(function)


def test_without_init_nothing_is_recorded_and_no_argument_looked_at() -> None:
    looked_at: list[object] = []

    @tracejudge.observe(input=looked_at.append, output=looked_at.append)
    def f(question: str) -> str:
        return tracejudge.current().trace_id + question

    @tracejudge.observe(input=looked_at.append, output=looked_at.append)
    async def g(question: str) -> str:
        return question

    assert f("a") == "a"
    assert asyncio.run(g("a")) == "a"
    assert looked_at == []


def test_a_trace_published_by_hand_within_stays_its_own(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="f")
    def f() -> str:
        tracejudge.publish(output="by hand", started_at=0, ended_at=1)
        return "observed"

    f()
    assert tracejudge.flush(60)
    by_hand, observed = sdk.traces()
    assert (by_hand["output"], observed["output"]) == ("by hand", "observed")
    assert by_hand["trace_id"] != observed["trace_id"]
    assert "spans" not in observed


def test_after_shutdown_a_call_goes_on_and_is_a_counted_drop(sdk: StartedSdk) -> None:
    f = tracejudge.observe(name="f")(upper)
    tracejudge.shutdown()
    assert f("a") == "A"
    assert sdk.client.totals().dropped == {"shutdown": 1}
