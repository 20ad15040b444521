"""How the spans of one trace become one trace to judge. Spans are told by their names: ids and names are one."""

import json
from typing import Any

import pytest
from support.cases import each_case

from tracejudge import Document, Message, ToolCall, Usage
from tracejudge.dialects import RawSpan, builtin
from tracejudge.otel.joining import join
from tracejudge.otel.span_buffer import SpanGroup


def step(name: str, above: str | None = None, at: float = 1.0, /, **fields: Any) -> RawSpan:
    """A span that begins a second before it ends."""
    times = {"started_at": at - 1, "ended_at": at}
    return RawSpan(trace_id="trace", span_id=name, name=name, parent_id=above, **{**times, **fields})


def root(at: float = 9.0, **attributes: Any) -> RawSpan:
    return step("root", None, at, started_at=0.0, is_local_root=True, kind="server", attributes=attributes)


def messages(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


def call(name: str, above: str, at: float, asked: Any = "", message: Any = "", /, **more: Any) -> RawSpan:
    values = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": messages(("user", asked)) if isinstance(asked, str) else asked,
        "gen_ai.output.messages": messages(("assistant", message)) if isinstance(message, str) else message,
    }
    return step(name, above, at, attributes=values | more)


def retrieval(name: str, above: str, at: float, *texts: str) -> RawSpan:
    documents = [{"content": text} for text in texts]
    return step(
        name, above, at, attributes={"gen_ai.operation.name": "retrieval", "gen_ai.retrieval.documents": documents}
    )


def reranking(name: str, above: str, at: float, value: tuple[str, ...], kept: tuple[str, ...]) -> RawSpan:
    attributes: dict[str, str] = {"openinference.span.kind": "RERANKER"}
    attributes |= {f"reranker.input_documents.{place}.document.content": text for place, text in enumerate(value)}
    attributes |= {f"reranker.output_documents.{place}.document.content": text for place, text in enumerate(kept)}
    return step(name, above, at, attributes=attributes)


def tool(name: str, above: str, at: float, /, **fields: Any) -> RawSpan:
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    return step(
        f"tool {name}",
        above,
        at,
        attributes=attributes | {f"gen_ai.tool.call.{key}": value for key, value in fields.pop("said", {}).items()},
        **fields,
    )


def agent(name: str, above: str | None, at: float, asked: str, message: str, **fields: Any) -> RawSpan:
    attributes = {"openinference.span.kind": "AGENT", "input.value": asked, "output.value": message}
    return step(name, above, at, started_at=0.0, attributes=attributes, **fields)


def joined(*spans: RawSpan) -> dict[str, Any]:
    top = next((span for span in spans if span.is_local_root), None)
    fields = join(SpanGroup(top, spans))
    assert fields is not None
    return fields


def part(fields: dict[str, Any], *options: str) -> dict[str, Any]:
    return {name: fields[name] for name in options if name in fields}


def texts(fields: dict[str, Any]) -> list[str]:
    return [document.text for document in fields.get("context", [])]


CHAIN = {"openinference.span.kind": "CHAIN", "output.mime_type": "application/json"}


@each_case(
    "spans",
    [
        pytest.param((root(),), id="only_a_request"),
        pytest.param((root(), retrieval("search", "root", 1, "a")), id="only_a_search"),
        pytest.param((), id="nothing"),
        pytest.param((step("index", attributes={**CHAIN, "output.value": '{"a": "A pa'}),), id="json_that_was_cut"),
        pytest.param((agent("agent", None, 5, "x", ""),), id="an_agent_that_said_nothing"),
        pytest.param((step("a", attributes={"gen_ai.operation.name": "embeddings"}),), id="embeddings"),
        pytest.param(
            (
                step("index", attributes={**CHAIN, "input.value": "a.md", "output.value": "[\"Node(id='1')\"]"}),
                step("split", "index", attributes={**CHAIN, "output.value": '{"a": "A page.", "b": "More."}'}),
                step("embed", "index", attributes={"openinference.span.kind": "EMBEDDING"}),
            ),
            id="building_an_index",
        ),
    ],
)
def test_without_an_answer_of_a_model_there_is_no_trace(spans: tuple[RawSpan, ...]) -> None:
    assert join(SpanGroup(None, spans)) is None


