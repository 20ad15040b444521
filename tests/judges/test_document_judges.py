"""Judges of retrieved documents: RAGBench's two with the TRACe formulas, FACTS grounding, retrieval relevance.

How their answers are read, repaired or refused is in ``test_broken_answers.py``.
"""

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import LONG, SHORT, outcome, parse, table, yes_no_text
from support.cases import each_case
from support.tables import check_golden, expand

from judges.calling.evaluation import evaluate, prepared
from judges.catalog import ragbench, ragbench_sources
from judges.catalog.facts_grounding import JUDGE
from judges.catalog.retrieval_relevance import JUDGE as RETRIEVAL
from judges.core.judge import AnsweredPrompt, Judge, Reading
from judges.core.model import ChatRequest, ModelSettings
from judges.core.verdict import Assessment, Score
from judges.forms.document_support import Shares, shares, weights
from judges.forms.sentence_labels import Line
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel, Step
from judges.parsing.retrievals import Retrieved, of_context, of_spans, with_context
from judges.requests.request import truncate_to_context
from tracejudge import Document, Span, ToolCall, Trace

TABLES = table("ragbench")
KEYS = (
    "relevance_explanation",
    "all_relevant_sentence_keys",
    "overall_supported_explanation",
    "overall_supported",
    "sentence_support_information",
    "all_utilized_sentence_keys",
)


def trace(context: Sequence[Document | str], output: str = "It is so.") -> Trace:
    return Trace(trace_id="1", service="s", input="How is it?", output=output, context=list(context))


def answer(**changes: object) -> dict[str, object]:
    """Write an answer object of a good model, with its keys in order."""
    values = ("Document one helps.", [], "All is said there.", True, [], [])
    return {**dict(zip(KEYS, values, strict=True)), **changes}


def scored(judge: Judge, asked: Trace, message: object) -> Reading:
    """Read and score one answer, as an evaluation does."""
    (prompt,) = judge.prompts(asked)
    return judge.score(asked, [AnsweredPrompt(prompt, judge.read(json.dumps(message)))])


FORMS = {"ragbench": ragbench.JUDGE, "ragbench_sources": ragbench_sources.JUDGE}
ASKED = trace(["One is here. Two is here."])
each_form = each_case("judge", FORMS.values(), ids=FORMS)


@each_form
def test_keys_are_bounded_by_a_pattern_or_listed_for_each_trace(judge: Judge) -> None:
    def bounds(schema: Any) -> list[Mapping[str, Any]]:
        entry = schema["properties"]["sentence_support_information"]["items"]["properties"]
        named = [value for key, value in schema["properties"].items() if key.endswith("_keys")]
        named += [value for key, value in entry.items() if key.endswith(("_key", "_keys"))]
        return [value.get("items", value) for value in named]

    patterns = [re.compile(bound["pattern"]) for bound in bounds(judge.schema)]
    for asked in (SHORT, LONG, ASKED):
        (prompt,) = judge.prompts(asked)
        shown = [prompt.about] if judge.name == "ragbench_sources" else list(prompt.about)
        assert prompt.schema is None
        keys = [key for keyed in shown for key in keyed.sentences]
        assert [key for key in keys if not any(pattern.search(key) for pattern in patterns)] == []
    listed = [["D1_S1", "D1_S2"]] * 3
    if judge.name == "ragbench":
        listed = [["0a", "0b"], ["0a", "0b"], ["a"], ["0a", "0b", *sorted(ragbench.SPECIAL_WORDS)]]
    judge = judge.configured({"enum_keys": True})
    model = ScriptedModel(["{}"])
    asyncio.run(evaluate(judge, ASKED, model))
    assert [bound["enum"] for bound in bounds(model.requests[0].schema)] == listed
    (many,) = judge.prompts(trace(["Line here. " * 400]))
    assert "pattern" in bounds(many.schema)[0]


@each_form
def test_the_heuristic_answers_however_long_the_trace(judge: Judge) -> None:
    long = ("Same word. " * 2_000, "a" * 20_000, "x" + "\u200b" * 2_000, "0a. general\n" * 1_000, '{"' * 10_000)
    for text in long:
        assessment = asyncio.run(evaluate(judge, trace([text, text], text), LexicalModel()))
        assert (assessment.outcome, assessment.reason) == ("scored", None), text[:20]


