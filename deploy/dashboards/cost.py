"""Cost: what judging costs, by judge and judge model; which service it was for, nobody counts."""

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

from deploy.dashboards.layout import Row, lay_out
from deploy.dashboards.panels import Bound, graph, number, override, rows
from deploy.dashboards.queries import Query, legend, per, share
from deploy.dashboards.variables import SPENT, data_source, labels
from deploy.generators.table import Table

__all__ = ["make"]

_COST: Final = f"tracejudge_judge_cost_usd_total{{{SPENT}}}"
_TOKENS: Final = f"tracejudge_judge_tokens_total{{{SPENT}}}"
_HOURLY: Final = f"tracejudge:cost_usd:1h{{{SPENT}}}"
_BOTH: Final = ("judge", "judge_model")
_DAYS: Final = 30
_NO_PRICE: Final = "No model has a price"


def make(table: Table) -> Dashboard:
    """Make the dashboard."""
    del table  # costs have no objectives
    return lay_out(
        "Cost",
        "What judging costs, by judge and judge model. Models without a configured price count tokens and no cost.",
        [
            Row("Now", _now()),
            Row("Spend", _spend()),
            Row("Tokens", _tokens()),
            Row("Price of a judgement", [_price(), _each()]),
        ],
        variables=[data_source(), *labels("tracejudge_judge_tokens_total", *_BOTH)],
        since="now-7d",
    )


def _now() -> list[Panel]:
    hour, day = f"sum({_HOURLY})", f"sum(increase({_COST}[1d]))"
    priced = f"tracejudge:evaluations:1h{{{SPENT}}} and on ({', '.join(_BOTH)}) {_HOURLY}"
    unpriced = f"{per(['judge_model'], _TOKENS, 'count')} unless {per(['judge_model'], _COST, 'count')}"
    return [
        _amount("Last hour", "What all requests of the last hour cost, the repeated ones included.", hour),
        _amount("Last 24 hours", "What all requests of the last 24 hours cost.", day),
        _amount(
            f"{_DAYS} days at this pace",
            f"The cost of the last 24 hours times {_DAYS}; within the first day it is too low.",
            f"{_DAYS} * {day}",
        ),
        _amount(
            "A judgement",
            "What an evaluation of the last hour cost in the mean, with or without a score.",
            share(hour, f"sum({priced})"),
            decimals=5,
        ),
        number(
            "Against this hour yesterday",
            "How many times as much the last hour cost as the same hour a day before.",
            Query(share(hour, f"sum({_HOURLY} offset 1d)"), form="now"),
            unit="suffix:x",
            decimals=1,
            bounds=[Bound(2, "orange"), Bound(5, "red")],
            no_data="No yesterday yet",
            size=(4, 4),
        ),
        number(
            "Models without a price",
            "How many judge models have used tokens and have no `price` in the configuration: their cost is missing "
            "everywhere here.",
            Query(f"count({unpriced}) or 0 * count({_TOKENS})", form="now"),
            unit="short",
            decimals=0,
            bounds=[Bound(1, "orange")],
            no_data="No tokens used",
            size=(4, 4),
        ),
    ]


def _amount(title: str, description: str, expr: str, decimals: int = 2) -> Panel:
    return number(
        title,
        description,
        Query(expr, form="now"),
        unit="currencyUSD",
        decimals=decimals,
        no_data=_NO_PRICE,
        size=(4, 4),
    )


def _spend() -> list[Panel]:
    return [
        _spent(
            "judge",
            "An hour",
            "1h",
            "Which judge costs what in each hour; a step without more traffic is a prompt that grew.",
        ),
        _spent("judge_model", "An hour", "1h", "Which judge model costs what in each hour."),
        _spent(
            "judge",
            "A day",
            "1d",
            "Which judge costs what in each day; choose a longer time range to see more of them.",
        ),
        _spent("judge_model", "A day", "1d", "Which judge model costs what in each day."),
    ]


def _spent(label: str, title: str, window: str, description: str) -> Panel:
    return graph(
        f"{title}, by {label.replace('_', ' ')}",
        description,
        Query(per([label], f"increase({_COST}[{window}])"), legend(label)),
        as_bars=True,
        stacked=True,
        unit="currencyUSD",
        decimals=2,
        least=0,
        interval=window,
        no_data=_NO_PRICE,
        size=(12, 8),
    )


def _tokens() -> list[Panel]:
    judged = per(_BOTH, f"tracejudge:evaluations:1h{{{SPENT}}}")
    return [
        graph(
            "Tokens an hour, by direction",
            "Input tokens are prompts and traces, output tokens are answers and reasoning.",
            Query(per(["direction"], f"increase({_TOKENS}[1h])"), legend("direction")),
            stacked=True,
            unit="short",
            decimals=1,
            least=0,
            no_data="No tokens used",
        ),
        graph(
            "Tokens an hour, by judge and model",
            "Who uses them, input and output together.",
            Query(per(_BOTH, f"increase({_TOKENS}[1h])"), legend(*_BOTH, between=" by ")),
            stacked=True,
            unit="short",
            decimals=1,
            least=0,
            no_data="No tokens used",
        ),
        graph(
            "Tokens for one evaluation",
            "Tokens of the last hour for each evaluation that ended in it, repeated requests included.",
            Query(share(per(_BOTH, f"increase({_TOKENS}[1h])"), judged), legend(*_BOTH, between=" by ")),
            unit="short",
            decimals=0,
            least=0,
            no_data="No tokens used",
        ),
    ]


def _price() -> Panel:
    return graph(
        "A judgement, by judge and model",
        "What one evaluation of the last hour cost in the mean, with or without a score, repeated requests included.",
        Query(f"tracejudge:cost_usd_per_judgement:1h{{{SPENT}}}", legend(*_BOTH, between=" by ")),
        unit="currencyUSD",
        decimals=5,
        least=0,
        no_data=_NO_PRICE,
        size=(12, 9),
    )


def _each() -> Panel:
    return rows(
        "Each judge and judge model",
        "What each cost and used in the time range, the most expensive first, and the price of one evaluation of the "
        "last hour.",
        Query(per(_BOTH, f"increase({_COST}[$__range])")),
        Query(per(_BOTH, f"increase({_TOKENS}[$__range])")),
        Query(per(_BOTH, f"tracejudge:cost_usd_per_judgement:1h{{{SPENT}}}")),
        columns={
            **{name: name for name in _BOTH},
            "Value #A": "cost",
            "Value #B": "tokens",
            "Value #C": "a judgement",
        },
        sort="cost",
        descending=True,
        unit="currencyUSD",
        decimals=2,
        no_data="No tokens used",
        size=(12, 9),
        overrides=[override("tokens", unit="short", decimals=1), override("a judgement", decimals=5)],
    )
