"""What the tests of dead letters share: evaluations that a worker gave up, and eyes on what becomes of them."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from judges.core.verdict import Verdict
from support.judging_parts import HOUR_S, Workers, choose, failing
from support.stage_parts import HOUR, Keyspace, make_trace, make_verdict, settings_of
from worker.base.accounting import Account, read_account
from worker.base.dead_letters.retry import Retried, group_letters, retry
from worker.base.dead_letters.store import DeadLetterStore, Retry
from worker.base.lookup.verdict_filter import VerdictFilter
from worker.core.config.settings import Settings
from worker.core.queue.batch import Evaluation, Item
from worker.core.queue.ledger import DeadLetter, Ledger

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
