"""Tokens and cost of a verdict: what an endpoint does not report is absent, and never zero."""

from support.cases import each_case
from support.stage_parts import HOUR, make_trace

from judges.core.model import Price
from judges.core.verdict import Assessment, Call
from worker.core.queue.batch import Evaluation, Item, make_verdict

PRICE = Price(input=1.0, output=2.0)
ANSWERED = Call(1.0, 0.1, "ok", 1_000_000, 500_000)
SILENT = Call(1.0, 0.1, "ok")
FAILED = Call(1.0, 0.1, "timeout")


@each_case(
    ("calls", "price", "expected"),
    [
        ((ANSWERED,), PRICE, (1_000_000, 500_000, 2.0)),
        ((ANSWERED, FAILED), PRICE, (1_000_000, 500_000, 2.0)),
        ((ANSWERED,), None, (1_000_000, 500_000, None)),
        ((SILENT,), PRICE, (0, 0, None)),
        ((ANSWERED, SILENT), PRICE, (0, 0, None)),
        ((Call(1.0, 0.1, "ok", 0, 500_000),), PRICE, (0, 500_000, None)),
        ((Call(1.0, 0.1, "ok", 1_000_000, 0),), Price(input=1.0, output=0.0), (1_000_000, 0, 1.0)),
        ((FAILED,), PRICE, (0, 0, 0.0)),
        ((), PRICE, (0, 0, 0.0)),
    ],
)
def test_unreported_usage_is_absent(
    calls: tuple[Call, ...], price: Price | None, expected: tuple[int, int, float | None]
) -> None:
    evaluation = Evaluation("e1", HOUR, "safety", "v1", 1.0)
    verdict, _ = make_verdict(
        Assessment("abstained", calls=calls),
        Item(make_trace(1), (evaluation,)),
        evaluation,
        metrics=("safety",),
        judge_model="m",
        price=price,
        user_key="",
        started_at=1.0,
        duration_s=0.1,
    )
    assert (verdict.input_tokens, verdict.output_tokens, verdict.cost_usd) == expected
    assert verdict.attempts == len(calls)
