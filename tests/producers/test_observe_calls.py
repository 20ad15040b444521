"""`observe` on functions, and blocks of `trace`: one trace for the outermost, spans within, also across threads."""

import asyncio
import contextvars
import functools
import inspect
import os
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from lookalikes import Plain, table
from opentelemetry import trace as opentelemetry
from sdk_rig import StartedSdk, published, the_trace

import tracejudge
from tracejudge.tracing import step as recording

BASE = {"trace_id": "t0", "span_id": "s0", "service": "shop"}
EXPECTED = table("observed")["expected"]
SPAN_IDS = ("a1" + "0" * 30, "b2" + "0" * 14)


def in_span() -> Any:
    context = opentelemetry.SpanContext(0xA1 << 120, 0xB2 << 56, is_remote=False)
    return opentelemetry.use_span(opentelemetry.NonRecordingSpan(context))


def two(first: Any = "unsaid", second: Any = "unsaid", *rest: Any, **others: Any) -> None:
    """Accept two or more arguments."""


def upper(text: str) -> str:
    return text.upper()


# --- observed functions ----------------------------------------------------------------------------------------------


def test_a_call_or_a_coroutine_becomes_a_trace(sdk: StartedSdk) -> None:
    @tracejudge.observe
    def answer(question: str) -> str:
        return f"{question} Yes."

    @tracejudge.observe(name="answer", model="gpt-6-luna", tags={"team": "a"})
    async def later(question: str) -> str:
        await asyncio.sleep(0)
        return f"{question} Yes."

    assert answer("Really?") == asyncio.run(later("Really?")) == "Really? Yes."
    said = {**BASE, "input": "Really?", "output": "Really? Yes."}
    name = "test_a_call_or_a_coroutine_becomes_a_trace.<locals>.answer"
    further = {"trace_id": "t1", "span_id": "s1", "name": "answer", "model": "gpt-6-luna", "tags": {"team": "a"}}
    assert published(sdk) == [{**said, "name": name}, {**said, **further}]


def test_input_and_output_are_what_was_given_and_returned(sdk: StartedSdk) -> None:
    for args, kwargs, written in table("observed")["inputs"]:
        tracejudge.observe(name="f")(two)(*args, **kwargs)
        expected = {**BASE, "name": "f", "output": ""} | ({} if written is None else {"input": written})
        assert the_trace(sdk) == expected, written
    # A stream that a plain function returns is no answer: its type's name would be judged.
    for result, text in table("observed")["outputs"]:
        assert tracejudge.observe(name="f")(lambda result=result: result)() is result
        assert the_trace(sdk) == {**BASE, "name": "f", "output": text}, text

    tracejudge.observe(functools.partial(two, "a"))(second=3)
    assert the_trace(sdk) == {**BASE, "name": "partial", "input": '{"second":3}', "output": ""}

    @tracejudge.observe(name="f")
    def empty(parts: list[str]) -> None:
        parts.clear()

    empty(["a"])
    assert the_trace(sdk)["input"] == '{"parts":["a"]}', "as they were before the call"


@pytest.mark.swallows
def test_input_and_output_can_be_chosen_and_choices_that_fail_count_as_none(sdk: StartedSdk) -> None:
    def answer(tenant: str, question: str) -> dict[str, Any]:
        return {"text": f"{tenant} {question}", "cost": 3}

    for choice in ("question", lambda tenant, question: question):  # noqa: ARG005
        f = tracejudge.observe(name="f", input=choice, output=lambda answer: answer["text"])(answer)
        assert f("a", question="b") == {"text": "a b", "cost": 3}
        assert the_trace(sdk) == {**BASE, "name": "f", "input": "b", "output": "a b"}
    failing = tracejudge.observe(name="f", input=lambda: "no such call", output=lambda answer: answer.missing)(upper)
    assert failing("b") == "B"
    assert the_trace(sdk) == {**BASE, "name": "f", "input": "b", "output": "B"}


class Stop(BaseException):
    """Ends everything."""