def test_the_last_call_is_judged() -> None:
    fields = joined(root(), call("first", "root", 2, "Plan.", "Done."), call("second", "root", 4, "Open?", "Yes."))
    assert part(fields, "trace_id", "span_id", "name", "input", "output", "started_at", "ended_at") == {
        "trace_id": "trace",
        "span_id": "second",
        "name": "root",
        "input": "Open?",
        "output": "Yes.",
        "started_at": 3.0,
        "ended_at": 4.0,
    }


def test_a_call_about_the_answer_is_not_the_answer() -> None:
    question, answer = "When does the library open?", "It opens at nine."
    first = call("first", "root", 2, question, answer)
    for later in (
        (call("title", "root", 4, f"Write a title.\nUser: {question}\nAssistant: {answer}", "Library hours"),),
        (
            call("guard", "root", 4, f"Is this safe? {question} -> {answer}", "yes"),
            call("summary", "root", 5, f"Summarize: {question} {answer}", "A question about hours."),
        ),
    ):
        fields = joined(root(), call("before", "root", 1, f"Is this a question? {question}", "yes"), first, *later)
        assert part(fields, "span_id", "input", "output") == {"span_id": "first", "input": question, "output": answer}
    # Of an agent the question is enough.
    agents = (agent("agent", "root", 3, question, answer), call("call", "agent", 2, question, answer))
    fields = joined(root(), *agents, call("title", "root", 4, f"Write a title for: {question}", "Library hours"))
    assert part(fields, "span_id", "input", "output") == {"span_id": "agent", "input": question, "output": answer}
    # A step towards the answer is asked the question, too; and several steps of one agent ask the same.
    steps = (call("route", "root", 1, question, "hours"), call("answer", "root", 3, f"9-18\n{question}", answer))
    assert joined(root(), *steps)["span_id"] == "answer"
    assert joined(root(), first, call("second", "root", 4, question, "At nine."))["output"] == "At nine."


def chain(name: str, above: str | None, at: float, value: Any = None, output: Any = None) -> RawSpan:
    """A step whose input and output are JSON, or texts."""
    attributes = {"openinference.span.kind": "CHAIN"}
    for key, content in (("input", value), ("output", output)):
        if content is not None:
            is_text = isinstance(content, str)
            attributes[f"{key}.value"] = content if is_text else json.dumps(content)
            attributes[f"{key}.mime_type"] = "text/plain" if is_text else "application/json"
    return step(name, above, at, started_at=0.0, attributes=attributes)


def test_a_question_is_no_record_of_a_call() -> None:
    question = 'Where is "parcel" 7?'
    for value in (
        "messages=[TextMessage(source='user', at=datetime.datetime(2026, 1, 1), content='Where is \"parcel\" 7?')]",
        {"task": question, "stream": False},
        {"conversation": [["user", question, 7]], "config": {"thread": "a"}},
        f"run(task={question!r}, images=None)",
        "<crew.Agent object at 0x7f57a5266e50>",
        {"args": ["<crew.Agent object at 0x7f57a5266e50>", question], "kwargs": {}},
        {"self": "<crew.Agent object at 0x7f57a5266e50>", "prompt_value": 1},
    ):
        fields = joined(chain("chain", None, 9, value, "In Bern."), call("call", "chain", 4, question, "In Bern."))
        assert fields["input"] == question, value
        assert " at 0x" not in repr(fields["spans"]), value
    # A prompt of a chain may quote a part of a question.
    fields = joined(chain("chain", None, 9, f"Hello. {question}", "a"), call("call", "chain", 4, question, "b"))
    assert fields["input"] == f"Hello. {question}"


