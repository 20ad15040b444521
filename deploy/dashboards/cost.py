"""Cost of judging, by judge and judge model. It is not counted by service: requests have no service label."""

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

from deploy.dashboards.grafana import (
    Bound,
    Query,
    Row,
    Unit,
    graph,
    lay_out,
    legend,
    number,
    override,
    per,
    rows,
    share,
)
from deploy.dashboards.matchers import SPENT, data_source, labels, runbooks
from deploy.rules.table import Table

_COST: Final = f"tracejudge_judge_cost_usd_total{{{SPENT}}}"
_TOKENS: Final = f"tracejudge_judge_tokens_total{{{SPENT}}}"
_HOURLY: Final = f"tracejudge:cost_usd:1h{{{SPENT}}}"
_PER_JUDGEMENT: Final = f"tracejudge:cost_usd_per_judgement:1h{{{SPENT}}}"
_BOTH: Final = ("judge", "judge_model")
_DAYS: Final = 30
_NO_PRICE: Final = "No model has a price"
_NO_TOKENS: Final = "No tokens used"


def make(table: Table) -> Dashboard:
    """Make the dashboard; costs have no objectives."""
    spend = [
        _spent(
            "judge",
            "An hour",
            "1h",
            "Cost of each judge in each hour; a step without more traffic means that a prompt has grown.",
        ),
        _spent("judge_model", "An hour", "1h", "Cost of each judge model in each hour."),
        _spent("judge", "A day", "1d", "Cost of each judge in each day; a longer time range shows more days."),
        _spent("judge_model", "A day", "1d", "Cost of each judge model in each day."),
    ]
    price = [
        graph(
            "A judgement, by judge and model",
            "Mean cost of one evaluation of the last hour, with or without a score, repeated requests included.",
            Query(_PER_JUDGEMENT, legend(*_BOTH, between=" by ")),
            unit=Unit("currencyUSD", 5),
            no_data=_NO_PRICE,
            size=(12, 9),
        ),
        rows(
            "Each judge and judge model",
            "Cost and tokens of each in the time range, the most expensive first, and the price of one evaluation of "
            "the last hour.",
            Query(per(_BOTH, f"increase({_COST}[$__range])")),
            Query(per(_BOTH, f"increase({_TOKENS}[$__range])")),
            Query(per(_BOTH, _PER_JUDGEMENT)),
            columns={
                **{name: name for name in _BOTH},
                "Value #A": "cost",
                "Value #B": "tokens",
                "Value #C": "a judgement",
            },
            sort="cost",
            descending=True,
            unit=Unit("currencyUSD", 2),
            no_data=_NO_TOKENS,
            size=(12, 9),
            overrides=[override("tokens", unit="short", decimals=1), override("a judgement", decimals=5)],
        ),
    ]
    return lay_out(
        "Cost",
        "What judging costs, by judge and judge model. Models without a configured price count tokens and no cost.",
        [
            Row("Now", _now()),
            Row("Spend", spend),
            Row("Tokens", _tokens(), collapsed=True),
            Row("Price of a judgement", price, collapsed=True),
            Row("Budgets", _budgets(table)),
        ],
        variables=[data_source(), *labels("tracejudge_judge_tokens_total", *_BOTH)],
        since="now-7d",
    )


