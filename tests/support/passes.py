"""Work besides judging: replays, dead letters, erasures and the monitor, step by step in this process."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from judges.core.verdict import Verdict
from judges.registry import load_judges
from support.judging import HOUR_S, Workers, choose, failing
from support.stages import HOUR, IngestHarness, Keyspace, make_trace, make_verdict, rules_of, settings_of
from worker.base.accounting import Account, read_account
from worker.base.dead_letters.retry import Retried, group_letters, retry
from worker.base.dead_letters.store import DeadLetterStore, Retry
from worker.base.forget.forget import ErasureCounts, ForgetTarget, Forgetting
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.base.monitor.gauges import MonitorParts
from worker.base.monitor.sums import QualitySums
from worker.base.replay.replay import Chooser, Cursor, ReplayOptions, ReplayRun, State, WaitingWork, first_state
from worker.core.config.serving import UserKeys
from worker.core.config.settings import Rule, Settings
from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import DeadLetter, FinalVerdict, Ledger, OutboxEntry, field_of, read_outbox_entry
from worker.core.telemetry.metrics import Metrics

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
    pairs = ((trace.trace_id, evaluation) for trace, evaluation in keyspace.chosen())
    return sorted(pairs, key=lambda pair: (pair[0], pair[1].id))


def finish(keyspace: Keyspace, evaluation_id: str) -> None:
    """Write a verdict."""
    finished = FinalVerdict(evaluation_id, field_of(evaluation_id), keyspace.today(), b"{}", "abstained", "")
    Ledger(keyspace.store, settings_of(keyspace)).record([finished])


def leave_dead_letter(keyspace: Keyspace, evaluation_id: str) -> None:
    """Leave a dead letter as the script does."""
    keyspace.client.hset(keyspace.keys.dead, evaluation_id, json.dumps({"reason": "timeout"}))
    keyspace.client.hincrby(keyspace.keys.account_all, "dead", 1)


# --- dead letters ---
OLD_S = 7 * HOUR_S


def make_letter(
    number: int, *, name: str = "", reason: str = "timeout", chosen_at: float = 1.7e9, **fields: Any
) -> tuple[DeadLetter, Verdict]:
    """Make a dead letter of a trace of its own, and the verdict that tells of it.

    Fields of the verdict may be given, and those of the trace as ``trace``.
    """
    trace, model = make_trace(number, **fields.pop("trace", {})), fields.setdefault("judge_model", "lexical")
    verdict = make_verdict(number, outcome="unscored", reason=reason, **fields)
    evaluation = Evaluation(name or verdict.evaluation_id, HOUR, verdict.judge, verdict.judge_version, 0.5)
    item = Item(trace, (evaluation,))
    return DeadLetter(1, evaluation, "default", model, reason, number, chosen_at, chosen_at + 5, item=item), verdict


def add_dead_letter(keyspace: Keyspace, number: int, due_ms: float | None = None, **fields: Any) -> str:
    """Leave a dead letter of a chosen evaluation, given up at some time; return its id."""
    letter, verdict = make_letter(number, **fields)
    keyspace.client.hincrby(keyspace.keys.account_all, "chosen", 1)
    assert Ledger(keyspace.store, settings_of(keyspace)).add_dead_letter([(letter, verdict)]) == [True]
    if due_ms is not None:
        keyspace.client.zadd(keyspace.keys.dead_due, {letter.evaluation.id: due_ms})
    return letter.evaluation.id


def give_up(
    keyspace: Keyspace, new_worker: Workers, count: int, *, first: int = 0, error: Exception | None = None
) -> list[str]:
    """Run a worker that gives up evaluations of this many traces; return their ids, the oldest first."""
    before = set(dead(keyspace))
    worker = new_worker(failing(*range(first, first + count), error=error))
    worker.run(*choose(keyspace, count, age_s=OLD_S, first=first))
    worker.judging.stop(0.1)
    return [evaluation_id for evaluation_id in dead(keyspace) if evaluation_id not in before]


def dead(keyspace: Keyspace) -> list[str]:
    """List what is dead, the oldest first; each trace of theirs is there once, and all bytes are counted."""
    ids = [raw.decode() for raw in keyspace.client.zrange(keyspace.keys.dead_due, 0, -1)]
    letters, traces = keyspace.client.hgetall(keyspace.keys.dead), keyspace.client.hgetall(keyspace.keys.dead_traces)
    assert {raw.decode() for raw in letters} == set(ids)
    refs = Counter(json.loads(letter)["trace"].encode() for letter in letters.values())
    assert traces.keys() == refs.keys()
    counted = {name: int(amount) for name, amount in keyspace.client.hgetall(keyspace.keys.dead_refs).items()}
    size = sum(map(len, (*letters.values(), *traces.values())))
    assert counted == (refs | {b"bytes": size} if ids else {})
    return ids


def dead_bytes(keyspace: Keyspace) -> int:
    return int(keyspace.client.hget(keyspace.keys.dead_refs, "bytes") or 0)


def marks(keyspace: Keyspace) -> dict[str, Retry]:
    fields = keyspace.client.hgetall(keyspace.keys.dead_retries)
    return {name.decode(): Retry.read(mark) for name, mark in fields.items()}


def scheduled(keyspace: Keyspace, judge_model: str = "scripted") -> dict[str, float]:
    """Seconds until each letter may be taken up by itself."""
    seconds, microseconds = keyspace.client.time()
    members = keyspace.client.zrange(keyspace.keys.dead_again(judge_model), 0, -1, withscores=True)
    return {name.decode(): due_ms / 1000 - seconds - microseconds / 1e6 for name, due_ms in members}


def make_retryable(keyspace: Keyspace, judge_model: str = "scripted") -> None:
    """Make all scheduled letters due."""
    key = keyspace.keys.dead_again(judge_model)
    if names := keyspace.client.zrange(key, 0, -1):
        keyspace.client.zadd(key, dict.fromkeys(names, 1))


def retry_all(keyspace: Keyspace, settings: Settings | None = None, ids: Sequence[str] = ()) -> list[Retried]:
    settings = settings or settings_of(keyspace)
    letters = DeadLetterStore(keyspace.store)
    identifiers = [stored.letter.evaluation.id for stored in letters.find(VerdictFilter(ids=ids))]
    return [
        retry(keyspace.store, settings, group)
        for group in group_letters(letters.read(identifiers), settings.batch_size)
    ]


def read_balanced_account(keyspace: Keyspace) -> Account:
    account = read_account(keyspace.store)
    assert account.lost == 0
    assert account.dead == len(dead(keyspace))
    of_reasons = sum(amount for reason, amount in account.reasons.items() if reason.startswith("dead:"))
    assert of_reasons == account.dead
    return account


# --- erasures ---
SECRET = "the parcel holds a kite"  # noqa: S105 - a text
PERSON = "u-1729"


def forget(
    keyspace: Keyspace,
    number: int | None = None,
    *,
    trace_id: str | None = None,
    user_id: str | None = None,
    session_id: str | None = None,
    settings: Settings | None = None,
    **options: Any,
) -> ErasureCounts:
    settings = settings or settings_of(keyspace)
    user_keys = UserKeys(settings, keyspace.store).all()
    trace_id = trace_id if number is None else make_trace(number).trace_id
    subject = ForgetTarget(trace_id=trace_id, user_id=user_id, session_id=session_id, user_keys=user_keys)
    return Forgetting(keyspace.store, settings, subject, **options).run()


def assert_nowhere(keyspace: Keyspace, *texts: str) -> None:
    everything = repr(keyspace.everything())
    assert not [text for text in texts if text in everything]


# --- the monitor ---
def monitor_parts(keyspace: Keyspace, settings: Settings, metrics: Metrics | None = None) -> MonitorParts:
    return MonitorParts(settings, keyspace.store, metrics or Metrics(settings), rules_of(settings))


def quality_sums(keyspace: Keyspace, settings: Settings) -> QualitySums:
    sums = QualitySums(settings, keyspace.store, Metrics(settings), rules_of(settings))
    sums.prepare()
    return sums


def read_outbox(keyspace: Keyspace, count: int = 10_000) -> list[OutboxEntry]:
    """Read what no monitor has read."""
    entries = keyspace.store.read_group(keyspace.keys.verdicts, "monitor", "reader", count=count, block_ms=1)
    return [entry for entry in map(read_outbox_entry, entries) if entry is not None]


def count_outbox(keyspace: Keyspace, settings: Settings) -> None:
    """Count what no monitor has read; what is delivered twice counts once."""
    sums = quality_sums(keyspace, settings)
    entries = read_outbox(keyspace)
    for _ in range(2 if entries else 0):
        sums.deliver(entries)