def test_a_typed_result_stays_whole() -> None:
    for key in ("text", "answer", "output", "result", "response", "content"):
        typed = {"days": 30, key: "ORD-17"}
        fields = joined(
            chain("chain", None, 9, "Which?", typed), call("call", "chain", 4, "Which?", "I used the tool.")
        )
        assert json.loads(fields["output"]) == typed, key
        # It is the text, where that is what the model answered, and beside what is no result.
        for output in (typed, {key: "ORD-17", "messages": [], "context": ["a"]}, {key: "ORD-17", "input": "Which?"}):
            fields = joined(chain("chain", None, 9, "Which?", output), call("call", "chain", 4, "Which?", "ORD-17"))
            assert fields["output"] == "ORD-17", output
        fields = joined(chain("chain", None, 9, "Which?", {key: "ORD-17", "input": "Which?"}))
        assert fields["output"] == "ORD-17", key


def test_an_agent_around_the_call_is_judged_by_its_own_words() -> None:
    fields = joined(
        root(),
        agent("agent", "root", 8, "Is it open?", "It is, until six."),
        call("first", "agent", 2, "Rewrite: is it open?", "opening hours", **{"gen_ai.usage.input_tokens": 5}),
        call("second", "agent", 4, "Use these hours: 9-18", "Until six.", **{"gen_ai.usage.output_tokens": 3}),
        retrieval("search", "agent", 3, "9-18"),
    )
    assert part(fields, "span_id", "input", "output", "usage", "started_at", "ended_at") == {
        "span_id": "agent",
        "input": "Is it open?",
        "output": "It is, until six.",
        "usage": Usage(5, 3),
        "started_at": 0.0,
        "ended_at": 8,
    }


def test_the_topmost_agent_is_the_request() -> None:
    fields = joined(
        agent("outer", None, 9, "Is it open?", "Yes.", is_local_root=True),
        agent("inner", "outer", 8, "opening hours", "9-18"),
        call("call", "inner", 4, "hours?", "9 to 18"),
    )
    assert part(fields, "span_id", "input", "output") == {"span_id": "outer", "input": "Is it open?", "output": "Yes."}


def test_what_the_agent_does_not_say_comes_from_the_call() -> None:
    fields = joined(
        agent("agent", None, 9, "Is it open?", "__REDACTED__", is_local_root=True),
        call("call", "agent", 4, "Hours: 9-18. Is it open?", "Yes."),
    )
    assert part(fields, "span_id", "input", "output") == {"span_id": "call", "input": "Is it open?", "output": "Yes."}


def test_of_calls_within_calls_the_innermost_answers_and_the_outermost_asks() -> None:
    outer = call("outer", "root", 5, "Is it open?", "Yes.\n\n(3 documents)", **{"gen_ai.response.model": "routed"})
    inner = call("inner", "outer", 4, "Hours: 9-18. Is it open?", "Yes.", **{"gen_ai.response.model": "small-1"})
    fields = joined(root(), inner, outer)
    assert part(fields, "span_id", "input", "output", "model") == {
        "span_id": "inner",
        "input": "Is it open?",
        "output": "Yes.",
        "model": "small-1",
    }


def test_a_structured_answer_serves_when_nobody_said_a_text() -> None:
    values = {
        "openinference.span.kind": "CHAIN",
        "output.value": '{"a": 1, "b": 2}',
        "output.mime_type": "application/json",
    }
    assert joined(step("chain", None, 5, attributes=values))["output"] == '{"a":1,"b":2}'


def test_an_agent_without_calls_in_sight_is_a_trace() -> None:
    fields = joined(agent("agent", None, 9, "Open?", "Yes."), agent("step", "agent", 4, "a", "b"))
    assert part(fields, "span_id", "input", "output") == {"span_id": "agent", "input": "Open?", "output": "Yes."}


