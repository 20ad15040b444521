"""Judges that name sentences: the two of RAGBench with the TRACe formulas, and FACTS grounding with its excerpts."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_traces import HOSTILE, LONG, SHORT, all_samples, filled, outcome, table
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.catalog import ragbench, ragbench_sources
from judges.catalog.facts_grounding import JUDGE, Settings, make
from judges.core.judge import AnsweredPrompt, Judge, Reading
from judges.core.prompt import Block, render
from judges.core.verdict import Assessment, Score
from judges.forms.document_support import Shares, scores, shares, weights
from judges.forms.sentence_labels import Line
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel, Step
from judges.parsing.answer import InvalidAnswerError, OutOfRangeError
from judges.requests.request import truncate_to_context
from tracejudge import Document, Trace

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


def answer(entries: Sequence[object] = (), **changes: object) -> dict[str, object]:
    """Write an answer object of a good model, with its keys in order."""
    values = ("Document one helps.", [], "All is said there.", True, list(entries), [])
    return {**dict(zip(KEYS, values, strict=True)), **changes}


def of_response(key: object, supporting: Sequence[str] = (), *, full: object = True) -> dict[str, object]:
    """Write an entry of ``ragbench``."""
    entry: dict[str, object] = {"response_sentence_key": key, "explanation": "It says so."}
    return {**entry, "supporting_sentence_keys": list(supporting), "fully_supported": full}


def of_source(key: object, *, supported: object = True) -> dict[str, object]:
    """Write an entry of ``ragbench_sources``."""
    return {"sentence_key": key, "is_supported": supported, "explanation": "It says so."}


def scored(judge: Judge, asked: Trace, message: object) -> Reading:
    """Read and score one answer, as an evaluation does."""
    (prompt,) = judge.prompts(asked)
    text = message if isinstance(message, str) else json.dumps(message)
    return judge.score(asked, [AnsweredPrompt(prompt, judge.read(text))])


def figures(reading: Reading) -> dict[str, float]:
    return {score.metric: score.value for score in reading.scores}


class Case(NamedTuple):
    """A judge, an entry of its answers, and the names of the entry's fields by type."""

    judge: Judge
    entry: Callable[[], dict[str, object]]
    key: str
    truth: str

    @property
    def entry_keys(self) -> tuple[str, ...]:
        return tuple(self.entry())


CASES = {
    "ragbench": Case(ragbench.JUDGE, lambda: of_response("a", ["0a"]), "response_sentence_key", "fully_supported"),
    "ragbench_sources": Case(ragbench_sources.JUDGE, lambda: of_source("D1_S1"), "sentence_key", "is_supported"),
}
ASKED = trace(["One is here. Two is here."])
each_form = each_case("case", CASES.values(), ids=CASES)


class TestForm:
    @each_form
    def test_keys_are_bounded_by_a_pattern_or_listed_for_each_trace(self, case: Case) -> None:
        def bounds(schema: Any) -> list[Mapping[str, Any]]:
            named = [value for key, value in schema["properties"].items() if key.endswith("_keys")]
            entry = schema["properties"]["sentence_support_information"]["items"]["properties"]
            named += [value for key, value in entry.items() if key.endswith(("_key", "_keys"))]
            return [value.get("items", value) for value in named]

        for asked in (SHORT, LONG, ASKED):
            (prompt,) = case.judge.prompts(asked)
            assert prompt.schema is None
            shown = [prompt.about] if case.judge.name == "ragbench_sources" else list(prompt.about)
            patterns = [re.compile(bound["pattern"]) for bound in bounds(case.judge.schema)]
            keys = [key for keyed in shown for key in keyed.sentences]
            assert [key for key in keys if not any(pattern.search(key) for pattern in patterns)] == []
        judge = case.judge.configured({"enum_keys": True})
        model = ScriptedModel([json.dumps(answer([case.entry()]))])
        asyncio.run(evaluate(judge, ASKED, model))
        listed = [["D1_S1", "D1_S2"]] * 3
        if judge.name == "ragbench":
            listed = [["0a", "0b"], ["0a", "0b"], ["a"], ["0a", "0b", *sorted(ragbench.SPECIAL_WORDS)]]
        assert [bound["enum"] for bound in bounds(model.requests[0].schema)] == listed
        (many,) = judge.prompts(trace(["Line here. " * 400]))
        assert "pattern" in bounds(many.schema)[0]


