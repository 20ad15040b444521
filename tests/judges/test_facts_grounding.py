"""FACTS grounding: a label and an excerpt for each sentence, and the check of the excerpts."""

import asyncio
import json
import os
from pathlib import Path

import msgspec
import pytest
from judge_traces import HOSTILE, LONG, SHORT, all_samples, filled, parse
from support.cases import each_case
from test_golden_prompts import CASES, written

from judges.calling.evaluation import evaluate
from judges.catalog.facts_grounding import JUDGE, Settings, make
from judges.core.judge import AnsweredPrompt, Judge, Reading
from judges.core.prompt import Prompt, render
from judges.core.verdict import Score
from judges.forms.sentence_labels import Line
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel, Step
from judges.parsing.answer import AnswerError, IncompleteAnswerError, InvalidAnswerError, OutOfRangeError
from tracejudge import Document, Trace

V2 = make(Settings(labels="v2"))
GOLDEN_V2 = Path(__file__).with_name("golden_v2")

TRACE = Trace(
    trace_id="1",
    service="s",
    input="How long is the warranty?",
    output="Hello! The warranty runs for two years. It covers the battery.",
    context=["All devices come with a warranty of two years.", "Batteries are not covered by it."],
)
HELLO = ("Hello!", "no_rad", "A greeting.", None)
YEARS = ("The warranty runs for two years.", "supported", "The length is given.", "a warranty of two years")
BATTERY = ("It covers the battery.", "contradictory", "It does not.", "Batteries are not covered by it.")
SILENT = ("It covers the battery.", "unsupported", "Nothing is said.", None)


def line(sentence: str, label: str, rationale: str = "r", excerpt: object = None) -> str:
    return json.dumps({"sentence": sentence, "label": label, "rationale": rationale, "excerpt": excerpt})


def reading(*lines: tuple[str, str, str, str | None], judge: Judge = JUDGE, trace: Trace = TRACE) -> Reading:
    """Read lines as a model writes them, and score them."""
    answer = judge.read("\n".join(line(*each) for each in lines))
    return judge.score(trace, [AnsweredPrompt(judge.prompts(trace)[0], answer)])


def grounded(value: float) -> Score:
    return Score("grounded", value, value, passed=bool(value))


def share(value: float) -> Score:
    return Score("supported_share", value, value)


class TestPrompt:
    def test_shows_query_context_and_response_in_this_order(self) -> None:
        _, user = render(JUDGE.prompts(TRACE)[0])
        assert parse(user.content) == (
            ("query", "How long is the warranty?"),
            ("document 1", "All devices come with a warranty of two years."),
            ("document 2", "Batteries are not covered by it."),
            ("response", "Hello! The warranty runs for two years. It covers the battery."),
        )

    @pytest.mark.parametrize("case", CASES)
    def test_the_second_label_set_asks_what_the_golden_file_says(self, case: str) -> None:
        path = GOLDEN_V2 / f"{JUDGE.name}.{case}.txt"
        actual = written(V2, CASES[case])
        if os.environ.get("UPDATE_GOLDEN") == "1":
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(actual.encode())
        assert actual == path.read_bytes().decode()

    @pytest.mark.parametrize("judge", [JUDGE, V2], ids=["v1", "v2"])
    def test_the_fixed_part_is_the_same_for_every_trace(self, judge: Judge) -> None:
        traces = [SHORT, LONG, *all_samples(), *(trace for text in HOSTILE.values() for trace in filled(text))]
        assert [*{prompt.fixed for trace in traces for prompt in judge.prompts(trace)}] == [*judge.fixed_parts]

    @pytest.mark.parametrize("judge", [JUDGE, V2], ids=["v1", "v2"])
    def test_its_example_is_an_answer_in_the_form_it_asks_for(self, judge: Judge) -> None:
        context, _, example = judge.fixed_parts[0].partition("\nAn example\nContext: `")[2].partition("` Response: `")
        response, _, lines = example.partition("` The answer is:\n")
        trace = Trace(trace_id="1", service="s", input="q", output=response, context=[context])
        answer = judge.read(lines)
        result = judge.score(trace, [AnsweredPrompt(Prompt("", ()), answer)])
        assert {each.label for each in answer} == set(
            judge.schema["properties"]["sentences"]["items"]["properties"]["label"]["enum"]
        )  # type: ignore[index]
        assert [score.value for score in result.scores] == [0.0, 1 / 3]
        assert {key: result.details[key] for key in ("fabricated_evidence", "uncovered_sentences")} == {
            "fabricated_evidence": 0,
            "uncovered_sentences": 0,
        }


