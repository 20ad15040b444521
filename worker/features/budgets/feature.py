"""Budgets: each judge call reserves its cost, and rates follow what is left."""

from typing import Final

import structlog

from worker.base.monitor.counts import MonitorParts
from worker.core.features import Feature, Parts, Selector
from worker.core.storage.client import StoreError
from worker.features.budgets.control import BudgetController
from worker.features.budgets.rates import RateFactors
from worker.features.budgets.reservations import Budgets

log = structlog.get_logger("tracejudge.ingest")


class RateSelector(Selector):
    """Exchanges the factors of rates with the monitor."""

    def __init__(self, parts: Parts) -> None:
        self._store = parts.ledger.store
        self._rates = RateFactors(self._store.first, parts.sampler)

    def before_read(self) -> None:
        """Exchange factors and counts if some seconds have passed."""
        try:
            self._rates.exchange_due()
        except StoreError as error:
            # The first shard is away: the factors stay as they are, and this one is read on.
            if self._store is self._store.first:
                raise
            log.warning("factors of rates not exchanged", error=str(error))


def _select(parts: Parts) -> RateSelector | None:
    return RateSelector(parts) if parts.settings.changes_rates else None


def _watches(parts: MonitorParts) -> tuple[BudgetController]:
    return (BudgetController(parts.settings, parts.store, parts.metrics),)


def _wrap_model(parts: Parts) -> Budgets | None:
    settings, metrics = parts.settings, parts.metrics
    if not settings.budgets:
        return None

    def count(budget: str) -> None:
        if metrics is not None:
            metrics.budget_refused.labels(budget).inc()

    return Budgets(settings, parts.ledger.store.first, parts.sampler, count)


FEATURE: Final = Feature(name="budgets", watches=_watches, select=_select, wrap_model=_wrap_model)