class TestRead:
    @staticmethod
    def refused(judge: Judge, text: object) -> str:
        with pytest.raises(InvalidAnswerError) as caught:
            judge.read(text if isinstance(text, str) else json.dumps(text))
        return str(caught.value)

    @each_form
    def test_whole_answers_are_read_with_fences_prose_and_further_keys_and_must_agree(self, case: Case) -> None:
        whole = answer([case.entry()])
        text = json.dumps(whole)
        extra = json.dumps({"answer": "ignored", **whole})
        texts = [text, f"Here:\n```json\n{text}\n```\nDone.", extra, text[:-1] + ",}"]
        for said in ("true", "True", " TRUE. "):
            texts += [json.dumps(answer([{**case.entry(), case.truth: said}], overall_supported=said))]
        assert [case.judge.read(each) for each in texts] == [case.judge.read(text)] * len(texts)
        first, last = (json.dumps(answer(overall_supported=whole)) for whole in (True, False))
        assert case.judge.read(f"{last}\n{last}").supported is False
        with pytest.raises(InvalidAnswerError, match="two different results"):
            case.judge.read(f"{first}\n{last}")

    @each_form
    def test_no_key_may_be_missing_and_no_value_of_another_type(self, case: Case) -> None:
        for key in KEYS:
            text = answer([case.entry()])
            del text[key]
            assert self.refused(case.judge, text).startswith("no JSON object with the keys "), key
        for key, value, message in TABLES["types"]:
            assert self.refused(case.judge, answer([case.entry()], **{key: value})) == message
        named = "entry 2 of `sentence_support_information` is no object with the keys "
        for entry in ("a", None, ["a"], {}, {"explanation": "secret"}):
            assert self.refused(case.judge, answer([case.entry(), entry])) == named + ", ".join(case.entry_keys)
        for key in case.entry_keys:
            message = self.refused(case.judge, answer([{**case.entry(), key: 7}]))
            assert message.startswith(f"entry 1 of `sentence_support_information`: `{key}` is n")
        for text in ("", "I cannot help with that.", "true", "[]", "null", '{"relevance_explanation": "cut o'):
            assert self.refused(case.judge, text).startswith("no JSON object"), text


class TestCheck:
    """An answer that names keys of which none exists cannot be read."""

    @staticmethod
    def outcome(case: Case, *answers: Mapping[str, object]) -> Assessment:
        return asyncio.run(evaluate(case.judge, ASKED, ScriptedModel([json.dumps(each) for each in answers])))

    @each_form
    def test_it_is_requested_once_more_and_then_unscored(self, case: Case) -> None:
        whole = answer([case.entry()], all_relevant_sentence_keys=["0a", "D1_S1"])
        for name in ("all_relevant_sentence_keys", "all_utilized_sentence_keys"):
            lost = {**whole, name: ["7c", "D8_S8"]}
            assessment = self.outcome(case, lost, lost)
            assert (assessment.reason, len(assessment.calls)) == ("invalid_answer", 2)
            assert assessment.note == f"`{name}` names keys, and none of them is a key of the material"
            assert self.outcome(case, lost, whole).outcome == "scored"
            in_part = {**whole, name: ["7c", "0b", "D1_S2"]}
            assert len(self.outcome(case, in_part).calls) == 1
        # Entries count together.
        strange = {**case.entry(), case.key: "q9"}
        assert self.outcome(case, answer([strange])).reason == "invalid_answer"
        assert self.outcome(case, answer([strange, case.entry()])).outcome == "scored"

    def test_special_words_are_no_lost_keys(self) -> None:
        case = CASES["ragbench"]
        assert self.outcome(case, answer([of_response("a", ["general"])])).outcome == "scored"
        assert self.outcome(case, answer([of_response("a", ["9z"])])).reason == "invalid_answer"


some_keys = st.sampled_from(["0a", "0B.", "D1_S1", "d1_s2:", "a", "general", "9z", "", "\ud800"])


def entries(case: Case) -> st.SearchStrategy[list[dict[str, object]]]:
    kinds = {case.key: some_keys, "explanation": st.text(max_size=5), case.truth: st.booleans()}
    kinds["supporting_sentence_keys"] = st.lists(some_keys, max_size=4)
    return st.lists(st.fixed_dictionaries({key: kinds[key] for key in case.entry_keys}), max_size=5)


