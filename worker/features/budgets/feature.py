"""Budgets: each judge call reserves its cost, and rates follow what is left."""

from typing import Final

from worker.core.features import Feature, ModelWrapper, Parts, Selector


def _select(parts: Parts) -> Selector | None:
    from worker.features.budgets.rates import RateSelector

    return RateSelector(parts) if parts.settings.changes_rates else None


def _wrap_model(parts: Parts) -> ModelWrapper | None:
    settings, metrics = parts.settings, parts.metrics
    if not settings.budgets:
        return None
    from worker.features.budgets.control import BudgetMetrics
    from worker.features.budgets.reservations import Budgets

    def count(budget: str) -> None:
        if metrics is not None:
            metrics.of(BudgetMetrics).budget_refused.labels(budget).inc()

    return Budgets(settings, parts.ledger.store.first, parts.sampler, count)


FEATURE: Final = Feature(
    name="budgets",
    metrics="worker.features.budgets.control.BudgetMetrics",
    watch="worker.features.budgets.control.BudgetController",
    select=_select,
    wrap_model=_wrap_model,
)
