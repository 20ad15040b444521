"""Content that one reading loses or mistakes for another, found in reviews and trials."""

import json
from typing import Any, Final

import pytest
from otel.test_otel_joining import agent, call, chain, joined, messages, part, step, tool

from tracejudge import Document, ToolCall, Usage
from tracejudge.content.dialogue import unwrapped
from tracejudge.dialects import RawEvent, read
from tracejudge.dialects.own_tables import dialects_with
from tracejudge.otel.joining import SpanGroup, join

PARCEL: Final = "Where is my parcel?"


def test_a_failed_call_with_an_exception_is_a_trace() -> None:
    event = RawEvent("exception", {"exception.type": "TimeoutError"})
    for beside in ({}, {"gen_ai.operation.name": "ask"}):
        attributes = {"gen_ai.prompt": "[{role:user…}]", "gen_ai.request.model": "m", **beside}
        failed = step("call", status="error", attributes=attributes, events=(event,))
        assert joined(failed)["error"] == "TimeoutError", beside


def test_the_last_turn_is_judged_unless_it_is_about_the_one_before() -> None:
    for first, answer, second in (
        ("Where is my parcel", "In Bern.", "Where is my parcel 8?"),
        ("Where is my parcel", "8", "Where is my parcel 8?"),
        ("hi", "a", "Which plan is cheapest?"),
        (PARCEL, "In Bern.", f"You did not say: {PARCEL}"),
        ("hi", "a", "hi again"),
    ):
        turns = [
            (agent(f"agent {n}", "top", n, *said), call(f"call {n}", f"agent {n}", n - 0.5, *said))
            for n, said in ((2, (first, answer)), (4, (second, "Yes.")))
        ]
        assert joined(*turns[0], *turns[1])["input"] == second, (first, second)
        assert joined(turns[0][1], turns[1][1])["input"] == second, (first, second)
    for about in (f"Title for:\n{PARCEL}\nIn Bern.", f'Was "In Bern." right? "{PARCEL}"'):
        spans = [agent("one", "top", 2, PARCEL, "In Bern."), call("x", "one", 1, PARCEL, "In Bern.")]
        check = [agent("two", "top", 4, about, "Yes."), call("y", "two", 3, about, "Yes.")]
        assert joined(*spans, *check)["input"] == PARCEL, about


def test_the_question_is_no_option_and_no_part_of_a_question() -> None:
    compared = "(a) What is X? (b) Compare X with Y."
    for value, asked, expected in (
        ({"args": [PARCEL], "kwargs": {"language": "de"}}, "Parcel?", PARCEL),
        ({"args": [PARCEL, "x"], "kwargs": {"language": "de"}}, PARCEL, PARCEL),
        ({"args": ["u1"], "kwargs": {"question": PARCEL}}, "Parcel?", PARCEL),
        ({"args": ["<shop.Bot object at 0x7f57a5266e50>"], "kwargs": {"topic": PARCEL}}, "Parcel?", PARCEL),
        (compared, "What is X?", compared),
        ("[1] What is X? [2] Compare X with Y.", "What is X?", "[1] What is X? [2] Compare X with Y."),
    ):
        fields = joined(chain("chain", None, 9, value, "a"), call("call", "chain", 4, asked, "b"))
        assert fields["input"] == expected, value


def test_what_mentions_code_is_a_text_of_a_call() -> None:
    kinds: list[dict[str, Any]] = [{"openinference.span.kind": "LLM"}, {"langfuse.observation.type": "generation"}]
    for text in (
        "It shows <Foo object at 0x7f3a2b>: call print().",
        "Point(x=1) is a dataclass.",
        "Point(x=1)",
        '{"a": 1} is JSON.',
    ):
        for kind, names in zip(
            kinds,
            (("input.value", "output.value"), ("langfuse.observation.input", "langfuse.observation.output")),
            strict=True,
        ):
            fields = joined(step("call", attributes={**kind, **dict.fromkeys(names, text)}))
            assert part(fields, "input", "output") == {"input": text, "output": text}, (kind, text)
    for text in ("<shop.Bot object at 0x7f57a5266e50>", "StopEvent(result=Output(text='..."):
        assert joined(chain("chain", None, 9, "Open?", text), call("call", "chain", 4, "Open?", "b"))["output"] == "b"


