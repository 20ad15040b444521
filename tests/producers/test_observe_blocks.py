"""`with tracejudge.trace(...)`: what is set in a block is what its trace or span says."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import lookalikes as like
import pytest
from observe_reading import published, the_trace
from opentelemetry import trace as opentelemetry
from sdk_started import StartedSdk

import tracejudge
from tracejudge.tracing import step as recording

BASE = {"trace_id": "t0", "span_id": "s0", "service": "shop"}


def test_a_block_becomes_a_trace(sdk: StartedSdk) -> None:
    with tracejudge.trace(name="answer", input="Where?", model="gpt-6-luna", user_id="u-1") as t:
        t.output = "Here."
        t.context = ["It is here.", tracejudge.Document("Or there.", id="d2")]
        t.set(usage=tracejudge.Usage(12, 3), session_id="s-1")
        t.feedback = tracejudge.Feedback(1)
        assert (t.output, t.model, t.provider) == ("Here.", "gpt-6-luna", None)
    assert the_trace(sdk) == {
        **BASE,
        "name": "answer",
        "input": "Where?",
        "output": "Here.",
        "model": "gpt-6-luna",
        "user_id": "u-1",
        "session_id": "s-1",
        "context": ["It is here.", {"text": "Or there.", "id": "d2"}],
        "usage": {"input_tokens": 12, "output_tokens": 3},
        "feedback": {"score": 1},
    }


def test_an_async_block_becomes_a_trace(sdk: StartedSdk) -> None:
    async def main() -> None:
        async with tracejudge.trace(name="answer", input={"q": "Where?"}) as t:
            await asyncio.sleep(0)
            t.output = ["Here."]

    asyncio.run(main())
    assert the_trace(sdk) == {**BASE, "name": "answer", "input": '{"q":"Where?"}', "output": "Here."}


def test_what_a_trace_has_no_field_for_becomes_a_tag(sdk: StartedSdk) -> None:
    with tracejudge.trace(tenant="a", tags={"team": "b", "tries": "own"}) as t:
        t.set(tries=3)
    assert the_trace(sdk) == {**BASE, "output": "", "tags": {"tenant": "a", "team": "b", "tries": "own"}}


def test_an_exception_is_recorded_and_goes_on(sdk: StartedSdk) -> None:
    def half_an_answer() -> None:
        with tracejudge.trace(name="answer") as t:
            t.output = "Half of"
            raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        half_an_answer()
    assert the_trace(sdk) == {**BASE, "name": "answer", "output": "Half of", "error": "ValueError: late"}


@pytest.mark.parametrize("error", [RuntimeError("mild"), "RuntimeError: mild"], ids=["exception", "text"])
def test_an_error_can_be_said_by_hand(sdk: StartedSdk, error: object) -> None:
    with tracejudge.trace() as t:
        t.error = error
    assert the_trace(sdk) == {**BASE, "output": "", "error": "RuntimeError: mild"}


def test_blocks_within_are_spans_with_attributes(sdk: StartedSdk) -> None:
    with tracejudge.trace(name="answer") as t:
        with tracejudge.trace(name="chat", kind="llm", input="Where?", model="gpt-6-luna") as chat:
            chat.output = {"text": "Here."}
            chat.usage = tracejudge.Usage(1, 2)
            assert chat.trace_id == t.trace_id
            with tracejudge.trace() as nameless:
                nameless.kind = "tool"
        t.output = "Here."
    assert the_trace(sdk) == {
        **BASE,
        "name": "answer",
        "output": "Here.",
        "spans": [
            {"span_id": "s1", "parent_id": "s0", "name": "chat", "kind": "llm", "status": "ok", "inputs": "Where?",
             "outputs": {"text": "Here."},
             "attributes": {"model": "gpt-6-luna", "usage": {"input_tokens": 1, "output_tokens": 2}}},
            {"span_id": "s2", "parent_id": "s1", "name": "block", "kind": "tool", "status": "ok"},
        ],
    }  # fmt: skip


class Model:
    """Like pydantic's."""

    def model_dump(self) -> dict[str, Any]:
        return {"page_content": "third", "metadata": {"page": 3}}


DOCUMENTS = ["first", tracejudge.Document("second", id="d2", score=0.5), Model(), {"content": "fourth", "id": 4}, 5]
CONTEXT = ["first", {"text": "second", "id": "d2", "score": 0.5}, {"text": "third"}, {"text": "fourth", "id": "4"}, "5"]


class Computed:
    @property
    def page_content(self) -> str:
        return "a"


