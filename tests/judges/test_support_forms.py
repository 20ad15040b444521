"""The answer object of the two RAGBench judges: valid and invalid answers."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_traces import HOSTILE, LONG, SHORT, all_samples, filled
from support.cases import each_case
from support_answers import answer, figures, of_response, of_source, scored, trace

from judges.calling.evaluation import evaluate
from judges.catalog import ragbench, ragbench_sources
from judges.core.judge import Judge
from judges.core.prompt import MATERIAL_RULES
from judges.core.verdict import Assessment
from judges.models.lexical import LexicalModel
from judges.models.scripted import ScriptedModel
from judges.parsing.answer import InvalidAnswerError

KEYS = (
    "relevance_explanation",
    "all_relevant_sentence_keys",
    "overall_supported_explanation",
    "overall_supported",
    "sentence_support_information",
    "all_utilized_sentence_keys",
)


@dataclass(frozen=True)
class Case:
    """A judge, an entry of its answers, and the names of the entry's fields by type."""

    judge: Judge
    entry: Callable[..., dict[str, object]]
    key: str
    truth: str
    entry_keys: tuple[str, ...]


CASES = {
    "ragbench": Case(
        ragbench.JUDGE,
        lambda: of_response("a", ["0a"]),
        "response_sentence_key",
        "fully_supported",
        ("response_sentence_key", "explanation", "supporting_sentence_keys", "fully_supported"),
    ),
    "ragbench_sources": Case(
        ragbench_sources.JUDGE,
        lambda: of_source("D1_S1"),
        "sentence_key",
        "is_supported",
        ("sentence_key", "is_supported", "explanation"),
    ),
}
TRACE = trace(["One is here. Two is here."])

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def refused(judge: Judge, text: object) -> str:
    with pytest.raises(InvalidAnswerError) as caught:
        judge.read(text if isinstance(text, str) else json.dumps(text))
    return str(caught.value)


class TestForm:
    @every_case
    def test_schema_asks_for_every_key_in_order_and_no_other(self, case: Case) -> None:
        schema: Any = case.judge.schema
        entries = schema["properties"]["sentence_support_information"]
        assert tuple(schema["required"]) == tuple(schema["properties"]) == KEYS
        assert tuple(entries["items"]["required"]) == tuple(entries["items"]["properties"]) == case.entry_keys
        assert schema["additionalProperties"] is entries["items"]["additionalProperties"] is False

    @every_case
    def test_prompt_shows_the_keys_in_the_same_order_after_the_rules_of_the_material(self, case: Case) -> None:
        (fixed,) = case.judge.fixed_parts
        rules, form = fixed.split(MATERIAL_RULES)
        order = (*KEYS[:5], *case.entry_keys, KEYS[5])
        assert sorted(order, key=lambda key: form.index(f'"{key}":')) == list(order)
        assert rules.startswith("You examine")

    @every_case
    def test_fixed_part_is_the_same_for_every_trace_and_setting(self, case: Case) -> None:
        judges = [case.judge, case.judge.configured({"lengths": True})]
        asked = [SHORT, LONG, *filled(HOSTILE["placeholders"])]
        assert {p.fixed for judge in judges for judge_ in asked for p in judge.prompts(judge_)} == {
            case.judge.fixed_parts[0]
        }

    @every_case
    def test_settings_change_the_version_and_unknown_ones_are_refused(self, case: Case) -> None:
        assert case.judge.configured({"lengths": True}).version != case.judge.version
        assert case.judge.configured({"lengths": "false"}).version == case.judge.version
        with pytest.raises(ValueError, match="unknown field `length`"):
            case.judge.configured({"length": True})


