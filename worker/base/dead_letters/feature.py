"""Dead letters: evaluations that were given up, retried automatically and cut to their bounds."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from worker.core.features import Command, Feature, PartitionContext

if TYPE_CHECKING:
    from worker.core.config.settings import Settings
    from worker.core.storage.client import Store
    from worker.core.telemetry.metrics import Metrics
    from worker.core.telemetry.service import ServiceThread


def _threads(context: PartitionContext) -> "Sequence[ServiceThread]":
    from worker.base.dead_letters.retry import AutoRetry

    healthy, probed = context.judging.healthy_models, context.judging.models_to_probe
    return (AutoRetry(context.settings, context.store, rules=context.rules, healthy=healthy, probed=probed),)


def _chores(settings: "Settings", metrics: "Metrics", store: "Store") -> Sequence[Callable[[], None]]:
    from worker.base.dead_letters.store import prune

    return (lambda: metrics.dead_cut_off.inc(prune(store, settings)),)


_DEAD: Final = Command("worker.base.dead_letters.command", "List, show, retry or drop evaluations that were given up")
FEATURE: Final = Feature(name="dead_letters", threads=_threads, chores=_chores, commands={"dead": _DEAD})