class TestScore:
    @each_form
    def test_completeness_has_no_value_where_nothing_is_relevant_unless_one_is_configured(self, case: Case) -> None:
        text = answer([case.entry()], all_utilized_sentence_keys=["0a", "D1_S1"])
        reading = scored(case.judge, ASKED, text)
        assert "completeness" not in figures(reading)
        assert reading.details["completeness_undefined"] == 1
        for value in (1.0, 0.0):
            reading = scored(case.judge.configured({"empty_completeness": value}), ASKED, text)
            assert figures(reading)["completeness"] == value
        with pytest.raises(ValueError, match="empty_completeness"):
            case.judge.configured({"empty_completeness": 2.0})

    @given(st.data())
    def test_values_lie_on_their_scales_with_any_keys(self, data: st.DataObject) -> None:
        case = data.draw(st.sampled_from(list(CASES.values())))
        text = answer(
            data.draw(entries(case)),
            overall_supported=data.draw(st.booleans()),
            all_relevant_sentence_keys=data.draw(st.lists(some_keys)),
            all_utilized_sentence_keys=data.draw(st.lists(some_keys)),
        )
        reading = scored(case.judge, ASKED, text)
        without = {"completeness"} if reading.details["completeness_undefined"] else set()
        assert tuple(figures(reading)) == tuple(name for name in case.judge.metric_names if name not in without)
        assert all(0.0 <= value <= 1.0 for value in figures(reading).values())
        assert json.dumps(reading.details).encode()

    @each_form
    def test_rationales_are_those_of_the_model_and_details_hold_no_text_of_the_trace(self, case: Case) -> None:
        reading = scored(case.judge, ASKED, answer([case.entry()], all_relevant_sentence_keys=["0b", "D1_S2"]))
        assert reading.rationale == "All is said there."
        assert [score.rationale for score in reading.scores] == ["Document one helps.", None, None, None]
        (prompt,) = case.judge.prompts(ASKED)
        assert "Two is here." in prompt.blocks[1].value
        assert "is here" not in json.dumps(reading.details)


class TestHeuristic:
    @each_form
    def test_answers_in_the_form_that_was_asked_and_contradicts_itself_nowhere(self, case: Case) -> None:
        for asked in [SHORT, LONG, *(sample for text in HOSTILE.values() for sample in filled(text))]:
            (prompt,) = case.judge.prompts(asked)
            text: Any = case.judge.heuristic(asked, prompt)
            assert tuple(text) == KEYS
            assert {tuple(entry) for entry in text["sentence_support_information"]} <= {case.entry_keys}
            assert scored(case.judge, asked, text).details["fabricated_evidence"] == 0
        for asked in (sample for sample in all_samples() if case.judge.missing(sample) is None):
            (prompt,) = case.judge.prompts(asked)
            details = scored(case.judge, asked, case.judge.heuristic(asked, prompt)).details
            counts = ("contradictions", "missing_entries", "repeated_entries", "fabricated_evidence")
            assert {name: details[name] for name in counts} == dict.fromkeys(counts, 0)

    @each_form
    def test_scores_a_very_long_trace_too(self, case: Case) -> None:
        long = ("Same word. " * 20_000, "a" * 100_000, "x" + "\u200b" * 20_000, "0a. general\n" * 9_000, '{"' * 50_000)
        for text in long:
            assessment = asyncio.run(evaluate(case.judge, trace([text, text], text), LexicalModel()))
            assert (assessment.outcome, assessment.reason) == ("scored", None), text[:20]

    def test_names_the_compared_counts(self) -> None:
        for name, context, output, expected in TABLES["guesses"]:
            asked = msgspec.structs.replace(trace(context, output), input="How long is the warranty?")
            judge = CASES[name].judge
            (prompt,) = judge.prompts(asked)
            assert json.loads(json.dumps(judge.heuristic(asked, prompt))) == expected


