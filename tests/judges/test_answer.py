"""Parsing of answers: strict, behind thoughts, nothing is invented, and every error is an ``AnswerError``.

Beside tables a corpus of 317 answers in the forms that judge models write, and refusals in words in ten languages.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import pytest
from families import OF_ANSWERS
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from judge_traces import CORPORA, corpus, misread, outcome, table, yes_no_text
from support.cases import each_case
from support.tables import expand

from judges.core.judge import AnsweredPrompt, Judge
from judges.core.prompt import MATERIAL_RULES
from judges.forms.yes_no import read
from judges.parsing import object_reader
from judges.parsing.answer import (
    AnswerError,
    InvalidAnswerError,
    OffMenuError,
    answer_of,
    beside_thoughts,
    choice,
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

TABLES, REPAIR = table("answers"), table("repair")
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


def test_what_is_readable_is_not_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("repaired")

    monkeypatch.setattr(object_reader, "repair_json", fail)
    for text in (GOOD, f"Well: {GOOD}", f"```json\n{GOOD}\n```"):
        assert read(text) == json.loads(GOOD)


def test_errors_name_keys_and_forms_but_no_text() -> None:
    errors = {**TABLES["errors"], "SECRET" * 100_000: "the answer is longer than 400000 characters"}
    for text, error in errors.items():
        with pytest.raises(AnswerError) as caught:
            read(text)
        assert str(caught.value) == error


def test_objects_are_read_by_their_keys_at_any_depth() -> None:
    """Further keys stay, keys of other forms are renamed also in entries, braces may be doubled as in templates."""
    for name, (text, keys, more, expected) in REPAIR["by keys"].items():
        assert read_object(text, keys, **more) == expected, name
    with pytest.raises(InvalidAnswerError):
        read_object('{"a":' * 5_000, ("b",))
    with pytest.raises(InvalidAnswerError):
        read_object('{{"rationale": "", "result": "no', ("rationale", "result"))


class TestFields:
    def test_a_field_that_is_no_text_is_invalid(self) -> None:
        for value in (None, True, 1, 1.0, ["a"], {"a": "b"}):
            with pytest.raises(InvalidAnswerError):
                text_field({"key": value}, "key")
            with pytest.raises(InvalidAnswerError):
                choice({"key": value}, "key", ("a",))

    def test_a_label_is_given_back_as_the_menu_writes_it(self) -> None:
        for value, menu, expected in TABLES["choices"]:
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


CASES: Final = corpus("answers")
TRACES: Final = json.loads((CORPORA / "traces.json").read_text("utf-8"))
JUDGES: Final[Mapping[str, Judge]] = {
    **OF_ANSWERS,
    "relevance_truth_completeness": catalogue()["relevance_truth_completeness"].configured({"reasoning": True}),
}
REFUSALS, OTHERS = table("refusals").values()


def found(case: Mapping[str, Any]) -> Mapping[str, object] | None:
    """Return the verdict in the terms of the corpus; None where the answer does not score."""
    judge = JUDGES[case["judge"]]
    trace = Trace(trace_id="1", service="s", **TRACES.get(case.get("trace"), {"output": "It is so."}))
    prompt: Any = judge.prompts(judge.prepare(trace))[0] if trace.context else None
    try:
        answer = judge.read(without_thinking(case["answer"]))
        if judge.check is not None:
            judge.check(trace, prompt, answer)
    except AnswerError:
        return None
    reading = judge.score(trace, [AnsweredPrompt(prompt, answer)])
    if not reading.scores:
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


def test_each_answer_of_the_corpus_is_read_as_meant_or_does_not_score() -> None:
    assert len({case["id"] for case in CASES}) == len(CASES) == 317
    assert sum(case["expect"] is not None for case in CASES) >= 200
    assert {case["id"]: seen for case in CASES if (seen := found(case)) != case["expect"]} == {}


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


KEYS = ("sentence", "label")
LINE = json.dumps({"sentence": 'A {brace} and a "quote".', "label": "yes", "note": None})


def objects(text: str) -> list[object]:
    return list(read_objects(text, KEYS, "sentences"))


def withdraw(text: str) -> None:
    is_withdrawn(text)
    list(stated(text, lambda _: None, place="behind"))


def repair(text: str) -> None:
    with suppress(UnrepairableError):
        repair_json(text, 0)


READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "what would block the event loop": lambda text: outcome(read, text) == "InvalidAnswerError",
    "answers": lambda text: read(text)["result"] == "no",
    "thoughts": answer_of,
    "withdrawals": withdraw,
    "slips": repair,
    "hostile lines": lambda text: outcome(objects, text) == "InvalidAnswerError",
    "lines with slips": lambda text: objects(text) == [{"sentence": "a", "label": "b"}] * 2_000,
}
LONG = table("long_answers")


@pytest.mark.slow("texts of megabytes")
@each_case(("name", "written"), [(name, text) for name in READERS for text in LONG[name][1]])
def test_long_texts_are_read_in_bounded_time(name: str, written: str) -> None:
    text, limit_s = expand(written), LONG[name][0]

    def seconds() -> float:
        began = time.thread_time()
        assert READERS[name](text) is not False
        return time.thread_time() - began

    # Programs beside it on the same core may slow down one run.
    assert seconds() < limit_s or seconds() < limit_s


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

    def test_an_object_whose_braces_do_not_match_stays_as_it_is(self) -> None:
        for text in ('{{"a": 1}', '{{"a": {"b": 1}}', '{{"a": "b', "{{ outputs }}"):
            with pytest.raises(UnrepairableError):
                repair_json(text, 0)
        assert repair_json('{{"a": 1}} {', 0) == ({"a": 1}, 10)

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