READ: dict[str, tuple[str, Line | type[AnswerError]]] = {
    "plain": (line("A.", "supported", "r", "x"), Line("A.", "supported", "r", "x")),
    "capitals and a full stop": (line("A.", " No_RAD. "), Line("A.", "no_rad", "r", None)),
    "no excerpt": (
        '{"sentence": "A.", "label": "unsupported", "rationale": "r"}',
        Line("A.", "unsupported", "r", None),
    ),
    "empty rationale": (line("A.", "unsupported", ""), Line("A.", "unsupported", "", None)),
    "extra keys": (line("A.", "no_rad")[:-1] + ', "id": 1}', Line("A.", "no_rad", "r", None)),
    "in one object": (f'{{"sentences": [{line("A.", "no_rad")}]}}', Line("A.", "no_rad", "r", None)),
    "a label off the menu": (line("A.", "partly"), OutOfRangeError),
    "a label of the other set": (line("A.", "not_supported"), OutOfRangeError),
    "two labels": (line("A.", "supported, no_rad"), OutOfRangeError),
    "the menu": (line("A.", "supported|no_rad"), InvalidAnswerError),
    "an empty label": (line("A.", ""), InvalidAnswerError),
    "no label": ('{"sentence": "A.", "rationale": "r", "excerpt": null}', InvalidAnswerError),
    "no rationale": ('{"sentence": "A.", "label": "no_rad", "excerpt": null}', InvalidAnswerError),
    "no sentence": ('{"label": "no_rad", "rationale": "r", "excerpt": null}', InvalidAnswerError),
    "null for a label": ('{"sentence": "A.", "label": null, "rationale": "r"}', InvalidAnswerError),
    "true for a label": ('{"sentence": "A.", "label": true, "rationale": "r"}', InvalidAnswerError),
    "a list of excerpts": (
        '{"sentence": "A.", "label": "supported", "rationale": "r", "excerpt": ["x"]}',
        InvalidAnswerError,
    ),
    "a broken line": (f'{line("A.", "supported")}\n{{"sentence": "B.", "lab', InvalidAnswerError),
    "a label off the menu and a type that is wrong": (
        f'{line("A.", "partly")}\n{{"sentence": 1, "label": "no_rad", "rationale": "r"}}',
        InvalidAnswerError,
    ),
    "no line": ("I cannot tell.", InvalidAnswerError),
}


@each_case(("text", "expected"), READ.values(), ids=READ)
def test_reads_a_line(text: str, expected: Line | type[AnswerError]) -> None:
    if isinstance(expected, Line):
        assert JUDGE.read(text) == (expected,)
    else:
        with pytest.raises(expected):
            JUDGE.read(text)


def test_the_second_label_set_has_its_own_menu() -> None:
    assert [each.label for each in V2.read(line("A.", "NOT_SUPPORTED") + line("B.", "no_rad"))] == [
        "not_supported",
        "no_rad",
    ]
    with pytest.raises(OutOfRangeError):
        V2.read(line("A.", "contradictory"))
    with pytest.raises(InvalidAnswerError):
        V2.read('{"sentence": "A.", "rationale": "r", "excerpt": null}')


