"""The conversations of a file: its traces by session, for judges whose unit is the conversation."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import click
from msgspec.structs import replace

from judges.sessions import in_order, join, part
from tracejudge import Trace
from worker.config.settings import Settings
from worker.queue.batch import Session
from worker.selection.session import session_id_of


class Conversation(NamedTuple):
    """The joined traces of a session, the newest of a long one, and what its verdict says of them.

    The joined trace has the tags of all traces; of several values the last one counts.
    """

    trace: Trace
    session: Session


class Conversations:
    """Traces of sessions, gathered as a worker gathers them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._traces: dict[str, deque[Trace]] = {}
        self._totals: dict[str, int] = {}
        self._tags: dict[str, dict[str, str]] = {}
        self._bytes = 0

    def add(self, trace: Trace, size: int) -> None:
        """Add a trace with a session id, of so many bytes.

        Raises:
            click.ClickException: All conversations are too large to be held at once.
        """
        session = session_id_of(trace)
        kept = self._traces.setdefault(session, deque(maxlen=self._settings.session_max))
        kept.append(part(trace))
        self._totals[session] = self._totals.get(session, 0) + 1
        self._tags.setdefault(session, {}).update(trace.tags or {})
        self._bytes += size
        if self._bytes > self._settings.max_session_bytes:
            most = f"{self._settings.max_session_bytes:,} bytes"
            fix = "divide the file between two sessions, or raise max_session_bytes"
            raise click.ClickException(f"the conversations of the file take more than {most}; {fix}")

    def joined(self) -> Iterator[Conversation]:
        """Yield the conversations in the order of their first traces."""
        for session, kept in self._traces.items():
            traces = in_order(list(kept))
            names = tuple(dict.fromkeys(trace.trace_id for trace in traces))
            trace = replace(join(traces), tags=self._tags[session] or None)
            yield Conversation(trace, Session(1, self._totals[session], names))
