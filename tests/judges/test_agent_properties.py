"""Whatever a model answers, an exploration ends, keeps its limits, and sends messages that both APIs take."""

import asyncio

import msgspec
from explorations import SETTINGS, TRACE, Counting, calling, check_structure, course, exploring
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_traces import yes_no_text

from judges.calling.evaluation import evaluate
from judges.core.exploration import Limits
from judges.core.model import Price
from judges.core.prompt import ToolCall
from judges.core.verdict import Assessment
from judges.models.scripted import Step

PRICE = Price(input=3.0, output=15.0)


def breaking(_: str) -> str:
    raise LookupError


NAMES = st.sampled_from(["read", "long", "longer", "breaking", "silent", "no such tool", ""])
CALLS = st.builds(ToolCall, st.sampled_from(["", "a", "b", "call00001"]), NAMES, st.text(max_size=10), st.none())
ANSWERS = st.sampled_from([yes_no_text("yes"), yes_no_text("perhaps"), "Well.", "", " \n", "<think>" + "so " * 400])
TEXTS = st.one_of(ANSWERS, st.text(max_size=100))
ROUNDS = st.builds(lambda calls, text: calling(*calls, text=text), st.lists(CALLS, min_size=1, max_size=18), TEXTS)
FAILURES = st.builds(
    lambda failure: Step(failure=failure), st.sampled_from(["input_too_long", "timeout", "content_filter"])
)
ENDS = st.one_of(st.builds(Step, TEXTS), FAILURES, st.just(Step("", refusal=True)))
STEPS = st.lists(st.one_of(ROUNDS, ROUNDS, ROUNDS, st.builds(lambda: Step(failure="input_too_long")), ENDS), min_size=1)
LIMITS = st.builds(
    Limits, st.integers(0, 6), st.integers(100, 60_000), st.one_of(st.none(), st.floats(0.0001, 0.2, allow_nan=False))
)


def spent(assessment: Assessment) -> tuple[int, float]:
    inputs, outputs = (
        sum(call.input_tokens for call in assessment.calls),
        sum(call.output_tokens for call in assessment.calls),
    )
    return inputs + outputs, PRICE.cost_usd(inputs, outputs)


@settings(max_examples=75, deadline=None)
@given(
    steps=STEPS,
    limits=LIMITS,
    max_input_tokens=st.integers(50, 20_000),
    bytes_per_token=st.floats(2.0, 6.0, allow_nan=False),
)
def test_any_answers_end_in_order(
    steps: list[Step | str], limits: Limits, max_input_tokens: int, bytes_per_token: float
) -> None:
    judge = exploring(
        limits, long=lambda _: "word " * 300, longer=lambda _: "é" * 20_000, breaking=breaking, silent=lambda _: ""
    )
    setting = msgspec.structs.replace(SETTINGS, max_input_tokens=max_input_tokens, price=PRICE)
    model = Counting(steps, setting, bytes_per_token)
    assessment = asyncio.run(evaluate(judge, TRACE, model))
    msgspec.json.encode(assessment)
    for request in model.requests:
        check_structure(request)
    rounds = course(assessment)["rounds"]
    assert isinstance(rounds, int)
    assert rounds <= limits.max_rounds
    # A verdict and its repair, and for each exchange that was left out the request that was too long.
    assert len(model.requests) <= 2 * rounds + 4
    tokens, usd = spent(assessment)
    assert tokens <= limits.max_tokens
    assert limits.max_usd is None or usd <= limits.max_usd
    assert len(assessment.calls) == len(model.requests)
