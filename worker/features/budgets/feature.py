"""Budgets: each judge call reserves its cost, and rates follow what is left."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from worker.core.features import Feature, ModelWrapper, Parts, Selector
from worker.features.budgets.settings import BUDGETS, budget_faults, changes_rates

if TYPE_CHECKING:
    from worker.base.monitor.counts import MonitorParts


def _select(parts: Parts) -> Selector | None:
    from worker.features.budgets.rates import RateSelector

    return RateSelector(parts) if changes_rates(parts.settings) else None


def _watches(parts: "MonitorParts") -> Sequence[Any]:
    from worker.features.budgets.control import BudgetController

    return (BudgetController(parts.settings, parts.store, parts.metrics),)


def _wrap_model(parts: Parts) -> ModelWrapper | None:
    settings, metrics = parts.settings, parts.metrics
    if not BUDGETS.of(settings):
        return None
    from worker.features.budgets.reservations import Budgets

    def count(budget: str) -> None:
        if metrics is not None:
            metrics.budget_refused.labels(budget).inc()

    return Budgets(settings, parts.ledger.store.first, parts.sampler, count)


FEATURE: Final = Feature(
    name="budgets",
    tables=(BUDGETS,),
    rule_keys=("budget", "priority", "stratify", "first_per_hour"),
    rule_faults=budget_faults,
    watches=_watches,
    select=_select,
    wrap_model=_wrap_model,
)
