"""Retrieved documents of spans: which spans count, and all forms of documents."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import each_case

from judges.parsing.retrievals import Retrieval, Retrieved, of_context, of_spans, with_context
from tracejudge import Document, Span, ToolCall, Trace

MLFLOW = '"RETRIEVER"'
ONE = (Retrieved(1, "one"),)


def span(span_id: str, parent_id: str | None = None, kind: str | None = "RETRIEVER", **more: Any) -> Span:
    """Build a span that by default retrieved one document of its own name."""
    return Span(span_id, f"step {span_id}", parent_id, kind, **{"outputs": [span_id], **more})


def ids(*spans: Span) -> list[str]:
    return [retrieval.span_id for retrieval in of_spans(spans)]


def documents(outputs: object = None, attributes: dict[str, object] | None = None) -> tuple[Retrieved, ...]:
    parts = of_spans([span("a", outputs=outputs, attributes=attributes)])
    return parts[0].documents if parts else ()


class TestKind:
    @each_case("kind", ["RETRIEVER", "retriever", "Retrieval", " RETRIEVAL "])
    def test_says_retrieval_in_any_case(self, kind: str) -> None:
        assert of_spans([span("one", kind=kind)]) == (Retrieval("one", "step one", ONE),)

    @each_case(
        "attributes",
        [
            {"openinference.span.kind": "RETRIEVER"},
            {"mlflow.spanType": "RETRIEVER"},
            {"mlflow.spanType": MLFLOW},
            {"gen_ai.operation.name": "retrieval"},
        ],
        ids=["OpenInference", "MLflow", "MLflow as JSON", "OpenTelemetry"],
    )
    def test_may_stand_in_an_attribute(self, attributes: dict[str, object]) -> None:
        assert ids(span("one", kind="INTERNAL", attributes=attributes)) == ["one"]

    @each_case("kind", [None, "", "LLM", "CLIENT", "retrieve", "reranker"])
    def test_of_another_name_is_no_retrieval(self, kind: str | None) -> None:
        assert ids(span("one", kind=kind, attributes={"mlflow.spanType": 7, "openinference.span.kind": ["a"]})) == []


class TestTopLevel:
    @each_case(
        ("spans", "found"),
        [
            ([span("a"), span("b")], ["a", "b"]),
            ([span("b", "a"), span("a")], ["a"]),
            ([span("a"), span("b", "a", "CHAIN"), span("c", "b"), span("d", "c")], ["a"]),
            ([span("r", None, "AGENT"), span("b", "r"), span("c", "r")], ["b", "c"]),
            ([span("a", "gone"), span("b", "")], ["a", "b"]),
            ([span("a", "a")], ["a"]),
            ([span("x", "y", "CHAIN"), span("y", "x", "CHAIN"), span("a", "y")], ["a"]),
            ([span("a", "x"), span("x", "a", "CHAIN")], ["a"]),
            ([span("a", "b"), span("b", "a"), span("c")], ["c"]),
            ([span("a", "x"), span("x", None, "CHAIN"), span("x", None)], ["a", "x"]),
            ([span("a", outputs=[]), span("b", "a")], []),
        ],
        ids=[
            "two roots",
            "child before its parent",
            "far below another retrieval",
            "below an agent",
            "unknown parents",
            "its own parent",
            "below a circle",
            "in a circle with another step",
            "two retrievals in a circle",
            "two spans with one id",
            "above it a retrieval without documents",
        ],
    )
    def test_has_no_retrieval_above_it(self, spans: list[Span], found: list[str]) -> None:
        assert ids(*spans) == found

    def test_takes_time_in_proportion_to_the_number_of_spans(self) -> None:
        chain = [span(str(n), str(n - 1), "CHAIN") for n in range(20_000)]
        leaves = [span(f"leaf {n}", "19999") for n in range(2_000)]
        start = time.thread_time()
        assert len(ids(*chain, *leaves)) == 2_000
        assert time.thread_time() - start < 2

    @pytest.mark.parametrize("spans", [None, []], ids=repr)
    def test_without_spans_there_is_nothing(self, spans: list[Span] | None) -> None:
        assert of_spans(spans) == ()


class TestOutputs:
    @each_case(
        "outputs",
        [
            ["one", "two"],
            [{"page_content": "one", "metadata": {}}, {"text": "two"}],
            [{"content": "one"}, "two"],
            {"documents": ["one", "two"], "count": 2},
            {"documents": '["one", {"text": "two"}]'},
            json.dumps(["one", "two"]),
            json.dumps({"documents": [{"page_content": "one"}, {"page_content": "two"}]}),
            json.dumps({"documents": json.dumps(["one", "two"])}),
            {"results": [{"text": "one"}, {"content": "two"}]},
            [{"pageContent": "one", "metadata": {}}, {"pageContent": "two"}],
            [{"document": {"content": "one"}, "score": 1}, {"node": {"text": "two"}}],
        ],
        ids=[
            "strings",
            "objects",
            "both",
            "under documents",
            "JSON under documents",
            "JSON list",
            "JSON object",
            "JSON in JSON",
            "under results",
            "LangChain for JavaScript",
            "documents with scores",
        ],
    )
    def test_in_every_known_form(self, outputs: object) -> None:
        assert documents(outputs) == (Retrieved(1, "one"), Retrieved(2, "two"))

    def test_blank_and_unreadable_documents_keep_their_rank(self) -> None:
        outputs = ["one", " ", 7, None, {"text": 7}, {"title": "t"}, ["two"], {"text": "", "content": "three"}]
        assert documents(outputs) == (Retrieved(1, "one"), Retrieved(8, "three"))

    @each_case(
        ("given", "kept"),
        [("kb-1", "kb-1"), (7, "7"), ("", None), (None, None), (True, None), (1.5, None), (["a"], None)],
        ids=repr,
    )
    def test_an_id_is_kept_where_there_is_one(self, given: object, kept: str | None) -> None:
        assert documents([{"text": "one", "id": given}]) == (Retrieved(1, "one", kept),)

    def test_an_id_of_thousands_of_digits_is_none(self) -> None:
        assert documents([{"text": "one", "id": 10**5000}]) == ONE

    @each_case(
        "outputs",
        ["one", "", "{", "[" * 100_000, "\ud800", '"one"', 7, None, {}, {"documents": 7}, {"docs": ["one"]}, [[]]],
        ids=["text", "nothing", "broken", "deep", "half a pair", "JSON text", "number", "none", "empty object",
             "number under documents", "another key", "lists of lists"],
    )  # fmt: skip
    def test_anything_else_is_no_document(self, outputs: object) -> None:
        assert documents(outputs) == ()


class TestAttributes:
    def test_the_flattened_form_is_read_in_the_order_of_its_numbers(self) -> None:
        attributes: dict[str, object] = {
            "retrieval.documents.10.document.content": "three",
            "retrieval.documents.2.document.content": "two",
            "retrieval.documents.2.document.id": "kb-2",
            "retrieval.documents.0.document.content": "one",
            "retrieval.documents.0.document.score": 0.7,
            "retrieval.documents.1.document.id": "kb-1",
            "retrieval.documents.1.document.content": 7,
            "retrieval.documents.x.document.content": "no",
            "retrieval.documents.3.document.metadata": "no",
            "reranker.input_documents.0.document.content": "no",
        }
        assert documents(None, attributes) == (Retrieved(1, "one"), Retrieved(3, "two", "kb-2"), Retrieved(4, "three"))

    @pytest.mark.parametrize("written", [list, json.dumps], ids=["list", "JSON"])
    def test_of_the_genai_conventions_stand_in_one_attribute(self, written: Callable[[object], object]) -> None:
        parts = written([{"id": "kb-1", "score": 0.9, "content": "one"}, {"id": "kb-2", "score": 0.1}])
        assert documents(None, {"gen_ai.retrieval.documents": parts}) == (Retrieved(1, "one", "kb-1"),)

    @pytest.mark.parametrize("name", ["mlflow.spanOutputs", "output.value"])
    def test_of_an_exported_span_stand_in_its_output(self, name: str) -> None:
        assert documents(None, {name: json.dumps([{"page_content": "one", "id": "kb-1"}])}) == (
            Retrieved(1, "one", "kb-1"),
        )
        assert documents(None, {name: "3 documents"}) == ()

    def test_that_are_flattened_go_before_an_output_in_words_of_the_same_span(self) -> None:
        attributes: dict[str, object] = {"retrieval.documents.0.document.content": "one", "output.value": '["other"]'}
        assert documents(None, attributes) == ONE

    def test_outputs_go_before_attributes(self) -> None:
        attributes: dict[str, object] = {"retrieval.documents.0.document.content": "other"}
        assert documents(["one"], attributes) == ONE
        assert documents("3 documents", attributes) == (Retrieved(1, "other"),)


def test_an_output_that_is_no_list_is_one_document_of_the_context() -> None:
    texts = {
        "It opens at nine.": ["It opens at nine."],
        '{"hits": {"a": "It opens."}}': ['{"hits": {"a": "It opens."}}'],
        "Found 3 documents.": ["by a tool"],
        "7": ["by a tool"],
        "[]": ["by a tool"],
        '["one", "two"]': ["one", "two"],
    }
    calls = [ToolCall("search", result="by a tool")]
    for output, expected in texts.items():
        for each in (span("1", outputs=output), span("1", outputs=None, attributes={"output.value": output})):
            trace = Trace(trace_id="1", service="s", output="o", spans=[each], tool_calls=calls)
            context = with_context(trace, ["search"]).context or ()
            assert [document.text for document in context] == expected, output  # type: ignore[union-attr]


def test_documents_of_a_context_keep_their_rank_and_id() -> None:
    context = ["one", " ", Document("three", id="kb-3"), Document("four", id="")]
    assert of_context(context) == (Retrieved(1, "one"), Retrieved(3, "three", "kb-3"), Retrieved(4, "four"))
    assert of_context(None) == of_context(["", Document("\n")]) == ()


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["documents", "page_content", "text", "content", "id", "x"]), inner)
    ),
    max_leaves=12,
)
KEYS = st.sampled_from(
    ["mlflow.spanType", "retrieval.documents.0.document.content", "retrieval.documents.7.document.id", "x"]
)


@given(JSON_VALUES | JSON_VALUES.map(json.dumps), st.none() | st.dictionaries(KEYS, JSON_VALUES))
def test_no_json_makes_it_raise_or_give_a_blank_document(outputs: object, attributes: dict[str, object] | None) -> None:
    for document in documents(outputs, attributes):
        assert document.text.strip()
        assert document.rank >= 1
        assert document.id is None or document.id
