"""What the tests of replays share: one that is begun, run step by step or to its end, and what it found."""

import json
from typing import Any

from judges.registry import load_judges
from support.stage_parts import IngestHarness, Keyspace, settings_of
from worker.base.replay.replay import Chooser, Cursor, ReplayOptions, ReplayRun, State, WaitingWork, first_state
from worker.core.config.settings import Rule
from worker.core.queue.batch import Evaluation
from worker.core.queue.ledger import FinalVerdict, Ledger, field_of

SAFETY = Rule(name="all", judges=("safety",))
NOTHING = Rule(name="nothing", judges=("groundedness",), rate=0.0)


class Replays:
    """Replays under one configuration; waits are recorded, and end the waiting work."""

    def __init__(self, keyspace: Keyspace, **settings: Any) -> None:
        self.keyspace = keyspace
        self.settings = settings_of(keyspace, **settings)
        self.waited: list[WaitingWork] = []

    def begin(self, *names: str, since: str = "1h", **fields: Any) -> ReplayRun:
        judges = [load_judges(self.settings.judges)[name] for name in names or ("safety",)]
        asked = first_state(self.settings, self.keyspace.store, ReplayOptions(judges, since, **fields))
        cursor = Cursor(self.keyspace.store, self.settings.ledger_ttl_s)
        return self.go_on(cursor, cursor.begin(asked.question, asked.next_id))

    def go_on(self, cursor: Cursor, state: State | None = None) -> ReplayRun:
        """Continue where a replay is, as another process does."""
        state = state or cursor.read()
        judges = [load_judges(self.settings.judges)[name] for name in state.question.judges]
        chooser = Chooser(self.settings, self.keyspace.store, state.question, judges)
        return ReplayRun(self.settings, self.keyspace.store, chooser, cursor, state, wait=self._wait)

    def make(self, *names: str, **fields: Any) -> dict[str, int]:
        """Make a whole replay and tell what it counted."""
        return finish_replay(self.begin(*names, **fields))

    def _wait(self, work: WaitingWork) -> None:
        self.waited.append(work)
        self.keyspace.client.delete(self.keyspace.keys.waiting)


def finish_replay(run: ReplayRun) -> dict[str, int]:
    """Run a replay to its end, and return what was counted."""
    while run.step():
        pass
    return counts(run.state)


def counts(state: State) -> dict[str, int]:
    """Return the counts of a replay that are not 0."""
    return {name: amount for name, amount in state.counts._asdict().items() if amount}


def take(keyspace: Keyspace, *rules: Rule, **settings: Any) -> IngestHarness:
    """Run ingest on the whole stream."""
    chosen = IngestHarness(keyspace, rules=rules or (NOTHING,), **settings)
    chosen.process()
    return chosen


def in_batches(keyspace: Keyspace) -> list[tuple[str, Evaluation]]:
    """List what is in batches, by trace."""
    return sorted(
        (
            (item.trace.trace_id, evaluation)
            for batch in keyspace.batches().values()
            for item in batch.items
            for evaluation in item.evaluations
        ),
        key=lambda pair: (pair[0], pair[1].id),
    )


def finish(keyspace: Keyspace, evaluation_id: str) -> None:
    """Write a verdict."""
    finished = FinalVerdict(evaluation_id, field_of(evaluation_id), keyspace.today(), b"{}", "abstained", "")
    Ledger(keyspace.store, settings_of(keyspace)).record([finished])


def add_dead_letter(keyspace: Keyspace, evaluation_id: str) -> None:
    """Leave a dead letter as the script does."""
    keyspace.client.hset(keyspace.keys.dead, evaluation_id, json.dumps({"reason": "timeout"}))
    keyspace.client.hincrby(keyspace.keys.account_all, "dead", 1)