def test_content_is_not_hidden_and_does_not_vanish() -> None:
    event = RawEvent(
        "gen_ai.client.inference.operation.details",
        {
            "gen_ai.input.messages": messages(("user", PARCEL)),
            "gen_ai.output.messages": messages(("assistant", "Yes.")),
        },
    )
    for empty in ("[]", "", []):
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": empty, "gen_ai.output.messages": empty}
        fields = joined(step("call", attributes=attributes, events=(event,)))
        assert part(fields, "input", "output") == {"input": PARCEL, "output": "Yes."}, empty
    acme = {
        "name": "acme",
        "prefixes": ["acme."],
        "kinds": {"acme.kind": {"call": "llm", "find": "retriever"}},
        "input": {"acme.asked": "messages", "acme.turn.#": "messages"},
        "output": {"acme.said": "text"},
        "documents": ["acme.docs", "acme.doc.#"],
    }
    dialects = dialects_with([acme])
    for name, value in (("docs", "A page."), ("doc.0", '{"content": "A page."}')):
        spans = (
            step("find", "top", 1, attributes={"acme.kind": "find", f"acme.{name}": value}),
            call("c", "top", 2, "a", "b"),
        )
        assert (join(SpanGroup(None, spans), dialects) or {})["context"] == [Document("A page.")], name
    kind = {"openinference.span.kind": "RETRIEVER"}
    for text, expected in (
        ("A page.", [Document("A page.")]),
        ("Found 3 documents", None),
        ('[{"content": "A p', None),
    ):
        fields = joined(
            step("find", "top", 1, attributes={**kind, "output.value": text}), call("c", "top", 2, "a", "b")
        )
        assert fields.get("context") == expected, text
    unknown = [{"who": "user", "said": PARCEL}]
    held = {"messages": unknown}
    for value, raw in ((json.dumps(unknown), unknown), (json.dumps(held), held), ('[{"role": "us', '[{"role": "us')):
        attributes = {"acme.kind": "call", "acme.asked": value, "acme.said": "Yes."}
        fields = join(SpanGroup(None, (step("call", attributes=attributes),)), dialects) or {}
        assert ("input" in fields, fields["spans"][0].inputs) == (False, raw), value
    attributes = {"acme.kind": "call", "acme.turn.0": json.dumps({"content": PARCEL}), "acme.said": "Yes."}
    assert (join(SpanGroup(None, (step("call", attributes=attributes),)), dialects) or {})["input"] == PARCEL


def test_a_tool_call_stays_that_did_something() -> None:
    city = {"city": "Rome"}
    for result, expected in (("booked", [ToolCall("book", city, "booked")]), (json.dumps(city), None)):
        spans = tool("book", "agent", 3, said={"arguments": json.dumps(city), "result": result}), call("c", "agent", 2)
        fields = joined(agent("agent", None, 9, "Book.", '{"city":"Rome"}'), *spans)
        assert fields.get("tool_calls") == expected, result
    outer, inner = (tool("walk", "agent", 3, said={"arguments": json.dumps({"at": n})}) for n in (1, 2))
    inner = step("inner", "tool walk", 2, attributes=inner.attributes)
    called = joined(agent("agent", None, 9, "Go.", "Done."), outer, inner)["tool_calls"]
    assert called == [ToolCall("walk", {"at": 2}), ToolCall("walk", {"at": 1})]


@pytest.mark.parametrize("key", ["answer", "output", "result"])
def test_a_result_alone_is_whole_as_publish_keeps_it(key: str) -> None:
    typed = {key: "ORD-17"}
    assert json.loads(joined(chain("chain", None, 9, "Which?", typed))["output"]) == typed
    assert unwrapped({"input": "Which?", "output": typed})["output"] == typed
    assert joined(chain("chain", None, 9, "Which?", {**typed, "context": []}))["output"] == "ORD-17"
    assert joined(chain("c", None, 9, "Which?", typed), call("d", "c", 4, "Which?", "ORD-17"))["output"] == "ORD-17"


def test_numbers_of_every_kind() -> None:
    attributes = {"gen_ai.usage.input_tokens": 1e7, "gen_ai.usage.output_tokens": "12345678901", "session.id": 17.0}
    reading = read(call("call", "top", 4, "a", "b", **attributes))
    assert (reading.usage, reading.session_id) == (Usage(10_000_000, 12345678901), "17")
    for number, expected in ((140234567, None), ("thread-1", "thread-1")):
        assert read(call("call", "top", 4, "a", "b", thread_id=number)).session_id == expected