def check_details(name: str, asked: Trace, entry: Callable[..., dict[str, object]]) -> None:
    """Compare the details of the answers of a table; an entry is its key, keys that support it and its truth value."""
    for what, (rows, changes, expected) in TABLES[name].items():
        said = answer([entry(*row) for row in rows], **changes)
        reading = scored(CASES[name].judge, asked, said)
        details: Any = reading.details
        for each in details["sentence_support"]:
            assert each.get("explanation") == (None if list(each.values())[-1] is True else "It says so."), what
        support = [
            [value for key, value in each.items() if key != "explanation"] for each in details["sentence_support"]
        ]
        found = {**details, "support": support, "values": [score.value for score in reading.scores]}
        assert {key: found[key] for key in expected} == expected, what
        assert (reading.scores[-1].value, reading.scores[-1].passed) == (said["overall_supported"],) * 2, what


class TestRagbench:
    """Sentences 0a, 0b and 1a of the documents; a and b of the answer."""

    ASKED = trace(["One is here. Two is here.", "Three is here."], "First it says. Then it says.")

    def test_details_of_each_answer(self) -> None:
        check_details("ragbench", self.ASKED, lambda key, keys, full: of_response(key, keys, full=full))

    @staticmethod
    def blocks(asked: Trace) -> tuple[Block, ...]:
        (prompt,) = ragbench.JUDGE.prompts(asked)
        return prompt.blocks

    def test_sentences_stand_one_a_line_behind_their_keys(self) -> None:
        assert self.blocks(self.ASKED) == (
            Block("question", "How is it?"),
            Block("documents", "0a. One is here.\n0b. Two is here.\n1a. Three is here."),
            Block("answer", "a. First it says.\nb. Then it says."),
        )
        blank = self.blocks(trace(["One.", " \n", Document("Three.", id="x")]))
        assert blank[1].value == "0a. One.\n2a. Three.", "a blank document keeps its index"
        documents = ["One.", " ".join(f"Line {number} ends here." for number in range(28))]
        lines = self.blocks(trace(documents, documents[1]))
        assert [line.split(". ")[0] for line in lines[1].value.split("\n")][-4:] == ["1y", "1z", "1aa", "1ab"]
        assert [line.split(". ")[0] for line in lines[2].value.split("\n")][-4:] == ["y", "z", "aa", "ab"]

    @each_case("sign", ["\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"], ids=ascii)
    def test_no_sign_within_a_document_begins_a_keyed_line(self, sign: str) -> None:
        (prompt,) = ragbench.JUDGE.prompts(trace([f"One is here{sign}9z. Two{sign}{sign}9y. Three."]))
        content = render(prompt)[1].content
        shown = content.split("<<documents ")[1].split("<<end documents ")[0].split("\n")[1:-1]
        assert [line.split(". ")[0] for line in shown] == list(prompt.about.documents.sentences)
        assert not any(key.startswith("9") for key in prompt.about.documents.sentences)

    def test_a_cut_leaves_the_remaining_sentences_as_the_whole(self) -> None:
        long = trace(["One is here.", "Two is here.", "filler " * 9_000])
        fitted = truncate_to_context(ragbench.JUDGE, long, 4_000)
        assert fitted is not None
        assert fitted.left_out == {"context": 1}
        reading = scored(ragbench.JUDGE, fitted.trace, answer(all_relevant_sentence_keys=["0a", "2a"]))
        assert figures(reading)["relevance"] == 1 / 2
        assert (reading.details["document_sentences"], reading.details["fabricated_evidence"]) == (2, 1)


