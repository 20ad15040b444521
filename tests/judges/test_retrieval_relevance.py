"""Retrieval relevance: one request per document, and the share of relevant ones as precision."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from judge_traces import LONG, SHORT, parse, yes_no_text
from support.cases import each_case

from judges.calling.evaluation import evaluate, prepared
from judges.catalog.retrieval_relevance import JUDGE, Shown
from judges.core.judge import AnsweredPrompt, Metric, Reading
from judges.core.model import ChatRequest, ModelSettings
from judges.core.prompt import Block, render
from judges.core.verdict import Assessment, Score
from judges.models.scripted import ScriptedModel, Step
from tracejudge import Document, Span, Trace

SPANS = [
    Span("00a1", "search", kind="RETRIEVER", outputs=[{"page_content": "tea", "id": "kb-1"}, "", "milk"]),
    Span("00a2", "search again", "00a1", "RETRIEVER", outputs=["nested"]),
    Span("00b1", "look up", kind="retriever", outputs='["bread"]'),
]


def asked(*context: Document | str, **fields: Any) -> Trace:
    return Trace(trace_id="1", service="s", input="Which drinks?", output="o", context=list(context), **fields)


def answers(trace: Trace, results: Sequence[str]) -> list[AnsweredPrompt]:
    """Answer the requests on a trace in turn; each rationale is the result and the document."""
    prompts = JUDGE.prompts(JUDGE.prepare(trace))
    return [
        AnsweredPrompt(prompt, {"rationale": f"{result}: {prompt.blocks[-1].value}", "result": result})
        for prompt, result in zip(prompts, results, strict=True)
    ]


def scored(share: float) -> tuple[Score, ...]:
    return (Score("precision", share, share, passed=share >= 0.5),)


class TestPrompts:
    def test_ask_about_each_document_by_itself(self) -> None:
        first, second = JUDGE.prompts(asked("Tea.", " ", Document("Milk.", id="kb-3")))
        assert [parse(render(prompt)[1].content) for prompt in (first, second)] == [
            (Block("question", "Which drinks?"), Block("document", "Tea.")),
            (Block("question", "Which drinks?"), Block("document", "Milk.")),
        ]
        assert [first.about, second.about] == [Shown(1, None), Shown(3, "kb-3")]

    def test_ask_about_the_documents_of_spans_instead_of_the_context(self) -> None:
        prompts = JUDGE.prompts(JUDGE.prepare(asked("Water.", spans=SPANS)))
        assert [(prompt.about, prompt.blocks[-1].value) for prompt in prompts] == [
            (Shown(1, "kb-1", 0, "00a1", "search"), "tea"),
            (Shown(3, None, 0, "00a1", "search"), "milk"),
            (Shown(1, None, 1, "00b1", "look up"), "bread"),
        ]

    def test_ask_about_the_context_where_spans_hold_no_document(self) -> None:
        spans = [Span("1", "search", kind="RETRIEVER", outputs="3 found"), Span("2", "chat", kind="LLM", outputs=["x"])]
        assert JUDGE.prompts(asked("Water.", spans=spans)) == JUDGE.prompts(asked("Water."))

    def test_have_one_fixed_part(self) -> None:
        (fixed,) = JUDGE.fixed_parts
        assert {prompt.fixed for prompt in JUDGE.prompts(LONG)} == {fixed}
        assert "The rationale then says what the document is about and why that does not help." in fixed


class TestNeeds:
    @each_case("context", [None, [], [" "]], ids=repr)
    def test_spans_with_documents_stand_for_an_absent_context(self, context: list[str | Document] | None) -> None:
        trace = msgspec.structs.replace(asked(spans=SPANS), context=context)
        assert JUDGE.missing(trace) == "the trace has no context"
        assert JUDGE.missing(prepared(JUDGE, trace)) is None
        assert len(JUDGE.prompts(prepared(JUDGE, trace))) == 3

    def test_without_any_document_nothing_is_asked(self) -> None:
        model = ScriptedModel([yes_no_text("yes")])
        trace = asked(" ", spans=[Span("1", "search", kind="RETRIEVER")])
        expected = Assessment("unscored", "missing_input", note="the trace has no context")
        assert asyncio.run(evaluate(JUDGE, trace, model)) == expected
        assert model.requests == []

    def test_a_document_too_long_for_the_model_is_not_left_out(self) -> None:
        model = ScriptedModel([yes_no_text("yes")], ModelSettings(provider="scripted", max_input_tokens=2000))
        assessment = asyncio.run(evaluate(JUDGE, asked("Tea.", "Devices come with paper. " * 1000), model))
        assert (assessment.outcome, assessment.reason, model.requests) == ("unscored", "input_too_long", [])


class TestScoring:
    def test_precision_is_the_share_of_relevant_documents(self) -> None:
        trace = asked("tea", "bread", Document("milk", id="kb-3"), "", "soap", "water")
        assert JUDGE.score(trace, answers(trace, ["yes", "no", "yes", "no", "yes"])) == Reading(
            scored(0.6),
            "3 of 5 documents are relevant; ranks 2 and 5 are not.",
            {
                "documents": [
                    {"rank": 1, "retrieval_relevance": 1, "rationale": "yes: tea"},
                    {"rank": 2, "retrieval_relevance": 0, "rationale": "no: bread"},
                    {"rank": 3, "id": "kb-3", "retrieval_relevance": 1, "rationale": "yes: milk"},
                    {"rank": 5, "retrieval_relevance": 0, "rationale": "no: soap"},
                    {"rank": 6, "retrieval_relevance": 1, "rationale": "yes: water"},
                ],
                "unknown": 0,
            },
        )

    def test_a_document_the_model_does_not_know_about_is_left_out_and_counted(self) -> None:
        trace = asked("tea", "bread", "milk")
        assert JUDGE.score(trace, answers(trace, ["unknown", "no", "yes"])) == Reading(
            scored(0.5),
            "1 of 2 documents is relevant; rank 2 is not; rank 1 was left open.",
            {
                "documents": [
                    {"rank": 1, "retrieval_relevance": None, "rationale": "unknown: tea"},
                    {"rank": 2, "retrieval_relevance": 0, "rationale": "no: bread"},
                    {"rank": 3, "retrieval_relevance": 1, "rationale": "yes: milk"},
                ],
                "unknown": 1,
            },
        )

    def test_abstains_where_it_knows_about_none(self) -> None:
        trace = asked("tea", "bread")
        reading = JUDGE.score(trace, answers(trace, ["unknown", "unknown"]))
        assert (reading.scores, reading.rationale) == ((), "No document was judged; ranks 1 and 2 were left open.")
        assert reading.details["unknown"] == 2

    def test_details_stand_under_the_spans_and_the_value_is_over_all(self) -> None:
        trace = asked(spans=SPANS)
        assert JUDGE.score(trace, answers(trace, ["no", "no", "yes"])) == Reading(
            scored(1 / 3),
            "1 of 3 documents is relevant; ranks 1 and 3 of retrieval 1 are not.",
            {
                "spans": [
                    {
                        "span_id": "00a1",
                        "name": "search",
                        "precision": 0.0,
                        "passed": False,
                        "documents": [
                            {"rank": 1, "id": "kb-1", "retrieval_relevance": 0, "rationale": "no: tea"},
                            {"rank": 3, "retrieval_relevance": 0, "rationale": "no: milk"},
                        ],
                    },
                    {
                        "span_id": "00b1",
                        "name": "look up",
                        "precision": 1.0,
                        "passed": True,
                        "documents": [{"rank": 1, "retrieval_relevance": 1, "rationale": "yes: bread"}],
                    },
                ],
                "unknown": 0,
            },
        )

    def test_a_span_without_a_yes_or_no_has_no_precision_of_its_own(self) -> None:
        trace = asked(spans=SPANS)
        reading = JUDGE.score(trace, answers(trace, ["yes", "no", "unknown"]))
        assert (reading.scores, reading.rationale) == (
            scored(0.5),
            "1 of 2 documents is relevant; rank 3 of retrieval 1 is not; rank 1 of retrieval 2 was left open.",
        )
        spans: Any = reading.details["spans"]
        assert [span["precision"] for span in spans] == [0.5, None]

    @each_case(
        ("results", "said"),
        [
            (["yes"], "1 of 1 documents is relevant."),
            (["yes"] * 3, "3 of 3 documents are relevant."),
            (["no"], "0 of 1 documents are relevant; rank 1 is not."),
            (["no"] * 4, "0 of 4 documents are relevant; ranks 1, 2, 3 and 4 are not."),
        ],
        ids=["one", "all", "not the only one", "none"],
    )
    def test_the_rationale_names_ranks(self, results: list[str], said: str) -> None:
        trace = asked(*(f"document {number}" for number in range(len(results))))
        assert JUDGE.score(trace, answers(trace, results)).rationale == said

    def test_without_a_request_it_abstains(self) -> None:
        expected = Reading((), "No document was judged.", {"documents": [], "unknown": 0, "documents_missing": 1})
        assert JUDGE.score(SHORT, []) == expected

    def test_further_documents_than_the_setting_allows_are_counted_and_not_asked_about(self) -> None:
        judge = JUDGE.configured({"max_documents": 2})
        trace = asked("one", " ", "two", "three", "four")
        prompts = judge.prompts(trace)
        assert [prompt.about.rank for prompt in prompts] == [1, 3]
        answered = [AnsweredPrompt(prompt, {"result": "yes", "rationale": "so"}) for prompt in prompts]
        assert judge.score(trace, answered).details["documents_left_out"] == 2


NO_ANSWER = {
    "unreadable": ("so", "invalid_answer"),
    "refused": (Step(refusal=True), "refusal"),
    "refused in words": ("I can't help with that.", "refusal"),
    "filtered": (Step(finish_reason="content_filter"), "content_filter"),
    "cut off": (Step("{", finish_reason="length"), "truncated"),
}


def judged(count: int, missing: set[int], step: Step | str, **settings: object) -> Assessment:
    """Judge a trace of some documents, of which some get no answer; all others are relevant."""

    def answer(request: ChatRequest) -> Step | str:
        shown = next(block.value for block in parse(request.messages[1].content) if block.name == "document")
        return step if int(shown) in missing else yes_no_text("yes")

    trace = asked(*map(str, range(count)))
    return asyncio.run(evaluate(JUDGE.configured(settings), trace, ScriptedModel([answer])))


class TestMissing:
    def test_a_document_without_an_answer_is_left_out_and_counted(self) -> None:
        for name, (step, _) in NO_ANSWER.items():
            assessment = judged(5, {1}, step)
            assert (assessment.outcome, assessment.scores, assessment.details["documents_missing"]) == (
                "scored",
                scored(1.0),
                1,
            ), name
            documents: Any = assessment.details["documents"]
            assert [each["rank"] for each in documents] == [1, 3, 4, 5], name

    def test_with_too_many_the_trace_is_unscored(self) -> None:
        for name, (step, reason) in NO_ANSWER.items():
            for count, missing in ((4, {1}), (5, {1, 2}), (1, {0})):
                assessment = judged(count, missing, step)
                assert (assessment.outcome, assessment.reason) == ("unscored", reason), (name, count)

    def test_the_share_is_a_setting(self) -> None:
        step, reason = NO_ANSWER["filtered"]
        assert judged(5, {1}, step, max_missing=0).reason == reason
        assert judged(10, {1, 2, 3}, step, max_missing=0.3).outcome == "scored"
        assert judged(3, {0, 1, 2}, step, max_missing=1).reason == reason

    def test_a_failure_of_the_endpoint_is_none_of_one_document(self) -> None:
        assert judged(10, {1}, Step(failure="rate_limited")).reason == "rate_limited"


class TestPassMark:
    @each_case(("pass_at", "passed"), [(0, True), (0.5, True), (0.6, True), (0.61, False), (1, False)], ids=repr)
    def test_passes_from_it_on(self, pass_at: float, passed: bool) -> None:  # noqa: FBT001 - a case
        judge = JUDGE.configured({"pass_at": pass_at})
        trace = asked("a", "b", "c", "d", "e")
        (score,) = judge.score(trace, answers(trace, ["yes", "yes", "yes", "no", "no"])).scores
        assert score == Score("precision", 0.6, 0.6, passed=passed)
        assert judge.metrics == (Metric("precision", "0..1", f">= {pass_at:g}", pass_at=pass_at),)

    def test_is_part_of_the_version(self) -> None:
        assert JUDGE.configured({"pass_at": 0.5}).version == JUDGE.configured({}).version == JUDGE.version
        assert JUDGE.configured({"pass_at": 0.6}).version != JUDGE.version

    @each_case("pass_at", [-0.1, 1.1, float("nan"), "half", None, True], ids=repr)
    def test_stands_from_0_to_1(self, pass_at: object) -> None:
        with pytest.raises(msgspec.ValidationError):
            JUDGE.configured({"pass_at": pass_at})


def test_each_document_gets_its_own_answer_over_the_real_pipeline() -> None:
    def answer(request: ChatRequest) -> str:
        document = parse(request.messages[1].content)[-1].value
        return yes_no_text("yes" if document in {"tea", "milk"} else "no", f"Let's think step by step. {document}?")

    model = ScriptedModel([answer])
    assessment = asyncio.run(evaluate(JUDGE, asked("bread", "tea", "soap", "milk"), model))
    assert (assessment.outcome, assessment.scores, assessment.rationale) == (
        "scored",
        scored(0.5),
        "2 of 4 documents are relevant; ranks 1 and 3 are not.",
    )
    documents: Any = assessment.details["documents"]
    assert [entry["rationale"] for entry in documents] == ["bread?", "tea?", "soap?", "milk?"]
    assert [call.status for call in assessment.calls] == ["ok"] * 4


@pytest.mark.parametrize(
    ("document", "result", "share"),
    [("Of all drinks, tea.", "yes", 100), ("Soap.", "no", 0)],
    ids=["shares words", "shares none"],
)
def test_the_heuristic_looks_for_the_words_of_the_question(document: str, result: str, share: int) -> None:
    (prompt,) = JUDGE.prompts(asked(document))
    text = f"Let's think step by step. {share}% of the words of the question appear in the document."
    assert JUDGE.heuristic(asked("Something else."), prompt) == {"rationale": text, "result": result}


def test_a_prompt_remembers_what_it_never_sends() -> None:
    (prompt,) = JUDGE.prompts(asked(Document("Tea.", id="kb-17")))
    assert "kb-17" not in "".join(message.content for message in render(prompt))
    assert prompt.about == Shown(1, "kb-17")
