"""Budgets: each judge call reserves its cost, and rates follow what is left."""

from typing import Final

from worker.core.features import Feature, ModelWrapper, Parts, Selector
from worker.core.storage.keys import Key, KeySpace
from worker.features.budgets.settings import BUDGETS, budget_faults, changes_rates


class BudgetKeys(KeySpace):
    rates = Key(
        "rates", "String, JSON of the factors by which rates are multiplied, by rule and segment; TTL of an hour."
    )
    seen = Key(
        "seen",
        "Hash of service, model or release to the hour since 1970 in which it was first seen; at most 10,000. No TTL.",
    )

    def budget(self, name: str) -> tuple[str, str, str]:
        """Hash of one budget, sorted set of its reservations, prefix of its demand by day; see scripts/budget.lua."""
        key = f"{self.prefix}:budget:{name}"
        return key, f"{key}:open", f"{key}:demand"

    def first(self, hour: int) -> str:
        """Hash of rule and new value to its traces in an hour since 1970; TTL of two hours."""
        return f"{self.prefix}:first:{hour}"

    def segments(self, hour: int) -> str:
        """Hash of rule and segment to the matching traces of an hour since 1970; TTL of four hours."""
        return f"{self.prefix}:segments:{hour}"

    def budget_forecast(self, name: str) -> str:
        """String, the expected cost of one budget by time of day, as MessagePack; TTL of a week."""
        return f"{self.prefix}:budget:{name}:forecast"


def _select(parts: Parts) -> Selector | None:
    from worker.features.budgets.rates import RateSelector

    return RateSelector(parts.settings, parts.ledger.store) if changes_rates(parts.settings) else None


def _wrap_model(parts: Parts) -> ModelWrapper | None:
    settings, metrics = parts.settings, parts.metrics
    if not BUDGETS.of(settings):
        return None
    from worker.features.budgets.control import BudgetMetrics
    from worker.features.budgets.reservations import Budgets

    def count(budget: str) -> None:
        if metrics is not None:
            metrics.of(BudgetMetrics).budget_refused.labels(budget).inc()

    return Budgets(settings, parts.ledger.store.first, parts.rules, count)


FEATURE: Final = Feature(
    name="budgets",
    tables=(BUDGETS,),
    rule_keys=("budget", "priority", "stratify", "first_per_hour"),
    rule_faults=budget_faults,
    keys=BudgetKeys,
    scripts=__package__,
    metrics="worker.features.budgets.control.BudgetMetrics",
    watch="worker.features.budgets.control.BudgetController",
    select=_select,
    wrap_model=_wrap_model,
    warnings="worker.features.budgets.checks.find_unkept",
    checks="worker.features.budgets.checks.checks",
)
