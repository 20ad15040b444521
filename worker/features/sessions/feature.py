"""Conversations: traces of one session are gathered and judged together."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from worker.core.config.settings import HOUR_S, MAX_SESSION_BYTES, SESSION_MAX, Seconds
from worker.core.features import Feature, IngestHook, PartitionContext, Table, TraceHookContext
from worker.core.storage.keys import KeySpace

if TYPE_CHECKING:
    from worker.core.telemetry.service import ServiceThread

SESSION_IDLE: Final = Table(
    "session_idle", Seconds, 180.0, "Seconds without a new trace after which a gathered conversation is judged."
)
SESSION_KEEP: Final = Table(
    "session_keep",
    Seconds,
    HOUR_S,
    "Seconds that the traces of a judged conversation are kept for its next judging, which comes when it has grown"
    " by half.",
)


class SessionKeys(KeySpace):
    def session(self, session: str) -> str:
        """Hash of one conversation with its traces, see worker/core/storage/scripts/sessions.lua; TTL of the ledger."""
        return f"{self.prefix}:session:{session}"


def _ingest(context: TraceHookContext) -> IngestHook:
    from worker.features.sessions.conversations import SessionGathering

    return SessionGathering(context)


def _threads(context: PartitionContext) -> "Sequence[ServiceThread]":
    # Whatever the rules say now: conversations of an earlier configuration may be gathered.
    from worker.features.sessions.conversations import SessionChooser, SessionPasses

    thread = SessionPasses(
        *(context.settings, context.store, context.metrics),
        chooser=SessionChooser(context.settings, context.store, context.judges, context.rules.graders),
        notifier=context.notifier,
        pressure=context.pressure,
    )
    return (thread,)


FEATURE: Final = Feature(
    name="sessions",
    units=("session",),
    tables=(SESSION_MAX, MAX_SESSION_BYTES, SESSION_IDLE, SESSION_KEEP),
    keys=SessionKeys,
    scripts=__package__,
    metrics="worker.features.sessions.conversations.SessionMetrics",
    ingest=_ingest,
    threads=_threads,
    eraser="worker.features.sessions.conversations.SessionEraser",
)