@tracejudge.observe(name="search", kind="retriever")
def search(result: Any) -> Any:
    return result


@pytest.mark.parametrize(
    ("result", "context"),
    [
        pytest.param(DOCUMENTS, CONTEXT, id="documents of many sorts"),
        pytest.param({"documents": ["a"]}, ["a"], id="wrapped"),
        pytest.param([], None, id="nothing found"),
        pytest.param("one text", ["one text"], id="one text"),
        pytest.param([like.Plain(text="a", score=0.5)], [{"text": "a", "score": 0.5}], id="objects"),
        pytest.param([like.Slotted("a", "7"), object()], [{"text": "a", "id": "7"}], id="objects with slots"),
        pytest.param([Computed()], [{"text": "a"}], id="objects with a property"),
        pytest.param([like.Ranked(like.Plain(text="a"), 0.5)], [{"text": "a", "score": 0.5}], id="named pairs"),
        pytest.param([object()], None, id="no text"),
    ],
)
def test_what_a_retriever_returns_is_the_context(sdk: StartedSdk, result: Any, context: Any) -> None:
    with tracejudge.trace(name="answer"):
        search(result)
    assert the_trace(sdk).get("context") == context


def test_values_under_other_names_arrive_as_in_publish(sdk: StartedSdk, caplog: pytest.LogCaptureFixture) -> None:
    with tracejudge.trace(name="answer", documents=[like.Plain(text="given")]) as t:
        search(["found"])
        t.set(output="a", tags=["x"], colour="red")
    with tracejudge.trace(name="answer") as t:
        t.set(colour="red", tags=["x"], output={"answer": "a", "documents": [like.Plain(text="d")]})
    first, second = published(sdk)
    assert (first["context"], second["context"]) == ([{"text": "given"}], [{"text": "d"}])
    for trace in (first, second):
        assert (trace["output"], trace["tags"]) == ("a", {"x": "true", "colour": "red"})
    assert [message.partition(";")[0] for message in caplog.messages] == [
        "Field colour is no field and is sent as a tag"
    ]


def test_all_retrievers_fill_the_context_and_nested_ones_do_so_once(sdk: StartedSdk) -> None:
    @tracejudge.observe(kind="retriever")
    def hybrid() -> list[str]:
        return [*search(["a"]), *search(["b"])]

    with tracejudge.trace(name="answer"):
        hybrid()
        search(["c"])
    assert the_trace(sdk)["context"] == ["a", "b", "c"]


def test_a_context_that_was_set_stays(sdk: StartedSdk) -> None:
    with tracejudge.trace(name="answer", context=["own"]):
        search(["found"])
    assert the_trace(sdk)["context"] == ["own"]


def test_the_current_trace_is_at_hand_anywhere_within(sdk: StartedSdk) -> None:
    ids: list[str] = []

    @tracejudge.observe(name="answer")
    def answer(question: str) -> str:
        tracejudge.current().set(input=question.strip(), output="edited", user_id="u-1")
        ids.append(tracejudge.current().trace_id)
        return "raw"

    assert answer(" Where? ") == "raw"
    tracejudge.feedback(ids[0], 1)
    assert the_trace(sdk) == {**BASE, "name": "answer", "input": "Where?", "output": "edited", "user_id": "u-1"}
    assert [trace["trace_id"] for trace in sdk.traces()] == ids
    assert [entry.record for entry in sdk.entries() if entry.kind == "f"] == [{"trace_id": ids[0], "score": 1}]


def test_outside_of_a_trace_what_is_set_goes_nowhere(sdk: StartedSdk) -> None:
    tracejudge.current().set(output="lost")
    tracejudge.current().user_id = "u-1"
    assert tracejudge.current().trace_id == "", "feedback for a random one would be feedback for nothing"
    assert published(sdk) == []


def test_without_init_a_block_runs_and_has_an_id() -> None:
    with tracejudge.trace(name="answer", trace_id="a" * 32) as identifier, tracejudge.trace() as drawn:
        identifier.output = drawn.output = "Here."
        identifier.set(nonsense=1)
    assert identifier.trace_id == "a" * 32
    assert (len(drawn.trace_id), len(drawn.span_id)) == (32, 16)
    assert drawn.trace_id == drawn.trace_id


def test_the_trace_id_can_be_given_and_is_the_same_within(sdk: StartedSdk) -> None:
    with tracejudge.trace(trace_id="a" * 32) as t, tracejudge.trace(name="inner") as inner:
        assert (t.trace_id, inner.trace_id) == ("a" * 32, "a" * 32)
        t.set(trace_id="b" * 32)
        assert (t.trace_id, inner.trace_id) == ("b" * 32, "b" * 32)
    assert tracejudge.flush(60)
    (trace,) = sdk.traces()
    assert (trace["trace_id"], trace["span_id"], inner.trace_id) == ("b" * 32, t.span_id, "b" * 32)


