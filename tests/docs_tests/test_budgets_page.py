"""The page on cost: its sums are those of the prices in the table of models, and of the formula of an interval."""

import math

from pages import PAGES, table

from judges.core.model import Price
from judges.models.registry import known_model

PAGE = PAGES["docs/budgets.md"]


def test_a_month_costs_what_the_page_says() -> None:
    _, *models = table(PAGE, "100,000 requests a day, one judge")
    assert len(models) == 2
    for name, *costs in models:
        judging = Price(**known_model(name.split("`")[1])["price"]).cost_usd(2_000, 150)
        shown = [float(cost.removesuffix(" USD").replace(",", "")) for cost in costs]
        assert shown == [round(3_000_000 * rate * judging, 2) for rate in (1, 0.1, 0.01)], name


def test_intervals_are_as_wide_as_the_page_says() -> None:
    for number, *widths in table(PAGE, "judgements"):
        count = int(number.replace(",", ""))
        points = [196 * math.sqrt(share * (1 - share) / count) for share in (0.8, 0.9, 0.95)]
        digits = [len(width.partition(".")[2]) for width in widths]
        assert widths == [f"{point:.{most}f}" for point, most in zip(points, digits, strict=True)], number
