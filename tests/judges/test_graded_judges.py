"""The five graded judges: their material and prompts, and the answers of the lexical model."""

import asyncio
import json
import re

import pytest
from judge_traces import HOSTILE, LONG, SHORT, all_samples, filled, parse, served
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.catalog import answer_correctness, answer_relevance, answer_similarity, faithfulness, relevance
from judges.core.judge import Judge, Metric
from judges.core.model import ModelSettings
from judges.core.prompt import MATERIAL_RULES, Block, render
from judges.core.verdict import Score
from judges.forms.graded import FORM, GroundingSettings, Settings, read
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel
from tracejudge import Document, Trace

EXAMPLES = {
    "answer_correctness": answer_correctness.EXAMPLES,
    "answer_relevance": answer_relevance.EXAMPLES,
    "answer_similarity": answer_similarity.EXAMPLES,
    "faithfulness": faithfulness.EXAMPLES,
    "relevance": relevance.EXAMPLES,
}
EXAMPLE = re.compile(r"^Example: .+\n((?:\w+: .+\n)+)Your reply:\n(\{.+\})$", re.MULTILINE)
MODULES = (answer_correctness, answer_relevance, answer_similarity, faithfulness, relevance)
JUDGES = {module.JUDGE.name: module.JUDGE for module in MODULES}

NEEDS_AND_CUTS = {
    "answer_correctness": (("input", "output", "expected_response"), ("messages",)),
    "answer_relevance": (("input", "output"), ("messages",)),
    "answer_similarity": (("output", "expected_response"), ()),
    "faithfulness": (("output", "context"), ("context",)),
    "relevance": (("input", "output", "context"), ("messages", "context")),
}

QUESTION = Block("question", "How long is the warranty?")
ANSWER = Block("answer", "The warranty runs for two years.")
REFERENCE = Block("reference", "Two years.")
DOCUMENT = Block("document", "All devices come with a warranty of two years.")
SHOWN = {
    "answer_correctness": (QUESTION, ANSWER, REFERENCE),
    "answer_relevance": (QUESTION, ANSWER),
    "answer_similarity": (ANSWER, REFERENCE),
    "faithfulness": (ANSWER, DOCUMENT),
    "relevance": (QUESTION, ANSWER, DOCUMENT),
}

TRACES = [SHORT, LONG, *(trace for text in HOSTILE.values() for trace in filled(text))]
MISSING = [
    (name, field)
    for name, judge in JUDGES.items()
    for field in judge.needs
    if isinstance(field, str) and field != "output"
]

every_judge = pytest.mark.parametrize("judge", JUDGES.values(), ids=JUDGES)


class TestDefinition:
    @every_judge
    def test_metric_needs_cuts_and_settings(self, judge: Judge) -> None:
        assert (judge.needs, judge.cuts) == NEEDS_AND_CUTS[judge.name]
        assert judge.metrics == (Metric(judge.name, "1..5", "4 or more", pass_at=0.75),)
        grounding = judge.name in {"faithfulness", "relevance"}
        assert judge.settings == (GroundingSettings(pass_at=4, score_cut=False) if grounding else Settings(pass_at=4))

    @each_case(("name", "field"), MISSING)
    def test_nothing_is_asked_without_a_needed_input(self, name: str, field: str) -> None:
        blank: object = [Document(" "), "\n"] if field == "context" else " \n"
        inputs = {key: getattr(SHORT, key) for key in ("input", "output", "context", "expected_response")}
        trace = Trace(trace_id="1", service="s", **{**inputs, field: blank})
        assessment = asyncio.run(evaluate(JUDGES[name], trace, LexicalModel()))
        assert (assessment.reason, assessment.note, assessment.calls) == (
            "missing_input",
            f"the trace has no {field}",
            (),
        )


