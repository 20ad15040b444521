"""Conversations: traces of one session are gathered and judged together."""

from collections.abc import Mapping, Sequence
from typing import Final

from worker.core.features import Feature, Parts, Selector, ShardParts
from worker.core.selection.batch_writer import BatchWriter
from worker.core.selection.sampling import Choice
from worker.core.selection.stream_entry import TraceEntry
from worker.core.telemetry.service import ServiceThread
from worker.features.sessions.conversations import SessionPasses, SessionSelector, gather, session_limits


class SessionGathering(Selector):
    """Gathers the traces of conversations."""

    def __init__(self, parts: Parts) -> None:
        self._settings, self._keys = parts.settings, parts.ledger.store.keys

    def limits(self) -> Mapping[str, object]:
        """Return the limits of conversations."""
        return {"sessions": session_limits(self._settings)}

    def gather(
        self, writer: BatchWriter, entry: TraceEntry, choices: tuple[Choice, ...], replay: str = ""
    ) -> Mapping[str, object] | None:
        """Add a trace to its conversation."""
        return gather(writer, self._keys, entry, choices, replay)


def _threads(parts: ShardParts) -> Sequence[ServiceThread]:
    # Whatever the rules say now: conversations of an earlier configuration may be gathered.
    thread = SessionPasses(
        *(parts.settings, parts.store, parts.metrics),
        selector=SessionSelector(parts.settings, parts.store, parts.judges, parts.graders),
        notifier=parts.notifier,
        pressure=parts.pressure,
    )
    return (thread,)


FEATURE: Final = Feature(name="sessions", select=SessionGathering, threads=_threads)