class TestScore:
    def test_every_sentence_supported_or_in_need_of_none_is_grounded(self) -> None:
        trace = msgspec.structs.replace(TRACE, output="Hello! The warranty runs for two years.")
        assert reading(HELLO, YEARS, trace=trace) == Reading(
            (grounded(1.0), share(1.0)),
            "1 of 1 sentences are supported.",
            {
                "grounded_as_labelled": True,
                "check_differs": 0,
                "fabricated_evidence": 0,
                "missing_evidence": 0,
                "uncovered_sentences": 0,
                "invented_sentences": 0,
                "repeated_sentences": 0,
                "sentences": [
                    {"sentence": HELLO[0], "label": "no_rad"},
                    {"sentence": YEARS[0], "label": "supported", "excerpt": YEARS[3], "excerpt_found": True},
                ],
            },
        )

    def test_one_sentence_without_support_is_not_grounded(self) -> None:
        result = reading(HELLO, YEARS, SILENT)
        assert result.scores == (grounded(0.0), share(0.5))
        assert result.rationale == "1 of 2 sentences are supported; unsupported: 1. Sentence 3: Nothing is said."

    def test_a_sentence_that_the_context_falsifies_is_not_grounded(self) -> None:
        result = reading(HELLO, YEARS, BATTERY)
        assert result.scores == (grounded(0.0), share(0.5))
        assert result.rationale == "1 of 2 sentences are supported; contradictory: 1. Sentence 3: It does not."
        assert result.details["fabricated_evidence"] == 0

    def test_without_a_sentence_in_need_of_support_there_is_no_share(self) -> None:
        result = reading(HELLO)
        assert result.scores == (grounded(1.0),)
        assert result.rationale == "No sentence needs support."

    @each_case(
        ("excerpt", "why"),
        [
            ("a warranty of five years", "its excerpt is not in the context"),
            ("How long is the warranty?", "its excerpt is not in the context"),
            ("The warranty runs for two years.", "its excerpt is not in the context"),
            ("", "it has no excerpt"),
            (None, "it has no excerpt"),
        ],
        ids=["invented", "of the query", "of the response", "empty", "absent"],
    )
    def test_a_label_without_its_evidence_does_not_count(self, excerpt: str | None, why: str) -> None:
        result = reading((*YEARS[:3], excerpt))
        assert result.scores == (grounded(0.0), share(0.0))
        assert (
            result.rationale
            == f"0 of 1 sentences are supported; unsupported: 1. Sentence 1: called supported, but {why}. {YEARS[2]}"
        )
        assert {**result.details, "uncovered_sentences": 0} == {
            "grounded_as_labelled": True,
            "check_differs": 1,
            "fabricated_evidence": 1 if excerpt else 0,
            "missing_evidence": 0 if excerpt else 1,
            "uncovered_sentences": 0,
            "invented_sentences": 0,
            "repeated_sentences": 0,
            "sentences": [
                {
                    "sentence": YEARS[0],
                    "label": "unsupported",
                    "rationale": f"called supported, but {why}. {YEARS[2]}",
                    "labelled": "supported",
                    "excerpt": excerpt,
                    "excerpt_found": False,
                }
            ],
        }

    def test_an_excerpt_may_be_joined_from_several_documents(self) -> None:
        joined = "All devices come with a warranty ... Batteries are not covered by it."
        assert reading((*YEARS[:3], joined)).scores == (grounded(1.0), share(1.0))

    def test_the_ids_of_documents_are_marks_in_an_excerpt_and_sewn_words_are_no_evidence(self) -> None:
        context = [
            Document("The blue kettle has a warranty of 24 months.", id="manual-x"),
            Document("The red kettle has a warranty of 6 months.", id="faq.3"),
        ]
        answer = "The red kettle has a warranty of 24 months."
        trace = Trace(trace_id="1", service="s", input="q", output=answer, context=context)
        marked = f"manual-x: {context[0].text} faq.3: {context[1].text}"
        values = [
            reading((answer, "supported", "r", excerpt), trace=trace).scores[0].value
            for excerpt in (marked, marked.replace("faq.3", "faq.4"), answer, f"faq.3: {answer}")
        ]
        assert values == [1.0, 0.0, 0.0, 0.0]

    def test_a_contradiction_without_its_evidence_is_no_contradiction(self) -> None:
        result = reading(YEARS, (*BATTERY[:3], "Batteries are never covered."))
        assert result.scores == (grounded(0.0), share(0.5))
        assert result.rationale is not None
        assert "unsupported: 1" in result.rationale
        assert (result.details["grounded_as_labelled"], result.details["fabricated_evidence"]) == (False, 1)

    @pytest.mark.parametrize("label", ["unsupported", "no_rad"])
    def test_an_excerpt_on_another_label_is_ignored(self, label: str) -> None:
        result = reading((SILENT[0], label, "r", "an invented excerpt"))
        assert result.details["fabricated_evidence"] == 0
        reason = {} if label == "no_rad" else {"rationale": "r"}
        assert result.details["sentences"] == [{"sentence": SILENT[0], "label": label, **reason}]

    def test_the_reason_of_every_sentence_that_does_not_pass_is_kept_within_bounds(self) -> None:
        four = msgspec.structs.replace(TRACE, output=" ".join((HELLO[0], SILENT[0], YEARS[0], "It covers it all.")))
        lines = [(SILENT[0], "unsupported", "r" * 600, None), HELLO, YEARS, ("It covers it all.", *BATTERY[1:])]
        entries = reading(*lines, trace=four).details["sentences"]
        kept = [entry.get("rationale") for entry in entries]  # type: ignore[attr-defined]
        assert kept == [f"{'r' * 499}\u2026", None, None, BATTERY[2]]
        answer = " ".join(f"Sentence number {number}." for number in range(200))
        long = [(f"Sentence number {number}.", "unsupported", "r" * 600, None) for number in range(200)]
        trace = msgspec.structs.replace(TRACE, output=answer)
        details = reading(*long, trace=trace).details["sentences"]
        assert len(details) == 200  # type: ignore[arg-type]
        assert sum(len(entry.get("rationale", "")) for entry in details) == 20_000  # type: ignore[attr-defined]

    def test_the_second_label_set_has_one_label_for_what_lacks_support(self) -> None:
        result = reading(HELLO, (*YEARS[:3], "an invented excerpt"), (SILENT[0], "not_supported", "r", "x"), judge=V2)
        assert result.scores == (grounded(0.0), share(0.0))
        assert [entry["label"] for entry in result.details["sentences"]] == ["no_rad", "not_supported", "not_supported"]  # type: ignore[attr-defined]
        assert (result.details["grounded_as_labelled"], result.details["fabricated_evidence"]) == (False, 1)