class TestFixedPart:
    @every_judge
    def test_goes_from_the_task_over_grades_and_examples_to_the_form(self, judge: Judge) -> None:
        (fixed,) = judge.fixed_parts
        headings = re.findall(r"\n\n(What to decide|How to weigh|The grades|Examples|How to answer)\n", fixed)
        assert headings == ["What to decide", "How to weigh", "The grades", "Examples", "How to answer"]
        assert fixed.endswith(f"\n\n{MATERIAL_RULES}\n\n{FORM}")

    @every_judge
    def test_defines_all_five_grades_in_words_of_their_own(self, judge: Judge) -> None:
        grades = re.findall(r"^- ([0-9]): (.{25,})$", judge.fixed_parts[0], re.MULTILINE)
        assert [number for number, _ in grades] == ["1", "2", "3", "4", "5"]
        assert len({words for _, words in grades}) == 5

    @each_case(("name", "examples"), EXAMPLES.items(), ids=EXAMPLES)
    def test_shows_examples_in_the_form_that_is_asked(self, name: str, examples: str) -> None:
        judge = JUDGES[name]
        lines = [line for line in judge.fixed_parts[0].splitlines() if line.startswith('{"')]
        assert lines == [reply for _, reply in EXAMPLE.findall(examples)]
        answers = [json.loads(line) for line in lines]
        assert [read(line) for line in lines] == answers
        assert all(list(json.loads(line)) == judge.schema["required"] for line in lines)
        assert len(lines) >= 2
        assert len({answer["score"] for answer in answers}) == len(answers)

    @each_case(("name", "examples"), EXAMPLES.items(), ids=EXAMPLES)
    def test_examples_hold_what_the_judge_is_shown_without_marks(self, name: str, examples: str) -> None:
        assert len(EXAMPLE.findall(examples)) == examples.count("Example: ")
        for material, _ in EXAMPLE.findall(examples):
            assert [line.partition(":")[0].lower() for line in material.splitlines()] == [
                block.name for block in SHOWN[name]
            ]
        shown = JUDGES[name].fixed_parts[0].partition(MATERIAL_RULES)[0]
        assert "<<" not in shown

    @every_judge
    def test_is_the_same_for_every_trace(self, judge: Judge) -> None:
        prompts = [prompt for trace in TRACES for prompt in judge.prompts(served(judge, trace))]
        assert {render(prompt)[0].content for prompt in prompts} == set(judge.fixed_parts)


class TestMaterial:
    @every_judge
    def test_is_what_the_judge_needs_and_no_more(self, judge: Judge) -> None:
        (prompt,) = judge.prompts(SHORT)
        assert prompt.blocks == SHOWN[judge.name]

    @every_judge
    def test_each_part_stays_between_its_marks(self, judge: Judge) -> None:
        for trace in TRACES:
            (prompt,) = judge.prompts(served(judge, trace))
            names = [block.name for block in prompt.blocks]
            assert [block.name for block in parse(render(prompt)[1].content)] == names

    @pytest.mark.parametrize("name", ["faithfulness", "relevance"])
    def test_lowest_documents_go_when_the_trace_is_too_long(self, name: str) -> None:
        trace = Trace(trace_id="1", service="s", input="Q?", output="A.", context=["first", "word " * 40_000, "last"])
        answer = json.dumps({"justification": "It is so.", "score": 4})
        model = ScriptedModel([answer], ModelSettings(provider="scripted", max_input_tokens=8_000))
        assessment = asyncio.run(evaluate(JUDGES[name].configured({"score_cut": True}), trace, model))
        assert assessment.scores == (Score(name, 0.75, 4.0, passed=True),)
        assert assessment.details == {"left_out": {"context": 2}}


def heuristic(name: str, **values: object) -> object:
    passed_in = {"input": "Where is it?", "output": "It is here.", "expected_response": "Here.", "context": ["Here."]}
    trace = Trace(trace_id="1", service="s", **{**passed_in, **values})  # type: ignore[arg-type]
    (prompt,) = JUDGES[name].prompts(trace)
    answer = JUDGES[name].heuristic(trace, prompt)
    assert isinstance(answer, dict)
    return answer["score"]


