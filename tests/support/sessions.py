"""What the tests of conversations share: traces of sessions into the stream, and passes whose thread does not run."""

from collections.abc import Iterable
from typing import Any

from judges.registry import load_judges
from support.stages import (
    IngestHarness,
    InstantEvent,
    Keyspace,
    RecordingNotifier,
    make_trace,
    pressure_of,
    settings_of,
)
from tracejudge import Trace
from worker.core.config.graders import Graders
from worker.core.config.settings import Rule
from worker.core.queue.batch import Evaluation
from worker.core.telemetry.metrics import Metrics
from worker.features.sessions.conversations import SessionChooser, SessionPasses

COMPLETE = Rule(name="conversations", judges=("conversation_completeness",), unit="session")


class Sessions:
    """One worker that gathers and judges conversations, turned by hand."""

    def __init__(self, keyspace: Keyspace, **settings: Any) -> None:
        self.settings = settings_of(keyspace, **{"rules": (COMPLETE,), **settings})
        self.keyspace = keyspace
        self.metrics = Metrics(self.settings)
        notifier = RecordingNotifier()
        self.woken = notifier.batch_ids
        self.pressure = pressure_of(self.settings)
        judges = load_judges(self.settings.judges)
        chooser = SessionChooser(self.settings, keyspace.store, judges, Graders(self.settings, judges))
        self.stage = SessionPasses(
            self.settings, keyspace.store, self.metrics, chooser=chooser, notifier=notifier, pressure=self.pressure
        )
        self.stage.stopping = InstantEvent([])
        self.chosen = IngestHarness(keyspace, **{"rules": (COMPLETE,), **settings})

    def publish(self, session_id: str, numbers: Iterable[int], **fields: Any) -> None:
        """Publish traces of a session, and let ingest deal with them."""
        for number in numbers:
            self.keyspace.add(session_trace(session_id, number, **fields))
        self.chosen.process()

    def turn(self) -> None:
        # The lock of a worker of the same test, which would keep this one waiting for its TTL.
        self.keyspace.client.delete(self.keyspace.keys.sessions_pass)
        self.stage.run_once()

    def pause(self, *members: str) -> None:
        """Make all gathered conversations due, and run a pass over them."""
        for member in members or self.keyspace.client.zrange(self.keyspace.keys.sessions_due, 0, -1):
            self.keyspace.client.zadd(self.keyspace.keys.sessions_due, {member: 1}, xx=True)
        self.turn()

    def account(self) -> dict[str, int]:
        """Read what the accounting says of conversations."""
        counts = self.keyspace.accounting()
        return {name.split(":")[1]: amount for name, amount in counts.items() if name.startswith("session:") and amount}


def session_trace(session_id: str, number: int, **fields: Any) -> Trace:
    """Make the trace of one question and answer in a session."""
    own = {"session_id": session_id, "input": f"Question {number}?", "output": f"Answer {number}."}
    return make_trace(number, **{**own, **fields})


def evaluations(keyspace: Keyspace) -> list[tuple[Trace, Evaluation]]:
    """List what is in batches, by generation."""
    generation = lambda evaluation: evaluation.session.generation if evaluation.session else 0  # noqa: E731
    return sorted(keyspace.chosen(), key=lambda pair: (generation(pair[1]), pair[0].trace_id))