class TestRead:
    @every_case
    def test_a_whole_answer_is_read_with_fences_prose_and_further_keys(self, case: Case) -> None:
        whole = answer([case.entry()])
        text = json.dumps(whole)
        extra = json.dumps({"answer": "ignored", **whole})
        read = [
            case.judge.read(each) for each in (text, f"Here:\n```json\n{text}\n```\nDone.", extra, text[:-1] + ",}")
        ]
        assert read == [read[0]] * 4

    @every_case
    def test_several_whole_answers_must_agree(self, case: Case) -> None:
        first, last = (json.dumps(answer(overall_supported=whole)) for whole in (True, False))
        assert case.judge.read(f"{last}\n{last}").supported is False
        with pytest.raises(InvalidAnswerError, match="two different results"):
            case.judge.read(f"{first}\n{last}")

    @pytest.mark.parametrize("written", ["true", "True", " TRUE. "])
    @every_case
    def test_true_may_be_written_as_a_text(self, case: Case, written: str) -> None:
        texts = answer([{**case.entry(), case.truth: written}], overall_supported=written)
        assert case.judge.read(json.dumps(texts)) == case.judge.read(json.dumps(answer([case.entry()])))

    @each_case("key", KEYS)
    @every_case
    def test_no_key_may_be_missing(self, case: Case, key: str) -> None:
        text = answer([case.entry()])
        del text[key]
        assert refused(case.judge, text).startswith("no JSON object with the keys ")

    @each_case(
        ("key", "value", "message"),
        [
            ("relevance_explanation", ["x"], "`relevance_explanation` is not a text"),
            ("relevance_explanation", ["x"], "`relevance_explanation` is not a text"),
            ("all_relevant_sentence_keys", None, "`all_relevant_sentence_keys` is not a list of texts"),
            ("all_relevant_sentence_keys", [1], "`all_relevant_sentence_keys` is not a list of texts"),
            ("overall_supported_explanation", 1, "`overall_supported_explanation` is not a text"),
            ("overall_supported", "maybe", "`overall_supported` is neither true nor false"),
            ("overall_supported", 1, "`overall_supported` is neither true nor false"),
            ("overall_supported", None, "`overall_supported` is neither true nor false"),
            ("sentence_support_information", {}, "`sentence_support_information` is not a list"),
            ("sentence_support_information", "none", "`sentence_support_information` is not a list"),
            ("all_utilized_sentence_keys", {"0a": True}, "`all_utilized_sentence_keys` is not a list of texts"),
            ("all_utilized_sentence_keys", [["0a"]], "`all_utilized_sentence_keys` is not a list of texts"),
        ],
        ids=lambda value: repr(value)[:30],
    )
    @every_case
    def test_no_value_may_be_of_another_type(self, case: Case, key: str, value: object, message: str) -> None:
        assert refused(case.judge, answer([case.entry()], **{key: value})) == message

    @each_case("entry", ["a", None, ["a"], {}, {"explanation": "secret"}], ids=repr)
    @every_case
    def test_every_entry_is_an_object_with_all_its_keys(self, case: Case, entry: object) -> None:
        assert refused(case.judge, answer([case.entry(), entry])) == (
            f"entry 2 of `sentence_support_information` is no object with the keys {', '.join(case.entry_keys)}"
        )

    @every_case
    def test_no_value_of_an_entry_may_be_of_another_type(self, case: Case) -> None:
        for key in case.entry_keys:
            message = refused(case.judge, answer([{**case.entry(), key: 7}]))
            assert message.startswith(f"entry 1 of `sentence_support_information`: `{key}` is n")

    @each_case(
        "text", ["", "I cannot help with that.", "true", "[]", "null", '{"relevance_explanation": "cut o'], ids=repr
    )
    @every_case
    def test_text_without_an_answer_is_refused(self, case: Case, text: str) -> None:
        assert refused(case.judge, text).startswith("no JSON object")

    @given(st.text())
    def test_no_text_is_read_as_an_answer_by_chance(self, text: str) -> None:
        for case in CASES.values():
            assert refused(case.judge, text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3)
)
some_keys = st.sampled_from(["0a", "0B.", "D1_S1", "d1_s2:", "a", "general", "9z", "", "\ud800"])


def entries(case: Case) -> st.SearchStrategy[list[dict[str, object]]]:
    strategies = {
        case.key: some_keys,
        "explanation": st.text(max_size=5),
        case.truth: st.booleans(),
        "supporting_sentence_keys": st.lists(some_keys, max_size=4),
    }
    return st.lists(st.fixed_dictionaries({key: strategies[key] for key in case.entry_keys}), max_size=5)


class TestCheck:
    """An answer that names keys of which none exists cannot be read."""

    @staticmethod
    def outcome(case: Case, *answers: Mapping[str, object]) -> Assessment:
        return asyncio.run(evaluate(case.judge, TRACE, ScriptedModel([json.dumps(each) for each in answers])))

    @every_case
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

    @every_case
    def test_entries_count_together(self, case: Case) -> None:
        lost = {**case.entry(), case.key: "q9"}
        assert self.outcome(case, answer([lost])).reason == "invalid_answer"
        assert self.outcome(case, answer([lost, case.entry()])).outcome == "scored"

    def test_special_words_are_no_lost_keys(self) -> None:
        case = CASES["ragbench"]
        assert self.outcome(case, answer([of_response("a", ["general"])])).outcome == "scored"
        assert self.outcome(case, answer([of_response("a", ["9z"])])).reason == "invalid_answer"


class TestEmptyCompleteness:
    """Completeness is a share of the relevant sentences, which is undefined where there are none."""

    @every_case
    def test_has_no_value_unless_one_is_configured(self, case: Case) -> None:
        text = answer([case.entry()], all_utilized_sentence_keys=["0a", "D1_S1"])
        reading = scored(case.judge, TRACE, text)
        assert "completeness" not in figures(reading)
        assert reading.details["completeness_undefined"] == 1
        for value in (1.0, 0.0):
            reading = scored(case.judge.configured({"empty_completeness": value}), TRACE, text)
            assert figures(reading)["completeness"] == value
        with pytest.raises(ValueError, match="empty_completeness"):
            case.judge.configured({"empty_completeness": 2.0})


