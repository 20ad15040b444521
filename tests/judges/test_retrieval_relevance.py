"""Retrieved documents of spans in all their forms, and retrieval relevance: one request per document, and the share."""

import asyncio
import json
import time
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from judge_traces import SHORT, parse, table, yes_no_text

from judges.calling.evaluation import evaluate, prepared
from judges.catalog.retrieval_relevance import JUDGE
from judges.core.judge import Reading
from judges.core.model import ChatRequest, ModelSettings
from judges.core.verdict import Assessment, Score
from judges.models.scripted import ScriptedModel, Step
from judges.parsing.retrievals import Retrieval, Retrieved, of_context, of_spans, with_context
from tracejudge import Document, Span, ToolCall, Trace

TABLES = table("retrievals")
SPANS = [
    Span("00a1", "search", kind="RETRIEVER", outputs=[{"page_content": "tea", "id": "kb-1"}, "", "milk"]),
    Span("00a2", "search again", "00a1", "RETRIEVER", outputs=["nested"]),
    Span("00b1", "look up", kind="retriever", outputs='["bread"]'),
]
ONE = (Retrieved(1, "one"),)


def asked(*context: Document | str, **fields: Any) -> Trace:
    return Trace(trace_id="1", service="s", input="Which drinks?", output="o", context=list(context), **fields)


def scored(share: float) -> tuple[Score, ...]:
    return (Score("precision", share, share, passed=share >= 0.5),)


class TestPrompts:
    def test_spans_with_documents_stand_for_the_context_also_where_it_is_absent(self) -> None:
        for context in (None, [], [" "], ["Water."]):
            trace = msgspec.structs.replace(asked(spans=SPANS), context=context)
            assert JUDGE.missing(trace) == (None if context == ["Water."] else "the trace has no context")
            assert JUDGE.missing(prepared(JUDGE, trace)) is None
            prompts = JUDGE.prompts(prepared(JUDGE, trace))
            assert [prompt.blocks[-1].value for prompt in prompts] == ["tea", "milk", "bread"]
        spans = [Span("1", "search", kind="RETRIEVER", outputs="3 found"), Span("2", "chat", kind="LLM", outputs=["x"])]
        assert JUDGE.prompts(asked("Water.", spans=spans)) == JUDGE.prompts(asked("Water."))

    def test_without_any_document_and_with_one_too_long_nothing_is_asked(self) -> None:
        for trace, reason, note in (
            (asked(" ", spans=[Span("1", "search", kind="RETRIEVER")]), "missing_input", "the trace has no context"),
            (asked("Tea.", "Devices come with paper. " * 1000), "input_too_long", None),
        ):
            model = ScriptedModel([yes_no_text("yes")], ModelSettings(provider="scripted", max_input_tokens=2000))
            assessment = asyncio.run(evaluate(JUDGE, trace, model))
            assert (assessment.outcome, assessment.reason, model.requests) == ("unscored", reason, [])
            assert note is None or assessment == Assessment("unscored", "missing_input", note=note)


NO_ANSWER = {
    "unreadable": ("so", "invalid_answer"),
    "refused": (Step(refusal=True), "refusal"),
    "refused in words": ("I can't help with that.", "refusal"),
    "filtered": (Step(finish_reason="content_filter"), "content_filter"),
    "cut off": (Step("{", finish_reason="length"), "truncated"),
}


class TestPipeline:
    @staticmethod
    def judged(count: int, missing: set[int], step: Step | str, **settings: object) -> Assessment:
        """Judge a trace of some documents, of which some get no answer; all others are relevant."""

        def answer(request: ChatRequest) -> Step | str:
            shown = next(block.value for block in parse(request.messages[1].content) if block.name == "document")
            return step if int(shown) in missing else yes_no_text("yes")

        trace = asked(*map(str, range(count)))
        return asyncio.run(evaluate(JUDGE.configured(settings), trace, ScriptedModel([answer])))

    def test_a_document_without_an_answer_is_left_out_and_with_too_many_the_trace_is_unscored(self) -> None:
        for name, (step, reason) in NO_ANSWER.items():
            assessment = self.judged(5, {1}, step)
            assert (assessment.outcome, assessment.scores) == ("scored", scored(1.0)), name
            documents: Any = assessment.details["documents"]
            assert (assessment.details["documents_missing"], [each["rank"] for each in documents]) == (1, [1, 3, 4, 5])
            for count, missing in ((4, {1}), (5, {1, 2}), (1, {0})):
                assessment = self.judged(count, missing, step)
                assert (assessment.outcome, assessment.reason) == ("unscored", reason), (name, count)
        step, reason = NO_ANSWER["filtered"]
        assert self.judged(5, {1}, step, max_missing=0).reason == reason
        assert self.judged(10, {1, 2, 3}, step, max_missing=0.3).outcome == "scored"
        assert self.judged(3, {0, 1, 2}, step, max_missing=1).reason == reason
        nothing = Reading((), "No document was judged.", {"documents": [], "unknown": 0, "documents_missing": 1})
        assert JUDGE.score(SHORT, []) == nothing
        # A failure of the endpoint is none of one document.
        assert self.judged(10, {1}, Step(failure="rate_limited")).reason == "rate_limited"


def span(
    span_id: str, parent_id: str | None = None, kind: str | None = "RETRIEVER", *outputs: Any, **more: Any
) -> Span:
    """Build a span that by default retrieved one document of its own name."""
    retrieved = outputs[0] if outputs else more.pop("outputs", [span_id])
    return Span(span_id, f"step {span_id}", parent_id, kind, outputs=retrieved, **more)