def test_history_ends_where_the_query_began() -> None:
    """An agent goes on talking with its model: what follows the query is no history of it."""
    talk = messages(("system", "Be kind."), ("user", "Is it open?"), ("assistant", "Let me see."), ("user", "Go on."))
    fields = joined(agent("agent", None, 9, "Is it open?", "Yes."), call("call", "agent", 4, talk, "Yes."))
    assert fields["messages"] == [Message("system", "Be kind.")]


def test_words_that_the_user_repeats_are_history_too() -> None:
    turns = [("system", "Be kind."), ("user", "Open?"), ("assistant", "Yes.")]
    message = [Message(*turn) for turn in turns]
    for again in ("Open?", "Current task: Open?"):
        asked = call("call", "agent", 4, messages(*turns, ("user", again)), "Still.")
        fields = joined(agent("agent", None, 9, "Open?", "Still.", is_local_root=True), asked)
        assert part(fields, "input", "messages") == {"input": "Open?", "messages": message}, again


class TestContext:
    @each_case("above", ["root", "step", "call"], ids=["sibling", "below_an_ancestor", "child"])
    def test_documents_come_from_anywhere_in_the_trace(self, above: str) -> None:
        spans = (root(), step("step", "root", 3), retrieval("search", above, 2, "a", "b"), call("call", "step", 4))
        assert texts(joined(*spans)) == ["a", "b"]

    def test_documents_of_several_searches_stand_in_their_order_once(self) -> None:
        spans = (retrieval("one", "root", 2, "b", "c"), retrieval("two", "root", 1, "a", "b"))
        assert texts(joined(root(), *spans, call("call", "root", 4))) == ["a", "b", "c"]

    def test_a_search_after_the_answer_is_no_evidence(self) -> None:
        assert texts(joined(root(), call("call", "root", 2), retrieval("search", "root", 8, "late"))) == []

    def test_a_search_made_of_searches_is_one(self) -> None:
        spans = (retrieval("inner", "outer", 1, "a", "b", "c"), retrieval("outer", "root", 2, "b"))
        assert texts(joined(root(), *spans, call("call", "root", 4))) == ["b"]

    def test_a_search_that_says_nothing_leaves_the_word_to_those_inside(self) -> None:
        spans = (retrieval("inner", "outer", 1, "a"), retrieval("outer", "root", 2))
        assert texts(joined(root(), *spans, call("call", "root", 4))) == ["a"]

    def test_a_reranker_replaces_what_it_was_given(self) -> None:
        result = (
            retrieval("one", "root", 1, "a", "b", "c"),
            retrieval("two", "root", 2, "other"),
            reranking("rank", "root", 3, ("a", "b", "c"), ("c", "a")),
        )
        assert texts(joined(root(), *result, call("call", "root", 4))) == ["c", "a", "other"]

    def test_a_reranker_that_does_not_say_what_it_was_given_replaces_all(self) -> None:
        spans = (retrieval("one", "root", 1, "a", "b"), reranking("rank", "root", 3, (), ("b",)))
        assert texts(joined(root(), *spans, call("call", "root", 4))) == ["b"]

    def test_ids_and_scores_travel(self) -> None:
        documents = {"gen_ai.retrieval.documents": [{"id": "d1", "score": 0.5, "content": "a"}]}
        spans = step("search", "root", 2, attributes={"gen_ai.operation.name": "retrieval"} | documents)
        assert joined(root(), spans, call("call", "root", 4))["context"] == [Document("a", "d1", 0.5)]

    def test_ids_scores_and_sources_that_the_outer_search_lacks_come_from_the_inner_one(self) -> None:
        whole = {"id": "d1", "score": 0.5, "content": "a", "source": "a.md"}
        attributes = {"gen_ai.operation.name": "retrieval", "gen_ai.retrieval.documents": [whole]}
        spans = (step("inner", "outer", 1, attributes=attributes), retrieval("outer", "root", 2, "b", "a"))
        documents = [Document("b"), Document("a", "d1", 0.5, "a.md")]
        assert joined(root(), *spans, call("call", "root", 4))["context"] == documents


ASKED = [{"role": "assistant", "tool_calls": [{"id": "c1", "name": "hours", "arguments": '{"day": 1}'}]}]