def test_a_cut_leaves_the_remaining_sentences_as_the_whole() -> None:
    fitted = truncate_to_context(ragbench.JUDGE, trace(["One is here.", "Two is here.", "filler " * 9_000]), 4_000)
    assert fitted is not None
    assert fitted.left_out == {"context": 1}
    reading = scored(ragbench.JUDGE, fitted.trace, answer(all_relevant_sentence_keys=["0a", "2a"]))
    assert reading.scores[0].value == 1 / 2
    assert (reading.details["document_sentences"], reading.details["fabricated_evidence"]) == (2, 1)


def lines(count: int) -> str:
    """Write a document of so many sentences."""
    return " ".join(f"Line {number} ends here." for number in range(count))


DOCUMENTS: Mapping[str, Sequence[str]] = {
    "four": ["One is here. Two is here.", "Three is here. Four is here."],
    # 27 sentences in document 0 (0a..0z, 0aa), one each in 1 to 48, 28 in document 49 (49a..49z, 49aa, 49ab): T = 103.
    "fifty": [lines(27), *["Only this."] * 48, lines(28)],
    # 2, 3 and 5 words: T = 10.
    "uneven": ["Two words. Now three words. Here are five words then."],
}


class TestFormulas:
    """Ten examples of the TRACe formulas calculated by hand, through parsing and scoring; the definition of a word."""

    def test_worked_examples(self) -> None:
        for name, (documents, relevant, utilized, by_hand, fabricated, lengths) in TABLES["examples"].items():
            judge = ragbench.make(ragbench.Settings(lengths=lengths))
            text = answer(all_relevant_sentence_keys=relevant, all_utilized_sentence_keys=utilized)
            reading = scored(judge, trace(DOCUMENTS[documents] if isinstance(documents, str) else documents), text)
            expected = [*(float(Fraction(share)) for share in by_hand if share is not None), 1.0]
            assert [score.value for score in reading.scores] == expected, name
            assert reading.details["fabricated_evidence"] == fabricated, name

    def test_the_other_judge_computes_the_same_from_its_own_keys_and_with_lengths(self) -> None:
        relevant, utilized = ["D1_S1", "d2_s1", "D2_S2", "D3_S1"], ["D1_S1:", "D1_S2"]
        text = answer(all_relevant_sentence_keys=relevant, all_utilized_sentence_keys=utilized)
        reading = scored(ragbench_sources.JUDGE, trace(DOCUMENTS["four"]), text)
        assert [score.value for score in reading.scores] == [3 / 4, 1 / 2, 1 / 3, 1.0]
        assert reading.details["fabricated_evidence"] == 1
        judge = ragbench_sources.JUDGE.configured({"lengths": True})
        text = answer(all_relevant_sentence_keys=["D1_S1", "D1_S3"], all_utilized_sentence_keys=["D1_S2", "D1_S3"])
        values = [score.value for score in scored(judge, trace(DOCUMENTS["uneven"]), text).scores]
        assert values == [7 / 10, 8 / 10, 5 / 7, 1.0]

    def test_a_word_stands_between_blanks_or_is_a_character_of_a_script_without_them(self) -> None:
        for sentence, words in TABLES["words"].items():
            assert weights({"a": sentence}, lengths=True) == {"a": words}
            assert weights({"a": sentence}, lengths=False) == {"a": 1}

    @settings(max_examples=40)
    @given(st.dictionaries(st.integers(0, 30).map(str), st.integers(1, 50)), st.data())
    def test_shares_lie_between_0_and_1(self, expected: dict[str, int], data: st.DataObject) -> None:
        some = st.lists(st.sampled_from(sorted(expected))) if expected else st.just([])
        relevant, utilized = data.draw(some), data.draw(some)
        result = shares(expected, relevant, utilized)
        assert all(0.0 <= share <= 1.0 for share in result if share is not None)
        assert (result.completeness is None) == (not relevant)
        assert result == shares(expected, set(relevant), set(utilized))
        assert shares({}, (), ()) == Shares(0.0, 0.0, None), "no sentence at all divides nothing by zero"


