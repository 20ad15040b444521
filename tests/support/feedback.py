"""What the tests of late feedback share: complaints into the stream, and passes whose thread does not run."""

import json
from typing import Any

from judges.core.verdict import Origin
from support.stages import (
    IngestHarness,
    InstantEvent,
    Keyspace,
    RecordingNotifier,
    pressure_of,
    rules_of,
    samples,
    settings_of,
)
from worker.core.config.settings import Rule
from worker.core.telemetry.metrics import Metrics
from worker.features.late_feedback.search import LateFeedbackPasses

HEARD = Rule(name="heard", judges=("safety", "relevance_to_query"), rate=0.0, always=("negative_feedback",))
TURNS = 2_000
"""Far more than any pass here needs."""


class Passes:
    """One worker's passes, turned by hand."""

    def __init__(self, keyspace: Keyspace, **settings: Any) -> None:
        self.settings = settings_of(keyspace, **{"rules": (HEARD,), **settings})
        self.metrics = Metrics(self.settings)
        notifier = RecordingNotifier()
        self.woken = notifier.batch_ids
        self.pressure = pressure_of(self.settings)
        self.stage = LateFeedbackPasses(
            self.settings,
            keyspace.store,
            self.metrics,
            rules=rules_of(self.settings),
            notifier=notifier,
            pressure=self.pressure,
        )
        self.stage.stopping = InstantEvent([])

    @property
    def under_way(self) -> bool:
        return self.stage._pass is not None

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.stage.run_once()

    def make(self) -> None:
        """Make one whole pass."""
        self.turn()
        assert self.under_way, "a pass was due"
        for _ in range(TURNS):
            if not self.under_way:
                return
            self.turn()
        raise AssertionError("the pass does not end")

    def until_dealing(self) -> None:
        """Seek to the end, and deal with nothing yet."""
        self.turn()
        while self.stage._pass.seeking:
            self.turn()
        assert self.stage._pass.part is not None

    @property
    def outcomes(self) -> dict[str, float]:
        """What the metrics say of late feedback."""
        counted = {key: value for key, value in samples(self.metrics).items() if key[0] == "late_feedback_total"}
        return {label.removeprefix("outcome="): value for (_, label), value in counted.items()}


def complain(keyspace: Keyspace, trace_id: str, score: float = -1.0, comment: str | None = None) -> str:
    """Publish late feedback as any language does."""
    feedback = {"trace_id": trace_id, "score": score} | ({} if comment is None else {"comment": comment})
    return keyspace.add(feedback, kind="f")


def gathered(keyspace: Keyspace) -> dict[str, float]:
    """Trace ids of what is gathered, with the seconds until each is due."""
    seconds, microseconds = keyspace.client.time()
    now_ms = seconds * 1000 + microseconds / 1000
    members = keyspace.client.zrange(keyspace.keys.feedback, 0, -1, withscores=True)
    return {json.loads(member)["trace_id"]: (due_ms - now_ms) / 1000 for member, due_ms in members}


def make_due(keyspace: Keyspace) -> None:
    """Make everything gathered due."""
    for member in keyspace.client.zrange(keyspace.keys.feedback, 0, -1):
        keyspace.client.zadd(keyspace.keys.feedback, {member: 1})


def take(keyspace: Keyspace, **settings: Any) -> IngestHarness:
    """Run ingest on the whole stream, and make what it gathers due."""
    chosen = IngestHarness(keyspace, **{"rules": (HEARD,), **settings})
    chosen.process()
    make_due(keyspace)
    return chosen


def evaluations(keyspace: Keyspace) -> list[tuple[str, str, Origin, float]]:
    """List what is in batches: trace, judge, origin and probability."""
    pairs = keyspace.chosen()
    return sorted((trace.trace_id, each.judge, each.origin, each.probability) for trace, each in pairs)


def ended(keyspace: Keyspace) -> dict[str, int]:
    """Outcomes of late feedback in the accounting; all feedback that was read has ended or is still pending."""
    accounting = keyspace.accounting()
    counts = {name.split(":")[1]: amount for name, amount in accounting.items() if name.startswith("feedback:")}
    assert accounting.get("feedback", 0) == sum(counts.values()) + keyspace.client.zcard(keyspace.keys.feedback)
    return counts
