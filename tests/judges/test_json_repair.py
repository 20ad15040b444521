"""Broken JSON: lossless errors are forgiven, nothing is invented, and of several objects none is lost."""

import json
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import each_case
from tables import misread, outcome, table

from judges.parsing.answer import InvalidAnswerError
from judges.parsing.json_repair import UnrepairableError, repair_json
from judges.parsing.object_lists import read_objects
from judges.parsing.objects import read_object

TABLES = table("repair")
KEYS = ("sentence", "label")
NESTED = {"rationale": "So.", "result": {"a": [{"b": {}}, {"c": 1}]}}
LINES = [{"sentence": "A.", "label": "x"}, {"sentence": "B.", "label": "y"}]
LINE = json.dumps({"sentence": 'A {brace} and a "quote".', "label": "yes", "note": None})


def objects(text: str) -> list[object]:
    return list(read_objects(text, KEYS, "sentences"))


class TestRepair:
    def test_slips_that_lose_nothing_are_forgiven(self) -> None:
        for name, (text, expected) in TABLES["mended"].items():
            value, end = repair_json(text, 0)
            assert value == expected, name
            assert list(map(type, value.values())) == list(map(type, expected.values())), name
            assert text[end:].strip("\n`") == "", name

    @each_case("text", TABLES["unmendable"].values())
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
        began = time.thread_time()
        with suppress(UnrepairableError):
            repair_json(text, 0)
        assert time.thread_time() - began < 1


class TestObjects:
    def test_all_forms_of_several_objects_are_read(self) -> None:
        # The response tells whether a line is repeated; it may say something twice itself.
        assert misread(objects, TABLES["objects"]) == {}

    def test_what_may_have_lost_an_object_is_invalid(self) -> None:
        texts = {**TABLES["no objects"], "too long": LINE + " " * 400_000}
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
        assert objects(line * 12_000) == [{"sentence": "a", "label": "b"}] * 12_000
        assert time.thread_time() - start < 4


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