GROUNDING = table("facts_grounding")
TRACE = Trace(
    trace_id="1",
    service="s",
    input="How long is the warranty?",
    output="Hello! The warranty runs for two years. It covers the battery.",
    context=["All devices come with a warranty of two years.", "Batteries are not covered by it."],
)
YEARS = ("The warranty runs for two years.", "supported", "The length is given.", "a warranty of two years")
SILENT = ("It covers the battery.", "unsupported")


def line(sentence: str, label: str, rationale: str = "r", excerpt: object = None) -> str:
    return json.dumps({"sentence": sentence, "label": label, "rationale": rationale, "excerpt": excerpt})


class TestFacts:
    def test_lines_are_read_by_the_menu_of_each_label_set(self) -> None:
        for name, (text, expected) in GROUNDING["lines"].items():
            found = outcome(JUDGE.read, text)
            assert found == (expected if isinstance(expected, str) else (Line(*expected),)), name

    def test_the_reasons_of_sentences_that_do_not_pass_are_kept_within_bounds(self) -> None:
        sentences = [f"Sentence number {number}." for number in range(200)]
        trace = msgspec.structs.replace(TRACE, output=" ".join(sentences))
        answer = JUDGE.read("\n".join(line(sentence, "unsupported", "r" * 600) for sentence in sentences))
        reading = JUDGE.score(trace, [AnsweredPrompt(JUDGE.prompts(trace)[0], answer)])
        entries: Any = reading.details["sentences"]
        assert len(entries) == 200
        assert sum(len(entry.get("rationale", "")) for entry in entries) == 20_000


class TestCoverage:
    def test_the_complete_lines_of_an_answer_that_was_cut_off_are_kept(self) -> None:
        both = [line(YEARS[0], "unsupported"), line(SILENT[0], "unsupported")]
        assert JUDGE.whole_lines is not None
        for text in ("\n".join(both), f'{{"sentences": [{", ".join(both)}', f"[{both[0]},\n{both[0]},\n{both[1]}"):
            assert JUDGE.whole_lines(text + ', {"sentence": "It co') == "\n".join(both)
        assert JUDGE.whole_lines('{"sentence": "It co') == ""
        for draft in (f"<think>{text}\n", f"<thought>{text}</thought>", f"<|channel|>analysis<|message|>{text}\n"):
            assert JUDGE.whole_lines(draft + '{"sentence": "It co') == ""

    def test_the_bound_of_an_answer_grows_with_the_response(self) -> None:
        long = msgspec.structs.replace(TRACE, output="The warranty runs for two years. " * 50)
        bounds = [JUDGE.output_tokens(trace, JUDGE.prompts(trace)[0]) for trace in (TRACE, long)]
        text = "\n".join(line(YEARS[0], "supported", "The length is given.", YEARS[3]) for _ in range(50))
        assert len(text.encode()) / 3 < bounds[1] < 4 * len(text.encode()) / 3
        assert 1024 < bounds[0] < 2048
        # A line of a long sentence holds it twice.
        wordy = msgspec.structs.replace(TRACE, output="The warranty runs for two years " * 400)
        assert JUDGE.output_tokens(wordy, JUDGE.prompts(wordy)[0]) > 2 * len(wordy.output) / 4


SPANS = [
    Span("00a1", "search", kind="RETRIEVER", outputs=[{"page_content": "tea", "id": "kb-1"}, "", "milk"]),
    Span("00a2", "search again", "00a1", "RETRIEVER", outputs=["nested"]),
    Span("00b1", "look up", kind="retriever", outputs='["bread"]'),
]


def drinks(*context: Document | str, **fields: Any) -> Trace:
    return Trace(trace_id="1", service="s", input="Which drinks?", output="o", context=list(context), **fields)


def precision(share: float) -> tuple[Score, ...]:
    return (Score("precision", share, share, passed=share >= 0.5),)