class TestToolCalls:
    def test_a_call_that_was_asked_for(self) -> None:
        assert joined(call("call", "root", 4, "Open?", ASKED))["tool_calls"] == [ToolCall("hours", {"day": 1})]

    @each_case(
        "message",
        [
            pytest.param({"id": "c1", "result": "9-18"}, id="by_its_id"),
            pytest.param({"arguments": '{"day": 1}', "result": "9-18"}, id="by_name_and_arguments"),
            pytest.param({"result": "9-18"}, id="by_name"),
        ],
    )
    def test_a_call_asked_for_and_carried_out_is_one(self, message: dict[str, str]) -> None:
        spans = (call("call", "root", 2, "Open?", ASKED), tool("hours", "root", 3, said=message))
        assert joined(root(), *spans)["tool_calls"] == [ToolCall("hours", {"day": 1}, "9-18")]

    def test_a_call_carried_out_with_another_id_is_another(self) -> None:
        spans = (
            call("call", "root", 2, "Open?", ASKED),
            tool("hours", "root", 3, said={"id": "c2", "arguments": "{}"}),
        )
        assert joined(root(), *spans)["tool_calls"] == [ToolCall("hours", {"day": 1}), ToolCall("hours", {})]

    def test_a_call_stands_once_however_its_arguments_are_written(self) -> None:
        parallel = [
            {"role": "assistant", "tool_calls": [{"name": "hours", "arguments": {"day": day}} for day in (1, 2)]}
        ]
        for first, second in (
            ({"args": [], "kwargs": {"day": 1}}, {"args": [], "kwargs": {"day": 2}, "sanitize_inputs_outputs": True}),
            ({"args": [{"day": 1}], "kwargs": {}}, {"args": [2], "kwargs": {}}),
            ({"day": "1"}, "day 2"),
            ({"day": 1, "limit": 10}, {"day": 2}),
        ):
            tools = [
                step(
                    f"tool {day}",
                    "root",
                    2 + day,
                    attributes={
                        "gen_ai.operation.name": "execute_tool",
                        "gen_ai.tool.name": "hours",
                        "gen_ai.tool.call.arguments": json.dumps(arguments),
                        "gen_ai.tool.call.result": f"open on {day}",
                    },
                )
                for day, arguments in ((1, first), (2, second))
            ]
            fields = joined(
                root(), call("call", "root", 2, "Open?", parallel), *tools, call("end", "root", 8, "Open?", "Yes.")
            )
            expected = [ToolCall("hours", {"day": day}, f"open on {day}") for day in (1, 2)]
            assert fields["tool_calls"] == expected, (first, second)

    def test_a_call_seen_by_two_instrumentations_is_one(self) -> None:
        inner = step(
            "inner", "tool hours", 2.5, attributes={"traceloop.span.kind": "tool", "traceloop.entity.name": "hours"}
        )
        spans = (call("call", "root", 2, "Open?", ASKED), tool("hours", "root", 3, said={"result": "9-18"}), inner)
        assert joined(root(), *spans)["tool_calls"] == [ToolCall("hours", {"day": 1}, "9-18")]

    def test_a_call_that_gives_the_answer_is_no_tool_call(self) -> None:
        for name, arguments, result, output in (
            ("Answer", {"days": 3, "city": "Bern"}, None, '{"city": "Bern", "days": 3}'),
            ("final_answer", {"answer": "Until six."}, "Until six.", "Until six."),
            ("final_result", {"city": "Bern"}, "Final result processed.", '{"city":"Bern"}'),
        ):
            asked = [{"role": "assistant", "tool_calls": [{"id": "c1", "name": name, "arguments": arguments}]}]
            said = {"id": "c1"} if result is None else {"id": "c1", "result": result}
            tools = [tool(name, "agent", 3, said=said)] if result else []
            fields = joined(agent("agent", None, 9, "Open?", output), call("call", "agent", 2, "Open?", asked), *tools)
            assert (fields["output"], fields.get("tool_calls")) == (output, None), name
        looked_up = {"id": "c1", "arguments": '{"city": "Bern"}', "result": "Bern"}
        fields = joined(agent("agent", None, 9, "Where?", "Bern"), tool("find", "agent", 3, said=looked_up))
        assert fields["tool_calls"] == [ToolCall("find", {"city": "Bern"}, "Bern")]

    def test_the_result_passed_to_the_model_is_used_without_a_span_of_the_tool(self) -> None:
        told = [*messages(("user", "Open?")), *ASKED, {"role": "tool", "tool_call_id": "c1", "content": "9-18"}]
        spans = (call("one", "root", 2, "Open?", ASKED), call("two", "root", 4, told, "Yes."))
        assert joined(root(), *spans)["tool_calls"] == [ToolCall("hours", {"day": 1}, "9-18")]

    def test_calls_before_the_query_belong_to_another_trace(self) -> None:
        earlier = [*messages(("user", "Open?")), *ASKED, *messages(("user", "Thanks!"))]
        assert "tool_calls" not in joined(call("call", "root", 4, earlier, "Welcome."))

    def test_a_tool_that_fails(self) -> None:
        spans = (call("call", "root", 2, "Open?", ASKED), tool("hours", "root", 3, status="error", description="gone"))
        assert joined(root(), *spans)["tool_calls"] == [ToolCall("hours", {"day": 1}, None, "gone")]