def test_a_block_is_published_once_however_often_it_is_entered(sdk: StartedSdk) -> None:
    t = tracejudge.trace(name="answer")
    with t, t:
        t.output = "Here."
    with t:
        t.output = "Too late."
    assert the_trace(sdk) == {**BASE, "name": "answer", "output": "Here."}


def test_a_span_ends_once(sdk: StartedSdk) -> None:
    with tracejudge.trace(name="answer"):
        inner = tracejudge.trace(name="inner")
        with inner:
            pass
        with suppress(ValueError), inner:
            raise ValueError
    assert [(span["name"], span["status"]) for span in the_trace(sdk)["spans"]] == [("inner", "ok")]


def test_a_block_in_a_generator_that_is_closed_did_not_fail(sdk: StartedSdk) -> None:
    def stream() -> Iterator[str]:
        with tracejudge.trace(name="answer") as t:
            t.output = "a"
            yield "a"
            t.output = "ab"
            yield "b"

    assert next(stream()) == "a"
    assert the_trace(sdk) == {**BASE, "name": "answer", "output": "a"}


class Raising:
    """Raises whatever it is asked."""

    @property
    def __class__(self) -> type:
        raise ValueError("asked")

    def __bool__(self) -> bool:
        raise ValueError("asked")


@pytest.mark.swallows
def test_a_field_that_cannot_be_read_is_left_out(sdk: StartedSdk) -> None:
    for field in ("usage", "tags", "started_at", "context"):
        with tracejudge.trace(name="answer", **{field: Raising()}) as t:
            t.set(output=field, **{field: Raising()})
    assert tracejudge.flush(60)
    assert [trace["output"] for trace in sdk.traces()] == ["usage", "tags", "started_at", "context"]
    assert not any({"usage", "tags", "context"} & trace.keys() for trace in sdk.traces())


@pytest.mark.swallows
def test_a_fault_of_ours_is_a_counted_drop(sdk: StartedSdk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(recording, "trace_fields", fault)
    with tracejudge.trace(name="answer"):
        pass
    assert published(sdk) == []
    assert sdk.client.totals().dropped == {"invalid": 1}


@pytest.mark.parametrize("field", ["name", "input", "output", "error", "kind", "model"])
def test_a_span_takes_whatever_it_is_given(sdk: StartedSdk, field: str) -> None:
    with tracejudge.trace(name="answer"), tracejudge.trace(**{field: Raising()}) as step:
        step.set(**{field: Raising()})
    (span,) = the_trace(sdk)["spans"]
    # What has no content is left out; a name and a kind are needed.
    written = "<Raising>" in [*span.values(), *span.get("attributes", {}).values()]
    assert written is (field in {"name", "kind"})
    assert span["status"] == ("error" if field == "error" else "ok")


def test_a_trace_that_is_given_an_id_takes_none_of_another_span(sdk: StartedSdk) -> None:
    context = opentelemetry.SpanContext(0xA1 << 120, 0xB2 << 56, is_remote=False)
    with opentelemetry.use_span(opentelemetry.NonRecordingSpan(context)):
        with tracejudge.trace(trace_id="c" * 32):
            pass
        with tracejudge.trace(trace_id="a1" + "0" * 30):
            pass
    assert tracejudge.flush(60)
    other, same = sdk.traces()
    assert (other["trace_id"], other["span_id"] != "b2" + "0" * 14) == ("c" * 32, True)
    assert (same["trace_id"], same["span_id"]) == ("a1" + "0" * 30, "b2" + "0" * 14)


def test_ids_come_from_the_opentelemetry_span_it_began_in(sdk: StartedSdk) -> None:
    context = opentelemetry.SpanContext(0xA1 << 120, 0xB2 << 56, is_remote=False)
    block = tracejudge.trace(name="answer")
    with opentelemetry.use_span(opentelemetry.NonRecordingSpan(context)):
        block.__enter__()
    with tracejudge.trace(name="inner"):
        pass
    block.__exit__(None, None, None)
    assert tracejudge.flush(60)
    (trace,) = sdk.traces()
    assert (trace["trace_id"], trace["span_id"]) == ("a1" + "0" * 30, "b2" + "0" * 14)
    assert trace["spans"][0]["parent_id"] == "b2" + "0" * 14