class TestSources:
    """Sentences D1_S1, D1_S2 and D3_S1."""

    ASKED = trace(["One is here. Two is here.", " ", "Three is here."], "First it says.\n\nThen it says.")
    NAMED = ragbench_sources.JUDGE.configured({"document_ids": True})

    def test_details_of_each_answer(self) -> None:
        check_details("ragbench_sources", self.ASKED, lambda key, supported: of_source(key, supported=supported))

    @staticmethod
    def keys(judge: Judge, documents: Sequence[Document | str]) -> list[str]:
        (prompt,) = judge.prompts(trace(documents))
        lines = prompt.blocks[1].value.split("\n")
        assert [line.split(": ")[0] for line in lines] == list(prompt.about.sentences)
        return list(prompt.about.sentences)

    def test_document_sentences_are_keyed_and_the_answer_stands_whole(self) -> None:
        (prompt,) = ragbench_sources.JUDGE.prompts(self.ASKED)
        assert prompt.blocks == (
            Block("question", "How is it?"),
            Block("documents", "D1_S1: One is here.\nD1_S2: Two is here.\nD3_S1: Three is here."),
            Block("answer", "First it says.\n\nThen it says."),
        )

    def test_ids_replace_numbers_where_configured_and_when_all_of_them_serve(self) -> None:
        def with_ids(*ids: str | None) -> list[Document]:
            return [Document(f"Text {rank}.", id=each) for rank, each in enumerate(ids, 1)]

        assert self.keys(ragbench_sources.JUDGE, with_ids("manual", "faq")) == ["D1_S1", "D2_S1"]
        for ids, expected in TABLES["ids"]:
            assert self.keys(self.NAMED, with_ids(*ids)) == expected, ids
        documents = [Document("One is here. Two is here.", id="x"), Document("Three is here.", id="x_S1")]
        assert self.keys(self.NAMED, documents) == ["x_S1", "x_S2", "x_S1_S1"]
        text = answer([of_source("MANUAL_s1.")], all_relevant_sentence_keys=["manual_S1", "D1_S1"])
        details = scored(self.NAMED, trace(with_ids("Manual", "faq")), text).details
        assert (details["relevant"], details["fabricated_evidence"]) == (["Manual_S1"], 1)
        assert details["sentence_support"] == [{"sentence_key": "Manual_S1", "is_supported": True}]
        plain = ragbench_sources.JUDGE
        assert self.NAMED.version != plain.version == plain.configured({"document_ids": False}).version


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

    def test_only_adherence_passes_or_fails(self) -> None:
        for supported, label in ((True, "supported"), (False, "unsupported")):
            assert scores(Shares(0.25, 0.5, 0.75), "Because.", supported=supported) == (
                Score("relevance", 0.25, 0.25, rationale="Because."),
                Score("utilization", 0.5, 0.5),
                Score("completeness", 0.75, 0.75),
                Score("adherence", float(supported), float(supported), label, passed=supported),
            )

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
V2 = make(Settings(labels="v2"))
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
NONE = {
    **dict.fromkeys(("check_differs", "fabricated_evidence", "missing_evidence", "uncovered_sentences"), 0),
    **dict.fromkeys(("invented_sentences", "repeated_sentences"), 0),
}
"""What the details count."""
both_sets = each_case("judge", [JUDGE, V2], ids=["v1", "v2"])


def line(sentence: str, label: str, rationale: str = "r", excerpt: object = None) -> str:
    return json.dumps({"sentence": sentence, "label": label, "rationale": rationale, "excerpt": excerpt})


def read_and_score(
    *lines: tuple[str, str, str, str | None], judge: Judge = JUDGE, trace: Trace = TRACE
) -> tuple[list[float], Reading, Mapping[str, Any]]:
    """Read lines as a model writes them, and score them; return the values, the reading and its details."""
    answer = judge.read("\n".join(line(*each) for each in lines))
    reading = judge.score(trace, [AnsweredPrompt(judge.prompts(trace)[0], answer)])
    names = ("grounded", "supported_share")
    for name, score in zip(names, reading.scores, strict=False):
        passed = bool(score.value) if name == "grounded" else None
        assert score == Score(name, score.value, score.value, passed=passed)
    return [score.value for score in reading.scores], reading, reading.details


class TestReading:
    def test_of_a_line(self) -> None:
        for name, (text, expected) in GROUNDING["lines"].items():
            found = outcome(JUDGE.read, text)
            assert found == (expected if isinstance(expected, str) else (Line(*expected),)), name

    def test_the_second_label_set_has_its_own_menu(self) -> None:
        lines = V2.read(line("A.", "NOT_SUPPORTED") + line("B.", "no_rad"))
        assert [each.label for each in lines] == ["not_supported", "no_rad"]
        with pytest.raises(OutOfRangeError):
            V2.read(line("A.", "contradictory"))
        with pytest.raises(InvalidAnswerError):
            V2.read('{"sentence": "A.", "rationale": "r", "excerpt": null}')

    def test_the_label_sets_are_judges_of_their_own_and_others_are_refused(self) -> None:
        assert JUDGE.configured({"labels": "v1"}).version == JUDGE.version
        assert JUDGE.configured({"labels": "v2"}).version == V2.version != JUDGE.version
        for values in ({"labels": "v3"}, {"label": "v1"}, {"min_covered": 1.5}):
            with pytest.raises(msgspec.ValidationError):
                JUDGE.configured(values)