JUDGES = [
    pytest.param({"openinference.span.kind": "EVALUATOR"}, id="an_evaluator"),
    pytest.param({"openinference.span.kind": "GUARDRAIL"}, id="a_guardrail"),
    pytest.param({"gen_ai.operation.name": "evaluation"}, id="an_evaluation"),
    pytest.param({"tracejudge.judge.name": "safety"}, id="our_own_worker"),
]


@each_case("attributes", JUDGES)
def test_judges_and_the_calls_they_make_are_left_out(attributes: dict[str, str]) -> None:
    fields = joined(
        root(),
        call("call", "root", 2, "Open?", "Yes."),
        step("judge", "root", 8, attributes=attributes),
        call("judging", "judge", 7, "Is this answer good?", "No."),
    )
    assert fields["span_id"] == "call"
    assert [span.name for span in fields["spans"]] == ["root", "call"]


@each_case("attributes", JUDGES)
def test_the_trace_of_a_judge_is_no_trace(attributes: dict[str, str]) -> None:
    judge = step("judge", None, 8, is_local_root=True, attributes=attributes)
    assert join(SpanGroup(judge, (judge, call("judging", "judge", 7, "Is it good?", "No.")))) is None


def test_a_call_that_failed_says_so() -> None:
    failed = step("call", "root", 4, status="error", attributes={"gen_ai.operation.name": "chat", "error.type": "429"})
    assert part(joined(root(), failed), "output", "error") == {"output": "", "error": "429"}


@each_case(
    "kind",
    [{}, {"gen_ai.operation.name": "chat"}, {"openinference.span.kind": "RETRIEVER"}],
    ids=["plain", "model", "retriever"],
)
def test_a_step_that_failed_says_why_in_its_place(kind: dict[str, str]) -> None:
    """For the judge that reads whole traces: a status alone tells it nothing."""
    failed = step("first", "root", 2, status="error", description="model overloaded", attributes=kind)
    spans = joined(root(), failed, call("call", "root", 4, "Open?", "Yes."))["spans"]
    assert {span.name: span.outputs for span in spans} == {"root": None, "first": "model overloaded", "call": "Yes."}


def test_a_request_that_failed_after_the_call_answered_keeps_the_answer() -> None:
    failed = step("root", None, 9, is_local_root=True, status="error", description="broken pipe")
    assert "error" not in joined(failed, call("call", "root", 4, "Open?", "Yes."))