def fail(error: BaseException) -> None:
    raise error


def test_an_exception_is_recorded_and_goes_on_unchanged(sdk: StartedSdk) -> None:
    """A script that ends has not failed."""
    for error, written in (
        (ValueError("no parcel"), {"error": "ValueError: no parcel"}),
        (KeyError(), {"error": "KeyError"}),
        (KeyboardInterrupt(), {"error": "KeyboardInterrupt"}),
        (SystemExit(2), {"error": "SystemExit: 2"}),
        (Stop("all"), {"error": "Stop: all"}),
        (SystemExit(0), {}),
    ):
        with pytest.raises(type(error)) as caught:
            tracejudge.observe(name="f", input=lambda error: "Where?")(fail)(error)  # noqa: ARG005
        assert caught.value is error
        assert (error.__cause__, error.__context__) == (None, None)
        assert the_trace(sdk) == {**BASE, "name": "f", "input": "Where?", "output": "", **written}


def test_a_cancelled_task_and_a_closed_coroutine_have_not_failed(sdk: StartedSdk) -> None:
    """A client that disconnects is no error: rules that judge all errors would judge each of them."""

    @tracejudge.observe(name="f")
    async def wait() -> None:
        await asyncio.Event().wait()

    async def cancel() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    async def close() -> None:
        coroutine = wait()
        coroutine.send(None)
        coroutine.close()

    for leave in (cancel, close):
        asyncio.run(leave())
        assert the_trace(sdk) == {**BASE, "name": "f", "output": ""}


def test_mistakes_of_a_decoration_raise_at_once() -> None:
    with pytest.raises(TypeError, match="observe takes a function; pass other arguments by name, as observe"):
        tracejudge.observe("answer")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"input: .*upper has no parameter 'nope'"):
        tracejudge.observe(input="nope")(upper)
    with pytest.raises(ValueError, match='kind "retreiver" is unknown; did you mean "retriever"'):
        tracejudge.observe(kind="retreiver")
    for kind in ("retriever", "RETRIEVER", "pipeline", "checkout", None):
        tracejudge.observe(kind=kind)


def test_observed_calls_within_are_spans_of_the_one_trace(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="search", kind="tool", k=3)
    def search(query: str) -> dict[str, Any]:
        return {"hit": rank(query, 1)}

    @tracejudge.observe(name="rank")
    def rank(query: str, place: int) -> int:
        return len(query) + place

    @tracejudge.observe(name="answer")
    def answer(question: str) -> str:
        with suppress(ValueError):
            tracejudge.observe(name="fail", input=lambda error: None)(fail)(ValueError("broken"))  # noqa: ARG005
        return str(search(question))

    answer("abc")
    assert the_trace(sdk) == EXPECTED["calls within"]
    for kind in ("retriever", "tool"):
        assert tracejudge.observe(kind=kind)(upper)("q") == "Q"
    assert published(sdk) == [], "a step outside of any trace"


def named(cls: type, question: str) -> str:
    return f"{cls.__name__} {question}"


class Shop:
    method = tracejudge.observe(name="method")(lambda self, question: question)  # noqa: ARG005
    of_class = classmethod(tracejudge.observe(name="classmethod")(named))
    over_class = tracejudge.observe(name="over classmethod")(classmethod(named))
    static = tracejudge.observe(name="over staticmethod")(staticmethod(upper))


def test_methods_are_observed_without_their_object(sdk: StartedSdk) -> None:
    for call, name, output in (
        *((Shop().method, "method", "q"), (Shop.of_class, "classmethod", "Shop q")),
        *((Shop.over_class, "over classmethod", "Shop q"), (Shop.static, "over staticmethod", "Q")),
        (Shop().static, "over staticmethod", "Q"),
    ):
        assert call("q") == output
        assert the_trace(sdk) == {**BASE, "name": name, "input": "q", "output": output}


