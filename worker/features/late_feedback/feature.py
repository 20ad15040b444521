"""Late feedback: negative feedback that comes after its trace has the trace judged."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from worker.core.config.settings import Seconds
from worker.core.features import Feature, IngestHook, PartitionContext, Table, TraceHookContext
from worker.core.storage.keys import Key, KeySpace

if TYPE_CHECKING:
    from worker.core.telemetry.service import ServiceThread

WAIT: Final = Table(
    "late_feedback_wait",
    Seconds,
    60.0,
    "Seconds that feedback on earlier traces is gathered before they are searched in the stream.",
)


class FeedbackKeys(KeySpace):
    feedback_taken = Key(
        "feedback:taken",
        "Sorted set of late feedback that another partition handed over, so that each is taken once; TTL of a day.",
    )


def _ingest(context: TraceHookContext) -> IngestHook | None:
    from worker.features.late_feedback.pending import FeedbackIntake

    # Feedback that no rule asks for would make every pass over the stream longer.
    asks = any("negative_feedback" in rule.always for rule in context.settings.rules)
    return FeedbackIntake(WAIT.read(context.settings)) if asks else None


def _threads(context: PartitionContext) -> "Sequence[ServiceThread]":
    # Whatever the rules say now: feedback of an earlier configuration may be pending.
    from worker.features.late_feedback.search import LateFeedbackPasses

    thread = LateFeedbackPasses(
        *(context.settings, context.store, context.metrics),
        rules=context.rules,
        notifier=context.notifier,
        pressure=context.pressure,
    )
    return (thread,)


FEATURE: Final = Feature(
    name="late_feedback", tables=(WAIT,), keys=FeedbackKeys, scripts=__package__, ingest=_ingest, threads=_threads
)
