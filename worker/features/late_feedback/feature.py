"""Late feedback: negative feedback that comes after its trace has the trace judged."""

from collections.abc import Mapping, Sequence
from typing import Final

from worker.core.features import Feature, Parts, Selector, ShardParts
from worker.core.selection.stream_entry import FeedbackEntry
from worker.core.telemetry.service import ServiceThread
from worker.features.late_feedback.pending import MAX_PENDING, encode_member
from worker.features.late_feedback.search import LateFeedbackPasses


class FeedbackIntake(Selector):
    """Keeps negative feedback until its trace is searched."""

    def __init__(self, wait_s: float) -> None:
        self._wait_ms = int(wait_s * 1000)

    def limits(self) -> Mapping[str, object]:
        """Return how much feedback may be pending, and for how long it is gathered."""
        return {"max_pending": MAX_PENDING, "feedback_wait_ms": self._wait_ms}

    def feedback(self, entry: FeedbackEntry) -> str | None:
        """Keep what is negative."""
        return encode_member(entry.entry_id, entry.feedback) if entry.feedback.score < 0 else None


def _select(parts: Parts) -> FeedbackIntake | None:
    # Feedback that no rule asks for would make every pass over the stream longer.
    asks = parts.sampler.judges_negative_feedback
    return FeedbackIntake(parts.settings.late_feedback_wait) if asks else None


def _threads(parts: ShardParts) -> Sequence[ServiceThread]:
    # Whatever the rules say now: feedback of an earlier configuration may be pending.
    thread = LateFeedbackPasses(
        *(parts.settings, parts.store, parts.metrics),
        planner=parts.planner,
        notifier=parts.notifier,
        pressure=parts.pressure,
    )
    return (thread,)


FEATURE: Final = Feature(name="late_feedback", select=_select, threads=_threads)