class TestPrompts:
    def test_spans_with_documents_stand_for_the_context_also_where_it_is_absent(self) -> None:
        for context in (None, [], [" "], ["Water."]):
            trace = msgspec.structs.replace(drinks(spans=SPANS), context=context)
            assert RETRIEVAL.missing(trace) == (None if context == ["Water."] else "the trace has no context")
            assert RETRIEVAL.missing(prepared(RETRIEVAL, trace)) is None
            prompts = RETRIEVAL.prompts(prepared(RETRIEVAL, trace))
            assert [prompt.blocks[-1].value for prompt in prompts] == ["tea", "milk", "bread"]
        spans = [Span("1", "search", kind="RETRIEVER", outputs="3 found"), Span("2", "chat", kind="LLM", outputs=["x"])]
        assert RETRIEVAL.prompts(drinks("Water.", spans=spans)) == RETRIEVAL.prompts(drinks("Water."))

    def test_with_a_document_that_is_too_long_nothing_is_asked(self) -> None:
        model = ScriptedModel([yes_no_text("yes")], ModelSettings(provider="scripted", max_input_tokens=2000))
        long = drinks("Tea.", "Devices come with paper. " * 1000)
        assert asyncio.run(evaluate(RETRIEVAL, long, model)).reason == "input_too_long"
        assert model.requests == []


NO_ANSWER = {
    "unreadable": ("so", "invalid_answer"),
    "refused": (Step(refusal=True), "refusal"),
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

        trace = drinks(*map(str, range(count)))
        return asyncio.run(evaluate(RETRIEVAL.configured(settings), trace, ScriptedModel([answer])))

    def test_a_document_without_an_answer_is_left_out_and_with_too_many_the_trace_is_unscored(self) -> None:
        for name, (step, reason) in NO_ANSWER.items():
            assessment = self.judged(5, {1}, step)
            assert (assessment.outcome, assessment.scores) == ("scored", precision(1.0)), name
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
        assert RETRIEVAL.score(SHORT, []) == nothing
        # A failure of the endpoint is none of one document.
        assert self.judged(10, {1}, Step(failure="rate_limited")).reason == "rate_limited"


class TestSpans:
    def test_their_documents_are_those_of_the_golden_file(self) -> None:
        """And the context that they stand for, where a tool has returned something too."""
        written = []
        for name, spans in table("retrievals").items():
            rows = msgspec.convert(json.loads(expand(json.dumps(spans, ensure_ascii=False))), list[Span])
            trace = drinks(spans=rows, tool_calls=[ToolCall("search", result="by a tool")])
            context: Any = with_context(trace, ["search"]).context or ()
            found = [(each.span_id, each.name, [*map(tuple, each.documents)]) for each in of_spans(rows)]
            written.append(f"## {name[:100]}\n{found} {[document.text[:100] for document in context]}")
        check_golden(Path(__file__).with_name("golden_retrievals.txt"), "\n".join(written) + "\n")
        assert of_spans(None) == ()
        endless = Span("a", "step", kind="RETRIEVER", outputs=[{"text": "one", "id": 10**5000}])
        assert of_spans([endless])[0].documents == (Retrieved(1, "one"),)

    def test_documents_of_a_context_keep_their_rank(self) -> None:
        context = ["one", " ", Document("three", id="kb-3"), Document("four", id="")]
        assert of_context(context) == (Retrieved(1, "one"), Retrieved(3, "three", "kb-3"), Retrieved(4, "four"))
        assert of_context(None) == of_context(["", Document("\n")]) == ()

    def test_they_take_time_in_proportion_to_their_number(self) -> None:
        chain = [Span(str(n), "step", str(n - 1), "CHAIN") for n in range(20_000)]
        leaves = [Span(f"leaf {n}", "step", "19999", "RETRIEVER", outputs=["one"]) for n in range(2_000)]
        start = time.thread_time()
        assert len(of_spans([*chain, *leaves])) == 2_000
        assert time.thread_time() - start < 2


FIELDS = ["documents", "page_content", "text", "content", "id", "x"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=12,
)
NAMES = ["mlflow.spanType", "retrieval.documents.0.document.content", "retrieval.documents.7.document.id", "x"]


@settings(max_examples=40)
@given(values | values.map(json.dumps), st.none() | st.dictionaries(st.sampled_from(NAMES), values))
def test_no_json_raises_or_gives_a_blank_document(outputs: object, attributes: dict[str, object] | None) -> None:
    spans = of_spans([Span("a", "step", kind="RETRIEVER", outputs=outputs, attributes=attributes)])
    for document in (document for each in spans for document in each.documents):
        assert document.text.strip()
        assert document.rank >= 1
        assert document.id is None or document.id