def test_a_call_inside_a_call_counts_its_tokens_once() -> None:
    tokens = {"gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 2}
    fields = joined(
        agent("agent", None, 9, "Open?", "Yes."),
        call("outer", "agent", 5, "Open?", "Yes.", **tokens),
        call("inner", "outer", 4, "Open?", "Yes.", **tokens),
    )
    assert fields["usage"] == Usage(5, 2)


def test_session_and_user_may_stand_on_any_span() -> None:
    fields = joined(root(**{"session.id": "visit", "user.id": "u1"}), call("call", "root", 4, "Open?", "Yes."))
    assert part(fields, "session_id", "user_id") == {"session_id": "visit", "user_id": "u1"}


def test_session_and_user_of_every_convention() -> None:
    metadata = {"session_id": ("session_id", "conversation_id", "threadId"), "user_id": ("user_id", "userId", "user")}
    conventions = [
        (field, {key.partition(" ~ ")[0]: "visit"})
        for field in ("session_id", "user_id")
        for table in builtin().tables
        for key in getattr(table, field)
        if "/" not in key
    ]
    for field, keys in metadata.items():
        conventions += [(field, {"metadata": json.dumps({key: "visit"})}) for key in keys]
        conventions.append((field, {"metadata.requester_metadata": f"{{'{field}': 'visit', 'tags': None}}"}))
    assert len(conventions) > 25
    for field, attributes in conventions:
        fields = joined(root(), call("call", "root", 4, "Open?", "Yes.", **attributes))
        assert part(fields, "session_id", "user_id") == {field: "visit"}, attributes


def test_session_and_user_of_the_request_win_and_may_be_numbers() -> None:
    inner = {"session.id": "a random one", "gen_ai.conversation.id": "another", "user.id": "x"}
    for value, text in (("visit", "visit"), (17, "17")):
        spans = (root(**{"session.id": value, "user.id": value}), chain("chain", "root", 8, "Open?", "Yes."))
        fields = joined(*spans, call("call", "chain", 4, "Open?", "Yes.", **inner))
        assert part(fields, "session_id", "user_id") == {"session_id": text, "user_id": text}
    for attributes in ({"session_id": "project"}, {"session.id": True}, {"session.id": 1.5}, {"session.id": ""}):
        assert "session_id" not in joined(root(), call("call", "root", 4, "Open?", "Yes.", **attributes)), attributes


def test_a_request_that_fails_before_a_model_is_called_is_a_trace_with_its_error() -> None:
    failed = step(
        "agent", "root", 3, status="error", description="budget exceeded", attributes=CHAIN | {"input.value": "Open?"}
    )
    assert part(joined(root(), failed), "input", "output", "error") == {
        "input": "Open?",
        "output": "",
        "error": "budget exceeded",
    }
    proxy = step("Failed Proxy Server Request", "root", 3, status="error", attributes={"exception": "no such model"})
    assert part(joined(root(), proxy), "output", "error") == {"output": "", "error": "no such model"}


def test_metadata_that_is_no_dictionary_is_ignored() -> None:
    for written in ("{'user_id': open('x')}", "{" * 9_000, "{'user_id': ", "{}", "{1, 2}", "{[]: 1}", 7):
        fields = joined(root(), call("call", "root", 4, "Open?", "Yes.", **{"metadata.requester_metadata": written}))
        assert part(fields, "session_id", "user_id") == {}, written


def test_a_circle_of_parents_ends() -> None:
    assert joined(call("one", "two", 2, "a", "b"), call("two", "one", 4, "Open?", "Yes."))["output"] == "Yes."


def test_attributes_of_a_span_stay_but_for_the_content_that_is_read() -> None:
    attributes = {"gen_ai.request.temperature": 0.5, "http.route": "/ask", "weird": object(), "gen_ai.prompt.name": "p"}
    (published,) = joined(call("call", "root", 4, "Open?", "Yes.", **attributes))["spans"]
    assert published.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.temperature": 0.5,
        "http.route": "/ask",
        "gen_ai.prompt.name": "p",
        "weird": "[object]",
    }