def test_a_decorated_function_stays_what_it_was_and_without_init_no_argument_is_looked_at() -> None:
    looked_at: list[object] = []
    observe = tracejudge.observe(input=looked_at.append, output=looked_at.append)

    async def coroutine(question: str) -> str:
        """Return a text."""
        return question

    def pieces(text: str) -> Iterator[str]:
        yield from text

    async def async_pieces(text: str) -> AsyncIterator[str]:
        for piece in text:
            yield piece

    async def collect(stream: AsyncIterator[str]) -> list[str]:
        return [piece async for piece in stream]

    kinds = (inspect.isfunction, inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    for function, is_kind in zip((upper, coroutine, pieces, async_pieces), kinds, strict=True):
        decorated: Any = observe(function)
        assert is_kind(decorated)
        assert inspect.unwrap(decorated) is function
        assert (decorated.__name__, decorated.__doc__) == (function.__name__, function.__doc__)
        assert inspect.signature(decorated) == inspect.signature(function)
    stream, async_stream, thrown = observe(pieces)("abc"), observe(async_pieces)("abc"), observe(pieces)("abc")
    assert (inspect.isgenerator(stream), inspect.isasyncgen(async_stream)) == (True, True)
    assert list(stream) == asyncio.run(collect(async_stream)) == ["a", "b", "c"]
    next(thrown)
    with pytest.raises(KeyError):
        thrown.throw(KeyError())  # type: ignore[attr-defined]
    assert (observe(upper)("a"), asyncio.run(observe(coroutine)("a")), looked_at) == ("A", "a", [])
    with tracejudge.trace(name="answer", trace_id="a" * 32) as identifier, tracejudge.trace() as drawn:
        identifier.output = drawn.output = "Here."
        identifier.set(nonsense=1)
    assert identifier.trace_id == "a" * 32
    assert (len(drawn.trace_id), len(drawn.span_id)) == (32, 16)
    assert (drawn.trace_id, tracejudge.current().trace_id) == (drawn.trace_id, "")


def test_a_trace_published_by_hand_within_stays_its_own(sdk: StartedSdk) -> None:
    f = tracejudge.observe(name="f")(lambda: tracejudge.publish(output="by hand", started_at=0, ended_at=1))
    trace_id = f()
    by_hand, observed = sdk.flushed()
    assert (by_hand["output"], by_hand["trace_id"], observed["output"]) == ("by hand", trace_id, trace_id)
    assert observed["trace_id"] != trace_id
    assert "spans" not in observed
    tracejudge.shutdown()
    assert re.fullmatch("[0-9a-f]{32}", f())
    assert sdk.client.totals().dropped == {"shutdown": 2}, "after shutdown a call goes on"


# --- blocks ----------------------------------------------------------------------------------------------------------


def test_a_block_becomes_a_trace(sdk: StartedSdk) -> None:
    with tracejudge.trace(name="answer", input="Where?", model="gpt-6-luna", user_id="u-1") as t:
        t.output = "Here."
        t.context = ["It is here.", tracejudge.Document("Or there.", id="d2")]
        t.set(usage=tracejudge.Usage(12, 3), session_id="s-1")
        t.feedback = tracejudge.Feedback(1)
        assert (t.output, t.model, t.provider) == ("Here.", "gpt-6-luna", None)
    assert the_trace(sdk) == EXPECTED["a block"]

    async def main() -> None:
        async with tracejudge.trace(name="answer", input={"q": "Where?"}) as t:
            await asyncio.sleep(0)
            t.output = ["Here."]

    asyncio.run(main())
    assert the_trace(sdk) == {**BASE, "name": "answer", "input": '{"q":"Where?"}', "output": "Here."}
    with tracejudge.trace(tenant="a", tags={"team": "b", "tries": "own"}) as t:
        t.set(tries=3)
    tags = {"tenant": "a", "team": "b", "tries": "own"}
    assert the_trace(sdk) == {**BASE, "output": "", "tags": tags}, "what a trace has no field for becomes a tag"


def test_an_error_of_a_block_is_recorded_and_may_be_said_by_hand(sdk: StartedSdk) -> None:
    with suppress(ValueError), tracejudge.trace(name="answer") as t:
        t.output = "Half of"
        raise ValueError("late")
    assert the_trace(sdk) == {**BASE, "name": "answer", "output": "Half of", "error": "ValueError: late"}
    for error in (RuntimeError("mild"), "RuntimeError: mild"):
        with tracejudge.trace() as t:
            t.error = error
        assert the_trace(sdk) == {**BASE, "output": "", "error": "RuntimeError: mild"}

    def stream() -> Iterator[str]:
        with tracejudge.trace(name="answer") as t:
            t.output = "a"
            yield "a"
            t.output = "ab"

    assert next(stream()) == "a"
    assert the_trace(sdk) == {**BASE, "name": "answer", "output": "a"}, "a generator that is closed did not fail"


def test_blocks_within_are_spans_with_attributes(sdk: StartedSdk) -> None:
    with tracejudge.trace(name="answer") as t:
        with tracejudge.trace(name="chat", kind="llm", input="Where?", model="gpt-6-luna") as chat:
            chat.output = {"text": "Here."}
            chat.usage = tracejudge.Usage(1, 2)
            assert chat.trace_id == t.trace_id
            with tracejudge.trace() as nameless:
                nameless.kind = "tool"
        t.output = "Here."
    assert the_trace(sdk) == EXPECTED["blocks within"]


@tracejudge.observe(name="search", kind="retriever")
def search(result: Any) -> Any:
    return result


def test_what_a_retriever_returns_is_the_context(sdk: StartedSdk) -> None:
    computed = type("Computed", (), {"page_content": property(lambda _: "a")})()
    for result, context in [*table("observed")["retrieved"], ([computed], [{"text": "a"}])]:
        with tracejudge.trace(name="answer"):
            search(result)
        assert the_trace(sdk).get("context") == context, result
    hybrid = tracejudge.observe(kind="retriever")(lambda: [*search(["a"]), *search(["b"])])
    with tracejudge.trace(name="answer"):
        hybrid()
        search(["c"])
    with tracejudge.trace(name="answer", context=["own"]):
        search(["found"])
    assert [trace["context"] for trace in published(sdk)] == [["a", "b", "c"], ["own"]], "nested ones fill it once"


def test_values_under_other_names_arrive_as_in_publish(sdk: StartedSdk, caplog: pytest.LogCaptureFixture) -> None:
    with tracejudge.trace(name="answer", documents=[Plain(text="given")]) as t:
        search(["found"])
        t.set(output="a", tags=["x"], colour="red")
    with tracejudge.trace(name="answer") as t:
        t.set(colour="red", tags=["x"], output={"answer": "a", "documents": [Plain(text="d")]})
    first, second = published(sdk)
    assert (first["context"], second["context"]) == ([{"text": "given"}], [{"text": "d"}])
    for trace in (first, second):
        assert (trace["output"], trace["tags"]) == ("a", {"x": "true", "colour": "red"})
    sentence = "Field colour is no field and is sent as a tag"
    assert [message.partition(";")[0] for message in caplog.messages] == [sentence]


def test_the_current_trace_is_at_hand_anywhere_within_and_outside_goes_nowhere(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="answer")
    def answer(question: str) -> str:
        tracejudge.current().set(input=question.strip(), output="edited", user_id="u-1")
        return tracejudge.current().trace_id

    trace_id = answer(" Where? ")
    tracejudge.feedback(trace_id, 1)
    assert the_trace(sdk) == {**BASE, "name": "answer", "input": "Where?", "output": "edited", "user_id": "u-1"}
    assert [trace["trace_id"] for trace in sdk.traces()] == [trace_id]
    assert sdk.records("f") == [{"trace_id": trace_id, "score": 1}]
    tracejudge.current().set(output="lost")
    tracejudge.current().user_id = "u-1"
    assert tracejudge.current().trace_id == "", "feedback for a random one would be feedback for nothing"
    assert published(sdk) == []


def test_a_block_is_published_once_however_often_it_is_entered_and_a_span_ends_once(sdk: StartedSdk) -> None:
    t = tracejudge.trace(name="answer")
    with t, t:
        t.output = "Here."
    with t:
        t.output = "Too late."
    assert the_trace(sdk) == {**BASE, "name": "answer", "output": "Here."}
    with tracejudge.trace(name="answer"):
        with tracejudge.trace(name="inner") as inner:
            pass
        with suppress(ValueError), inner:
            raise ValueError
    assert [(span["name"], span["status"]) for span in the_trace(sdk)["spans"]] == [("inner", "ok")]


def test_the_trace_id_can_be_given_and_the_others_come_from_opentelemetry(sdk: StartedSdk) -> None:
    with tracejudge.trace(trace_id="a" * 32) as t, tracejudge.trace(name="inner") as inner:
        assert (t.trace_id, inner.trace_id) == ("a" * 32, "a" * 32)
        t.set(trace_id="b" * 32)
        assert (t.trace_id, inner.trace_id) == ("b" * 32, "b" * 32)
    (trace,) = sdk.flushed()
    assert (trace["trace_id"], trace["span_id"], inner.trace_id) == ("b" * 32, t.span_id, "b" * 32)
    block = tracejudge.trace(name="answer")
    with in_span():  # where it began
        for trace_id in ("c" * 32, SPAN_IDS[0]):
            with tracejudge.trace(trace_id=trace_id):
                pass
        block.__enter__()
    with tracejudge.trace(name="inner"):
        pass
    block.__exit__(None, None, None)
    other, same, later = sdk.flushed()
    assert (other["trace_id"], other["span_id"] != SPAN_IDS[1]) == ("c" * 32, True)
    for trace in (same, later):
        assert (trace["trace_id"], trace["span_id"]) == SPAN_IDS
    assert later["spans"][0]["parent_id"] == SPAN_IDS[1]


@pytest.mark.swallows
def test_what_cannot_be_read_is_left_out_and_a_fault_of_ours_is_a_counted_drop(
    sdk: StartedSdk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise ValueError("asked")

    raising = type("Raising", (), {"__class__": property(fault), "__bool__": fault})()
    fields = ("usage", "tags", "started_at", "context")
    for field in fields:
        with tracejudge.trace(name="answer", **{field: raising}) as t:
            t.set(output=field, **{field: raising})
    traces = sdk.flushed()
    assert [trace["output"] for trace in traces] == [*fields]
    assert not any({"usage", "tags", "context"} & trace.keys() for trace in traces)
    for field in ("name", "input", "output", "error", "kind", "model"):
        with tracejudge.trace(name="answer"), tracejudge.trace(**{field: raising}) as step:
            step.set(**{field: raising})
        (span,) = the_trace(sdk)["spans"]
        # What has no content is left out; a name and a kind are needed.
        written = "<Raising>" in [*span.values(), *span.get("attributes", {}).values()]
        assert (written, span["status"]) == (field in {"name", "kind"}, "error" if field == "error" else "ok"), field
    monkeypatch.setattr(recording, "trace_fields", fault)
    with tracejudge.trace(name="answer"):
        pass
    assert (published(sdk), sdk.client.totals().dropped) == ([], {"invalid": 1})


# --- threads, tasks, contexts and processes --------------------------------------------------------------------------


@tracejudge.observe(name="work")
def work(who: str) -> str:
    return who


@tracejudge.observe(name="awaited")
async def awaited(who: str) -> str:
    await asyncio.sleep(0)
    return work(who)


def test_gathered_coroutines_are_spans_with_their_own_children_or_traces_apart(sdk: StartedSdk) -> None:
    async def gathered() -> str:
        return "".join(await asyncio.gather(*(awaited(who) for who in "abc")))

    assert asyncio.run(tracejudge.observe(name="answer")(gathered)()) == "abc"
    spans = the_trace(sdk)["spans"]
    parents = {span["span_id"]: span for span in spans if span["name"] == "awaited"}
    works = [span for span in spans if span["name"] == "work"]
    assert [span["parent_id"] for span in parents.values()] == ["s0"] * 3
    assert sorted(span["outputs"] for span in works) == ["a", "b", "c"]
    assert all(parents[span["parent_id"]]["outputs"] == span["outputs"] for span in works)
    asyncio.run(gathered())
    traces = sorted((trace["output"], [span["outputs"] for span in trace["spans"]]) for trace in published(sdk))
    assert traces == [("a", ["a"]), ("b", ["b"]), ("c", ["c"])]


def test_threads_go_along_with_their_trace_if_they_have_its_context(sdk: StartedSdk) -> None:
    async def answer() -> str:
        return await asyncio.to_thread(work, "a")

    asyncio.run(tracejudge.observe(answer)())
    assert [span["name"] for span in the_trace(sdk)["spans"]] == ["work"]
    with ThreadPoolExecutor(4) as pool, tracejudge.trace(name="answer"):
        for future in [pool.submit(contextvars.copy_context().run, work, str(number)) for number in range(200)]:
            future.result()
    assert sorted(int(span["outputs"]) for span in the_trace(sdk)["spans"]) == list(range(200))
    with tracejudge.trace(name="answer"), ThreadPoolExecutor(1) as pool:
        pool.submit(work, "a").result()
    assert [(trace["name"], "spans" in trace) for trace in published(sdk)] == [("work", False), ("answer", False)]


def test_a_task_that_outlives_its_trace_is_an_unfinished_span_and_then_on_its_own(sdk: StartedSdk) -> None:
    @tracejudge.observe(name="background")
    async def background(told: asyncio.Event) -> str:
        await told.wait()
        return work("late")

    async def main() -> None:
        told = asyncio.Event()
        with tracejudge.trace(name="answer"):
            task = asyncio.create_task(background(told))
            await asyncio.sleep(0)
        told.set()
        await task

    asyncio.run(main())
    first, second = published(sdk)
    assert [(span["name"], span["status"]) for span in first["spans"]] == [("background", "unfinished")]
    assert (second["name"], second["output"]) == ("work", "late")


def test_blocks_left_in_another_order_or_context_keep_no_context(sdk: StartedSdk) -> None:
    first, second = tracejudge.trace(name="first"), tracejudge.trace(name="second")
    for block in (first, second):
        block.__enter__()
    for block in (first, second):
        block.__exit__(None, None, None)
    work("after")
    first_trace, other = published(sdk)
    assert [(span["name"], span["status"]) for span in first_trace["spans"]] == [("second", "unfinished")]
    assert (other["name"], recording.current_step()) == ("work", None)
    block = tracejudge.trace(name="block")
    contextvars.Context().run(block.__enter__)
    with tracejudge.trace(name="other") as outer:
        block.__exit__(None, None, None)
        assert tracejudge.current().span_id == outer.span_id
    assert [trace["name"] for trace in published(sdk)] == ["block", "other"]
    # Each block is closed elsewhere, so this context keeps what was entered last, and nothing before it.
    for _ in range(3):
        block = tracejudge.trace(name="block")
        block.__enter__()
        contextvars.Context().run(block.__exit__, None, None, None)
    assert recording._current.get() is block._step  # what a context keeps has no other sign than memory
    with tracejudge.trace(name="next") as t:
        assert (t._step._outer, t._step.parent) == (None, None)
    assert (recording._current.get(), len(published(sdk))) == (None, 4)


def test_a_fork_within_a_trace_publishes_it_once(sdk: StartedSdk) -> None:
    with tracejudge.trace(name="answer", output="once") as t:
        work("parent")
        child = os.fork()
        if child == 0:
            # In the child this trace is not there: calls are not its spans, and its end publishes nothing.
            alone, before = recording.current_step() is None, sdk.client.totals().published
            t.__exit__(None, None, None)
            os._exit(0 if alone and sdk.client.totals().published == before else 1)
        assert os.waitpid(child, 0) == (child, 0)
    assert [(trace["name"], len(trace["spans"])) for trace in published(sdk)] == [("answer", 1)]