COVERAGE = {
    "all": ([HELLO[0], YEARS[0], SILENT[0]], 0, 0),
    "one left out": ([HELLO[0], YEARS[0]], 1, 0),
    "two in one line": ([HELLO[0], f"{YEARS[0]} {SILENT[0]}"], 0, 0),
    "one in two lines": ([HELLO[0], "The warranty", "runs for two years.", SILENT[0]], 0, 0),
    "capitals, quotation marks and full stops": (
        ["hello", "\u201ethe warranty runs for two years\u201c", SILENT[0]],
        0,
        0,
    ),
    "one invented": ([HELLO[0], YEARS[0], SILENT[0], "Shipping is free."], 0, 1),
    "one reworded": ([HELLO[0], "The warranty lasts for two years.", SILENT[0]], 1, 1),
    "one without a word": ([HELLO[0], YEARS[0], SILENT[0], "---"], 0, 0),
}


@each_case(("sentences", "uncovered", "invented"), COVERAGE.values(), ids=COVERAGE)
def test_counts_what_lines_leave_out_and_add(sentences: list[str], uncovered: int, invented: int) -> None:
    details = reading(*((sentence, "no_rad", "r", None) for sentence in sentences)).details
    assert (details["uncovered_sentences"], details["invented_sentences"]) == (uncovered, invented)


