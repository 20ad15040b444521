"""Conversations: traces of one session are gathered and judged together."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from worker.core.features import Feature, Parts, Selector, ShardParts

if TYPE_CHECKING:
    from worker.core.telemetry.service import ServiceThread


def _select(parts: Parts) -> Selector:
    from worker.features.sessions.conversations import SessionGathering

    return SessionGathering(parts)


def _threads(parts: ShardParts) -> "Sequence[ServiceThread]":
    # Whatever the rules say now: conversations of an earlier configuration may be gathered.
    from worker.features.sessions.conversations import SessionPasses, SessionSelector

    thread = SessionPasses(
        *(parts.settings, parts.store, parts.metrics),
        selector=SessionSelector(parts.settings, parts.store, parts.judges, parts.rules.graders),
        notifier=parts.notifier,
        pressure=parts.pressure,
    )
    return (thread,)


FEATURE: Final = Feature(name="sessions", select=_select, threads=_threads)
