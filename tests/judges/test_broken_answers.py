"""No broken answer becomes a score: each has the outcome stated in its table, in a complete evaluation.

Most cases change a good answer in a way that every family of judges can meet; ``family_answers.json`` holds what only
one can meet. Each answer is given twice, so that asking again brings nothing new.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
import pytest
from explorations import Looking, looks
from families import FAMILIES, JUDGES, TRACE, Family, in_elevenths, members, written
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import in_loop, table
from msgspec import structs
from support.cases import each_case
from support.tables import expand

from judges.calling.evaluation import evaluate
from judges.core.verdict import FINAL_REASONS, Assessment
from judges.models.scripted import Step
from judges.parsing import object_reader
from judges.parsing.answer import AnswerError
from judges.parsing.json_repair import Repaired, repair_json

UNSCORED = {
    "ASKED": ("invalid_answer", 2),
    "EMPTY": ("invalid_answer", 1),
    "OFF": ("out_of_range", 1),
    "OFF_ASKED": ("out_of_range", 2),
    "INCOMPLETE": ("incomplete", 2),
    "REFUSAL": ("refusal", 1),
    "FILTER": ("content_filter", 1),
    "TRUNCATED": ("truncated", 2),
}
"""Reason and number of requests. Beside them: READ, MENDED (repaired), SECOND (the second is read), ABSTAINED."""
OBJECT = "facts_grounding (one object)"

Answer = str | Step | tuple[str | Step, str | Step]
"""A pair is a first answer and a second."""


class Case(NamedTuple):
    """One kind of broken answer, written for a family; nothing where a family cannot meet it."""

    answers: Callable[[Family], Sequence[Answer]]
    outcome: str
    but: Mapping[str, str] = {}


def plain(family: Family) -> str:
    return written(family.good)


def other(family: Family) -> str:
    return written(family.other)


def one(write: Callable[[str], str]) -> Callable[[Family], Sequence[Answer]]:
    """Change the good answer as a text."""
    return lambda family: [write(plain(family))]


def in_text(*values: object) -> Callable[[Family], Sequence[Answer]]:
    """Put each value where the free text stands."""
    return lambda family: [family.text(**{family.text_key: value}) for value in values if family.text_key]


def raw(family: Family, key: str, text: str) -> str:
    """Write a text as the value of a key as it is: nothing is escaped."""
    return family.text(**{key: "@@"}).replace('"@@"', text)


def raw_text(text: str) -> Callable[[Family], Sequence[Answer]]:
    return lambda family: [raw(family, family.text_key, f'"{text}"')] if family.text_key else []


def each_key(write: Callable[[str], str]) -> Callable[[Family], Sequence[Answer]]:
    """Write each needed key in another way."""
    return lambda family: [plain(family).replace(f'"{key}"', f'"{write(key)}"') for key in family.needed]


def of_type(value: object, kind: str) -> Callable[[Family], Sequence[Answer]]:
    """Replace the value of each typed key with another value, one at a time; a float counts as a number too."""
    kinds = {kind, "float"} if kind == "int" else {kind}
    return lambda family: [
        family.text(**{key: value}) for key in family.needed if type(family.good[0][key]).__name__ in kinds
    ]


def by_pattern(pattern: str, by: str) -> Callable[[Family], Sequence[Answer]]:
    return one(lambda text: re.sub(pattern, by, text))


def numbers(family: Family, key: str, *words: str) -> list[str]:
    """Write under a key what is no value of JSON, alone and behind a remark."""
    return [start + raw(family, key, word) for word in words for start in ("", "Here:\n\n")]


def form(family: Family) -> str:
    """Return the form of the answer from the fixed part, as a weak model repeats it."""
    fixed = family.judge.fixed_parts[0]
    return fixed[fixed.index("How to answer") :]


def spaced(key: str) -> str:
    """Write a key in spaced form; a key of one word with blanks between is another key."""
    return re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", key) if re.search("_|[a-z][A-Z]", key) else key.title()


def is_flat(family: Family) -> bool:
    return not family.lines and not any(isinstance(value, list) for value in family.good[0].values())


def each_line(write: str, between: str = "\n") -> Callable[[Family], list[str]]:
    """Write a flat answer with a line for each key."""

    def lines(family: Family) -> Iterator[str]:
        for key, value in family.good[0].items():
            yield write.format(key=key, value=value, spaced=spaced(key).title(), upper=key.upper(), title=key.title())

    return lambda family: [between.join(lines(family))] if is_flat(family) else []


def verdict(family: Family, *, is_other: bool) -> str | None:
    """Return the verdict of the good answer or of the other one, as a word, where it alone decides."""
    label = (family.other if is_other else family.good)[0][family.verdict_key]
    if len(family.good[0]) > 2 or family.lines or isinstance(label, list):
        return None
    return str(label).lower() if isinstance(label, bool) else str(label)


def refusal_as_reason(family: Family) -> Sequence[Answer]:
    declined = in_text("I'm sorry, but I can't help with that.")
    return declined(family) if family.text_key in {"rationale", "justification"} and not family.lines else []


def filled(templates: list[Any]) -> Callable[[Family], list[Answer]]:
    """Fill answers, and parts of them, into templates; one that needs a word that the family does not have goes.

    A template is a text, a step of a model, or a first and a second of them.
    """

    def fill(family: Family) -> list[Answer]:
        good, last = plain(family), other(family)
        array = json.dumps(family.good)
        words = {"word": verdict(family, is_other=False), "other word": verdict(family, is_other=True)}
        parts = {
            "good": good,
            "start of good": good[:30],
            "most of good": good[:-12],
            "good as a string": json.dumps(good),
            "array of good": array,
            "array if lines": array if family.lines else good,
            "form": form(family),
            "other": last,
            "open other": last[:-1],
            "rest of other": last[1:],
            "half of other": last[: len(last) // 2],
            "key": family.keys[0],
            "verdict key": family.verdict_key,
            **words,
        }

        def put(template: str) -> str:
            return expand(re.sub("«([a-z ]+)»", lambda match: str(parts[match[1]]), template))

        def step(template: Any) -> str | Step:
            if isinstance(template, str):
                return put(template)
            return Step(**{key: put(value) if key == "text" else value for key, value in template.items()})

        usable = [each for each in templates if all(parts[name] for name in re.findall("«([a-z ]+)»", str(each)))]
        return [(step(each[0]), step(each[1])) if isinstance(each, list) else step(each) for each in usable]

    return fill


SLIPS = {
    "line breaks of Windows": Case(one(lambda text: f"Here it is:\r\n\r\n{text}\r\n".replace("\n{", "\r\n{")), "READ"),
    "single quotes, as Python writes": Case(lambda f: ["\n".join(map(repr, f.good))], "MENDED"),
    "a comma after the last item of a list": Case(
        lambda f: [plain(f).replace('"]', '",]')] if '"]' in plain(f) else [], "MENDED"
    ),
    "a comma missing at the end of a line": Case(
        lambda f: [re.sub(r",\n(\s*\"\w+\":)", r"\n\1", json.dumps(f.good[0], indent=1))] * (not f.lines), "MENDED"
    ),
    "the last brace missing behind a text or a list": Case(lambda f: [plain(f)[:-1]] * (not f.ends_bare), "MENDED"),
    "the last brace missing behind a number, which may lack signs": Case(
        lambda f: [plain(f)[:-1]] * f.ends_bare, "ASKED"
    ),
    "braces doubled": Case(
        lambda f: ["\n".join(f"{{{json.dumps(part)}}}" for part in f.good)],
        "READ",
        dict.fromkeys(("facts_grounding", OBJECT), "MENDED"),
    ),
    "a key missing": Case(lambda f: [f.without(key) for key in f.needed], "ASKED"),
    "keys in capitals": Case(each_key(str.upper), "READ"),
    "keys in spaced or camel form": Case(each_key(spaced), "READ"),
    "blanks around a key": Case(each_key(" {} ".format), "READ"),
    "a key that nobody reads, with no value of JSON or twice": Case(
        lambda f: numbers(
            f, "confidence", "NaN", "-Infinity", "1e999", "9" * 5_000, '[{"a": NaN}]', '1, "confidence": 2'
        ),
        "READ",
    ),
    "null for a label": Case(lambda f: [f.text(**{f.verdict_key: None})], "ASKED"),
    "NaN or Infinity for the verdict": Case(
        lambda f: numbers(f, f.verdict_key, "NaN", "Infinity", "-Infinity"), "ASKED"
    ),
    "cut off": Case(lambda f: [plain(f)[: int(len(plain(f)) * share)] for share in (0.1, 0.3, 0.5, 0.7, 0.9)], "ASKED"),
    "a refusal in the reasons": Case(refusal_as_reason, "REFUSAL"),
}
TABLES = table("broken_answers")
CASES = {
    **SLIPS,
    **{what: Case(filled(each), outcome, *but) for what, (outcome, each, *but) in TABLES["templates"].items()},
    **{what: Case(by_pattern(*pair), outcome, but) for what, (outcome, *pair, but) in TABLES["substitutions"].items()},
    **{what: Case(in_text(*texts), outcome) for what, (outcome, *texts) in TABLES["reasons"].items()},
    **{what: Case(raw_text(text), outcome) for what, (outcome, text) in TABLES["reasons as they are"].items()},
    **{what: Case(each_line(*how), outcome) for what, (outcome, *how) in TABLES["lines"].items()},
    **{what: Case(of_type(*how), outcome) for what, (outcome, *how) in TABLES["other types"].items()},
}


def evaluated(family: Family, answer: Answer) -> Assessment:
    """Evaluate an answer; the call by which a judge looks at the trace first is left out."""
    steps = answer if isinstance(answer, tuple) else (answer, answer)
    assessment = in_loop(evaluate(family.judge, TRACE, Looking(steps)))
    return structs.replace(assessment, calls=assessment.calls[looks(family.judge) :])


def seen_in(assessment: Assessment) -> tuple[object, ...]:
    scores = {score.metric: score.value for score in assessment.scores}
    return assessment.outcome, assessment.reason, scores, len(assessment.calls)


@in_elevenths
@each_case(("name", "what"), itertools.product(FAMILIES, CASES), share="share")
def test_a_broken_answer_has_its_stated_outcome(name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, case = FAMILIES[name], CASES[what]
    repaired: list[Repaired] = []

    def recorded(text: str, start: int) -> Repaired:
        repaired.append(repair_json(text, start))
        return repaired[-1]

    monkeypatch.setattr(object_reader, "repair_json", recorded)
    outcome = case.but.get(family.name, case.outcome)
    for answer in case.answers(family):
        repaired.clear()
        seen = seen_in(evaluated(family, answer))
        if outcome in UNSCORED:
            reason, calls = UNSCORED[outcome]
            assert seen == ("unscored", reason, {}, 2 if isinstance(answer, tuple) else calls), answer
            continue
        assert seen == ("scored", None, pytest.approx(family.good_scores), 2 if outcome == "SECOND" else 1), answer
        assert (outcome == "READ") <= (not repaired), answer
        assert (outcome == "MENDED") <= bool(repaired), answer


def test_every_judge_belongs_to_a_family_and_each_case_can_be_met_by_one() -> None:
    assert {name for family in FAMILIES.values() for name in members(family)} == set(JUDGES)
    assert [what for what, case in CASES.items() if not any(map(case.answers, FAMILIES.values()))] == []


def own_text(family: Family, answer: str | dict[str, Any] | list[str]) -> str:
    """Write an answer of the table: a text, changes of the good answer, or a key with what stands for its value."""
    if isinstance(answer, list):
        return raw(family, *answer)
    return family.text(**answer) if isinstance(answer, dict) else answer


OWN = {
    f"{name}: {what}": (FAMILIES[name], *case)
    for names, cases in table("family_answers").items()
    for name in names.split("|")
    for what, case in cases.items()
}


def test_an_answer_that_only_one_family_can_meet_has_its_stated_outcome() -> None:
    wrong = {}
    for name, (family, outcome, answers, *more) in OWN.items():
        scores = {"good": family.good_scores, "other": family.other_scores}.get(str(more[0]), more[0]) if more else {}
        expected: tuple[object, ...] = ("scored", None, pytest.approx(scores), 1)
        if outcome in UNSCORED:
            reason, calls = UNSCORED[outcome]
            expected = ("unscored", reason, {}, calls)
        elif outcome == "ABSTAINED":
            expected = ("abstained", None, {}, 1)
        for answer in answers:
            assessment = evaluated(family, own_text(family, answer))
            details = {key: assessment.details.get(key) for key in more[1]} if more[1:] else {}
            if seen_in(assessment) != expected or [details] != (more[1:] or [{}]):
                wrong[name] = (answer, seen_in(assessment), details)
    assert wrong == {}


PIECES = [
    "{", "}", "[", "]", ":", ",", '"', "'", "\\", "\n", " ", "```json\n", "```", "//", "/*", "#", "\ufeff", "\u201c",
    "null", "true", "false", "1e999", "-0", "NaN", "Infinity", "0", "6", "4.5", "4", '"4"', '"yes"', '"no"', "yes",
    '"maybe"', '"supported"', '"no_rad"', '"general"', '"0a"', '"D1_S1"', '"\\ud800"', '"\\u', "\ud800", "\x00",
    "score: 4\n", "justification: x\n", "<<answer 0123456789ab>>\n", "9" * 400, "9" * 5000,
]  # fmt: skip
WORDS = ["yes", "no", "unknown", "4", "4.0", "true", "supported", "no_rad", "0a", "D1_S2", "a", "general"]
leaves = st.none() | st.booleans() | st.integers(-3, 8) | st.integers() | st.floats()
any_json = st.recursive(
    leaves | st.text(st.characters(), max_size=10) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def with_keys_of(value: object) -> st.SearchStrategy[object]:
    """Make values of the same shape: with the same keys and any JSON at some of the leaves."""
    if isinstance(value, Mapping):
        items = {key: with_keys_of(item) for key, item in value.items()}
        return st.fixed_dictionaries(items) | any_json
    if isinstance(value, list):
        return st.lists(st.one_of(*map(with_keys_of, value)) if value else any_json, max_size=3) | any_json
    return st.just(value) | any_json


@st.composite
def damaged(draw: st.DrawFn, family: Family) -> str:
    """Damage a good answer: remove, insert and duplicate pieces."""
    good, last = plain(family), other(family)
    text = draw(st.sampled_from([good, last, f"{good}\n{last}", f"```json\n{good}\n```", repr(family.good[0])]))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        put = draw(st.sampled_from(["", *PIECES, text[start:end] * 2]) | st.text(st.characters(), max_size=5))
        text = text[:start] + put + text[end:]
    return text


def texts(family: Family) -> st.SearchStrategy[str]:
    names = [f'"{key}"' for key in family.keys]
    parts = st.lists(st.one_of(*map(with_keys_of, family.good)), min_size=1, max_size=3)
    return st.one_of(
        st.text(st.characters()),
        st.lists(st.sampled_from([*PIECES, *names, *(f"{name}: " for name in names)]), max_size=30).map("".join),
        damaged(family),
        parts.map(lambda each: "\n".join(map(json.dumps, each))),
    )


families = st.sampled_from([*FAMILIES.values()])
asked = families.flatmap(
    lambda family: st.tuples(st.just(family), st.lists(texts(family) | families.flatmap(texts), min_size=1, max_size=3))
)


@given(asked)
@settings(deadline=None)
def test_any_answers_end_as_a_verdict_on_the_scale(case: tuple[Family, list[str]]) -> None:
    judge = case[0].judge
    assessment = in_loop(evaluate(judge, TRACE, Looking(case[1])))
    assert msgspec.json.decode(msgspec.json.encode(assessment))["outcome"] == assessment.outcome
    # An answer of `plan_adherence` may say that there is no plan.
    assert assessment.reason in {None, "invalid_answer", "out_of_range", "incomplete", "missing_input"}
    assert assessment.reason is None or assessment.reason in FINAL_REASONS
    assert looks(judge) + 1 <= len(assessment.calls) <= looks(judge) + 2
    assert bool(assessment.scores) == (assessment.outcome == "scored")
    assert len({score.metric for score in assessment.scores}) == len(assessment.scores)
    for score in assessment.scores:
        assert score.metric in judge.metric_names
        assert 0 <= score.value <= 1
        assert score.raw is None or isinstance(score.raw, str) or math.isfinite(score.raw)
        assert score.passed in (None, True, False)


@each_case("family", FAMILIES.values(), ids=FAMILIES)
def test_an_answer_that_breaks_off_anywhere_is_never_another_answer(family: Family) -> None:
    """Of an answer any beginning is either that answer, when only closing signs are lost, or no answer at all."""
    for text in (plain(family), other(family)):
        whole = family.judge.read(text)
        for length in {*range(0, len(text), 9), *range(len(text) - 8, len(text))}:
            with suppress(AnswerError):
                answer = family.judge.read(text[:length])
                # Of JSON lines whole ones may be lost; sentences that no line covers are counted.
                assert answer == (whole[: len(answer)] if family.lines else whole), text[:length]