class TestHeuristic:
    @every_judge
    def test_answers_in_the_form_that_was_asked_whatever_the_trace_holds(self, judge: Judge) -> None:
        for trace in TRACES:
            (prompt,) = judge.prompts(served(judge, trace))
            answer = judge.heuristic(served(judge, trace), prompt)
            assert isinstance(answer, dict)
            assert list(answer) == judge.schema["required"]
            assert read(json.dumps(answer)) == answer

    @every_judge
    def test_scores_every_sample_that_has_what_it_needs(self, judge: Judge) -> None:
        async def outcomes() -> set[str]:
            model = LexicalModel()
            traces = [trace for trace in all_samples() if judge.missing(trace) is None]
            return {(await evaluate(judge, trace, model)).outcome for trace in traces}

        assert asyncio.run(outcomes()) == {"scored"}

    @each_case("name", ["answer_similarity", "answer_correctness"])
    @each_case(
        ("output", "score"),
        [
            ("Bananas ripen in paper bags.", 1),
            ("Return the parcel within 30 days for a refund.", 5),
            ("For a refund, return the parcel within 30 days.", 5),
        ],
        ids=["nothing in common", "the same", "the same in another order"],
    )
    def test_compares_the_words_of_answer_and_reference(self, name: str, output: str, score: int) -> None:
        reference = "Return the parcel within 30 days for a refund."
        assert heuristic(name, input="What now?", output=output, expected_response=reference) == score

    @pytest.mark.parametrize(("name", "most"), [("answer_similarity", 3), ("answer_correctness", 2)])
    def test_another_number_than_the_reference_does_not_pass(self, name: str, most: int) -> None:
        output, reference = "Return the parcel within 20 days.", "Return the parcel within 30 days."
        assert heuristic(name, output=output, expected_response=reference) == most

    def test_similarity_falls_with_what_the_reference_does_not_say(self) -> None:
        longer = "It ripens in May. Bees visit orchards."
        assert heuristic("answer_similarity", output="It ripens in May.", expected_response="It ripens in May.") == 5
        assert heuristic("answer_similarity", output=longer, expected_response="It ripens in May.") == 3

    def test_correctness_gives_no_credit_for_the_words_of_the_question(self) -> None:
        fields = {"input": "Which colour has the harbour ferry?", "expected_response": "The harbour ferry is green."}
        assert heuristic("answer_correctness", output="The harbour ferry is red.", **fields) == 1
        assert heuristic("answer_correctness", output="Green.", **fields) == 5

    @each_case(
        ("supported", "invented", "score"),
        [(0, 2, 1), (1, 2, 2), (1, 1, 3), (2, 1, 3), (6, 1, 4), (3, 0, 5)],
        ids=["none", "the lesser part", "half", "more than half", "nearly all", "all"],
    )
    def test_faithfulness_counts_sentences(self, supported: int, invented: int, score: int) -> None:
        output = "The ferry leaves at 9. " * supported + "Penguins enjoy opera. " * invented
        context = ["In summer the ferry leaves at 9.", "Unused documents do no harm."]
        assert heuristic("faithfulness", output=output, context=context) == score

    def test_faithfulness_does_not_take_words_and_numbers_from_the_question(self) -> None:
        fields = {"input": "Do penguins enjoy opera at 9?", "output": "Penguins enjoy opera at 9."}
        assert heuristic("faithfulness", context=["The ferry leaves."], **fields) == 1

    @each_case(
        ("output", "score"),
        [
            ("Penguins enjoy opera.", 1),
            ("The harbour ferry leaves from pier two at noon.", 5),
            ("The harbour ferry leaves at noon. Penguins sing. Whales dance. Seals clap. Crabs wave.", 4),
        ],
        ids=["something else", "to the point", "padding"],
    )
    def test_answer_relevance_looks_for_the_question_in_the_answer(self, output: str, score: int) -> None:
        assert heuristic("answer_relevance", input="When does the harbour ferry leave?", output=output) == score

    @each_case(
        ("output", "score"),
        [
            ("The harbour ferry leaves at noon.", 5),
            ("The harbour ferry leaves at 11 or at noon.", 3),
            ("Trams stop near museums.", 1),
            ("The harbour ferry plays loud music whenever penguins board, dancing wildly alongside seven whales.", 2),
        ],
        ids=["out of the document", "another number", "not what was asked", "from elsewhere"],
    )
    def test_relevance_takes_the_weaker_of_question_and_document(self, output: str, score: int) -> None:
        context = ["The harbour ferry leaves at noon. Trams stop near museums."]
        assert (
            heuristic("relevance", input="When does the harbour ferry leave?", output=output, context=context) == score
        )

    def test_relevance_leaves_out_words_that_are_asked_of_the_document(self) -> None:
        fields = {"input": "Summarise it.", "context": ["The ferry leaves at noon."]}
        assert heuristic("relevance", output="The ferry leaves at noon.", **fields) == 5