def _now() -> list[Panel]:
    def amount(title: str, description: str, expr: str, decimals: int = 2) -> Panel:
        unit = Unit("currencyUSD", decimals)
        return number(title, description, Query(expr, form="now"), unit=unit, no_data=_NO_PRICE, size=(4, 4))

    hour, day = f"sum({_HOURLY})", f"sum(increase({_COST}[1d]))"
    # Evaluations of models without a price would make the mean too small.
    priced = f"tracejudge:evaluations:1h{{{SPENT}}} and on ({', '.join(_BOTH)}) {_HOURLY}"
    # A model without a price has no series of cost at all.
    unpriced = f"{per(['judge_model'], _TOKENS, 'count')} unless {per(['judge_model'], _COST, 'count')}"
    return [
        amount("Last hour", "Cost of all requests of the last hour, repeated ones included.", hour),
        amount("Last 24 hours", "Cost of all requests of the last 24 hours.", day),
        amount(
            f"{_DAYS} days at this pace",
            f"Cost of the last 24 hours times {_DAYS}; too low within the first day.",
            f"{_DAYS} * {day}",
        ),
        amount(
            "A judgement",
            "Mean cost of an evaluation of the last hour, with or without a score.",
            share(hour, f"sum({priced})"),
            decimals=5,
        ),
        number(
            "Against this hour yesterday",
            "Cost of the last hour as a multiple of the same hour a day before.",
            Query(share(hour, f"sum({_HOURLY} offset 1d)")),
            unit=Unit("suffix:x", 1),
            bounds=[Bound(2, "orange"), Bound(5, "red")],
            no_data="No yesterday yet",
        ),
        number(
            "Models without a price",
            "Judge models that have used tokens and have no `price` in the configuration: their cost is missing "
            "everywhere here.",
            Query(f"count({unpriced}) or 0 * count({_TOKENS})"),
            bounds=[Bound(1, "orange")],
            no_data=_NO_TOKENS,
        ),
    ]


def _budgets(table: Table) -> list[Panel]:
    none = "No budget is configured"
    return [
        graph(
            "Spent of each budget",
            "What each budget has spent in its current period, and its limit, in USD.",
            Query("max by (budget) (tracejudge_budget_spent_usd)", legend("budget", after=": spent")),
            Query("max by (budget) (tracejudge_budget_limit_usd)", legend("budget", after=": limit")),
            unit=Unit("currencyUSD", 2),
            no_data=none,
        ),
        graph(
            "Spent share of each limit",
            "Of each limit of a budget, in USD or tokens, the share that is spent in its current day or hour.",
            Query("max by (budget, limit) (tracejudge_budget_spent_ratio)", legend("budget", "limit")),
            unit=Unit("percentunit", 0),
            no_data=none,
            runbooks=runbooks(table, "TraceJudgeBudgetOverspent"),
        ),
        graph(
            "Sampling under the budget",
            "Factor that each budget puts on the rates of sampling: 1 samples as the rules say; steps halve.",
            Query("min by (budget) (tracejudge_budget_rate_factor)", legend("budget")),
            unit=Unit("none", 3),
            most=1,
            no_data=none,
            runbooks=runbooks(table, "TraceJudgeBudgetRatesReduced"),
        ),
        graph(
            "Calls refused by a budget",
            "Calls of the last hour that the hard stop of a budget refused; the factor should make this rare.",
            Query("sum by (budget) (increase(tracejudge_budget_refused_total[1h]))", legend("budget")),
            no_data="No call was refused",
            runbooks=runbooks(table, "TraceJudgeBudgetExhausted"),
        ),
    ]


def _spent(label: str, title: str, window: str, description: str) -> Panel:
    return graph(
        f"{title}, by {label.replace('_', ' ')}",
        description,
        Query(per([label], f"increase({_COST}[{window}])"), legend(label)),
        as_bars=True,
        stacked=True,
        unit=Unit("currencyUSD", 2),
        least=0,
        interval=window,
        no_data=_NO_PRICE,
        size=(12, 8),
    )


def _tokens() -> list[Panel]:
    def tokens(title: str, description: str, query: Query, decimals: int = 1, *, stacked: bool = True) -> Panel:
        unit = Unit("short", decimals)
        return graph(title, description, query, stacked=stacked, unit=unit, least=0, no_data=_NO_TOKENS)

    by_both, hourly = legend(*_BOTH, between=" by "), per(_BOTH, f"increase({_TOKENS}[1h])")
    per_evaluation = share(hourly, per(_BOTH, f"tracejudge:evaluations:1h{{{SPENT}}}"))
    return [
        tokens(
            "Tokens an hour, by direction",
            "Input tokens are prompts and traces, output tokens are answers and reasoning.",
            Query(per(["direction"], f"increase({_TOKENS}[1h])"), legend("direction")),
        ),
        tokens("Tokens an hour, by judge and model", "Input and output tokens together.", Query(hourly, by_both)),
        tokens(
            "Tokens for one evaluation",
            "Tokens of the last hour for each evaluation that ended in it, repeated requests included.",
            Query(per_evaluation, by_both),
            decimals=0,
            stacked=False,
        ),
    ]