class TestSchema:
    """Keys are bounded by a pattern, the same for every trace, or listed for each trace."""

    @staticmethod
    def bounds(schema: Any) -> list[Mapping[str, Any]]:
        """Return the schemas of all keys."""
        named = [value for key, value in schema["properties"].items() if key.endswith("_keys")]
        entry = schema["properties"]["sentence_support_information"]["items"]["properties"]
        named += [value for key, value in entry.items() if key.endswith(("_key", "_keys"))]
        return [value.get("items", value) for value in named]

    @every_case
    def test_the_pattern_matches_the_keys_that_are_shown(self, case: Case) -> None:
        for asked in (SHORT, LONG, TRACE):
            (prompt,) = case.judge.prompts(asked)
            assert prompt.schema is None
            shown = [prompt.about] if case.judge.name == "ragbench_sources" else list(prompt.about)
            patterns = [re.compile(bound["pattern"]) for bound in self.bounds(case.judge.schema)]
            unmatched = [key for keyed in shown for key in keyed.sentences if not any(p.search(key) for p in patterns)]
            assert unmatched == []

    @every_case
    def test_with_enum_keys_the_keys_of_the_trace_are_listed(self, case: Case) -> None:
        judge = case.judge.configured({"enum_keys": True})
        model = ScriptedModel([json.dumps(answer([case.entry()]))])
        asyncio.run(evaluate(judge, TRACE, model))
        expected = {
            "ragbench": [["0a", "0b"], ["0a", "0b"], ["a"], ["0a", "0b", *sorted(ragbench.SPECIAL_WORDS)]],
            "ragbench_sources": [["D1_S1", "D1_S2"]] * 3,
        }
        assert [bound["enum"] for bound in self.bounds(model.requests[0].schema)] == expected[judge.name]
        (many,) = judge.prompts(trace(["Line here. " * 400]))
        assert "pattern" in self.bounds(many.schema)[0]


class TestScore:
    @given(st.data())
    def test_values_lie_on_their_scales_with_any_keys(self, data: st.DataObject) -> None:
        case = data.draw(st.sampled_from(sorted(CASES.values(), key=lambda case: case.judge.name)))
        text = answer(
            data.draw(entries(case)),
            overall_supported=data.draw(st.booleans()),
            all_relevant_sentence_keys=data.draw(st.lists(some_keys)),
            all_utilized_sentence_keys=data.draw(st.lists(some_keys)),
        )
        reading = scored(case.judge, TRACE, text)
        without = {"completeness"} if reading.details["completeness_undefined"] else set()
        assert tuple(figures(reading)) == tuple(name for name in case.judge.metric_names if name not in without)
        assert all(0.0 <= value <= 1.0 for value in figures(reading).values())
        assert json.dumps(reading.details).encode()

    @given(st.fixed_dictionaries(dict.fromkeys(KEYS, json_values)))
    def test_values_of_any_type_are_read_or_refused(self, said: dict[str, object]) -> None:
        for case in CASES.values():
            try:
                reading = scored(case.judge, TRACE, said)
            except InvalidAnswerError:
                continue
            assert said["sentence_support_information"] == []
            assert reading.scores[-1].value in {0.0, 1.0}

    @every_case
    def test_rationales_are_those_of_the_model(self, case: Case) -> None:
        reading = scored(case.judge, TRACE, answer([case.entry()]))
        assert reading.rationale == "All is said there."
        assert [score.rationale for score in reading.scores] == ["Document one helps.", None, None]

    @every_case
    def test_details_hold_keys_and_no_text_of_the_trace(self, case: Case) -> None:
        (prompt,) = case.judge.prompts(TRACE)
        assert "Two is here." in prompt.blocks[1].value
        details = scored(case.judge, TRACE, answer([case.entry()], all_relevant_sentence_keys=["0b", "D1_S2"])).details
        assert "is here" not in json.dumps(details)


class TestHeuristic:
    @every_case
    def test_answers_in_the_form_that_was_asked(self, case: Case) -> None:
        for asked in [SHORT, LONG, *(sample for text in HOSTILE.values() for sample in filled(text))]:
            (prompt,) = case.judge.prompts(asked)
            text: Any = case.judge.heuristic(asked, prompt)
            assert tuple(text) == KEYS
            assert {tuple(entry) for entry in text["sentence_support_information"]} <= {case.entry_keys}
            assert scored(case.judge, asked, text).details["fabricated_evidence"] == 0

    @every_case
    def test_contradicts_itself_nowhere(self, case: Case) -> None:
        for asked in (sample for sample in all_samples() if case.judge.missing(sample) is None):
            (prompt,) = case.judge.prompts(asked)
            details = scored(case.judge, asked, case.judge.heuristic(asked, prompt)).details
            counts = ("contradictions", "missing_entries", "repeated_entries", "fabricated_evidence")
            assert {name: details[name] for name in counts} == dict.fromkeys(counts, 0)

    @each_case(
        "text",
        ["Same word. " * 20_000, "a" * 100_000, "x" + "\u200b" * 20_000, "0a. general\n" * 9_000, '{"' * 50_000],
        ids=["one sentence over and over", "one word", "invisible", "keys", "openings"],
    )
    @every_case
    def test_a_very_long_trace_is_scored_too(self, case: Case, text: str) -> None:
        assessment = asyncio.run(evaluate(case.judge, trace([text, text], text), LexicalModel()))
        assert (assessment.outcome, assessment.reason) == ("scored", None)