def test_items_of_a_list_are_covered_without_their_marks() -> None:
    trace = msgspec.structs.replace(TRACE, output="Steps:\n\n1. Open the app.\n2. Choose a device.\n- Wait.")
    lines = [(each, "no_rad", "r", None) for each in ("Steps:", "Open the app.", "Choose a device.", "Wait.")]
    details = reading(*lines, trace=trace).details
    assert (details["uncovered_sentences"], details["invented_sentences"]) == (0, 0)


def checked(
    *sentences: str, output: str = TRACE.output, labels: str = "", judge: Judge = JUDGE
) -> type[AnswerError] | None:
    """Check lines with these sentences; ``labels`` has a letter for each, u for unsupported."""
    kinds = {"u": "unsupported", " ": "no_rad"}
    lines = judge.read("\n".join(map(line, sentences, map(kinds.__getitem__, labels.ljust(len(sentences))))))
    trace = msgspec.structs.replace(TRACE, output=output)
    assert judge.check is not None
    try:
        judge.check(trace, judge.prompts(trace)[0], lines)
    except InvalidAnswerError as error:
        return type(error)
    return None


LISTED = "# Opening hours\n\n- **Monday**: nine to five [1]\n- Sunday: closed [2, 3]\n\nGlad to help!"
CHECKS: dict[str, tuple[tuple[str, ...], str, bool]] = {
    "all sentences": ((HELLO[0], YEARS[0], SILENT[0]), TRACE.output, True),
    "without the courtesy": ((YEARS[0], SILENT[0]), TRACE.output, True),
    "one left out": ((HELLO[0], YEARS[0]), TRACE.output, False),
    "a courtesy only": ((HELLO[0],), TRACE.output, False),
    "other sentences only": (("Shipping is free.",), TRACE.output, False),
    "without heading, citations and decoration": (
        ("Monday: nine to five", "Sunday: closed"), LISTED, True,
    ),
    "an item left out": (("Opening hours", "Monday: nine to five", "Glad to help!"), LISTED, False),
    "short sentences without a meaning of their own count": (("It is free.",), "No, it is not. It is free.", False),
    "a claim that ends with a colon counts": (("Room one",), "It costs 20 euros with:\n\n- Room one", False),
    "members of JSON, one a line": (
        ('"name": "pump"', '"watts": 250'), '{"name": "pump", "watts": 250}', True,
    ),
    "rows of a table, without its signs": (
        ("part watts", "pump 250", "fan 40"), "| part | watts |\n|---|---|\n| pump | 250 |\n| fan | 40 |", True,
    ),
    "HTML tags, also those that are no sentence": (
        ("<b>Two</b> years.", "<label>Free</label> of charge."),
        "<p><b>Two</b> years.</p> <p><label>Free</label> of charge.</p>",
        True,
    ),
    "a claim as a heading counts": (("It is free.",), "# The reading room opens at midnight\n\nIt is free.", False),
    "a claim in bold counts": (("It is free.",), "**Students pay ten euros**\n\nIt is free.", False),
    "a claim before a list counts": (("It is free.",), "Students must pay:\n\n- It is free.", False),
    "a heading in Chinese": (("It is free.",), "# 学生需支付十欧元\n\nIt is free.", False),
    "a heading at the end counts": (("It is free.",), "It is free.\n\n**Students pay**", False),
    "headings of few words": (("It is free.",), "## 1. Opening hours\n\n**Please note:**\n\nNow:\nIt is free.", True),
    "an opening tag only": (("<p>It is so.", "It is red."), "<p>It is so. It is red.</p>", True),
    "a break within a sentence": (("It is so,<br>says he.",), "It is so,<br>says he.", True),
    "tags in a cell": (("| <b>pump</b> | 250 |",), "| a | b |\n|---|---|\n| <b>pump</b> | 250 |", True),
    "links, entities and notes that the model drops": (
        ("See the site of R&D in two weeks.", "It is red."),
        "See [the site](https://example.com/a) of R&amp;D in two weeks¹. It is __red__.² [4](https://a.example)",
        True,
    ),
    "a division at the end of a line": (("It is a self- service shop.",), "It is a self-\nservice shop.", True),
    "no word at all": (("---",), "---", True),
}  # fmt: skip
COURTESIES = (
    "Of course! | Certainly! | Great question! | Feel free to ask. | Let me know if you have any questions. "
    "| Have a nice day! | I hope this helps! | Gerne! | Ich hoffe, das hilft Ihnen weiter! | ¡Claro! "
    "| J'espère que cela vous aide ! | Espero ter ajudado! | Конечно! "
    "| 当然。 | 希望这对您有帮助。 | もちろんです。 "
    "| ज़रूर! | شكرًا لك."
)


