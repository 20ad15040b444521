"""What the summary of `tracejudge evaluate` says of costs: unknown is not free."""

from support.cases import each_case
from support.stage_parts import make_verdict

from judges.core.verdict import Call
from judges.registry import catalogue
from worker.features.lab.summary import JudgeSum, judge_line

ASKED = (Call(1000.0, 1.0, "ok"),)


@each_case(
    ("costs", "has_price", "message"),
    [
        ([None, None], False, "no price set"),
        ([None, None], True, "not reported"),
        ([0.25, 0.5], True, "0.7500 USD, "),
        ([0.25, None], True, "0.2500 USD (1 not reported)"),
    ],
    ids=["no price", "no tokens", "all tell", "one does not"],
)
def test_a_cost_that_is_not_known_is_not_taken_for_none(
    costs: list[float | None],
    has_price: bool,  # noqa: FBT001 - a parameter of the test
    message: str,
) -> None:
    judge_sum = JudgeSum(catalogue()["safety"], "gpt", ("safety",), has_price=has_price)
    for cost in costs:
        judge_sum.add(make_verdict(calls=ASKED, cost_usd=cost))
    assert message in judge_line(judge_sum)