class TestScoreOfFacts:
    def test_values_rationale_and_details_of_lines(self) -> None:
        for name, (fields, lines, expected, rationale, counted) in GROUNDING["scores"].items():
            trace = msgspec.convert({**msgspec.to_builtins(TRACE), **fields}, Trace)
            values, reading, details = read_and_score(*lines, trace=trace)
            assert expected in (None, values), name
            assert rationale in (None, reading.rationale), name
            assert {key: details[key] for key in counted} == counted, name
        _, reading, details = read_and_score(YEARS, (*BATTERY[:3], "Batteries are never covered."))
        assert "unsupported: 1" in (reading.rationale or "")
        left_out = read_and_score(HELLO, YEARS, ("Shipping is free.", "unsupported", "r", None))[2]
        assert (len(left_out["sentences"]), {*details} - {*NONE}) == (2, {"grounded_as_labelled", "sentences"})

    def test_the_reason_of_every_sentence_that_does_not_pass_is_kept_within_bounds(self) -> None:
        four = msgspec.structs.replace(TRACE, output=" ".join((HELLO[0], SILENT[0], YEARS[0], "It covers it all.")))
        lines = [(SILENT[0], "unsupported", "r" * 600, None), HELLO, YEARS, ("It covers it all.", *BATTERY[1:])]
        kept = [entry.get("rationale") for entry in read_and_score(*lines, trace=four)[2]["sentences"]]
        assert kept == [f"{'r' * 499}\u2026", None, None, BATTERY[2]]
        sentences = [f"Sentence number {number}." for number in range(200)]
        trace = msgspec.structs.replace(TRACE, output=" ".join(sentences))
        long = [(sentence, "unsupported", "r" * 600, None) for sentence in sentences]
        entries = read_and_score(*long, trace=trace)[2]["sentences"]
        assert len(entries) == 200
        assert sum(len(entry.get("rationale", "")) for entry in entries) == 20_000

    def test_the_second_label_set_has_one_label_for_what_lacks_support(self) -> None:
        lines = (HELLO, (*YEARS[:3], "an invented excerpt"), (SILENT[0], "not_supported", "r", "x"))
        values, _, details = read_and_score(*lines, judge=V2)
        assert values == [0.0, 0.0]
        assert [entry["label"] for entry in details["sentences"]] == ["no_rad", "not_supported", "not_supported"]
        assert (details["grounded_as_labelled"], details["fabricated_evidence"]) == (False, 1)