@each_case(("sentences", "output", "is_complete"), CHECKS.values(), ids=CHECKS)
def test_an_answer_that_leaves_words_out_is_incomplete(
    sentences: tuple[str, ...],
    output: str,
    is_complete: bool,  # noqa: FBT001 - a parameter
) -> None:
    assert checked(*sentences, output=output) is (None if is_complete else IncompleteAnswerError)


def test_courtesies_in_ten_languages_may_be_left_out() -> None:
    counted = [each for each in COURTESIES.split(" | ") if checked("It is free.", output=f"{each} It is free.")]
    assert counted == []
    for claim in ("Of course not.", "Certainly dogs are free.", "Sure, the pool is closed."):
        assert checked("It is free.", output=f"{claim} It is free.") is IncompleteAnswerError, claim


def test_the_share_that_must_be_covered_is_a_setting() -> None:
    judge = JUDGE.configured({"min_covered": 0.5})
    assert checked(YEARS[0], judge=judge) is None
    assert checked(HELLO[0], judge=judge) is IncompleteAnswerError
    assert judge.version != JUDGE.version
    with pytest.raises(msgspec.ValidationError):
        JUDGE.configured({"min_covered": 1.5})


def test_lines_about_other_sentences_are_left_out_of_the_scores() -> None:
    result = reading(HELLO, YEARS, ("Shipping is free.", "unsupported", "r", None))
    assert result.scores == (grounded(1.0), share(1.0))
    assert (result.details["invented_sentences"], len(result.details["sentences"])) == (1, 2)  # type: ignore[arg-type]


def test_a_line_that_is_repeated_counts_once_unless_its_label_differs() -> None:
    result = reading(YEARS, YEARS, YEARS, SILENT)
    assert (result.scores[1], result.details["repeated_sentences"]) == (share(0.5), 2)
    whole = (HELLO[0], YEARS[0], SILENT[0])
    assert checked(*whole, *whole) is None
    assert checked(*whole, *whole, labels="     u") is InvalidAnswerError
    # The response itself may say something twice, and the context may support it once.
    assert checked("It is so.", "It is so.", output="It is so. It is so.", labels=" u") is None


def test_an_incomplete_answer_is_requested_once_more_and_then_unscored() -> None:
    part, whole = line(YEARS[0], "unsupported"), "\n".join(line(each[0], "unsupported") for each in (YEARS, SILENT))
    model = ScriptedModel([part, whole])
    assert asyncio.run(evaluate(JUDGE, TRACE, model)).outcome == "scored"
    demand = model.requests[1].messages[-1].content
    assert "the lines cover 60% of the words of the response, 2 of its sentences have none" in demand
    assessment = asyncio.run(evaluate(JUDGE, TRACE, ScriptedModel([part])))
    assert (assessment.outcome, assessment.reason, len(assessment.calls)) == ("unscored", "incomplete", 2)