def ids(*spans: Span) -> list[str]:
    return [retrieval.span_id for retrieval in of_spans(spans)]


def documents(outputs: object = None, attributes: dict[str, object] | None = None) -> tuple[Retrieved, ...]:
    parts = of_spans([span("a", outputs=outputs, attributes=attributes)])
    return parts[0].documents if parts else ()


class TestSpans:
    def test_a_kind_says_retrieval_in_any_case_or_in_an_attribute(self) -> None:
        for kind in ("RETRIEVER", "retriever", "Retrieval", " RETRIEVAL "):
            assert of_spans([span("one", kind=kind)]) == (Retrieval("one", "step one", ONE),), kind
        for name, said in (
            ("openinference.span.kind", "RETRIEVER"),
            ("mlflow.spanType", "RETRIEVER"),
            ("mlflow.spanType", '"RETRIEVER"'),
            ("gen_ai.operation.name", "retrieval"),
        ):
            assert ids(span("one", kind="INTERNAL", attributes={name: said})) == ["one"], name
        for other in (None, "", "LLM", "CLIENT", "retrieve", "reranker"):
            attributes = {"mlflow.spanType": 7, "openinference.span.kind": ["a"]}
            assert ids(span("one", kind=other, attributes=attributes)) == [], other
        assert (of_spans(None), of_spans([])) == ((), ())

    def test_top_level_has_no_retrieval_above_it(self) -> None:
        for rows, found in TABLES["top level"]:
            assert ids(*(span(*row) for row in rows)) == found, rows

    def test_they_take_time_in_proportion_to_their_number(self) -> None:
        chain = [span(str(n), str(n - 1), "CHAIN") for n in range(20_000)]
        leaves = [span(f"leaf {n}", "19999") for n in range(2_000)]
        start = time.thread_time()
        assert len(ids(*chain, *leaves)) == 2_000
        assert time.thread_time() - start < 2


KEYS = ["documents", "page_content", "text", "content", "id", "x"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=12,
)
NAMES = ["mlflow.spanType", "retrieval.documents.0.document.content", "retrieval.documents.7.document.id", "x"]


class TestOutputs:
    def test_in_every_known_form_and_anything_else_is_no_document(self) -> None:
        for outputs in TABLES["outputs"]:
            assert documents(outputs) == (Retrieved(1, "one"), Retrieved(2, "two")), outputs
        texts = ("one", "", "{", "[" * 100_000, "\ud800", '"one"')
        for other in (*texts, 7, None, {}, {"documents": 7}, {"docs": ["one"]}, [[]]):
            assert documents(other) == (), str(other)[:20]

    def test_blank_and_unreadable_documents_keep_their_rank_and_ids_where_there_are_any(self) -> None:
        outputs = ["one", " ", 7, None, {"text": 7}, {"title": "t"}, ["two"], {"text": "", "content": "three"}]
        assert documents(outputs) == (Retrieved(1, "one"), Retrieved(8, "three"))
        nothing = ("", None, True, 1.5, ["a"], 10**5000)
        for given_id, kept in (("kb-1", "kb-1"), (7, "7"), *((each, None) for each in nothing)):
            assert documents([{"text": "one", "id": given_id}]) == (Retrieved(1, "one", kept),), str(given_id)[:9]
        context = ["one", " ", Document("three", id="kb-3"), Document("four", id="")]
        assert of_context(context) == (Retrieved(1, "one"), Retrieved(3, "three", "kb-3"), Retrieved(4, "four"))
        assert of_context(None) == of_context(["", Document("\n")]) == ()

    def test_of_attributes(self) -> None:
        ranked = (Retrieved(1, "one"), Retrieved(3, "two", "kb-2"), Retrieved(4, "three"))
        assert documents(None, TABLES["flattened"]) == ranked, "in the order of their numbers"
        named = (Retrieved(1, "one", "kb-1"),)
        parts = [{"id": "kb-1", "score": 0.9, "content": "one"}, {"id": "kb-2", "score": 0.1}]
        for written in (parts, json.dumps(parts)):
            assert documents(None, {"gen_ai.retrieval.documents": written}) == named
        for name in ("mlflow.spanOutputs", "output.value"):
            assert documents(None, {name: json.dumps([{"page_content": "one", "id": "kb-1"}])}) == named
            assert documents(None, {name: "3 documents"}) == ()
        flattened = "retrieval.documents.0.document.content"
        assert documents(None, {flattened: "one", "output.value": '["other"]'}) == ONE
        assert documents(["one"], {flattened: "other"}) == ONE, "outputs go before attributes"
        assert documents("3 documents", {flattened: "other"}) == (Retrieved(1, "other"),)

    def test_that_are_no_list_are_one_document_of_the_context(self) -> None:
        calls = [ToolCall("search", result="by a tool")]
        for output, expected in TABLES["in words"].items():
            for each in (span("1", outputs=output), span("1", outputs=None, attributes={"output.value": output})):
                trace = Trace(trace_id="1", service="s", output="o", spans=[each], tool_calls=calls)
                context: Any = with_context(trace, ["search"]).context or ()
                assert [document.text for document in context] == expected, output

    @given(values | values.map(json.dumps), st.none() | st.dictionaries(st.sampled_from(NAMES), values))
    def test_no_json_raises_or_gives_a_blank_document(
        self, outputs: object, attributes: dict[str, object] | None
    ) -> None:
        for document in documents(outputs, attributes):
            assert document.text.strip()
            assert document.rank >= 1
            assert document.id is None or document.id