class TestCoverage:
    @staticmethod
    def checked(*sentences: str, output: str = TRACE.output, labels: str = "", judge: Judge = JUDGE) -> str:
        """Check lines with these sentences; ``labels`` has a letter for each, u for unsupported."""
        kinds = {"u": "unsupported", " ": "no_rad"}
        lines = judge.read("\n".join(map(line, sentences, map(kinds.__getitem__, labels.ljust(len(sentences))))))
        trace = msgspec.structs.replace(TRACE, output=output)
        assert judge.check is not None
        try:
            judge.check(trace, judge.prompts(trace)[0], lines)
        except InvalidAnswerError as error:
            return type(error).__name__
        return "whole"

    def test_what_lines_leave_out_and_add_is_counted(self) -> None:
        def counted(*sentences: str, trace: Trace = TRACE) -> list[int]:
            details = read_and_score(*((each, "no_rad", "r", None) for each in sentences), trace=trace)[2]
            return [details["uncovered_sentences"], details["invented_sentences"]]

        for name, (sentences, *expected) in GROUNDING["covered"].items():
            assert counted(*sentences) == expected, name
        items = msgspec.structs.replace(TRACE, output="Steps:\n\n1. Open the app.\n2. Choose a device.\n- Wait.")
        assert counted("Steps:", "Open the app.", "Choose a device.", "Wait.", trace=items) == [0, 0]

    def test_an_answer_that_leaves_words_out_is_incomplete(self) -> None:
        for name, (sentences, output, is_complete) in GROUNDING["complete"].items():
            expected = "whole" if is_complete else "IncompleteAnswerError"
            assert self.checked(*sentences, output=output) == expected, name

    def test_courtesies_in_ten_languages_may_be_left_out(self) -> None:
        texts = {text: self.checked("It is free.", output=f"{text} It is free.") for text in GROUNDING["courtesies"]}
        assert texts == dict.fromkeys(texts, "whole")
        for claim in ("Of course not.", "Certainly dogs are free.", "Sure, the pool is closed."):
            assert self.checked("It is free.", output=f"{claim} It is free.") == "IncompleteAnswerError", claim

    def test_the_share_that_must_be_covered_is_a_setting(self) -> None:
        judge = JUDGE.configured({"min_covered": 0.5})
        assert self.checked(YEARS[0], judge=judge) == "whole"
        assert self.checked(HELLO[0], judge=judge) == "IncompleteAnswerError"
        assert judge.version != JUDGE.version

    def test_a_line_that_is_repeated_counts_once_unless_its_label_differs(self) -> None:
        whole = (HELLO[0], YEARS[0], SILENT[0])
        assert self.checked(*whole, *whole) == "whole"
        assert self.checked(*whole, *whole, labels="     u") == "InvalidAnswerError"
        # The response itself may say something twice, and the context may support it once.
        assert self.checked("It is so.", "It is so.", output="It is so. It is so.", labels=" u") == "whole"

    def test_an_incomplete_answer_is_requested_once_more_and_then_unscored(self) -> None:
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
        assert JUDGE.whole_lines is not None
        for text in ("\n".join(both), f'{{"sentences": [{", ".join(both)}', f"[{both[0]},\n{both[0]},\n{both[1]}"):
            assert JUDGE.whole_lines(text + ', {"sentence": "It co') == "\n".join(both)
        assert JUDGE.whole_lines('{"sentence": "It co') == ""
        for draft in (f"<think>{text}\n", f"<thought>{text}</thought>", f"<|channel|>analysis<|message|>{text}\n"):
            assert JUDGE.whole_lines(draft + '{"sentence": "It co') == ""

    def test_only_the_rest_is_requested(self) -> None:
        first, second = (line(each[0], "unsupported") for each in (YEARS, SILENT))
        for form in ("{}", '{{"sentences": [{}]}}'):
            cut = form.format(first).removesuffix("]}") + ', {"sentence": "It'
            model = ScriptedModel([Step(cut, finish_reason="length"), form.format(second)])
            details: Any = asyncio.run(evaluate(JUDGE, TRACE, model)).details
            assert [each["sentence"] for each in details["sentences"]] == [YEARS[0], SILENT[0]]
            assert model.requests[1].messages[-2].content == first

    def test_the_bound_grows_with_the_response(self) -> None:
        long = msgspec.structs.replace(TRACE, output="The warranty runs for two years. " * 50)
        bounds = [JUDGE.output_tokens(trace, JUDGE.prompts(trace)[0]) for trace in (TRACE, long)]
        text = "\n".join(line(YEARS[0], "supported", "The length is given.", YEARS[3]) for _ in range(50))
        assert len(text.encode()) / 3 < bounds[1] < 4 * len(text.encode()) / 3
        assert 1024 < bounds[0] < 2048
        # A line of a long sentence holds it twice.
        wordy = msgspec.structs.replace(TRACE, output="The warranty runs for two years " * 400)
        assert JUDGE.output_tokens(wordy, JUDGE.prompts(wordy)[0]) > 2 * len(wordy.output) / 4


class TestHeuristicOfFacts:
    @both_sets
    def test_labels_each_sentence_by_its_words(self, judge: Judge) -> None:
        output = "Hello! All devices have two years of warranty. It costs 20 EUR. Shipping abroad is free. Any more?"
        lacking = "unsupported" if judge is JUDGE else "not_supported"
        labels = ["no_rad", "supported", lacking, lacking, "no_rad"]
        for text, expected in ((output, labels), ("\u3000", ["no_rad"])):
            trace = msgspec.structs.replace(TRACE, output=text)
            answer = judge.read(str(judge.heuristic(trace, judge.prompts(trace)[0])))
            assert [each.label for each in answer] == expected
            found = "All devices come with a warranty of two years."
            assert [each.excerpt for each in answer] == [found if label == "supported" else None for label in expected]

    def test_its_excerpts_are_found_and_its_sentences_are_those_of_the_answer(self) -> None:
        for trace in [SHORT, LONG, *(trace for trace in all_samples() if JUDGE.missing(trace) is None)]:
            details = asyncio.run(evaluate(JUDGE, trace, LexicalModel())).details
            assert {details[name] for name in NONE} == {0}
            assert set(details) == {*NONE, "sentences", "grounded_as_labelled"}
