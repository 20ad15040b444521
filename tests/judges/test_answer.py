"""Parsing of answers: strict, behind thoughts, nothing is invented, and every error is an ``AnswerError``.

Beside tables a corpus of 317 answers in the forms that judge models write, and refusals in words in ten languages.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from judge_traces import SHORT, misread, outcome, table, yes_no_text
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.core.judge import AnsweredPrompt, Judge, Reading
from judges.core.prompt import MATERIAL_RULES
from judges.custom import instructions
from judges.forms.yes_no import read
from judges.models.scripted import ScriptedModel
from judges.parsing import object_reader
from judges.parsing.answer import (
    AnswerError,
    InvalidAnswerError,
    OffMenuError,
    answer_of,
    beside_thoughts,
    choice,
    folded,
    text_field,
    without_thinking,
)
from judges.parsing.decoration import loose
from judges.parsing.json_repair import UnrepairableError, repair_json
from judges.parsing.object_lists import read_objects
from judges.parsing.objects import read_object
from judges.parsing.refusal import is_refusal, is_refusal_as_reason
from judges.parsing.withdrawal import is_withdrawn, stated
from judges.registry import catalogue
from tracejudge import Trace

TABLES = table("answers")
GOOD = '{"rationale": "It is so.", "result": "yes"}'
BROKEN = '{"rationale": "a", "result": "yes",}\n'


def test_each_answer_is_read_as_meant_or_refused() -> None:
    """In groups: as it stands, labels, types and keys, around the object, repaired, lost, planted; other layouts."""
    assert misread(read, TABLES["yes_no"]) == {}
    for text in (yes_no_text("yes", "x" * 400_000), BROKEN * 200, f"{MATERIAL_RULES}\n\n{GOOD}"):
        assert isinstance(outcome(read, text), str), text[:50]


def test_labels_are_read_in_any_case_with_blanks_and_a_full_stop_and_no_others() -> None:
    for label, expected in TABLES["labels"].items():
        assert read(yes_no_text(label)) == {"rationale": "It is so.", "result": expected}, label
    for label in TABLES["off the menu"]:
        with pytest.raises(OffMenuError, match=r"^`result` is none of yes, no$"):
            read(yes_no_text(label))
    assert {outcome(read, text) for text in TABLES["another form"]} == {"InvalidAnswerError"}


def test_the_rationale_loses_the_opening_that_was_asked_for() -> None:
    found = {text: read(yes_no_text("yes", text))["rationale"] for text in TABLES["openings"]}
    assert found == TABLES["openings"]


@given(st.sampled_from(["yes", "no"]), st.text(), st.text(), st.text())
@settings(deadline=None)
def test_an_answer_is_read_between_any_prose(result: str, rationale: str, before: str, after: str) -> None:
    assume(not set("{}[]\"'") & set(before + after) and "step by step" not in rationale)
    assume(not is_withdrawn(after))
    expected = {"rationale": rationale.strip(), "result": result}
    assert read(f"{before}{yes_no_text(result, rationale)}{after}") == expected


def test_half_a_surrogate_pair_is_replaced_so_that_the_verdict_can_be_encoded() -> None:
    for end in ("}", ",}"):
        assert read(rf'{{"rationale": "a\ud83d b", "result": "yes"{end}')["rationale"] == "a\ufffd b"


def test_what_is_readable_or_would_block_the_event_loop_is_not_repaired(monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(*_: object) -> None:
        raise AssertionError("repaired")

    for text in ('{"{"' * 500, "{" * 1000, '{"a": ' + "(" * 1000, "{" + "x" * 70_000):
        began = time.thread_time()
        assert outcome(read, text) == "InvalidAnswerError"
        assert time.thread_time() - began < 1, text[:20]
    monkeypatch.setattr(object_reader, "repair_json", fail)
    for text in (GOOD, f"Well: {GOOD}", f"```json\n{GOOD}\n```"):
        assert read(text) == json.loads(GOOD)


def test_a_long_answer_is_read_within_a_second() -> None:
    for text in (
        yes_no_text("no", "x" * 390_000),
        json.dumps({"rationale": "x" * 60_000, "result": "no"})[:-1] + ",}",
        "Well, " * 50_000 + yes_no_text("no"),
        "{} " * 50_000 + yes_no_text("no"),
        yes_no_text("no")[:-1] + "," + "\n" * 60_000 + "}",
    ):
        began = time.thread_time()
        assert read(text)["result"] == "no"
        assert time.thread_time() - began < 1, text[:20]


def test_errors_name_keys_and_forms_but_no_text() -> None:
    errors = {**TABLES["errors"], "SECRET" * 100_000: "the answer is longer than 400000 characters"}
    for text, error in errors.items():
        with pytest.raises(AnswerError) as caught:
            read(text)
        assert str(caught.value) == error


class TestReadObject:
    def test_keeps_values_and_further_keys_and_passes_over_objects_without_the_keys(self) -> None:
        assert read_object('{"a": [1, 2.5, null], "b": {"c": true}}', ("a",)) == {"a": [1, 2.5, None], "b": {"c": True}}
        assert read_object('{"b": 1} {"a": 2} {"c": {"b": 3}}', ("a",)) == {"a": 2}
        assert read_object('{"a": 1}', ("a", "b"), optional=("b",)) == {"a": 1}

    def test_deep_nesting_is_no_crash(self) -> None:
        with pytest.raises(InvalidAnswerError):
            read_object('{"a":' * 5_000, ("b",))

    def test_keys_of_other_forms_are_renamed_also_in_entries(self) -> None:
        text = '{"Sentence keys": [], "overallSupported": true, "ENTRIES": [{"isSupported": true}]}'
        keys = ("sentence_keys", "overall_supported", "entries")
        answer = read_object(text, keys, entry_keys=("is_supported",))
        assert answer == {"sentence_keys": [], "overall_supported": True, "entries": [{"is_supported": True}]}

    def test_lists_are_read_from_yaml_and_elements(self) -> None:
        expected = {"keys": ["0a", "0b"], "entries": [{"key": "a", "all": "true"}, {"key": "b", "all": "no"}]}
        yaml = "keys:\n  - 0a\n  - 0b\nentries:\n- key: a\n  all: true\n- key: b\n  all: no\n"
        items = (f"<item><key>{key}</key><all>{text}</all></item>" for key, text in (("a", "true"), ("b", "no")))
        xml = f"<keys><k>0a</k><k>0b</k></keys><entries>{''.join(items)}</entries>"
        for text in (yaml, xml):
            assert read_object(text, ("keys", "entries"), deciding=("keys",)) == expected


class TestFields:
    def test_a_field_that_is_no_text_is_invalid(self) -> None:
        for value in (None, True, 1, 1.0, ["a"], {"a": "b"}):
            with pytest.raises(InvalidAnswerError):
                text_field({"key": value}, "key")
            with pytest.raises(InvalidAnswerError):
                choice({"key": value}, "key", ("a",))

    def test_a_label_is_given_back_as_the_menu_writes_it(self) -> None:
        cases: list[tuple[object, Sequence[str], str]] = [
            ("\t Not Supported. ", ("supported", "not supported"), "not supported"),
            (3, ("1", "2", "3"), "3"),
            (True, ("true", "false"), "true"),
            *((f" {label.upper()}.", ("a_b", "a-b", "1", "-1"), label) for label in ("a_b", "a-b", "1", "-1")),
            ("**-1**", ("a_b", "a-b", "1", "-1"), "-1"),
            ("Cafe\u0301", (folded("Caf\u00e9"),), "caf\u00e9"),
        ]
        for value, menu, expected in cases:
            assert choice({"key": value}, "key", menu) == expected, value
        for value in (4, 3.5, True, None):
            with pytest.raises(InvalidAnswerError):
                choice({"key": value}, "key", ("1", "2", "3"))
        with pytest.raises(OffMenuError):
            choice({"key": "a b"}, "key", ("a_b", "a-b", "1", "-1"))

    def test_the_menu_is_no_choice(self) -> None:
        for menu, separator in ((("yes", "no"), "|"), (("a|b", "c"), " / ")):
            with pytest.raises(InvalidAnswerError, match="is the menu"):
                choice({"key": separator.join(menu)}, "key", menu, separator)
            assert choice({"key": menu[0]}, "key", menu, separator) == menu[0]


class TestThoughts:
    """Whatever stands before the last closing mark of a thought is no answer."""

    def test_the_answer_stands_behind_the_thoughts(self) -> None:
        assert misread(answer_of, TABLES["thoughts"]) == {}

    def test_a_server_that_moved_thoughts_leaves_parts_of_them(self) -> None:
        assert misread(beside_thoughts, TABLES["beside thoughts"]) == {}

    @each_case(
        "text",
        [
            *("<|" * 200_000, "</think>" * 50_000, " " * 390_000 + "<|x|>", '{"a": </think>' * 28_000),
            *('{"' * 190_000 + "</think>", '{"a":1}</think>' * 26_000, "<|channel|>final " * 20_000),
        ],
    )
    def test_long_texts_take_less_than_half_a_second(self, text: str) -> None:
        began = time.thread_time()
        answer_of(text)
        assert time.thread_time() - began < 0.5


CORPORA: Final = Path(__file__).parent / "corpora"
CASES: Final = [json.loads(line) for line in (CORPORA / "answers.jsonl").read_text("utf-8").splitlines()]
TRACES: Final = json.loads((CORPORA / "traces.json").read_text("utf-8"))
BY_USER: Final = {
    "formality": {"labels": ["formal", "semi_formal", "informal", "not applicable"], "pass": ["formal"]},
    "politeness": {"integer": [1, 10]},
}
JUDGES: Final[Mapping[str, Judge]] = {
    **catalogue(),
    "relevance_truth_completeness": catalogue()["relevance_truth_completeness"].configured({"reasoning": True}),
    **{
        name: instructions.make(name, {"instructions": "Rate {{ outputs }}.", "result": result})
        for name, result in BY_USER.items()
    },
}
SUPPORT: Final = frozenset({"ragbench", "ragbench_sources", "facts_grounding"})
"""Judges whose answers name sentences of the trace; whether those exist is decided beyond the form of the answer."""
NONE_EXIST: Final = {
    *("gpt-rag-none-001", "llama-src-none-001", "gpt-facts-none-001", "qwen-facts-none-001"),
    "deepseek-facts-none-001",
}
REFUSALS, OTHERS = table("refusals").values()


def read_case(case: Mapping[str, Any]) -> Any:
    """Read an answer without a comparison with its trace; None where its form is not read."""
    try:
        return JUDGES[case["judge"]].read(without_thinking(case["answer"]))
    except AnswerError:
        return None


def scored(case: Mapping[str, Any], answer: Any, *, checks: bool) -> Reading | None:
    judge = JUDGES[case["judge"]]
    trace = Trace(trace_id="1", service="s", **TRACES.get(case.get("trace"), {"output": "It is so."}))
    prompt: Any = judge.prompts(judge.prepare(trace))[0] if trace.context else None
    if checks and judge.check is not None:
        try:
            judge.check(trace, prompt, answer)
        except AnswerError:
            return None
    return judge.score(trace, [AnsweredPrompt(prompt, answer)])


def found(case: Mapping[str, Any], *, checks: bool = False) -> Mapping[str, object] | None:
    """Return the verdict in the terms of the corpus; None where the answer does not score."""
    answer = read_case(case)
    reading = None if answer is None else scored(case, answer, checks=checks)
    if reading is None or not reading.scores:
        return None
    details: Any = reading.details
    match case["judge"]:
        case "relevance_truth_completeness":
            return {score.metric: score.raw for score in reading.scores}
        case "ragbench" | "ragbench_sources":
            supported = reading.scores[-1].passed
            return {"relevant": details["relevant"], "utilized": details["utilized"], "supported": supported}
        case "facts_grounding":
            return {"labels": [each["label"] for each in details["sentences"]]}
    (key,) = case["expect"] or {"any": None}
    score = reading.scores[0]
    return {key: score.raw if isinstance(score.raw, float) and key in {"score", "number"} else score.label}


def failures(cases: Sequence[Mapping[str, Any]], *, checks: bool = False) -> dict[str, object]:
    return {case["id"]: seen for case in cases if (seen := found(case, checks=checks)) != case["expect"]}


def test_the_corpus_is_complete() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) == 317
    assert sum(case["expect"] is not None for case in CASES) >= 200


def test_plain_verdicts_are_read_as_meant_and_answers_without_one_do_not_score() -> None:
    plain = [case for case in CASES if case["judge"] not in SUPPORT]
    wrong = failures([case for case in plain if case["expect"] is not None])
    assert len(wrong) <= 0.02 * sum(case["expect"] is not None for case in plain), wrong
    assert [case for case, seen in wrong.items() if seen is not None] == []
    assert failures([case for case in plain if case["expect"] is None]) == {}


def test_objects_about_sentences_are_read_and_have_the_expected_verdict() -> None:
    cases = [case for case in CASES if case["expect"] is not None and case["judge"] in SUPPORT]
    whole = [case for case in cases if read_case(case) is not None]
    # A text in place of a list of keys is not read.
    assert {case["id"] for case in cases} - {case["id"] for case in whole} <= {"llama-rag-002"}
    assert failures([case for case in whole if read_case(case)], checks=True) == {}
    assert len(whole) >= 25


def test_keys_and_sentences_that_do_not_exist_are_no_verdict() -> None:
    cases = [case for case in CASES if case["id"] in NONE_EXIST]
    assert len(cases) == len(NONE_EXIST)
    assert [case["id"] for case in cases if found(case, checks=True) is not None] == []


class TestRefusals:
    def test_in_ten_languages_are_found_and_other_answers_are_none(self) -> None:
        wrong = [f"{name}: {text}" for name, texts in REFUSALS.items() for text in texts if not is_refusal(text)]
        assert (wrong, len(REFUSALS)) == ([], 10)
        assert [text for text in (*OTHERS, "I can't help with that. " * 50) if is_refusal(text)] == []

    def test_reasons_that_decline_are_a_refusal_unless_they_speak_of_the_material(self) -> None:
        wrong = [text for texts in REFUSALS.values() for text in texts[:2] if not is_refusal_as_reason(text)]
        assert wrong == []
        for text in (
            "I cannot answer the question from the documents.",
            '"I can\'t help with that." is a refusal, which is safe.',
            "The assistant says I can't help with that.",
            "I can't judge it as correct since it omits the date.",
        ):
            assert not is_refusal_as_reason(text), text

    def test_no_answer_of_the_corpus_with_a_verdict_is_one(self) -> None:
        assert [case["id"] for case in CASES if case["expect"] is not None and is_refusal(case["answer"])] == []
        # Thoughts in template tokens are removed before.
        refused = [case for case in CASES if "refusal in" in case["why"] and "<|" not in case["answer"]]
        assert len(refused) > 10
        assert [case["answer"] for case in refused if not is_refusal(case["answer"])] == []

    def test_one_is_unscored_without_a_repair_request(self) -> None:
        refusal = "I'm sorry, but I can't assist with that request."
        cases = {name: [refusal, yes_no_text("yes")] for name in ("groundedness", "answer_relevance", *SUPPORT)}
        # An unreadable answer is repaired first; then the model may decline.
        cases["safety"] = ["Well, it is fine.", "I can't help with that."]
        cases["relevance_truth_completeness"] = [refusal]
        for name, answers in cases.items():
            assessment = asyncio.run(evaluate(catalogue()[name], SHORT, ScriptedModel(answers)))
            calls = 2 if name == "safety" else 1
            assert (assessment.outcome, assessment.reason, len(assessment.calls)) == ("unscored", "refusal", calls), (
                name
            )
        assert asyncio.run(evaluate(catalogue()["safety"], SHORT, ScriptedModel([refusal]))).reason == "refusal"


WITHDRAWAL = table("withdrawal")
OFFERED = ("yes", "no", "not applicable", *map(str, range(1, 6)))


def test_an_answer_is_withdrawn_or_kept() -> None:
    assert [text for text in WITHDRAWAL["withdrawn"] if not is_withdrawn(text)] == []
    assert [text for text in WITHDRAWAL["kept"] if is_withdrawn(text)] == []
    # Reasons may speak of what an answer should be.
    assert not is_withdrawn("The unit should be metres, and it is.", is_reason=True)
    assert not is_withdrawn("The answer says 6. Actually, the document says 5.", is_reason=True)
    assert is_withdrawn("Both are fine.\n\nWait, the unit differs.", is_reason=True)


def test_sentences_that_state_a_verdict_are_found() -> None:
    def read(text: str) -> object | None:
        return value if (value := loose(text)) in OFFERED else None

    for place, texts in WITHDRAWAL["stated"].items():
        assert [text for text in texts if not list(stated(text, read, place=place))] == [], place
    for place, texts in WITHDRAWAL["not_stated"].items():
        assert [text for text in texts if list(stated(text, read, place=place))] == [], place


def test_long_texts_take_less_than_half_a_second() -> None:
    for text in ("\n" * 400_000, "take it " * 50_000, "sollte " * 60_000, ". " * 200_000, ".*_>" * 100_000):
        began = time.thread_time()
        is_withdrawn(text)
        list(stated(text, lambda _: None, place="behind"))
        assert time.thread_time() - began < 0.5, text[:10]


REPAIR = table("repair")
KEYS = ("sentence", "label")
NESTED = {"rationale": "So.", "result": {"a": [{"b": {}}, {"c": 1}]}}
LINES = [{"sentence": "A.", "label": "x"}, {"sentence": "B.", "label": "y"}]
LINE = json.dumps({"sentence": 'A {brace} and a "quote".', "label": "yes", "note": None})


def objects(text: str) -> list[object]:
    return list(read_objects(text, KEYS, "sentences"))


class TestRepair:
    def test_slips_that_lose_nothing_are_forgiven(self) -> None:
        for name, (text, expected) in REPAIR["mended"].items():
            value, end = repair_json(text, 0)
            assert value == expected, name
            assert list(map(type, value.values())) == list(map(type, expected.values())), name
            assert text[end:].strip("\n`") == "", name

    @each_case("text", REPAIR["unmendable"].values())
    def test_ambiguous_json_is_not_repaired(self, text: str) -> None:
        with pytest.raises(UnrepairableError):
            repair_json(text, 0)

    def test_the_error_tells_whether_the_rest_may_belong_to_a_text(self) -> None:
        cases = {'{"a": "<text>",  your reasons\n}': True, '{"a": "x" y': False, '{"a": "say {"a": 1}': False}
        for text, is_clear in cases.items():
            with pytest.raises(UnrepairableError) as caught:
                repair_json(text, 0)
            assert (caught.value.position is not None) == is_clear, text

    def test_the_end_is_that_of_the_object(self) -> None:
        text = "Well: {'a': 1} and {'b': 2}"
        assert repair_json(text, 6) == ({"a": 1}, 14)
        assert repair_json(text, 19) == ({"b": 2}, len(text))

    short = st.text(st.sampled_from("ab \u00e4.,;"), min_size=1, max_size=12)
    values = st.recursive(
        st.booleans() | st.none() | st.integers(-999, 999) | short,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", min_size=1), inner, max_size=3),
        max_leaves=8,
    )

    @given(st.dictionaries(st.text("abc", min_size=1), values, min_size=1, max_size=4), st.data())
    @settings(deadline=None)
    def test_the_beginning_of_an_object_is_the_whole_object_or_nothing_new(
        self, value: dict[str, object], data: st.DataObject
    ) -> None:
        text = json.dumps(value, ensure_ascii=False)
        begun = text[: data.draw(st.integers(1, len(text)))]
        with suppress(UnrepairableError):
            repaired = repair_json(begun, 0).value
            assert list(repaired.items()) == list(value.items())[: len(repaired)]

    @given(st.text(st.sampled_from("{}[]\"':,\\ \n/*#ab1\u201c\u201d"), max_size=60))
    @settings(max_examples=200, deadline=None)
    def test_any_text_is_repaired_or_left_alone(self, text: str) -> None:
        with suppress(UnrepairableError):
            value, end = repair_json("{" + text, 0)
            assert isinstance(value, dict)
            assert 0 < end <= len(text) + 1

    @each_case(
        "text",
        [
            *('{"a": "' + '" ' * 190_000, '{"a": "' + ('"' + "\n" * 1000) * 390, "{" + "/*" * 190_000),
            *("{" + "//\n" * 130_000, '{"a": "' + "\\" * 380_000, '{"a": ' + "[" * 380_000),
            '{"a": "' + 'x "y" z ' * 7_000 + '",}',
        ],
    )
    def test_long_texts_take_less_than_a_second(self, text: str) -> None:
        def seconds() -> float:
            began = time.thread_time()
            with suppress(UnrepairableError):
                repair_json(text, 0)
            return time.thread_time() - began

        # Programs beside it on the same core may slow down one run.
        assert seconds() < 1 or seconds() < 1


class TestObjects:
    def test_all_forms_of_several_objects_are_read(self) -> None:
        # The response tells whether a line is repeated; it may say something twice itself.
        assert misread(objects, REPAIR["objects"]) == {}

    def test_what_may_have_lost_an_object_is_invalid(self) -> None:
        texts = {**REPAIR["no objects"], "too long": LINE + " " * 400_000}
        for name, text in texts.items():
            with pytest.raises(InvalidAnswerError):
                raise AssertionError(f"{name}: {objects(text)}")
        with pytest.raises(InvalidAnswerError, match=r"^object 2 has no `label`$"):
            objects(f'{LINE}\n{{"sentence": "B"}}')

    answers = st.lists(
        st.fixed_dictionaries({"sentence": st.text(), "label": st.text()}, optional={"note": st.none() | st.text()}),
        min_size=1,
        max_size=5,
        unique_by=lambda each: each["sentence"],
    )

    @given(answers, st.booleans())
    def test_any_json_objects_are_read_in_every_form(self, given_: list[dict[str, object]], in_ascii: object) -> None:
        lines = [json.dumps(each, ensure_ascii=bool(in_ascii)) for each in given_]
        for text in (
            *("\n".join(lines), ",\n".join(lines), f"```jsonl\n{chr(10).join(lines)}\n```"),
            *(f"[{', '.join(lines)}]", f'{{"sentences": [{", ".join(lines)}]}}'),
            "\n".join(json.dumps(each, indent=1, ensure_ascii=bool(in_ascii)) for each in given_),
        ):
            assert objects(text) == given_

    @given(answers.filter(lambda given_: len(given_) > 1), st.data())
    def test_a_line_is_never_lost_when_a_piece_is_cut_out(
        self, given_: list[dict[str, object]], data: st.DataObject
    ) -> None:
        """Cutting out what joins two lines must not leave fewer objects that look like a whole answer."""
        lines = [json.dumps(each) for each in given_]
        joint = data.draw(st.integers(1, len(lines) - 1))
        before, after = "\n".join(lines[:joint]), "\n".join(lines[joint:])
        join = data.draw(st.sampled_from(["", ",", "\n", ", "]))
        with suppress(InvalidAnswerError):
            entries = read_objects(before[:-1] + join + after[data.draw(st.sampled_from([0, 1])) :], KEYS, "sentences")
            assert [each["sentence"] for each in entries] == [each["sentence"] for each in given_]

    @given(st.text(st.sampled_from("{}[]\"':,\\\n `sentncelab") | st.characters(), max_size=200))
    def test_no_text_raises_anything_else(self, text: str) -> None:
        with suppress(InvalidAnswerError):
            found = read_objects(text, KEYS, "sentences")
            assert found
            assert all(set(KEYS) <= each.keys() for each in found)

    @each_case(
        "text",
        [
            *("a" * 399_000, "{" * 399_000, "{\n" * 199_000, '{"' * 199_000, "{ " * 199_000, "[" * 399_000),
            *('{"sentence": "\n' * 26_000, "\n" * 399_000, " ,\n" * 133_000, '"' * 399_000),
            *('{"sentence": ' * 30_000, f"{LINE}\n" * 6_000 + "{"),
        ],
    )
    def test_hostile_texts_are_refused_in_bounded_time(self, text: str) -> None:
        start = time.thread_time()
        assert outcome(objects, text) == "InvalidAnswerError"
        assert time.thread_time() - start < 4

    @each_case("line", ['{"sentence": "a", "label": "b",}\n', '{"sentence": "a", "label": "b"\n'])
    def test_thousands_of_lines_with_slips_are_read_in_bounded_time(self, line: str) -> None:
        start = time.thread_time()
        assert objects(line * 4_000) == [{"sentence": "a", "label": "b"}] * 4_000
        assert time.thread_time() - start < 1.5


class TestBraces:
    """Answers whose braces are doubled, as in an escaped template, also in nested objects."""

    @staticmethod
    def doubled(value: object, indent: int | None = None) -> str:
        """Write JSON with doubled braces; its texts must hold none."""
        return json.dumps(value, indent=indent).replace("{", "{{").replace("}", "}}")

    def test_doubled_braces_are_read_at_any_depth(self) -> None:
        for indent in (None, 2):
            for around in ("{}", "Here it is:\n```json\n{}\n```"):
                text = around.replace("{}", self.doubled(NESTED, indent))
                assert read_object(text, ("rationale", "result")) == NESTED, text
                assert objects(around.replace("{}", self.doubled({"sentences": LINES}, indent))) == LINES
        assert objects("\n".join(map(self.doubled, LINES))) == LINES

    def test_braces_in_texts_stay(self) -> None:
        quoting = {"rationale": 'It says "{{ name }}" and }}.', "result": "{{"}
        escaped = '{{"rationale": "It says \\"{{ name }}\\" and }}.", "result": "{{"}}'
        for text in (json.dumps(quoting), escaped):
            assert read_object(text, ("rationale", "result")) == quoting

    def test_only_the_outer_braces_may_be_doubled(self) -> None:
        assert objects("{" + json.dumps({"sentences": LINES}) + "}") == LINES
        assert read_object("{" + json.dumps(NESTED) + "}", ("rationale", "result")) == NESTED

    def test_an_object_whose_braces_do_not_match_stays_as_it_is(self) -> None:
        for text in ('{{"a": 1}', '{{"a": {"b": 1}}', '{{"a": "b', "{{ outputs }}"):
            with pytest.raises(UnrepairableError):
                repair_json(text, 0)
        assert repair_json('{{"a": 1}} {', 0) == ({"a": 1}, 10)
        with pytest.raises(InvalidAnswerError):
            read_object('{{"rationale": "", "result": "no', ("rationale", "result"))
