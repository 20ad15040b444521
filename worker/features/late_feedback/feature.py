"""Late feedback: negative feedback that comes after its trace has the trace judged."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from worker.core.config.settings import Seconds
from worker.core.config.tables import Table
from worker.core.features import Feature, Parts, Selector, ShardParts

if TYPE_CHECKING:
    from worker.core.telemetry.service import ServiceThread


WAIT: Final = Table(
    "late_feedback_wait",
    Seconds,
    60.0,
    "Seconds that feedback on earlier traces is gathered before they are searched in the stream.",
)


def _select(parts: Parts) -> Selector | None:
    from worker.features.late_feedback.pending import FeedbackIntake

    # Feedback that no rule asks for would make every pass over the stream longer.
    asks = parts.sampler.judges_negative_feedback
    return FeedbackIntake(WAIT.of(parts.settings)) if asks else None


def _threads(parts: ShardParts) -> "Sequence[ServiceThread]":
    # Whatever the rules say now: feedback of an earlier configuration may be pending.
    from worker.features.late_feedback.search import LateFeedbackPasses

    thread = LateFeedbackPasses(
        *(parts.settings, parts.store, parts.metrics),
        planner=parts.planner,
        notifier=parts.notifier,
        pressure=parts.pressure,
    )
    return (thread,)


FEATURE: Final = Feature(name="late_feedback", tables=(WAIT,), select=_select, threads=_threads)
