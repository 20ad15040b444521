"""Properties of parsers and scoring: no text makes them fail, or gives a value off its scale."""

import asyncio
import json
import math
from collections.abc import Mapping
from contextlib import suppress

import msgspec
import pytest
from families import FAMILIES, TRACE, Family, written
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import ASKING, served
from support.cases import each_case

from judges.calling.evaluation import evaluate
from judges.core.judge import AnsweredPrompt, Judge
from judges.core.verdict import FINAL_REASONS, Assessment
from judges.models.scripted import ScriptedModel
from judges.parsing.answer import AnswerError

PIECES = [
    "{", "}", "[", "]", ":", ",", '"', "'", "\\", "\n", " ", "```json\n", "```", "//", "/*", "#", "\ufeff", "\u201c",
    "null", "true", "false", "1e999", "-0", "NaN", "Infinity", "0", "6", "4.5", "4", '"4"', '"yes"', '"no"', "yes",
    '"maybe"', '"supported"', '"no_rad"', '"general"', '"0a"', '"D1_S1"', '"\\ud800"', '"\\u', "\ud800", "\x00",
    "score: 4\n", "justification: x\n", "<<answer 0123456789ab>>\n", "9" * 400, "9" * 5000,
]  # fmt: skip

any_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 8)
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=10)
    | st.sampled_from(
        ["yes", "no", "unknown", "4", "4.0", "true", "supported", "no_rad", "0a", "D1_S2", "a", "general"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def with_keys_of(value: object) -> st.SearchStrategy[object]:
    """Make values of the same shape: with the same keys and any JSON at some of the leaves."""
    if isinstance(value, Mapping):
        whole: st.SearchStrategy[object] = st.fixed_dictionaries(
            {key: with_keys_of(item) for key, item in value.items()}
        )
        return whole | any_json
    if isinstance(value, list):
        items = st.one_of(*map(with_keys_of, value)) if value else any_json
        return st.lists(items, max_size=3) | any_json
    return st.just(value) | any_json


@st.composite
def damaged(draw: st.DrawFn, family: Family) -> str:
    """Damage a good answer: remove, insert and duplicate pieces."""
    good, other = written(family.good), written(family.other)
    text = draw(st.sampled_from([good, other, f"{good}\n{other}", f"```json\n{good}\n```", repr(family.good[0])]))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        put = draw(st.sampled_from(["", *PIECES, text[start:end] * 2]) | st.text(st.characters(), max_size=5))
        text = text[:start] + put + text[end:]
    return text


def texts(family: Family) -> st.SearchStrategy[str]:
    names = [f'"{key}"' for key in family.keys]
    return st.one_of(
        st.text(st.characters()),
        st.lists(st.sampled_from([*PIECES, *names, *(f"{name}: " for name in names)]), max_size=30).map("".join),
        damaged(family),
        st.lists(st.one_of(*map(with_keys_of, family.good)), min_size=1, max_size=3).map(
            lambda parts: "\n".join(map(json.dumps, parts))
        ),
    )


def checked(judge: Judge, assessment: Assessment) -> None:
    """Check that a verdict is one that we may give."""
    assert msgspec.json.decode(msgspec.json.encode(assessment))["outcome"] == assessment.outcome
    assert bool(assessment.scores) == (assessment.outcome == "scored")
    assert len({score.metric for score in assessment.scores}) == len(assessment.scores)
    for score in assessment.scores:
        assert score.metric in judge.metric_names
        assert math.isfinite(score.value)
        assert 0 <= score.value <= 1
        assert score.raw is None or isinstance(score.raw, str) or math.isfinite(score.raw)
        assert score.passed in (None, True, False)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_text_is_read_and_scored_on_the_scale_or_refused(family: Family, data: st.DataObject) -> None:
    text = data.draw(texts(family))
    (prompt,) = family.judge.prompts(TRACE)
    try:
        answer = family.judge.read(text)
    except AnswerError:
        return
    scores, rationale, details = family.judge.score(TRACE, [AnsweredPrompt(prompt, answer)])
    outcome = "scored" if scores else "abstained"
    checked(family.judge, Assessment(outcome, scores=scores, rationale=rationale, details=details))


@pytest.mark.parametrize("judge", ASKING.values(), ids=ASKING)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_any_answer_ends_as_a_verdict(judge: Judge, data: st.DataObject) -> None:
    family = data.draw(st.sampled_from(list(FAMILIES.values())))
    answers = data.draw(st.lists(texts(family), min_size=1, max_size=3))
    assessment = asyncio.run(evaluate(judge, served(judge, TRACE), ScriptedModel(answers)))
    checked(judge, assessment)
    assert assessment.reason in {None, "invalid_answer", "out_of_range", "incomplete"}
    assert assessment.reason is None or assessment.reason in FINAL_REASONS
    prompts = len(judge.prompts(judge.prepare(served(judge, TRACE))))
    assert 1 <= len(assessment.calls) <= 2 * prompts


@each_case("family", FAMILIES.values(), ids=FAMILIES)
def test_an_answer_that_breaks_off_anywhere_is_never_another_answer(family: Family) -> None:
    """Of an answer any beginning is either that answer, when only closing signs are lost, or no answer at all."""
    for parts in (family.good, family.other):
        text = written(parts)
        whole = family.judge.read(text)
        for length in range(len(text)):
            with suppress(AnswerError):
                answer = family.judge.read(text[:length])
                # Of JSON lines whole ones may be lost; sentences that no line covers are counted.
                assert answer == (whole[: len(answer)] if family.lines else whole), text[:length]