class TestCutOff:
    def test_the_complete_lines_are_kept(self) -> None:
        both = [line(YEARS[0], "unsupported"), line(SILENT[0], "unsupported")]
        for text in ("\n".join(both), f'{{"sentences": [{", ".join(both)}', f"[{both[0]},\n{both[0]},\n{both[1]}"):
            assert JUDGE.whole_lines is not None
            assert JUDGE.whole_lines(text + ', {"sentence": "It co') == "\n".join(both)
        assert JUDGE.whole_lines('{"sentence": "It co') == ""
        for draft in (f"<think>{text}\n", f"<thought>{text}</thought>", f"<|channel|>analysis<|message|>{text}\n"):
            assert JUDGE.whole_lines(draft + '{"sentence": "It co') == ""

    @pytest.mark.parametrize("form", ["{}", '{{"sentences": [{}]}}'], ids=["a line", "one object"])
    def test_only_the_rest_is_requested(self, form: str) -> None:
        first, second = (line(each[0], "unsupported") for each in (YEARS, SILENT))
        cut = form.format(first).removesuffix("]}") + ', {"sentence": "It'
        model = ScriptedModel([Step(cut, finish_reason="length"), form.format(second)])
        assessment = asyncio.run(evaluate(JUDGE, TRACE, model))
        assert [each["sentence"] for each in assessment.details["sentences"]] == [YEARS[0], SILENT[0]]  # type: ignore[attr-defined]
        assert model.requests[1].messages[-2].content == first

    def test_the_bound_grows_with_the_response(self) -> None:
        long = msgspec.structs.replace(TRACE, output="The warranty runs for two years. " * 50)
        bounds = [JUDGE.output_tokens(trace, JUDGE.prompts(trace)[0]) for trace in (TRACE, long)]
        text = "\n".join(line(YEARS[0], "supported", "The length is given.", YEARS[3]) for _ in range(50))
        assert len(text.encode()) / 3 < bounds[1] < 4 * len(text.encode()) / 3
        assert 1024 < bounds[0] < 2048


class TestHeuristic:
    @pytest.mark.parametrize("judge", [JUDGE, V2], ids=["v1", "v2"])
    def test_labels_each_sentence_by_its_words(self, judge: Judge) -> None:
        trace = msgspec.structs.replace(
            TRACE,
            output="Hello! All devices have two years of warranty. It costs 20 EUR. Shipping abroad is free. Any more?",
        )
        lacking = "unsupported" if judge is JUDGE else "not_supported"
        answer = judge.read(str(judge.heuristic(trace, judge.prompts(trace)[0])))
        assert [(each.label, each.excerpt) for each in answer] == [
            ("no_rad", None),
            ("supported", "All devices come with a warranty of two years."),
            (lacking, None),
            (lacking, None),
            ("no_rad", None),
        ]

    def test_its_excerpts_are_found_and_its_sentences_are_those_of_the_answer(self) -> None:
        for trace in [SHORT, LONG, *(trace for trace in all_samples() if JUDGE.missing(trace) is None)]:
            details = asyncio.run(evaluate(JUDGE, trace, LexicalModel())).details
            counts = {key: value for key, value in details.items() if key not in {"sentences", "grounded_as_labelled"}}
            assert set(counts.values()) == {0}

    def test_answers_on_a_response_without_a_sentence(self) -> None:
        trace = msgspec.structs.replace(TRACE, output="\u3000")
        answer = JUDGE.read(str(JUDGE.heuristic(trace, JUDGE.prompts(trace)[0])))
        assert [each.label for each in answer] == ["no_rad"]


class TestSettings:
    def test_the_label_sets_are_judges_of_their_own(self) -> None:
        assert JUDGE.configured({"labels": "v1"}).version == JUDGE.version
        assert JUDGE.configured({"labels": "v2"}).version == V2.version != JUDGE.version

    @pytest.mark.parametrize("values", [{"labels": "v3"}, {"label": "v1"}], ids=["unknown set", "unknown key"])
    def test_others_are_refused(self, values: dict[str, object]) -> None:
        with pytest.raises(msgspec.ValidationError):
            JUDGE.configured(values)
